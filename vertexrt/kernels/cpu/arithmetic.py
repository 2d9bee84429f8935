"""Arithmetic of reals in LLVM: scalar expressions of the op table, and functions in them.

Functions of float32 have no branches and no calls, so that loops of them run in vectors. Constants
and range reduction of `exp` are those of Cephes (Moshier). `exp` is within 1 unit in the last
place, `sigmoid` and `tanh` within 3. Functions of float64 are the C library's.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.ir.expressions import translate
from vertexrt.native.code import Code, Register

LOG2_E = 1.44269504
ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds to the nearest integer, in the lowest bits
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
EXP = (  # of r near 0: (e**r - 1 - r) / r**2
    "((((1.9875691500e-4 * r + 1.3981999507e-3) * r + 8.3334519073e-3) * r + 4.1665795894e-2) * r"
    " + 1.6666665459e-1) * r + 5.0000001201e-1"
)
CUT_AND_REDUCED = (  # what becomes of x: e**x is (y + 1) 2**n
    ("x", "low if low > x else x"),
    ("x", "high if x > high else x"),
    ("near", f"x * {LOG2_E} + {ROUND}"),
    ("n", f"near - {ROUND}"),
    ("r", f"(x - n * {LN2_HIGH}) - n * rest"),
    ("y", f"({EXP}) * (r * r) + r"),
)
SATURATED = 20.0  # e**x - 1 and e**x + 1 are the same float32 from here on
FUSED = "contract "  # lets a product and a sum be one instruction, rounded once: in functions
SUM = "reassoc nsz contract "  # lets a sum run in vector lanes; the order stays fixed


class Arithmetic:
    """Appends instructions to a function under construction: a target of `translate`.

    Args:
        flags: of all arithmetic: what may be done besides what it says.
    """

    def __init__(self, code: Code, flags: str = "") -> None:
        self.code, self.flags = code, flags
        self.real = code.real
        self.kind = "f32" if code.real == "float" else "f64"

    def constant(self, value: float) -> Register:
        """Return a real number."""
        return self.code.const(value)

    def binary(self, operator: str, left: Register, right: Register, flags: str = "") -> Register:
        """Return the result of +, -, * or /."""
        left, right = self.as_real(left), self.as_real(right)
        return self.code.apply(operator, left, right, flags or self.flags)

    def negative(self, value: Register) -> Register:
        """Return -value."""
        return self.code.op(self.real, f"fneg {self.as_real(value)}")

    def compare(self, operator: str, left: Register, right: Register) -> Register:
        """Return the truth of >=, >, == or !=; integers are compared as such."""
        if not left.type == right.type == "i64":
            left, right = self.as_real(left), self.as_real(right)
        return self.code.apply(operator, left, right)

    def choose(self, test: Register, yes: Register, no: Register) -> Register:
        """Return one of two values."""
        return self.code.select(test, self.as_real(yes), self.as_real(no))

    def call(self, name: str, arguments: Sequence[Register]) -> Register:
        """Return a function of the op table of a value."""
        (x,) = map(self.as_real, arguments)
        if name in ("log", "sqrt", "floor", "sin", "cos"):
            return self.code.call(self.real, f"llvm.{name}.{self.kind}", [x])
        if name == "erf":
            return self.code.call(self.real, "erff" if self.kind == "f32" else "erf", [x])
        found: Register = getattr(Arithmetic(self.code, FUSED), name)(x)
        return found

    def as_real(self, value: Register) -> Register:
        """Return a value as a real number."""
        return self.code.convert(value, self.real)

    def add(self, a: Register, b: Register) -> Register:
        """Return a term added to a sum that may run in vector lanes."""
        return self.binary("+", a, b, SUM)

    def larger(self, a: Register, b: Register) -> Register:
        """Return the larger of two numbers, in vector lanes as well; nan, if one is."""
        return self.code.call(self.real, f"llvm.maximum.{self.kind}", [a, b], "nsz ")

    def exp(self, x: Register) -> Register:
        """Return e**x.

        It is (y + 1) 2**n, and 2**n is two factors: it has no float32 of its own where e**x is
        almost infinite, or loses digits near 0. From -176 on both are 0: nothing is rounded there.
        """
        if self.kind == "f64":
            return self.code.call(self.real, "llvm.exp.f64", [x])
        y, n = self._powers(x, -176.0, 89.0)
        half = n >> 1
        y = self.binary("*", self.binary("+", y, self.constant(1.0)), self._power(half))
        return self.binary("*", y, self._power(n - half))

    def _powers(self, x: Register, low: float, high: float) -> tuple[Register, Register]:
        """Return y, near 0, and n, in the lowest bits, of e**x = (y + 1) 2**n.

        Args:
            low, high: of x, to which it is cut.
        """
        constants = {"low": low, "high": high, "rest": LN2_LOW}
        names = {name: self.constant(value) for name, value in constants.items()} | {"x": x}
        for name, expression in CUT_AND_REDUCED:
            names[name] = translate(expression, names, self)
        return names["y"], self.code.op("i32", f"bitcast {names['near']} to i32")

    def _power(self, n: Register) -> Register:
        """Return 2**n of a whole number in the lowest bits; 0 for -127."""
        bits = (n << 23) + (127 << 23)
        return self.code.op("float", f"bitcast {bits} to float")

    def sigmoid(self, x: Register) -> Register:
        """Return 1 / (1 + e**-x)."""
        if self.kind == "f32":
            e = self.exp(self.negative(x))
            return translate("1.0 / (1.0 + e)", {"e": e}, self)
        size = self.code.call(self.real, "llvm.fabs.f64", [x])  # without overflow
        e = self.exp(self.negative(size))
        return translate("(1.0 if x >= 0.0 else e) / (1.0 + e)", {"x": x, "e": e}, self)

    def tanh(self, x: Register) -> Register:
        """Return tanh x = (e**2x - 1) / (e**2x + 1).

        e**2x is (y + 1) 2**n. Where it is near 1, n is 0 and y has all its digits: nothing cancels.
        """
        if self.kind == "f64":
            return self.code.call(self.real, "tanh", [x])
        y, n = self._powers(self.binary("+", x, x), -SATURATED, SATURATED)
        formula = "(y * p + (p - 1.0)) / (y * p + (p + 1.0))"
        return translate(formula, {"y": y, "p": self._power(n)}, self)


def draw(code: Code, seed: Register, key: int, counter: Register, element: Register) -> Register:
    """Hash (seed, key, counter, element) to 32 bits: a counter-based generator, no state.

    The finaliser is that of MurmurHash3; two rounds, so that neighbouring counters decorrelate.
    """

    def mixed(h: Register, shift: int, factor: int) -> Register:
        return (h ^ (h >> shift)) * factor

    counter, element = (code.convert(x, "u32") for x in (counter, element))
    h = mixed(seed ^ (counter * 0x9E3779B1), 16, 0x85EBCA6B)
    step = element * 0x27D4EB2F + (key * 0xC2B2AE35 & 0xFFFFFFFF)
    h = mixed(mixed(h + step, 16, 0x85EBCA6B), 13, 0xC2B2AE35)
    return h ^ (h >> 16)
