"""Run an optimizer's rule over a parameter store, range by range, where all of it stays finite.

Whether it does is decided here for every optimizer, group and clipping: `limit_of` says up to which
gradients that is known without a trial, a backend tries the rest (`StoreUpdate.limit`), and
`refused_update` says which number would not be finite.

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
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.parameters import FloatArray, ParameterStore, RowArray
from vertexrt.errors import PlanError, message
from vertexrt.ir.expressions import evaluate_all, translate
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.backend import host_backend
from vertexrt.kernels.store_update import (
    FOUND_DONE,
    FOUND_NORM,
    FOUND_TRIED,
    Counts,
    StoreUpdate,
    add_up,
    all_within,
    clamp,
    elements,
    factor,
    moved_at,
)
from vertexrt.native.compiled import compiled

Touched = Mapping[str, RowArray]  # sorted, unique rows of sparse parameters

SMALLER = "lower the learning rate, or clip the gradient norm"
NOTHING = -1.0  # no gradient is within this limit
NO_RANGES: RowArray = np.zeros((0, 2), np.int64)
PIECE = 8192  # elements of a range: what is tried is copied, and should stay in a cache
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


class Bound(NamedTuple):
    """What is known of a number: |x| <= size and x >= least; of an infinite size nothing."""

    size: float = math.inf
    least: float = -math.inf


UNKNOWN = Bound()


class Bounds:
    """Bounds of what expressions make of numbers: a target of translation."""

    def __init__(self, form: Format) -> None:
        self._form = form

    def known(self, size: float, least: float = -math.inf) -> Bound:
        """Return a bound, of which nothing is known above the largest number."""
        return Bound(size, least) if size <= self._form.largest else UNKNOWN

    def constant(self, value: float) -> Bound:
        """Bound a number by itself."""
        return self.known(abs(value), value)

    def negative(self, value: Bound) -> Bound:
        """Bound -value."""
        return self.known(value.size)

    def compare(self, operator: str, left: Bound, right: Bound) -> Bound:
        """Say nothing of a truth."""
        return UNKNOWN

    def choose(self, test: Bound, yes: Bound, no: Bound) -> Bound:
        """Bound either."""
        return self.known(max(yes.size, no.size), min(yes.least, no.least))

    def call(self, name: str, arguments: Sequence[Bound]) -> Bound:
        """Bound a function of a number."""
        (x,) = arguments
        if name == "sqrt" and x.least >= 0.0:
            return self.known(math.sqrt(x.size), math.sqrt(x.least))
        return self.known(1.0) if name in ("tanh", "sigmoid") and x.size < math.inf else UNKNOWN

    def binary(self, operator: str, left: Bound, right: Bound) -> Bound:
        """Bound a sum, a difference, a product or a quotient."""
        form, least = self._form, -math.inf
        if operator == "*":
            if left is right:
                least = 0.0
            elif left.least >= 0.0 and right.least >= 0.0:
                least = left.least * right.least
            size = left.size * right.size
            return self.known(size if min(left.size, right.size) <= 1.0 else size * UP, least)
        if operator == "/":
            if not right.least > 0.0:
                return UNKNOWN
            size = left.size / right.least
            least = 0.0 if left.least >= 0.0 else least
            return self.known(size if right.least >= 1.0 else size * UP, least)
        other = self.negative(right) if operator == "-" else right
        size = left.size + other.size
        if size > form.largest * (1.0 - FORGETS):
            smaller = min(left.size, other.size)
            size = form.largest if smaller <= form.half_place / SLACK else math.inf
            size = max(size, left.size, other.size)
        return self.known(size, left.least + other.least)


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
    bounds = Bounds(form)
    given = {"g": bounds.known(2.0 * form.limit)}
    given["value"] = bounds.known(form.largest if shrinks else math.inf)
    corners = [
        evaluate_all(rule.scalars, {**chosen, "lr": lr, "t": t})
        for lr in (0.0, 2.0**rate)
        for t in (1.0, FOREVER)
    ]
    for k, each in enumerate(zip(*corners, strict=True)):
        least = 0.0 if 0.0 < min(each) < form.tiny else min(each)  # as a divisor it may be 0
        given[f"s{k}"] = bounds.known(max(-least, *each), least)

    def after(reach: Sequence[float]) -> dict[str, float]:
        """Return the size of all that the rule sets, for a state within its reach."""
        found = dict(given)
        for slot, most in zip(rule.state, reach, strict=True):
            size = min(most, form.largest)
            found[slot.name] = bounds.known(size, 0.0 if slot.squares else -math.inf)
        for name, expression in rule.lines:
            found[name] = translate(expression, found, bounds)
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


class UpdateGroup(NamedTuple):
    """Parameters with a learning rate and a weight decay of their own.

    Attributes:
        decay: weight decay, added to gradients; shrink: factor of values.
    """

    names: tuple[str, ...]
    lr: float
    decay: float
    shrink: float


class Update(NamedTuple):
    """What an optimizer asks for.

    Attributes:
        moments: [*, trained_size] of the store's layout, the state in the order of the rule.
        clip_norm: largest norm of the gradients, or None; clip_value: the largest size of one,
            which is seen to first.
        options: lr, t (number of the step), then the row's options, by name.
        whole: of what is in no group of its own.
        reach: a bound of each row of moments: see `reach_of`; inf, where none is known.
        optimizer: what a user calls the rule.
        groups: of parameters that are not updated alike; those that are in none are left alone.
            Where there are no groups, all parameters are one.
        counts: of `StoreUpdate`.
    """

    rule: UpdateRule
    moments: FloatArray
    clip_norm: float | None
    options: dict[str, float]
    whole: UpdateGroup
    reach: tuple[float, ...]
    counts: Counts
    optimizer: str = ""
    clip_value: float | None = None
    groups: tuple[UpdateGroup, ...] = ()

    def scalars_of(self, group: UpdateGroup) -> tuple[float, ...]:
        """Return the scalars of `StoreUpdate` for a group."""
        own = {**self.options, "lr": group.lr}
        return (group.decay, group.shrink, *evaluate_all(self.rule.scalars, own))

    @property
    def rule_in_step(self) -> UpdateRule | None:
        """The rule of a step that a kernel may end with; None, where the end is more than that."""
        return None if self.groups or self.clip_value is not None else self.rule


class Outcome(NamedTuple):
    """How an update ended.

    Attributes:
        done: it was done; else something was not finite, and nothing has changed.
        norm: of the gradients, if they were to be clipped, else 0.
        reach: of `Update`, afterwards; empty, where nothing is known.
    """

    done: bool
    norm: float = 0.0
    reach: tuple[float, ...] = ()


def limit_of(update: Update, dtype: np.dtype[Any]) -> tuple[float, tuple[float, ...]]:
    """Return up to which size of gradients an update needs no trial, and its reach after that.

    Args:
        dtype: of the store.
    Returns: `NOTHING`, where that is not known for any gradient; the reach holds if no range was
        tried.
    """
    unknown = (math.inf,) * len(update.moments)
    options, most = update.options, update.whole
    if update.groups:
        _, rates, decays, factors = zip(*update.groups, strict=True)
        most = UpdateGroup((), max(rates), max(decays), max(factors, key=abs))
        options = {**options, "lr": most.lr}
    held = reach_of(update.rule, options, most.decay, most.shrink, dtype.itemsize)
    if held is None:
        return NOTHING, unknown
    for now, size, row in zip(update.reach, held, update.moments, strict=True):
        if now > size and not np.abs(row).max(initial=0.0) <= size:  # loaded, or a range was tried
            return NOTHING, unknown
    return FORMATS[dtype.itemsize].limit, held


def updated_ranges(
    store: ParameterStore,
    names: Sequence[str] | None = None,
    touched: Touched | None = None,
    most: int = PIECE,
) -> RowArray:
    """Return the first and the end element of each range that an update changes, [R, 2].

    Args:
        names: of parameters; None for all of the store.
        touched: rows of tables that are changed; those of the store, where they are not given.
        most: elements of a range that is no row of a table.
    Raises: PlanError, when a touched row is not a row of its parameter.
    """
    touched = store.touched if touched is None else touched
    found = [_in_pieces(0, store.dense_size, most)] if names is None else []
    for name in store.sparse if names is None else names:
        start, (count, *rest) = store.offsets[name], store.shapes[name] or (1,)
        width = math.prod(rest)
        if name not in store.sparse:
            found.append(_in_pieces(start, count * width, most))
            continue
        rows = np.asarray(touched.get(name, ()), np.int64)
        if rows.size and (rows[0] < 0 or rows[-1] >= count):  # sorted; loops check no bounds
            raise PlanError.at(
                "update",
                f"rows {rows[0]} to {rows[-1]} of '{name}' are touched",
                f"rows 0 to {count - 1}",
                "check the pulled indices",
            )
        found.append(_ranges_of_rows(rows, start, width))
    return found[0] if len(found) == 1 else np.concatenate(found or [NO_RANGES])


@compiled
def _ranges_of_rows(rows: RowArray, start: int, width: int) -> RowArray:
    """Return the ranges of rows of a table that begins at `start`, [R, 2]."""
    found = np.empty((len(rows), 2), np.int64)
    for k in range(len(rows)):
        found[k, 0] = start + rows[k] * width
        found[k, 1] = found[k, 0] + width
    return found


@lru_cache(1 << 10)
def _in_pieces(start: int, size: int, most: int) -> RowArray:
    """Cut elements of a store into ranges of at most so many, [R, 2]; the same for each step."""
    begins = np.arange(start, start + size, most)
    return np.stack([begins, np.minimum(begins + most, start + size)], axis=1)


def _bind(store: ParameterStore, update: Update, limit: float = NOTHING) -> StoreUpdate:
    """Bind an update to the values and gradients of a store."""
    groups = update.groups or (update.whole,)
    found = [updated_ranges(store, group.names if update.groups else None) for group in groups]
    return StoreUpdate(
        rule=update.rule,
        scalars=np.array([update.scalars_of(group) for group in groups], np.float64),
        parts=np.array([0, *accumulate(map(len, found))]),
        clip_norm=update.clip_norm or 0.0,
        limit=limit,
        values=store.values,
        gradients=store.gradients,
        moments=update.moments,
        ranges=np.concatenate(found) if len(found) > 1 else found[0],
        counts=update.counts,
        found=np.zeros(3),
    )


def collect(store: ParameterStore, touched: Sequence[Touched]) -> None:
    """Add up the gradients of groups in the first one's, which the store calls its gradients."""
    for other, rows in zip(store.copies[1:], touched[1:], strict=False):
        add_up(store.copies[0], other, updated_ranges(store, touched=rows))


def all_finite(store: ParameterStore, numbers: FloatArray) -> bool:
    """Tell whether values or gradients are finite, in the dense part and the touched rows."""
    return bool(all_within(numbers, updated_ranges(store), np.finfo(store.dtype).max))


def apply_update(
    store: ParameterStore, update: Update, run: Callable[[StoreUpdate], None] | None = None
) -> Outcome:
    """Update the values of a store, and the optimizer's moments, in place; clear the gradients.

    Nothing is updated when the norm, or a number that would be written, is not finite.

    Args:
        run: `apply_update` of a backend; without one, that of the CPU.
    Raises: PlanError, when a touched row is not a row of its parameter; nothing is updated then.
    """
    limit, reach = limit_of(update, store.dtype)
    bound = _bind(store, update, limit)
    if update.clip_value is not None:
        if not all_within(store.gradients, bound.ranges, np.finfo(store.dtype).max):
            return Outcome(False)
        clamp(store.gradients, bound.ranges, update.clip_value)
    (run or host_backend("cpu", store.dtype).apply_update)(bound)
    done = bool(bound.found[FOUND_DONE])
    store.cleared = done and not update.groups  # a parameter in none has kept its gradient
    known = () if bound.found[FOUND_TRIED] else reach
    return Outcome(done, float(bound.found[FOUND_NORM]), known)


def first_bad(store: ParameterStore, flat: FloatArray) -> tuple[str, list[int], Any] | None:
    """Return the first number that is not finite: of which parameter, where, and itself.

    Args:
        flat: of `ParameterStore.views`.
    """
    for name, array in store.views(flat).items():
        bad = np.argwhere(~np.isfinite(array))
        if len(bad):
            return name, bad[0].tolist(), array[tuple(bad[0])]
    return None


def refused_update(store: ParameterStore, update: Update, norm: float) -> str:
    """Return the error text for an update that would write what is not finite.

    Args:
        norm: of the gradients, where they were to be clipped.
    """
    if first_bad(store, store.gradients):
        return refused_gradient(update.optimizer, store)
    where = f"{update.optimizer}.update"
    if not math.isfinite(norm):
        return message(
            where,
            f"the gradients have the norm {norm}",
            "a finite norm; nothing was changed",
            "use a smaller loss, or no clip_norm",
        )
    bound = _bind(store, update)
    values, moments = store.values.copy(), update.moments.copy()
    scale = factor(norm, bound.clip_norm)
    for part, scalars in zip(elements(bound), bound.scalars, strict=True):
        values[part], moments[:, part] = moved_at(bound, part, scale, scalars)
    got = "the update makes a number that is not finite, though not when it is done again"
    kept = [f"its {slot.name!r}" for slot in update.rule.state]
    for what, flat in (("its value", values), *zip(kept, moments, strict=True)):
        if bad := first_bad(store, flat):
            name, at, number = bad
            own = store.value(name)[tuple(at)], store.gradient(name)[tuple(at)]
            got = (
                f"the update of {name!r} at {at} makes {what} {number}, from the value "
                f"{own[0]:.6g} and the gradient {own[1]:.6g}"
            )
            break
    return message(where, got, "finite numbers; nothing was changed", SMALLER)


def refused_gradient(optimizer: str, store: ParameterStore) -> str:
    """Return the error text for a gradient that is not finite, of a store that has one."""
    bad = first_bad(store, store.gradients)
    assert bad
    name, at, number = bad
    return message(
        f"{optimizer}.update",
        f"the gradient of {name!r} is {number} at {at}",
        "finite gradients; nothing was changed",
        f"look for a division or log of zero in F, or {SMALLER}",
    )


def written_by(optimizer: str, store: ParameterStore) -> str:
    """Return the error text for an optimizer that wrote what is not finite, by itself."""
    bad = first_bad(store, store.values)
    assert bad
    name, at, number = bad
    return message(
        f"{optimizer}.update",
        f"it made {name!r} at {at} {number}, from finite gradients",
        "finite parameters; nothing was changed",
        "correct the `update`",
    )
