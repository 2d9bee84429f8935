"""Sequences as a batch of chains, one for each layer and direction of a stack of cells.

The vertices of a step lie side by side, those of a sequence one step after the other, whatever the
order in which steps are given: vertices pull them through an index map, and what is wanted of them
is read back by rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.kept import MOST_VERTICES
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import unchecked_batch
from vertexrt.graph.owned import INT32, own
from vertexrt.graph.pulls import PullValue, rows_unchecked
from vertexrt.graph.types import VertexTypes
from vertexrt.torch.plans import WantedRows

Array = np.ndarray[Any, Any]
KEPT = 128  # structures of minibatches, as many as runs
WAYS = ("", "_reverse")  # of names of types, and of PyTorch's parameters


class ChainLayout(NamedTuple):
    """What the chains of a minibatch depend on; hashable.

    Attributes:
        counts: the bytes of int64 [times], how many sequences there are at each time, never rising;
            the rows of a time lie side by side.
        resets: the bytes of bool [rows], where a step takes no state; b"" where there is none, as
            for stacks.
        sizes: of each state that is given from outside; those of a cell otherwise.
        given: states are given from outside.
        layers: of a stack; directions: 1, or 2, where chains run backwards, too.
    """

    counts: bytes
    resets: bytes
    sizes: tuple[tuple[str, int], ...]
    given: bool
    layers: int = 1
    directions: int = 1


class Chains(NamedTuple):
    """Sequences as chains.

    Attributes:
        graphs: of the sequences; a reset begins another one. Vertices of the first layer pull `x`
            from rows as these are given; steps: how many there are.
        outputs: pushes that are wanted: the first state of the last layer at all steps, those of
            one step side by side; all states of all chains after the last, by layer and direction,
            then by sequence.
        rows: of the outputs.
    """

    graphs: GraphBatch
    steps: int
    outputs: tuple[str, ...]
    rows: tuple[WantedRows | None, ...]


def first(name: str) -> str:
    """Return the name of the pull that gives the first vertex of a chain a state."""
    return f"{name}_first"


def below(way: int) -> str:
    """Return the relation by which a layer reads the one below, in one of its directions."""
    return f"below{WAYS[way]}"


def type_of(layer: int, way: int) -> str:
    """Return the vertex type of a layer and direction."""
    return f"l{layer}{WAYS[way]}"


def chains_of(layout: ChainLayout) -> Chains:
    """Return sequences as chains; those of the last layouts are kept, if they are not large.

    Raises: UsageError, when there are more sequences at a later time, or less than none.
    """
    steps = _steps_of(layout.counts) * layout.layers * layout.directions
    make = _chains_of if steps <= MOST_VERTICES else _chains_of.__wrapped__
    found: Chains = make(layout)
    return found


@lru_cache(KEPT)
def _steps_of(times: bytes) -> int:
    """Return how many steps sequences have. Raises: as `chains_of`."""
    counts = np.frombuffer(times, np.int64)
    if not len(counts) or counts[0] <= 0 or counts.min() < 0 or (np.diff(counts) > 0).any():
        got, action = f"batch_sizes {counts.tolist()}", "pack sequences by torch.nn.utils.rnn"
        raise UsageError.at("torch", got, "numbers from 1 on that never rise", action)
    return int(counts.sum())


@lru_cache(KEPT)
def _chains_of(layout: ChainLayout) -> Chains:
    counts, (layers, directions) = np.frombuffer(layout.counts, np.int64), layout[-2:]
    sequences, steps, kinds = int(counts[0]), int(counts.sum()), layers * directions
    time = np.repeat(np.arange(len(counts)), counts)  # of each row, as its sequence
    sequence = np.arange(steps) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = np.bincount(sequence)
    ends = np.cumsum(lengths)
    starts, ends = ends - lengths, ends - 1
    # From here on steps are in the order of sequences.
    step_of_row, each = starts[sequence] + time, np.arange(steps)
    row_of, cut = np.empty(steps, np.int64), np.zeros(steps, np.bool_)
    row_of[step_of_row] = each
    if layout.resets:
        cut[step_of_row] = np.frombuffer(layout.resets, np.bool_)
    begin, end = (np.isin(each, chosen) for chosen in (starts, ends))
    child, relation = [], []  # of the slots of a step, kind by kind
    state = np.full((steps, kinds), -1)
    for kind in range(kinds):
        layer, way = divmod(kind, directions)
        begins, before = (end, each + 1) if way else (begin, each - 1)
        child.append(np.where(begins | cut, -1, before * kinds + kind))
        relation.append(0)
        if layout.given:
            given = kind * sequences + np.repeat(np.arange(sequences), lengths)
            state[:, kind] = np.where(begins & ~cut, given, -1)
        for k in range(directions if layer else 0):
            child.append(each * kinds + (layer - 1) * directions + k)
            relation.append(1 + k)
    x = np.full((steps, kinds), -1)
    x[:, :directions] = row_of[:, None]
    pulls: dict[str, PullValue] = {"x": rows_unchecked(_zeros(steps, 0), _own(x))}
    tables, index = kinds * sequences if layout.given else 1, _own(state)  # rows, perhaps unread
    for name, size in layout.sizes:
        pulls[first(name)] = rows_unchecked(_zeros(tables, size), index)
    types = None
    if kinds > 1:
        names = tuple(type_of(*divmod(kind, directions)) for kind in range(kinds))
        relations = ("0", *map(below, range(directions)))[: max(relation) + 1]
        of_vertex, of_edge = np.tile(np.arange(kinds), steps), np.tile(relation, steps)
        types = VertexTypes(names, relations, _own(of_vertex), _own(of_edge))
    slots = np.tile(np.bincount(np.cumsum(np.equal(relation, 0)) - 1), steps)
    child_ptr = np.append(0, np.cumsum(slots))
    graph_ptr = np.append(np.flatnonzero(begin | cut), steps) * kinds
    structure = _own(graph_ptr), _own(child_ptr), _own(np.stack(child, 1))
    top = (step_of_row[:, None] * kinds + np.arange(kinds)[-directions:]).reshape(-1)
    last = [(starts if kind % directions else ends) * kinds + kind for kind in range(kinds)]
    out = None
    if kinds > 1:
        out = WantedRows(top)
    elif (top != each).any():
        out = WantedRows(top, _own(row_of))
    states = tuple([name for name, _ in layout.sizes])
    rows = out, *[WantedRows(np.concatenate(last), ordered=True)] * len(states)
    batch = unchecked_batch(*structure, pulls, types, {})
    return Chains(batch, steps, states[:1] + states, rows)


def _own(numbers: Array) -> Array:
    return own(numbers.reshape(-1), INT32)


@lru_cache(KEPT)
def _zeros(rows: int, size: int) -> Array:
    """Return a table for others to take the place of; nobody can write to it."""
    zeros = np.frombuffer(bytes(4 * max(rows * size, 1)), np.float32)
    return zeros[: rows * size].reshape(rows, size)
