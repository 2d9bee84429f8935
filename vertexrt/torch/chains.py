"""Sequences as a batch of chains, whose vertices lie side by side, whatever the order of steps.

Steps stay in the order in which they are given: vertices pull them through an index map, and what
is wanted of them is read back by rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.engine.kept import MOST_VERTICES
from vertexrt.engine.results import PushRows
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import unchecked_batch
from vertexrt.graph.owned import INT32, unwritten
from vertexrt.graph.pulls import PullValue, rows_unchecked
from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import filled_here

Array = np.ndarray[Any, Any]
KEPT = 128  # structures of minibatches, as many as runs
NO_RESETS = np.zeros(0, np.uint8)


class VertexRows:
    """Rows of vertices in the order of a caller.

    Args:
        vertices: int64 [n], whose; row_of: int32 [V], the row of each vertex, where each has one.
    """

    def __init__(self, vertices: Array, row_of: Array | None = None) -> None:
        self.vertices, self.row_of = vertices, row_of
        self._here: Tensor | None = None

    def here(self, device: torch.device) -> Tensor:
        """Return the vertices on a device; the copy is made once."""
        here = self._here
        if here is None or here.device != device:
            here = self._here = torch.from_numpy(self.vertices).to(device)
        return here


class WantedRows(NamedTuple):
    """Rows of a push that a caller wants; hashable.

    Attributes:
        ordered: they come in an order that is given with the pass, `by`: int64 [n] on the network's
            device, which of them comes where.
        axes: of length 1, in front of the result's.
    """

    rows: VertexRows
    ordered: bool = False
    axes: int = 0

    def here(self, device: torch.device, by: Tensor | None) -> Tensor:
        """Return the vertices on a device, in that order."""
        found = self.rows.here(device)
        return found if by is None or not self.ordered else found.index_select(0, by)


def wanted_of(name: str, wanted: WantedRows | None, by: Any = None) -> PushRows:
    """Return rows of a push as passes take them; None for those of all vertices.

    Args:
        by: their order: an array of the host, or an address on the device.
    """
    if wanted is None:
        return PushRows(name)
    (vertices, axes), ordered = (wanted.rows.vertices, wanted.axes), wanted.ordered
    if by is None or not ordered:
        return PushRows(name, vertices, 0, axes)
    if isinstance(by, int):
        return PushRows(name, vertices, by, axes)
    return PushRows(name, vertices[by], 0, axes)


class Chains:
    """Sequences as chains, one after the other.

    Args:
        names: of the states of a cell, that of the output first.
    Attributes:
        graphs: of the chains; a reset begins another one. They pull `x` from rows as these are
            given; count: of their vertices.
        steps: the vertices of the rows; None, where these are in the order of the vertices.
        last: the vertices with the final state of each sequence.
        outputs: pushes that are wanted: the first at all steps, all after the last.
    """

    def __init__(
        self,
        graphs: GraphBatch,
        steps: VertexRows | None,
        last: VertexRows,
        names: tuple[str, ...],
    ) -> None:
        self.graphs, self.steps, self.last = graphs, steps, last
        self.outputs, self.count = names[:1] + names, graphs.num_vertices
        self._orders: dict[tuple[bool, int], tuple[WantedRows | None, ...]] = {}

    def orders(self, ordered: bool, axes: int) -> tuple[WantedRows | None, ...]:
        """Return which rows of the outputs are wanted.

        Args:
            ordered, axes: of the final states, see `WantedRows`.
        """
        found = self._orders.get((ordered, axes))
        if found is None:
            steps = None if self.steps is None else WantedRows(self.steps)
            states = [WantedRows(self.last, ordered, axes)] * (len(self.outputs) - 1)
            found = self._orders[ordered, axes] = (steps, *states)
        return found


class ChainLayout(NamedTuple):
    """What the chains of a minibatch depend on; hashable.

    Attributes:
        counts: the bytes of int64 [times], how many sequences there are at each time, never rising;
            the rows of a time lie side by side.
        resets: the bytes of bool [rows], where a step takes no state; b"" where there is none.
        sizes: of each state that is given from outside; those of a cell otherwise.
        given: states are given from outside.
        reverse: chains run from the end to the beginning; without resets.
    """

    counts: bytes
    resets: bytes
    sizes: tuple[tuple[str, int], ...]
    given: bool
    reverse: bool


def first(name: str) -> str:
    """Return the name of the pull that gives the first vertex of a chain a state."""
    return f"{name}_first"


def chains_of(layout: ChainLayout) -> Chains:
    """Return sequences as chains; those of the last layouts are kept, if they are not large.

    Raises: UsageError, when there are more sequences at a later time, or less than none.
    """
    make = _chains_of if _steps_of(layout.counts) <= MOST_VERTICES else _chains_of.__wrapped__
    found: Chains = make(layout)
    return found


@lru_cache(KEPT)
def _steps_of(times: bytes) -> int:
    """Return how many steps sequences have. Raises: as `chains_of`."""
    counts = np.frombuffer(times, np.int64)
    found = _count_steps(counts) if len(counts) else 0
    if not found:
        got, action = f"batch_sizes {counts.tolist()}", "pack sequences by torch.nn.utils.rnn"
        raise UsageError.at("torch", got, "numbers from 1 on that never rise", action)
    return int(found)


@compiled
def _count_steps(counts: Array) -> int:
    """Return how many steps sequences have, given how many there are at each time; 0 if wrong."""
    total, before = 0, counts[0]
    for count in counts:
        if count > before or count < 0:
            return 0
        total += count
        before = count
    return total


@lru_cache(KEPT)
def _chains_of(layout: ChainLayout) -> Chains:
    counts = np.frombuffer(layout.counts, np.int64)
    resets = np.frombuffer(layout.resets, np.uint8) if layout.resets else NO_RESETS
    total, count = _steps_of(layout.counts), int(counts[0])
    whole = unwritten(5 * total + 2, INT32)
    vertices, last = np.empty(total, np.int64), np.empty(count, np.int64)
    reads = int(layout.given), layout.reverse
    graphs, in_order = _lay_chains(whole, vertices, last, counts, resets, reads)
    child, order, index = whole[:total], whole[total : 2 * total], whole[2 * total : 3 * total]
    child_ptr, graph_ptr = whole[3 * total : 4 * total + 1], whole[4 * total + 1 :][: graphs + 1]
    pulls: dict[str, PullValue] = {"x": rows_unchecked(_zeros(total, 0), order)}
    tables = count if layout.given else 1  # rows, of which none is read where none is given
    for name, size in layout.sizes:
        pulls[first(name)] = rows_unchecked(_zeros(tables, size), index)
    batch = unchecked_batch(graph_ptr, child_ptr, child, pulls, None, {})
    steps = None if in_order else VertexRows(vertices, order)
    return Chains(batch, steps, VertexRows(last), tuple([name for name, _ in layout.sizes]))


@lru_cache(KEPT)
def _zeros(rows: int, size: int) -> Array:
    """Return a table for others to take the place of; nobody can write to it."""
    zeros = np.frombuffer(bytes(4 * max(rows * size, 1)), np.float32)
    return zeros[: rows * size].reshape(rows, size)


@compiled
def _lay_chains(
    whole: Array,
    vertices: Array,
    last: Array,
    counts: Array,
    resets: Array,
    reads: tuple[int, bool],
) -> Any:
    """Write the chains of sequences, one after the other.

    Args:
        whole: int32, gets of each vertex its child, its row, and its sequence where it takes the
            state that is given, else -1; then `child_ptr` and `graph_ptr` of the batch.
        vertices: int64 [V], gets the vertex of each row; last: int64 [B], that with the final
            state of each sequence.
        counts, resets: of `ChainLayout`; reads: its `given` and `reverse`.
    Returns: how many chains there are; if the rows are in the order of the vertices.
    """
    given, reverse = reads
    out = filled_here(whole)
    lengths, starts = _by_sequence(counts)
    total, graphs, v, in_order = len(vertices), 0, 0, True
    before, ptr, graph_at = (1 if reverse else -1), 3 * total, 4 * total + 1
    for b in range(len(lengths)):
        begin = lengths[b] - 1 if reverse else 0
        last[b] = v + lengths[b] - 1 - begin
        for t in range(lengths[b]):
            row = starts[t] + b
            out[total + v], vertices[row] = row, v
            out[ptr + v] = v
            if row != v:
                in_order = False
            cut = _is_set(resets, row)
            at_end = int(t == begin)
            out[v] = -1 if at_end + cut else v + before
            out[2 * total + v] = b if given * at_end * (1 - cut) else -1
            if int(t == 0) + cut:
                out[graph_at + graphs] = v
                graphs += 1
            v += 1
    out[ptr + total], out[graph_at + graphs] = total, total
    return graphs, in_order


def _by_sequence(counts: Array) -> tuple[Array, Array]:
    """Return how long each sequence is, and the row of the first one at each time."""
    lengths, starts = np.empty(counts[0], np.int64), np.empty(len(counts), np.int64)
    row = 0
    for t in range(len(counts)):
        starts[t] = row
        row += counts[t]
        for b in range(counts[t]):
            lengths[b] = t + 1
    return lengths, starts


def _is_set(marks: Array, row: int) -> int:
    """Return 1 where a row is marked; 0 for others, and where no row is."""
    return int(marks[row]) if len(marks) else 0
