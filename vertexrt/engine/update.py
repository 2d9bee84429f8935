"""Run an optimizer's rule over a parameter store, cut into pieces."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.finite import largest_gradient, reach_of
from vertexrt.engine.parameters import FloatArray, ParameterStore, RowArray
from vertexrt.errors import PlanError
from vertexrt.ir.updates import UpdateRule, scalars_of
from vertexrt.kernels.cpu.update import add_up, all_within, cut_pieces, finish
from vertexrt.kernels.layout import FOUND_DONE, FOUND_NORM, FOUND_TRIED, StoreUpdate
from vertexrt.kernels.reference.update import elements, factor, moved

Touched = Mapping[str, RowArray]  # sorted, unique rows of sparse parameters

NOTHING = -1.0  # no gradient is within this limit
PIECE = 8192  # elements: small enough to share out evenly, large enough to make calls free
_DENSE: RowArray = np.zeros(1, np.int64)  # a piece of the dense part is one row


class Update(NamedTuple):
    """What an optimizer asks for.

    Attributes:
        moments: [*, total] of the store's layout, the state in the order of the rule.
        clip_norm: largest norm of the gradients, or None.
        options: lr, t (number of the step), then the row's options, by name.
        decay: weight decay, added to gradients; shrink: factor of values.
        reach: a bound of each row of moments: see `finite`; inf, where none is known.
        optimizer: what a user calls the rule.
    """

    rule: UpdateRule
    moments: FloatArray
    clip_norm: float | None
    options: dict[str, float]
    decay: float
    shrink: float
    reach: tuple[float, ...]
    optimizer: str = ""

    def scalars(self) -> tuple[float, ...]:
        """Return the scalars of `StoreUpdate`."""
        return (self.decay, self.shrink, *scalars_of(self.rule, self.options))


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
    """A store cut into pieces, arrays as `kernels.cpu.update` describes."""

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
    held = reach_of(update.rule, update.options, update.decay, update.shrink, dtype.itemsize)
    if held is None:
        return NOTHING, unknown
    for now, most, row in zip(update.reach, held, update.moments, strict=True):
        if now > most and not np.abs(row).max(initial=0.0) <= most:  # loaded, or a piece was tried
            return NOTHING, unknown
    return largest_gradient(dtype.itemsize), held


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
        shape = store.shapes[name]
        if rows[0] < 0 or rows[-1] >= shape[0]:  # sorted; the kernels check no bounds
            raise PlanError.at(
                "update",
                f"rows {rows[0]} to {rows[-1]} of '{name}' are touched",
                f"rows 0 to {shape[0] - 1}",
                "check the pulled indices",
            )
        tables.append((store.offsets[name], math.prod(shape[1:])))
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
    p = cut(store)
    return StoreUpdate(
        rule=update.rule,
        scalars=np.array(update.scalars(), np.float64),
        clip_norm=update.clip_norm or 0.0,
        limit=limit,
        reach=reach,
        values=store.values,
        gradients=store.gradients,
        moments=update.moments,
        pieces=p.pieces,
        spans=p.spans,
        listed=p.listed,
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
    store: ParameterStore, update: Update, run: Callable[[StoreUpdate], None] = finish
) -> Outcome:
    """Update the values of a store, and the optimizer's moments, in place; clear the gradients.

    Nothing is updated when the norm, or a number that would be written, is not finite.

    Args:
        run: `update` of a backend.
    Raises: PlanError, when a touched row is not a row of its parameter; nothing is updated then.
    """
    bound = _bind(store, update)
    run(bound)
    store.cleared = bool(bound.found[FOUND_DONE])
    reach = () if bound.found[FOUND_TRIED] else bound.reach
    return Outcome(store.cleared, float(bound.found[FOUND_NORM]), reach)


def try_update(store: ParameterStore, update: Update, norm: float) -> tuple[FloatArray, FloatArray]:
    """Return what an update would make of copies: values [total] and moments [*, total]."""
    bound = _bind(store, update)
    at, values, moments = elements(bound), store.values.copy(), update.moments.copy()
    scale = factor(norm, bound.clip_norm)
    values[at], moments[:, at] = moved(
        update.rule, values[at], store.gradients[at], moments[:, at], scale, bound.scalars
    )
    return values, moments
