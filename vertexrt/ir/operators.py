"""Python's operators on traced values and parameters: each emits one node, or says what to write.

A comparison emits 1.0 or 0.0 per element, so `==` is not identity here: compare objects by `is`.
Hashes are those of identity.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from vertexrt.errors import TraceError, message

if TYPE_CHECKING:
    from vertexrt.ir.builder import Builder, Operand, Value

# What NumPy calls when one of its numbers stands to the left of a traced value.
UFUNC_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "matmul": operator.matmul,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def _refuse(where: str, got: str, expected: str, action: str) -> NoReturn:
    from vertexrt.ir.builder import user_line  # which imports this module

    raise TraceError(message(where, f"{got} at {user_line()}", expected, action))


def _refused(symbol: str, action: str) -> Callable[..., NoReturn]:
    """Make the method of an operator that F does not have."""

    def refuse(self: Operators, *others: object) -> NoReturn:
        _refuse(symbol, f"{symbol} of a traced value", "an operation of vertexrt", action)

    return refuse


class Operators:
    """What a traced value and a parameter have in common."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _builder(self) -> Builder:
        """Return the program under construction."""
        raise NotImplementedError

    def __add__(self, other: Operand) -> Value:
        return self._builder().emit("add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self._builder().emit("add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self._builder().emit("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self._builder().emit("sub", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self._builder().emit("mul", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self._builder().emit("mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self._builder().emit("div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._builder().emit("div", other, self)

    def __neg__(self) -> Value:
        return self._builder().emit("neg", self)

    def __pow__(self, exponent: Operand) -> Value:
        if isinstance(exponent, (int, float)) and exponent == 2:
            return self._builder().emit("mul", self, self)
        _refuse("pow", f"exponent is {exponent!r}", "2", "write vrt.exp(k * vrt.log(x))")

    # Comparisons: 1.0 where they hold, else 0.0; their derivative is zero.

    def __eq__(self, other: Operand) -> Value:  # type: ignore[override]
        return self._builder().compare("equal", self, other)

    def __ne__(self, other: Operand) -> Value:  # type: ignore[override]
        return self._builder().compare("not_equal", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self._builder().compare("greater", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self._builder().compare("greater_equal", self, other)

    def __lt__(self, other: Operand) -> Value:
        return self._builder().compare("greater", other, self)

    def __le__(self, other: Operand) -> Value:
        return self._builder().compare("greater_equal", other, self)

    # What would otherwise be Python's TypeError, or a wrong meaning.

    def __matmul__(self, other: Operand) -> Value:
        _refuse(
            "matmul",
            f"a left operand that is a traced value ({self!r})",
            "a vrt.Parameter of shape [M, N] times a vector of shape [N]",
            "write parameter @ x; vrt.sum(x * y) is the dot product of two vectors",
        )

    def __rmatmul__(self, other: Operand) -> Value:
        _refuse(
            "matmul",
            f"a left operand of type {type(other).__name__}",
            "a vrt.Parameter of shape [M, N] times a vector of shape [N]",
            "make the matrix a vrt.Parameter",
        )

    def __bool__(self) -> bool:
        _refuse(
            "trace",
            "the truth of a traced value was asked for",
            "F is declared once, for all vertices, so it cannot branch on values",
            "use vrt.where, or multiply by a comparison; objects are compared by `is`",
        )

    def __iter__(self) -> NoReturn:
        _refuse(
            "trace",
            "a traced value is iterated over",
            "an operation on the whole value",
            "write x[k] for an element, vrt.split for parts, vrt.sum or vrt.max to reduce",
        )

    __abs__ = _refused("abs", "write vrt.maximum(x, -x)")
    __rpow__ = _refused("pow", "write vrt.exp(x * math.log(base))")
    __floordiv__ = __rfloordiv__ = _refused("//", "do it before the batch is made")
    __mod__ = __rmod__ = _refused("%", "do it before the batch is made")
    __and__ = __rand__ = _refused("&", "multiply the masks: (x > 0) * (y > 0)")
    __or__ = __ror__ = _refused("|", "write vrt.maximum(x > 0, y > 0)")
    __invert__ = _refused("~", "write 1.0 - mask")
    __float__ = _refused("float", "F is traced: there is no number yet; use the value itself")
    __int__ = __index__ = _refused("int", "F is traced: there is no number yet")
    __len__ = _refused("len", "write x.shape[0]")
    __setitem__ = _refused("x[k] = y", "values do not change; write vrt.concat or vrt.where")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        _refuse(
            "numpy",
            "a traced value is made an array",
            "a function of vertexrt: F is traced, there are no numbers yet",
            "write vrt.concat, vrt.sum and so on",
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Take the operators of NumPy's numbers, `np.float32(2) * x`; refuse all else."""
        apply = UFUNC_OPERATORS.get(ufunc.__name__)
        if apply is None or method != "__call__" or options:
            _refuse(
                "numpy",
                f"np.{ufunc.__name__} of a traced value",
                "a function of vertexrt",
                "write vrt.exp, vrt.tanh, vrt.maximum and so on",
            )
        plain = [x if isinstance(x, Operators) else self._builder().number(x) for x in inputs]
        return apply(*plain)
