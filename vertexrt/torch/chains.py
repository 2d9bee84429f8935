"""Sequences as a batch of chains, one for each layer and direction of a stack of cells.

The vertices of a step lie side by side, those of a sequence one step after the other, whatever the
order in which steps are given: vertices pull them through an index map, and what is wanted of them
is read back by rows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.prepare import MOST_OF_A_BATCH
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import unchecked_batch
from vertexrt.graph.owned import INT32, own, unwritten
from vertexrt.graph.pulls import PullValue, rows_unchecked
from vertexrt.graph.types import VertexTypes
from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import filled_here
from vertexrt.torch.passes import WantedRows

Array = np.ndarray[Any, Any]
KEPT = 128  # structures of minibatches, as many as runs
NO_RESETS = np.zeros(0, np.uint8)
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
        packed: steps are returned as rows; else as [times, sequences].
    """

    counts: bytes
    resets: bytes
    sizes: tuple[tuple[str, int], ...]
    given: bool
    layers: int = 1
    directions: int = 1
    packed: bool = True


class Chains(NamedTuple):
    """Sequences as chains.

    Attributes:
        graphs: of the sequences; a reset begins another one. Vertices of the first layer pull `x`
            from rows as these are given; steps, sequences: how many there are.
        outputs: pushes that are wanted: the first state of the last layer at all steps, those of
            one step side by side; all states of all chains after the last, by layer and direction,
            then by sequence.
        rows: of the outputs.
    """

    graphs: GraphBatch
    steps: int
    sequences: int
    outputs: tuple[str, ...]
    rows: tuple[WantedRows, ...]


def first(name: str) -> str:
    """Return the name of the pull that gives the first vertex of a chain a state."""
    return f"{name}_first"


def below(way: int) -> str:
    """Return the relation by which a layer reads the one below, in one of its directions."""
    return f"below{WAYS[way]}"


def type_of(layer: int, way: int) -> str:
    """Return the vertex type of a layer and direction."""
    return f"l{layer}{WAYS[way]}"


def chains_of(layout: ChainLayout, rows: int) -> Chains:
    """Return sequences as chains; those of the last layouts are kept, if they are not large.

    Args:
        rows: how many are given.
    Raises: UsageError, when there are more sequences at a later time, or less than none, or more
        steps than rows.
    """
    few = rows * layout.layers * layout.directions <= MOST_OF_A_BATCH
    found: Chains = (_chains_of if few else _chains_of.__wrapped__)(layout)
    if rows < found.steps:
        got, expected = f"{rows} steps", f"{found.steps}, as batch_sizes say"
        raise UsageError.at("torch", got, expected, "pack them by torch.nn.utils.rnn")
    return found


@lru_cache(KEPT)
def _chains_of(layout: ChainLayout) -> Chains:
    counts = np.frombuffer(layout.counts, np.int64)
    if not len(counts) or counts[0] <= 0 or counts.min() < 0 or (np.diff(counts) > 0).any():
        got, action = f"batch_sizes {counts.tolist()}", "pack sequences by torch.nn.utils.rnn"
        raise UsageError.at("torch", got, "numbers from 1 on that never rise", action)
    given, layers, directions = layout.given, layout.layers, layout.directions
    resets = np.frombuffer(layout.resets, np.uint8) if layout.resets else NO_RESETS
    sequences, steps, kinds = int(counts[0]), int(counts.sum()), layers * directions
    slots = [1 + directions * int(kind >= directions) for kind in range(kinds)]  # of a step
    count, size = steps * kinds, steps * sum(slots)
    whole = unwritten(size + 3 * count + steps + 2, INT32)
    top, last = np.empty(steps * directions, np.int64), np.empty(kinds * sequences, np.int64)
    shape = int(given), layers, directions
    graphs, in_order = _lay_chains(whole, top, last, counts, resets, shape)
    child, x, state, rest = np.split(whole, [size, size + count, size + 2 * count])
    pulls: dict[str, PullValue] = {"x": rows_unchecked(_zeros(steps, 0), x)}
    tables = kinds * sequences if given else 1  # rows, perhaps unread
    for name, elements in layout.sizes:
        pulls[first(name)] = rows_unchecked(_zeros(tables, elements), state)
    types = None
    if kinds > 1:
        names = tuple(type_of(*divmod(kind, directions)) for kind in range(kinds))
        relations = ("0", *map(below, range(directions)))[: max(slots)]
        of_edge = np.concatenate([np.arange(each) for each in slots])
        tiled = (np.tile(each, steps) for each in (np.arange(kinds), of_edge))
        types = VertexTypes(names, relations, *[own(each, INT32) for each in tiled])
    structure = rest[count + 1 :][: graphs + 1], rest[: count + 1], child
    batch = unchecked_batch(*structure, pulls, types, {})
    as_given = (steps, -1) if layout.packed else (len(counts), sequences, -1)
    rows = [WantedRows(shape=as_given)]
    if kinds > 1 or not in_order:
        rows = [WantedRows(top, x if kinds == 1 else None, as_given)]
    rows += [WantedRows(last, None, (kinds, sequences, n)) for _, n in layout.sizes]
    states = tuple([name for name, _ in layout.sizes])
    return Chains(batch, steps, sequences, states[:1] + states, tuple(rows))


@compiled
def _lay_chains(
    whole: Array,
    top: Array,
    last: Array,
    counts: Array,
    resets: Array,
    shape: tuple[int, int, int],
) -> Any:
    """Write the chains of sequences, one after the other; the vertices of a step side by side.

    Args:
        whole: int32, gets the child of each slot, of each vertex its row and the state that it
            takes, or -1; then `child_ptr` and `graph_ptr` of the batch.
        top: int64, gets the vertices of each row in the last layer; last: int64, those with the
            final state of each chain.
        counts, resets: of `ChainLayout`; shape: its `given`, `layers` and `directions`.
    Returns: how many graphs there are; if the rows are in the order of the vertices.
    """
    given, layers, directions = shape
    out = filled_here(whole)
    lengths, starts = np.empty(counts[0], np.int64), np.empty(len(counts), np.int64)
    steps = 0
    for t in range(len(counts)):
        starts[t] = steps
        steps += counts[t]
        for b in range(counts[t]):
            lengths[b] = t + 1
    kinds = layers * directions
    slots = kinds + directions * (kinds - directions)  # of a step
    x = steps * slots
    state = x + steps * kinds
    ptr = state + steps * kinds
    graph_at = ptr + steps * kinds + 1
    graphs, first_slot, in_order = 0, 0, True
    for kind in range(kinds):
        layer, way = kind // directions, kind % directions
        lower = directions if layer else 0
        top_layer, v = int(layer == layers - 1), 0
        for b in range(len(lengths)):
            final = lengths[b] - 1
            last[kind * len(lengths) + b] = (v + final * (1 - way)) * kinds + kind
            for t in range(lengths[b]):
                row, vertex = starts[t] + b, v * kinds + kind
                slot = v * slots + first_slot
                cut = int(resets[row]) if len(resets) else 0
                begins = int(t == way * final)
                out[ptr + vertex] = slot
                out[slot] = -1 if begins + cut else vertex + (2 * way - 1) * kinds
                for k in range(lower):
                    out[slot + 1 + k] = vertex - kind + (layer - 1) * directions + k
                out[x + vertex] = -1 if layer else row
                takes = given * begins * (1 - cut)
                out[state + vertex] = kind * len(lengths) + b if takes else -1
                if top_layer:
                    top[row * directions + way] = vertex
                if row != v:
                    in_order = False
                if (int(t == 0) + cut) * int(kind == 0):
                    out[graph_at + graphs] = v * kinds
                    graphs += 1
                v += 1
        first_slot += 1 + lower
    out[ptr + steps * kinds], out[graph_at + graphs] = steps * slots, steps * kinds
    return graphs, in_order


@lru_cache(KEPT)
def _zeros(rows: int, size: int) -> Array:
    """Return a table for others to take the place of; nobody can write to it."""
    zeros = np.frombuffer(bytes(4 * max(rows * size, 1)), np.float32)
    return zeros[: rows * size].reshape(rows, size)
