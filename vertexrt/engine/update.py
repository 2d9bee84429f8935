"""Run an optimizer's rule over a parameter store, range by range, where all of it stays finite.

Whether it does is decided here for every optimizer, group and clipping: `limit_of` says up to which
gradients that is known without a trial, a backend tries the rest (`StoreUpdate.limit`), and
`refused_update` says which number would not be finite.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.finite import FORMATS, reach_of
from vertexrt.engine.parameters import FloatArray, ParameterStore, RowArray
from vertexrt.errors import PlanError, message
from vertexrt.ir.expressions import evaluate_all
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

Touched = Mapping[str, RowArray]  # sorted, unique rows of sparse parameters

SMALLER = "lower the learning rate, or clip the gradient norm"
NOTHING = -1.0  # no gradient is within this limit
PIECE = 8192  # elements of a range: what is tried is copied, and should stay in a cache


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
        reach: a bound of each row of moments: see `finite`; inf, where none is known.
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
    store: ParameterStore, names: Sequence[str] | None = None, touched: Touched | None = None
) -> RowArray:
    """Return the first and the end element of each range that an update changes, [R, 2].

    Args:
        names: of parameters; None for all of the store.
        touched: rows of tables that are changed; those of the store, where they are not given.
    Raises: PlanError, when a touched row is not a row of its parameter.
    """
    touched = store.touched if touched is None else touched
    found = [in_pieces(0, store.dense_size if names is None else 0)]
    for name in store.sparse if names is None else names:
        start, (most, *rest) = store.offsets[name], store.shapes[name] or (1,)
        width = math.prod(rest)
        if name not in store.sparse:
            found.append(in_pieces(start, most * width))
            continue
        rows = np.asarray(touched.get(name, ()), np.int64)
        if rows.size and (rows[0] < 0 or rows[-1] >= most):  # sorted; loops check no bounds
            raise PlanError.at(
                "update",
                f"rows {rows[0]} to {rows[-1]} of '{name}' are touched",
                f"rows 0 to {most - 1}",
                "check the pulled indices",
            )
        begins = start + rows * width
        found.append(np.stack([begins, begins + width], axis=1))
    return np.concatenate(found)


def in_pieces(start: int, size: int, most: int = PIECE) -> RowArray:
    """Cut elements of a store into ranges of at most so many, [R, 2]."""
    begins = np.arange(start, start + size, most)
    return np.stack([begins, np.minimum(begins + most, start + size)], axis=1)


def _bind(store: ParameterStore, update: Update, limit: float = NOTHING) -> StoreUpdate:
    """Bind an update to the values and gradients of a store."""
    groups = update.groups or (update.whole,)
    found = [updated_ranges(store, group.names if update.groups else None) for group in groups]
    return StoreUpdate(
        rule=update.rule,
        scalars=np.array([update.scalars_of(group) for group in groups], np.float64),
        parts=np.cumsum([0, *map(len, found)]),
        clip_norm=update.clip_norm or 0.0,
        limit=limit,
        values=store.values,
        gradients=store.gradients,
        moments=update.moments,
        ranges=np.concatenate(found),
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
        run: `update` of a backend; without one, that of the CPU.
    Raises: PlanError, when a touched row is not a row of its parameter; nothing is updated then.
    """
    limit, reach = limit_of(update, store.dtype)
    bound = _bind(store, update, limit)
    if update.clip_value is not None:
        if not all_within(store.gradients, bound.ranges, np.finfo(store.dtype).max):
            return Outcome(False)
        clamp(store.gradients, bound.ranges, update.clip_value)
    (run or host_backend("cpu", store.dtype).update)(bound)
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
