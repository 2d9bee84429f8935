"""What a call of a network gives back: a GPU may still compute it, and reading it waits."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DeviceError, MissingKeyError, UsageError, nearest
from vertexrt.instead import instead


class Outputs(Mapping[str, Any]):
    """Pushes by name, in the user's vertex order; read-only. Made by `net(batch)`.

    On a GPU arrays of the host are waited for when they are first read; elsewhere they are there.
    A copy (`copy`, `deepcopy`, `pickle`) is a dict.

    Raises: DeviceError, at the reading, when the call did not run to its end: it names the call.
    """

    __slots__ = ("_arrays", "_failure", "_lock", "_wait")

    def __init__(
        self,
        arrays: Mapping[str, Any] | None,
        wait: Callable[[], Mapping[str, Any]] = dict,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._arrays, self._wait, self._lock = arrays, wait, lock
        self._failure: DeviceError | None = None

    def settle(self) -> None:
        """Wait for the arrays and keep them, or why there are none."""
        with self._lock or nullcontext():
            if self._arrays is None and self._failure is None:
                try:
                    self._arrays = self._wait()
                except DeviceError as error:
                    self._failure = error
                self._wait = dict  # what it held may go

    def _read(self) -> Mapping[str, Any]:
        if self._arrays is None:
            self.settle()
        if self._arrays is None:
            assert self._failure is not None
            raise self._failure
        return self._arrays

    if not TYPE_CHECKING:  # type checkers know what there is
        __getattr__ = instead("outputs")

    def __getitem__(self, name: str) -> Any:
        arrays = self._read()
        try:
            return arrays[name]
        except KeyError:
            got, known = f"no {name!r} among the outputs", list(arrays)
            action = f"name one, out['h'].{nearest(name, known)}"
            raise MissingKeyError.at("outputs", got, ", ".join(known), action) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be one array: NumPy's would be the names."""
        names = ", ".join(self)
        raise UsageError.at("outputs", f"{names} as one array", "one of them", "name it: out['h']")

    def __repr__(self) -> str:
        if self._failure is not None:
            return "Outputs(failed)"
        if self._arrays is None:
            return "Outputs(not waited for)"
        return f"Outputs({', '.join(f'{n} {list(a.shape)}' for n, a in self._arrays.items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


NOTHING = Outputs({})


def _on_numbers(operation: Callable[[Any, Any], Any]) -> Callable[[Loss, object], Any]:
    def of_loss(self: Loss, other: object) -> Any:
        return operation(float(self), float(other) if isinstance(other, Loss) else other)

    return of_loss


class Loss:
    """The loss of a training step, a number. Made by `net.step(batch, optimizer)`.

    On a GPU the step may be under way: `float(loss)` waits for it, and so do printing, formatting,
    comparing, and sums, products and the like.

    Attributes:
        outputs: the pushes that the step was asked for, by name.
    Raises: NumericError, DeviceError, ParallelError, at the reading, when the step was refused.
    """

    __slots__ = ("_value", "_wait", "outputs")

    def __init__(
        self,
        value: float | None,
        outputs: Mapping[str, Any] = NOTHING,
        wait: Callable[[], float] = float,
    ) -> None:
        self._value, self.outputs, self._wait = value, outputs, wait

    if not TYPE_CHECKING:  # type checkers know what there is
        __getattr__ = instead("loss")

    def __float__(self) -> float:
        if self._value is None:
            self._value = self._wait()
            self._wait = float  # what it held may go
        return float(self._value)

    def __bool__(self) -> bool:
        return bool(float(self))

    def __int__(self) -> int:
        return int(float(self))

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)

    def __repr__(self) -> str:
        return repr(float(self))

    def __format__(self, how: str) -> str:
        return format(float(self), how)

    def __hash__(self) -> int:
        return hash(float(self))

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        return np.array(float(self), dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)

    def __neg__(self) -> float:
        return -float(self)

    def __abs__(self) -> float:
        return abs(float(self))

    __eq__ = _on_numbers(operator.eq)
    __lt__ = _on_numbers(operator.lt)
    __le__ = _on_numbers(operator.le)
    __gt__ = _on_numbers(operator.gt)
    __ge__ = _on_numbers(operator.ge)
    __add__ = __radd__ = _on_numbers(operator.add)
    __mul__ = __rmul__ = _on_numbers(operator.mul)
    __sub__ = _on_numbers(operator.sub)
    __rsub__ = _on_numbers(lambda own, other: other - own)
    __truediv__ = _on_numbers(operator.truediv)
    __rtruediv__ = _on_numbers(lambda own, other: other / own)
    __floordiv__ = _on_numbers(operator.floordiv)
    __mod__ = _on_numbers(operator.mod)
    __pow__ = _on_numbers(operator.pow)


numbers.Real.register(Loss)
