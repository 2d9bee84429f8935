"""Up to which size of gradients an update is known to be finite, before it runs.

Numbers that are not finite never reach a parameter or an optimizer's state: a step is refused when
its loss, or anything that its update would write, is not finite. Where the gradients of a piece are
within the limit that is found here, a rule cannot overflow whatever the parameters are; else it is
tried on a copy of the piece (`kernels.cpu.update.is_finite`). So nearly always the price is one
look at the gradients, and the answer is always exact.

The expressions of a rule are evaluated on bounds: |x| is at most share * LARGEST + size, and x is
at least `least`. Values are any finite numbers (share 1), and so is the state at first. Let L be
the limit of |gradient| and, where there is decay, of |value|; with decay at most 1, g is at most
2 L.

- Adding less than half of the last place of the largest number (`half_place`) to a finite number
  leaves it finite. So a number is finite if its share is at most 1 and its size less than that.
- Where this does not do (Adam divides its first moment by eps), a slot that may be negative is held
  to a *reach*: if |slot| becomes at most share * |slot| + size, with a share below 1, it stays
  within 2 size / (1 - share), roundings included, once it is.
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
from functools import cache, lru_cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from vertexrt.ir.updates import UpdateRule, scalars_of
from vertexrt.kernels.render import Dialect, render_names

SLACK = 4.0  # for roundings
FORGETS = 2.0**-20  # what a moving average takes away must be more than roundings
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
    """What is known of a number: |x| <= share * largest + size and x >= least; else `UNKNOWN`.

    Attributes:
        most: the size up to which a number is finite whose share is 1.
    """

    __slots__ = ("least", "most", "share", "size")

    def __init__(self, most: float, share: float, size: float, least: float = -math.inf) -> None:
        self.most, self.share, self.size, self.least = most, share, size, least

    def _made(self, share: float, size: float, least: float = -math.inf) -> Bound:
        """Return what is known of a result, if it is finite."""
        if share <= 1.0 and size <= self.most:
            return Bound(self.most, share, size, least)
        return UNKNOWN

    def __add__(self, other: Bound) -> Bound:
        if self.share and other.share and self.share + other.share > 1.0 - FORGETS:
            return UNKNOWN  # factors that are rounded up may make it more than 1
        least = self.least + other.least
        return self._made(self.share + other.share, self.size + other.size, least)

    def __neg__(self) -> Bound:
        return self._made(self.share, self.size)

    def __sub__(self, other: Bound) -> Bound:
        return self + -other

    def __mul__(self, other: Bound) -> Bound:
        if self.share and other.share:
            return UNKNOWN
        positive = self.least >= 0.0 and other.least >= 0.0
        least = self.least * other.least if positive else -math.inf
        share = self.share * other.size + self.size * other.share
        return self._made(share, self.size * other.size, 0.0 if self is other else least)

    def __truediv__(self, other: Bound) -> Bound:
        if not other.least > 0.0:
            return UNKNOWN
        least = 0.0 if self.least >= 0.0 else -math.inf
        return self._made(self.share / other.least, self.size / other.least, least)


UNKNOWN = Bound(math.inf, math.inf, math.inf)


def _either(x: Bound, y: Bound) -> Bound:
    return x._made(max(x.share, y.share), max(x.size, y.size), min(x.least, y.least))


def _unknown(x: Bound) -> Bound:
    return UNKNOWN


def _one_at_most(x: Bound) -> Bound:
    return UNKNOWN if x is UNKNOWN else Bound(x.most, 0.0, 1.0)


@cache
def _codes(rule: UpdateRule) -> list[tuple[str, CodeType]]:
    """Return what a rule sets, and the code that makes its bound from others by name."""
    names = {"value", "g", *(slot.name for slot in rule.state), *(name for name, _ in rule.lines)}
    own = {name: name for name in (*names, *(f"s{k}" for k in range(len(rule.scalars))))}
    return [
        (name, compile(render_names(expression, own, BOUNDS), f"<{rule.name}>", "eval"))
        for name, expression in rule.lines
    ]


class Bounds:
    """Bounds of what a rule sets, for numbers of a dtype.

    Args:
        scalars: of the rule, for the options at hand: the least and the largest that each may be.
        shrink: the largest factor of values.
    """

    def __init__(
        self, rule: UpdateRule, scalars: list[tuple[float, float]], shrink: float, form: Format
    ) -> None:
        self.rule, self.largest = rule, form.largest
        self.most = form.half_place / SLACK
        self.start: dict[str, Any] = {"g": self._held(2.0 * form.limit)}
        self.start["value"] = Bound(self.most, shrink, 0.0) if shrink <= 1.0 else UNKNOWN
        for k, (least, top) in enumerate(scalars):
            least = 0.0 if 0.0 < least < form.tiny else least  # as a divisor it may be 0
            self.start[f"s{k}"] = self._held(max(-least, top), least)
        self.functions: dict[str, Any] = {
            "exactly": lambda x: self._held(abs(x), x),
            "either": _either,
            "sqrt": self._sqrt,
            "exp": _unknown,
            "log": _unknown,
            "tanh": _one_at_most,
            "sigmoid": _one_at_most,
        }

    def _held(self, size: float, least: float = -math.inf) -> Bound:
        return Bound(self.most, 0.0, size, least)

    def _sqrt(self, x: Bound) -> Bound:
        if not x.least >= 0.0:
            return UNKNOWN
        return self._held(math.sqrt(x.share * self.largest + x.size), math.sqrt(x.least))

    def after(self, reach: Sequence[float]) -> dict[str, Bound]:
        """Return bounds of all that the rule sets.

        Args:
            reach: to what the state is held; inf for any finite number.
        """
        names = dict(self.start)
        for slot, most in zip(self.rule.state, reach, strict=True):
            least = 0.0 if slot.squares else -math.inf
            free = Bound(self.most, 1.0, 0.0, least)
            names[slot.name] = free if most == math.inf else self._held(most, least)
        for name, code in _codes(self.rule):
            names[name] = eval(code, self.functions, names)
        return {name: names[name] for name, _ in self.rule.lines}

    def reach(self) -> tuple[float, ...] | None:
        """Return to what the state is to be held, so that what is set is finite; None for nothing.

        Slots that need not be held have inf.
        """
        state = self.rule.state
        free = (math.inf,) * len(state)
        made = self.after(free)
        if UNKNOWN not in made.values():
            return free
        held = tuple(
            math.inf if slot.squares else self._stays(k, made[slot.name])
            for k, slot in enumerate(state)
        )
        return None if UNKNOWN in self.after(held).values() else held

    def _stays(self, k: int, made: Bound) -> float:
        """Return within what a slot stays that becomes `made`; inf where it may grow."""
        alone = [0.0 if j == k else math.inf for j in range(len(self.rule.state))]
        others = self.after(alone)[self.rule.state[k].name]
        if made.share > 1.0 - FORGETS or others.share > 0.0:
            return math.inf
        return 2.0 * made.size / (1.0 - made.share)


@lru_cache(maxsize=256)
def _reach(
    rule: UpdateRule,
    names: tuple[str, ...],
    numbers: tuple[float, ...],
    rate: int,
    shrink: float,
    itemsize: int,
) -> tuple[float, ...] | None:
    """Return to what the state of a rule is held, see `Bounds.reach`.

    Args:
        names, numbers: options; the learning rate is at most 2**rate.
    """
    chosen = dict(zip(names, numbers, strict=True))
    corners = [
        scalars_of(rule, {**chosen, "lr": lr, "t": t})
        for lr in (0.0, 2.0**rate)
        for t in (1.0, FOREVER)
    ]
    ends = [(min(each), max(each)) for each in zip(*corners, strict=True)]
    return Bounds(rule, ends, shrink, FORMATS[itemsize]).reach()


def largest_gradient(itemsize: int) -> float:
    """Return the limit of gradients of a dtype."""
    return FORMATS[itemsize].limit


def reach_of(
    rule: UpdateRule, options: Mapping[str, float], decay: float, shrink: float, itemsize: int
) -> tuple[float, ...] | None:
    """Return to what the state must be held for gradients within the limit to need no trial.

    Args:
        options, decay, shrink: of `Update`.
        itemsize: bytes of a number.
    Returns: a bound for each slot, inf where it need not be held; None, where gradients of any size
        need a trial.
    """
    if decay > 1.0:
        return None
    names, numbers = tuple(options), tuple(options.values())
    rate = min(math.frexp(numbers[0])[1], 1023)  # one entry for all rates of a schedule
    return _reach(
        rule, names[2:], numbers[2:], rate, 1.0 if shrink == 1.0 else abs(shrink), itemsize
    )
