"""Where the gradients of pulls lie in the arena of a GPU, and how they become tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.engine.batched import Run
from vertexrt.engine.part import NO_ROWS, RowCopies, RowPlace
from vertexrt.engine.results import pulled_rows, table_of
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Pull
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]


class PulledTerm(NamedTuple):
    """A part of the gradient of a pull.

    Attributes:
        first, size: element of the arena where its rows begin, and elements of one.
        at: rows there, whole numbers; to: rows of the pull that they are added to.
    """

    first: int
    size: int
    at: Any
    to: Any


class PulledPlace(NamedTuple):
    """Where the gradient of a pull is.

    Attributes:
        shape: of what the batch gives; terms: what adds up to it.
        copied: each of its rows is somewhere, once.
    """

    shape: tuple[int, ...]
    terms: Sequence[PulledTerm]
    copied: bool


class PulledPlaces(NamedTuple):
    """Where the gradients of pulls are.

    Attributes:
        places: of each pull; copied: of those that are copied; orders: of `RowCopies`.
        rows: int32, lists of rows, one after the other: those of seeds, then those of `copied`.
    """

    places: tuple[PulledPlace, ...]
    copied: tuple[RowPlace, ...]
    orders: tuple[int, ...]
    rows: Array

    @staticmethod
    def of(
        batch: GraphBatch, run: Run, pulls: Sequence[str], of_seeds: Sequence[Array] = ()
    ) -> PulledPlaces:
        """Find those of pulls, by their names.

        Args:
            of_seeds: lists of rows that come first.
        """
        lists, found, copied = list(of_seeds), [], []
        end = sum(map(len, lists))
        for name in pulls:
            shape, terms, whole = _pulled_at(batch, run, name)
            if whole is not None:
                copied.append(RowPlace(whole.first, whole.size, end, len(whole.at)))
                lists.append(whole.at)
                end += len(whole.at)
            found.append(PulledPlace(shape, terms, whole is not None))
        orders = (0,) * len(copied)
        return PulledPlaces(tuple(found), tuple(copied), orders, _joined(run, lists))

    def room(self, like: Tensor) -> tuple[list[Tensor], RowCopies]:
        """Make room for the gradients; say what a launch copies there."""
        found, to = [], []
        for shape, _, copied in self.places:
            tensor = like.new_empty(shape) if copied else like.new_zeros(shape)
            found.append(tensor)
            if copied:
                to.append(tensor.data_ptr())
        return found, RowCopies(self.copied, to, self.orders)

    def add(self, arena: Tensor, totals: Sequence[Tensor]) -> None:
        """Add to the gradients what is no copy, after a launch."""
        for (_, terms, _), total in zip(self.places, totals, strict=True):
            for first, size, at, to in terms:
                count = (len(arena) - first) // size
                rows = arena.as_strided((count, size), (size, 1), first)
                rows = rows.index_select(0, here(at, arena.device))
                rows = rows.view(len(at), *total.shape[1:])
                total.index_add_(0, here(to, arena.device), rows)


def here(numbers: Array, device: torch.device) -> Tensor:
    """Copy whole numbers to a device; in the order of its stream, so that nothing is waited for."""
    return torch.from_numpy(numbers).to(device, non_blocking=True)


def _joined(run: Run, lists: Sequence[Array]) -> Array:
    """Return lists of rows, one after the other."""
    if len(lists) < 2:
        return lists[0] if lists else NO_ROWS
    return run.once(("rows of a way back",), lists, lambda: np.concatenate(lists))


def _pulled_at(
    batch: GraphBatch, run: Run, name: str
) -> tuple[tuple[int, ...], list[PulledTerm], PulledTerm | None]:
    """Find the gradient of a pull: its shape, and what `_terms_of` says."""
    pulls = run.variant.program.pulls_from(name)
    table, index = table_of(batch, pulls[0])
    key = "pulled", name, len(table)
    terms, whole = run.once(key, [index], lambda: _terms_of(batch, run, pulls))
    return tuple(table.shape), terms, whole


def _terms_of(
    batch: GraphBatch, run: Run, pulls: Sequence[Pull]
) -> tuple[list[PulledTerm], PulledTerm | None]:
    """Return what adds up to the gradient of a pull: terms, or one that has each row once, in their
    order.
    """
    tensors, (table, index) = run.variant.table, table_of(batch, pulls[0])
    terms, none = [], len(run.layout.plan.base)
    for pull in pulls:
        number = tensors.numbers.get(("pull_grad", pull.name), none)
        if number >= none:  # none of its vertices has it, perhaps those of kinds that came later
            continue
        place = int(run.layout.plan.base[number]), tensors.specs[number].size
        whole = _whole_of(run, pulls, index, len(table))
        if whole is not None:
            return [], PulledTerm(*place, whole, None)
        to, at = pulled_rows(batch, run, pull)
        if len(to):
            terms.append(PulledTerm(*place, at, to))
    return terms, None


def _whole_of(run: Run, pulls: Sequence[Pull], index: Array | None, count: int) -> Array | None:
    """Return the row that each of so many rows of a pull has, if each has one; else None."""
    if len(run.inputs.functions) or pulls[0].of_edges or (index is not None and len(pulls) > 1):
        return None
    if index is None:
        return run.row_of  # that of its vertex
    ordered = np.empty(count, np.int32)
    once = len(index) == count and _fill_in_order(ordered, index, run.row_of)
    return ordered if once else None


@compiled
def _fill_in_order(ordered: Array, index: Array, row_of: Array) -> bool:
    """Write which row each row of a pull has, int32 [V], if vertices pull each of them once.

    Args:
        index: which of them each vertex pulls; row_of: the row of each vertex.
    """
    ordered[:] = -1
    for v in range(len(index)):
        if index[v] < 0 or ordered[index[v]] >= 0:
            return False
        ordered[index[v]] = row_of[v]
    return True
