"""Run an optimizer's rule over a parameter store, cut into pieces."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.finite import largest_gradient, reach_of
from vertexrt.engine.parameters import FloatArray, ParameterStore, RowArray
from vertexrt.errors import PlanError
from vertexrt.ir.updates import UpdateRule, scalars_of
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
    cut_pieces,
    elements,
    factor,
    moved_at,
)

Touched = Mapping[str, RowArray]  # sorted, unique rows of sparse parameters

NOTHING = -1.0  # no gradient is within this limit
PIECE = 8192  # elements: small enough to share out evenly, large enough to make calls free
_DENSE: RowArray = np.zeros(1, np.int64)  # a piece of the dense part is one row


class UpdateGroup(NamedTuple):
    """Parameters with a learning rate and a weight decay of their own; see `Update`."""

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
        decay: weight decay, added to gradients; shrink: factor of values.
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
    decay: float
    shrink: float
    reach: tuple[float, ...]
    counts: Counts
    optimizer: str = ""
    clip_value: float | None = None
    groups: tuple[UpdateGroup, ...] = ()

    def scalars(self) -> tuple[float, ...]:
        """Return the scalars of `StoreUpdate` for what is in no group of its own."""
        return (self.decay, self.shrink, *scalars_of(self.rule, self.options))

    def scalars_of(self, group: UpdateGroup) -> tuple[float, ...]:
        """Return the scalars of `StoreUpdate` for a group."""
        own = {**self.options, "lr": group.lr}
        return (group.decay, group.shrink, *scalars_of(self.rule, own))

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


class Pieces(NamedTuple):
    """A store cut into pieces, arrays as `kernels.store_update` describes."""

    pieces: RowArray
    spans: RowArray
    listed: RowArray


def limit_of(update: Update, dtype: np.dtype[Any]) -> tuple[float, tuple[float, ...]]:
    """Return up to which size of gradients an update needs no trial, and its reach after that.

    Args:
        dtype: of the store.
    Returns: `NOTHING`, where that is not known for any gradient; the reach holds if no piece was
        tried.
    """
    unknown = (math.inf,) * len(update.moments)
    options, decay, shrink = update.options, update.decay, update.shrink
    if update.groups:
        _, rates, decays, factors = zip(*update.groups, strict=True)
        options = {**options, "lr": max(rates)}
        decay, shrink = max(decays), max(factors, key=abs)
    held = reach_of(update.rule, options, decay, shrink, dtype.itemsize)
    if held is None:
        return NOTHING, unknown
    for now, most, row in zip(update.reach, held, update.moments, strict=True):
        if now > most and not np.abs(row).max(initial=0.0) <= most:  # loaded, or a piece was tried
            return NOTHING, unknown
    return largest_gradient(dtype.itemsize), held


def dense_ranges(store: ParameterStore, name: str, most: int) -> list[tuple[int, int]]:
    """Return first elements and lengths of the parts of a dense parameter, none above `most`."""
    start, size = store.offsets[name], math.prod(store.shapes[name])
    return [(start + k, min(most, size - k)) for k in range(0, size, most)]


def _cut_groups(store: ParameterStore, groups: Sequence[UpdateGroup]) -> tuple[Pieces, RowArray]:
    """Cut the parameters of each group, and the touched rows of its tables, into pieces.

    Returns: the pieces, and `parts` of `StoreUpdate`.
    """
    listed, used, found, parts = [_DENSE], 1, [], [0]
    for group in groups:
        tables: list[tuple[int, int]] = []
        entries: list[tuple[int, int]] = []
        for name in group.names:
            if name not in store.sparse:
                ranges = dense_ranges(store, name, PIECE)
                tables += ranges
                entries += [(0, 1)] * len(ranges)
                continue
            rows = store.touched.get(name, _DENSE[:0])
            _check_rows(store, name, rows)
            tables.append((store.offsets[name], math.prod(store.shapes[name][1:])))
            entries.append((used, used + len(rows)))
            listed.append(rows)
            used += len(rows)
        found.append((tables, entries))
    rows = np.concatenate(listed)
    cuts = [
        cut_pieces(
            PIECE,
            0,
            np.array(tables, np.int64).reshape(-1, 2),
            np.array(entries, np.int64).reshape(-1, 1, 2),
            rows,
        )
        for tables, entries in found
    ]
    for pieces, _ in cuts:
        parts.append(parts[-1] + len(pieces))
    pieces, spans = (np.concatenate(each) for each in zip(*cuts, strict=True))
    return Pieces(pieces, spans, rows), np.array(parts, np.int64)


def _check_rows(store: ParameterStore, name: str, rows: RowArray) -> None:
    """Refuse touched rows that a parameter does not have; the kernels check no bounds."""
    most = store.shapes[name][0]
    if rows.size and (rows[0] < 0 or rows[-1] >= most):  # sorted
        raise PlanError.at(
            "update",
            f"rows {rows[0]} to {rows[-1]} of '{name}' are touched",
            f"rows 0 to {most - 1}",
            "check the pulled indices",
        )


def cut(store: ParameterStore, touched: Sequence[Touched] = ()) -> Pieces:
    """Cut the dense part and the touched rows of a store into pieces.

    Which they are depends on the store and on `store.touched` only.

    Args:
        touched: the rows that each group touched, where their gradients are to be added up.
    Raises: PlanError, when a touched row is not a row of its parameter.
    """
    groups = max(1, len(touched))
    tables: list[tuple[int, int]] = []
    entries: list[tuple[int, int]] = []
    listed, used = [_DENSE], 1
    for name in store.sparse:
        rows = store.touched.get(name, _DENSE[:0])
        if not rows.size:
            continue
        _check_rows(store, name, rows)
        tables.append((store.offsets[name], math.prod(store.shapes[name][1:])))
        for own in (rows, *(touched[k][name] for k in range(1, groups))):
            entries.append((used, used + len(own)))
            listed.append(own)
            used += len(own)
    rows = np.concatenate(listed)
    pieces, spans = cut_pieces(
        PIECE,
        store.dense_size,
        np.array(tables, np.int64).reshape(-1, 2),
        np.array(entries, np.int64).reshape(-1, groups, 2),
        rows,
    )
    return Pieces(pieces, spans, rows)


def _bind(store: ParameterStore, update: Update) -> StoreUpdate:
    """Bind an update to the values and gradients of a store."""
    limit, reach = limit_of(update, store.dtype)
    if update.groups:
        p, parts = _cut_groups(store, update.groups)
        scalars = [update.scalars_of(group) for group in update.groups]
    else:
        p, scalars = cut(store), [update.scalars()]
        parts = np.array((0, len(p.pieces)), np.int64)
    return StoreUpdate(
        rule=update.rule,
        scalars=np.array(scalars, np.float64),
        parts=parts,
        clip_norm=update.clip_norm or 0.0,
        limit=limit,
        reach=reach,
        values=store.values,
        gradients=store.gradients,
        moments=update.moments,
        pieces=p.pieces,
        spans=p.spans,
        listed=p.listed,
        counts=update.counts,
        found=np.zeros(3),
    )


def collect(store: ParameterStore, touched: Sequence[Touched]) -> None:
    """Add up the gradients of groups in the first one's, which the store calls its gradients."""
    p = cut(store, touched)
    add_up(store.copies, p.pieces, p.spans, p.listed)


def all_finite(store: ParameterStore, numbers: FloatArray) -> bool:
    """Tell whether values or gradients are finite, in the dense part and the touched rows."""
    p = cut(store)
    return bool(all_within(numbers, p.pieces, p.spans, p.listed, np.finfo(store.dtype).max))


def apply_update(
    store: ParameterStore, update: Update, run: Callable[[StoreUpdate], None] | None = None
) -> Outcome:
    """Update the values of a store, and the optimizer's moments, in place; clear the gradients.

    Nothing is updated when the norm, or a number that would be written, is not finite.

    Args:
        run: `update` of a backend; without one, that of the CPU.
    Raises: PlanError, when a touched row is not a row of its parameter; nothing is updated then.
    """
    bound = _bind(store, update)
    if update.clip_value is not None:
        cuts = (bound.pieces, bound.spans, bound.listed)
        if not all_within(store.gradients, *cuts, np.finfo(store.dtype).max):
            return Outcome(False)
        clamp(store.gradients, *cuts, update.clip_value)
    (run or host_backend("cpu", store.dtype).update)(bound)
    done = bool(bound.found[FOUND_DONE])
    store.cleared = done and not update.groups  # a parameter in none has kept its gradient
    reach = () if bound.found[FOUND_TRIED] else bound.reach
    return Outcome(done, float(bound.found[FOUND_NORM]), reach)


def try_update(store: ParameterStore, update: Update, norm: float) -> tuple[FloatArray, FloatArray]:
    """Return what an update would make of copies: values and moments."""
    bound = _bind(store, update)
    values, moments = store.values.copy(), update.moments.copy()
    scale = factor(norm, bound.clip_norm)
    for at, scalars in zip(elements(bound), bound.scalars, strict=True):
        values[at], moments[:, at] = moved_at(bound, at, scale, scalars)
    return values, moments
