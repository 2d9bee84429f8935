"""Up to which size of gradients an update is known to be finite, before it runs.

Numbers that are not finite never reach a parameter or an optimizer's state: a step is refused when
its loss, or anything that its update would write, is not finite. Where the gradients of a piece are
within the limit that is found here, a rule cannot overflow whatever the parameters are; else it is
tried on a copy of the piece (`kernels.cpu.update.is_finite`). So nearly always the price is one
look at the gradients, and the answer is always exact.

The expressions of a rule are evaluated on bounds: |x| is at most `size`, and x is at least `least`.
Values are any finite numbers, and so is the state at first. Let L be the limit of |gradient| and,
where there is decay, of |value|; with decay at most 1, g is at most 2 L.

- Adding less than half of the last place of the largest number (`half_place`) to a finite number
  leaves it finite. Other sums stay below the largest number by more than roundings are.
- Where this does not do (Adam divides its first moment by eps), a slot that may be negative is held
  to a *reach*: a size within which it stays, roundings included, once it is. With all else as it
  may be, a slot of size x becomes one of at most b + a x: it stays within b / (1 - a), a little
  more for roundings, where a is below 1.
- Scalars are taken at the first step and at infinity, for the rate at hand and for 0: rates and
  bias corrections go one way.

Adadelta (Zeiler 2012) has no bound of this kind. It keeps s = rho s + (1 - rho) g^2 and, of
d = g sqrt((u + eps) / (s + eps)), u = rho u + (1 - rho) d^2. Where s was 0, d^2 is nearly
(u + eps) / (1 - rho) for any large g, so that u becomes (1 + rho) u + eps: from whatever reach u is
held to, one step can leave it, and from LARGEST it overflows. In a run u stays small: with
a = u + eps and b = s + eps, the new a is at most a (b'/b)^rho + (1 - rho) eps. But that bounds both
slots together, and grows with the number of steps; a reach of each slot cannot say it. So each step
of such a row is tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from vertexrt.ir.expressions import Dialect, code_of, evaluate_all
from vertexrt.ir.updates import UpdateRule

SLACK = 4.0  # for roundings
FORGETS = 2.0**-20  # what a moving average takes away must be more than roundings
UP = 1.0 + FORGETS  # what may be rounded up
FOREVER = 2.0**53


class Format(NamedTuple):
    """Of a dtype (bytes of a number): the limit of gradients, half of the last place of the largest
    number, that number, and the smallest that is normal.
    """

    limit: float
    half_place: float
    largest: float
    tiny: float


FORMATS = {
    4: Format(2.0**48, 2.0**103, float(np.finfo(np.float32).max), 2.0**-126),
    8: Format(2.0**400, 2.0**970, float(np.finfo(np.float64).max), 2.0**-1022),
}
BOUNDS = Dialect(
    "exactly({value})",
    "either({yes}, {no})",
    {name: name for name in ("sqrt", "tanh", "sigmoid", "exp", "log")},
)


class Bound:
    """What is known of a number: |x| <= size and x >= least; of an infinite size nothing."""

    __slots__ = ("form", "least", "size")

    def __init__(self, form: Format, size: float = math.inf, least: float = -math.inf) -> None:
        known = size <= form.largest
        self.form = form
        self.size, self.least = (size, least) if known else (math.inf, -math.inf)

    def __add__(self, other: Bound) -> Bound:
        form, size = self.form, self.size + other.size
        if size > form.largest * (1.0 - FORGETS):
            smaller = min(self.size, other.size)
            size = form.largest if smaller <= form.half_place / SLACK else math.inf
            size = max(size, self.size, other.size)
        return Bound(form, size, self.least + other.least)

    def __neg__(self) -> Bound:
        return Bound(self.form, self.size)

    def __sub__(self, other: Bound) -> Bound:
        return self + -other

    def __mul__(self, other: Bound) -> Bound:
        least = -math.inf
        if self is other:
            least = 0.0
        elif self.least >= 0.0 and other.least >= 0.0:
            least = self.least * other.least
        size = self.size * other.size
        return Bound(self.form, size if min(self.size, other.size) <= 1.0 else size * UP, least)

    def __truediv__(self, other: Bound) -> Bound:
        if not other.least > 0.0:
            return Bound(self.form)
        least, size = 0.0 if self.least >= 0.0 else -math.inf, self.size / other.least
        return Bound(self.form, size if other.least >= 1.0 else size * UP, least)


@lru_cache(maxsize=256)
def _reach(
    rule: UpdateRule,
    names: tuple[str, ...],
    numbers: tuple[float, ...],
    rate: int,
    shrinks: bool,
    itemsize: int,
) -> tuple[float, ...] | None:
    """Return to what the state of a rule is held, see `reach_of`.

    Args:
        names, numbers: options; the learning rate is at most 2**rate.
    """
    form, chosen = FORMATS[itemsize], dict(zip(names, numbers, strict=True))
    given = {"g": Bound(form, 2.0 * form.limit)}
    given["value"] = Bound(form, form.largest if shrinks else math.inf)
    corners = [
        evaluate_all(rule.scalars, {**chosen, "lr": lr, "t": t})
        for lr in (0.0, 2.0**rate)
        for t in (1.0, FOREVER)
    ]
    for k, each in enumerate(zip(*corners, strict=True)):
        least = 0.0 if 0.0 < min(each) < form.tiny else min(each)  # as a divisor it may be 0
        given[f"s{k}"] = Bound(form, max(-least, *each), least)
    functions = {
        "exactly": lambda x: Bound(form, abs(x), x),
        "either": lambda x, y: Bound(form, max(x.size, y.size), min(x.least, y.least)),
        "sqrt": lambda x: (
            Bound(form, math.sqrt(x.size), math.sqrt(x.least)) if x.least >= 0.0 else Bound(form)
        ),
        **dict.fromkeys(("exp", "log"), lambda x: Bound(form)),
        **dict.fromkeys(
            ("tanh", "sigmoid"), lambda x: Bound(form, 1.0 if x.size < math.inf else math.inf)
        ),
    }

    def after(reach: Sequence[float]) -> dict[str, float]:
        """Return the size of all that the rule sets, for a state within its reach."""
        found = dict(given)
        for slot, most in zip(rule.state, reach, strict=True):
            size = min(most, form.largest)
            found[slot.name] = Bound(form, size, 0.0 if slot.squares else -math.inf)
        for name, expression in rule.lines:
            found[name] = eval(code_of(expression, tuple(found), BOUNDS), functions, found)
        return {name: found[name].size for name, _ in rule.lines}

    def stays(k: int) -> float:
        """Return within what a slot stays, once it is; inf where it may grow."""
        reach = [math.inf] * len(rule.state)

        def made(most: float) -> float:
            reach[k] = most
            return after(reach)[rule.state[k].name]

        # Linear in the slot: `first` of a slot of 0, and `slope` more for each of its size.
        first = made(0.0)
        slope = made(first) / first - 1.0
        if not slope < 1.0 - FORGETS:
            return math.inf
        most = UP * first / (1.0 - slope - FORGETS / 2.0)
        return most if made(most) <= most * (1.0 - FORGETS / 2.0) else math.inf

    free = (math.inf,) * len(rule.state)
    if math.inf not in after(free).values():
        return free
    held = tuple(math.inf if slot.squares else stays(k) for k, slot in enumerate(rule.state))
    return None if math.inf in after(held).values() else held


def reach_of(
    rule: UpdateRule, options: Mapping[str, float], decay: float, shrink: float, itemsize: int
) -> tuple[float, ...] | None:
    """Return to what the state must be held for gradients within the limit to need no trial.

    Args:
        options, decay, shrink: of `Update` and its groups.
        itemsize: bytes of a number.
    Returns: a bound for each slot, inf where it need not be held; None, where gradients of any size
        need a trial.
    """
    if decay > 1.0:
        return None
    names, numbers = tuple(options), tuple(options.values())
    rate = min(math.frexp(numbers[0])[1], 1023)  # one entry for all rates of a schedule
    return _reach(rule, names[2:], numbers[2:], rate, abs(shrink) <= 1.0, itemsize)
