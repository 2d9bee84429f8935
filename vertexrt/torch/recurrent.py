"""Cells along sequences: `LSTM`, `GRU` and `RNN` in place of PyTorch's; any cell by `Recurrent`.

The three *are* the layers of `torch.nn`, subclasses of them: signature, parameters, `state_dict`,
checks and errors are PyTorch's. What `forward` computes with is one network, whose vertex types are
the layers and directions of a stack of cells.

Sequences are a batch of chains, one for each layer and direction. The vertices of a step lie side
by side, those of a sequence one step after the other, whatever the order in which steps are given:
vertices pull them through an index map, and what is wanted of them is read back by rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import vertexrt as vrt
from vertexrt import nn as cells
from vertexrt.engine.layouts import Known
from vertexrt.engine.model import MOST_OF_A_BATCH
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import fields_of, key_of, unchecked_batch
from vertexrt.graph.digest import BITS_128
from vertexrt.graph.owned import INT32, own, unwritten
from vertexrt.graph.pulls import Pulls, PullValue, held_index, held_table, rows_unchecked
from vertexrt.graph.types import VertexTypes
from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import filled_here
from vertexrt.torch.binding import BoundModule, NetworkSource
from vertexrt.torch.passes import WantedRows, check_tensor, evaluate, outside_graphs

Array = np.ndarray[Any, Any]
DROPPED = "dropped"  # the state that the next layer reads, where dropout comes between
KEPT = 128  # structures of minibatches, as many as runs
WAYS = ("", "_reverse")  # of names of types, and of PyTorch's parameters


class ChainLayout(NamedTuple):
    """What the chains of a minibatch depend on; hashable.

    Attributes:
        counts: the bytes of int64 [times], how many sequences there are at each time, never rising;
            the rows of a time lie side by side.
        resets: of bool [rows], where a step takes no state, what `np.packbits` returns, in bytes;
            b"" where there is none, as for stacks.
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
            from rows as these are given; steps: how many there are.
        outputs: pushes that are wanted: the first state of the last layer at all steps, those of
            one step side by side; all states of all chains after the last, by layer and direction,
            then by sequence.
        rows: of the outputs.
    """

    graphs: GraphBatch
    steps: int
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


_known = Known(KEPT)


def chains_of(layout: ChainLayout, rows: int) -> Chains:
    """Return sequences as chains; those of layouts that come again are kept, if not large.

    Args:
        rows: how many are given.
    Raises: UsageError, when there are more sequences at a later time, or less than none, or more
        steps than rows.
    """
    few = rows * layout.layers * layout.directions <= MOST_OF_A_BATCH
    kept = few and _known.has_come(layout)
    if layout.resets:
        whole = chains_of(layout._replace(resets=b""), rows)
        cut: Chains = (_cut_chains if kept else _cut_chains.__wrapped__)(layout, whole)
        return cut
    found: Chains = (_chains_of if kept else _chains_of.__wrapped__)(layout)
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
    sequences, steps, kinds = int(counts[0]), int(counts.sum()), layers * directions
    slots = [1 + directions * int(kind >= directions) for kind in range(kinds)]  # of a step
    count, size = steps * kinds, steps * sum(slots)
    whole = unwritten(size + 3 * count + sequences + 2, INT32)
    top, last = np.empty(steps * directions, np.int64), np.empty(kinds * sequences, np.int64)
    shape = int(given), layers, directions
    in_order = _lay_chains(whole, top, last, counts, shape)
    child, x, state, rest = np.split(whole, [size, size + count, size + 2 * count])
    types = None
    if kinds > 1:
        names = tuple(type_of(*divmod(kind, directions)) for kind in range(kinds))
        relations = ("0", *map(below, range(directions)))[: max(slots)]
        of_edge = np.concatenate([np.arange(each) for each in slots])
        tiled = (np.tile(each, steps) for each in (np.arange(kinds), of_edge))
        types = VertexTypes(names, relations, *[own(each, INT32) for each in tiled])
    pulls: dict[str, PullValue] = {"x": rows_unchecked(_zeros(steps, 0), x)}
    tables = kinds * sequences if given else 1  # rows, perhaps unread
    for name, elements in layout.sizes:
        pulls[first(name)] = rows_unchecked(_zeros(tables, elements), state)
    batch = unchecked_batch(
        rest[count + 1 :], rest[: count + 1], child, Pulls(pulls), types, Pulls({})
    )
    # The layout, which has fewer bytes than its graphs, says all that decides how they run.
    digest = blake2b(repr(layout).encode(), digest_size=BITS_128).digest()
    batch.form.structure = batch.form.numbers = digest
    as_given = (steps, -1) if layout.packed else (len(counts), sequences, -1)
    rows = [WantedRows(shape=as_given)]
    if kinds > 1 or not in_order:
        rows = [WantedRows(top, x if kinds == 1 else None, as_given)]
    rows += [WantedRows(last, None, (kinds, sequences, n)) for _, n in layout.sizes]
    states = tuple([name for name, _ in layout.sizes])
    return Chains(batch, steps, states[:1] + states, tuple(rows))


@lru_cache(KEPT)
def _cut_chains(layout: ChainLayout, whole: Chains) -> Chains:
    """Return chains that resets cut."""
    _, child_ptr, child, pulls, *_ = fields_of(whole.graphs)
    steps, (x, *states) = whole.steps, pulls
    made, marks = unwritten(3 * steps + 1, INT32), np.frombuffer(layout.resets, np.uint8)
    indices = held_index(pulls[x]), held_index(pulls[states[0]])
    graphs = _cut(made, *indices, child, np.unpackbits(marks))
    child, state, ptr = made[:steps], made[steps : 2 * steps], made[2 * steps :]
    others = {name: rows_unchecked(held_table(pulls[name]), state) for name in states}
    given = {x: pulls[x], **others}
    batch = unchecked_batch(ptr[: graphs + 1], child_ptr, child, Pulls(given), None, Pulls({}))
    digest = blake2b(layout.resets, digest_size=BITS_128, key=key_of(whole.graphs, "structure"))
    batch.form.structure = batch.form.numbers = digest.digest()
    return whole._replace(graphs=batch)


@compiled
def _cut(whole: Array, x: Array, state: Array, child: Array, resets: Array) -> int:
    """Write chains of one layer whose steps take no state where there is a reset.

    Args:
        whole: int32, gets the child of each vertex, the state that it takes, and `graph_ptr`.
        x, state, child: of the chains without resets; resets: [rows or more], 1 where there is one.
    Returns: how many graphs there are.
    """
    out, steps, graphs = filled_here(whole), len(x), 0
    for v in range(steps):
        cut = -int(resets[x[v]])
        out[v] = child[v] | cut
        out[steps + v] = state[v] | cut
        out[2 * steps + graphs] = v
        graphs += int(out[v] < 0)
    out[2 * steps + graphs] = steps
    return graphs


@compiled
def _lay_chains(
    whole: Array,
    top: Array,
    last: Array,
    counts: Array,
    shape: tuple[int, int, int],
) -> Any:
    """Write the chains of sequences, one after the other; the vertices of a step side by side.

    Args:
        whole: int32, gets the child of each slot, of each vertex its row and the state that it
            takes, or -1; then `child_ptr` and `graph_ptr` of the batch.
        top: int64, gets the vertices of each row in the last layer; last: int64, those with the
            final state of each chain.
        counts: of `ChainLayout`; shape: its `given`, `layers` and `directions`.
    Returns: if the rows are in the order of the vertices.
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
    first_slot, in_order = 0, True
    for kind in range(kinds):
        layer, way = kind // directions, kind % directions
        lower = directions if layer else 0
        top_layer, v = int(layer == layers - 1), 0
        for b in range(len(lengths)):
            final = lengths[b] - 1
            out[graph_at + b] = v * kinds
            last[kind * len(lengths) + b] = (v + final * (1 - way)) * kinds + kind
            for t in range(lengths[b]):
                row, vertex = starts[t] + b, v * kinds + kind
                slot = v * slots + first_slot
                begins = int(t == way * final)
                out[ptr + vertex] = slot
                out[slot] = -1 if begins else vertex + (2 * way - 1) * kinds
                for k in range(lower):
                    out[slot + 1 + k] = vertex - kind + (layer - 1) * directions + k
                out[x + vertex] = -1 if layer else row
                out[state + vertex] = kind * len(lengths) + b if given * begins else -1
                if top_layer:
                    top[row * directions + way] = vertex
                if row != v:
                    in_order = False
                v += 1
        first_slot += 1 + lower
    out[ptr + steps * kinds], out[graph_at + len(lengths)] = steps * slots, steps * kinds
    return in_order


@lru_cache(KEPT)
def _zeros(rows: int, size: int) -> Array:
    """Return a table for others to take the place of; nobody can write to it."""
    zeros = np.frombuffer(bytes(4 * max(rows * size, 1)), np.float32)
    return zeros[: rows * size].reshape(rows, size)


class CellStep(vrt.VertexFunction):
    """A step of a cell. Pulls `x`, and of the first vertex of a chain `h_first` and the like.

    Args:
        cell: called as `cell(x, h)`, or `cell(x, (h, c))` with several states.
        input_size: elements of x; sizes: of each state, by name.
        lower: the layer below in each direction, whose first states are read in place of x.
        dropout: of what the layer above reads.
    """

    def __init__(
        self,
        cell: Any,
        input_size: int,
        sizes: Mapping[str, int],
        lower: Sequence[CellStep] = (),
        dropout: float = 0.0,
    ) -> None:
        self.sizes, self.dropout = dict(sizes), dropout
        more = {DROPPED: next(iter(sizes.values()))} if dropout else {}
        inputs = {below(k): step for k, step in enumerate(lower)}
        super().__init__(state=self.sizes | more, arity=1, inputs=inputs)
        self.cell, self.input_size = cell, input_size

    def forward(self) -> None:
        """Compute one step."""
        before, (output, *_) = self.gather(0), self.sizes
        if self.inputs:
            read = [self.gather(relation) for relation in self.inputs]
            under = [getattr(s, DROPPED if DROPPED in vars(s) else output) for s in read]
            x = under[0] if len(under) == 1 else vrt.concat(*under)
        else:
            x = self.pull("x", shape=(self.input_size,))
        state = [
            getattr(before, name) + self.pull(first(name), shape=(size,))
            for name, size in self.sizes.items()
        ]
        found = self.cell(x, tuple(state) if len(state) > 1 else state[0])
        named = dict(zip(self.sizes, found if len(state) > 1 else (found,), strict=True))
        more = {}
        if self.dropout:
            more[DROPPED] = _dropped(named[output], self.dropout)
        self.scatter(**named, **more)
        for name, value in named.items():
            self.push(name, value)


def _dropped(h: Any, p: float) -> Any:
    """Return h where nothing drops; zeros for p = 1, which `vrt.random.dropout` does not take."""
    if p < 1.0:
        return vrt.random.dropout(h, p)
    mask = vrt.random.dropout(0.0 * h + 1.0, 0.5)  # 0 or 2; 1 where nothing drops
    return h * mask * (2.0 - mask)


class Stack(vrt.Model):
    """Layers of cells, in one direction or both; see `type_of`."""

    def __init__(self, steps: Mapping[str, CellStep]) -> None:
        for name, step in steps.items():
            setattr(self, name, step)


def run_chains(
    module: Layers | Recurrent,
    x: Tensor | PackedSequence,
    states: Sequence[Tensor],
    resets: bytes = b"",
    layers: int = 1,
    directions: int = 1,
) -> tuple[Any, list[Tensor]]:
    """Run a stack of cells along sequences.

    Args:
        x: [T, B, I], or [B, T, I] if the module says so, or packed; states: [layers * directions,
            B, H] each, or none; resets: of `ChainLayout`.
    Returns: the first state of the last layer, as x is given; of each state the final values, as
        states are given.
    Raises: UsageError, where there are too few rows, or an order of other sequences.
    """
    packed, turned, order = isinstance(x, PackedSequence), False, None
    if isinstance(x, PackedSequence):
        rows, sizes, sort, order = x
        counts = sizes.numpy().astype(np.int64, copy=False).tobytes()
        if sort is not None:
            states = [each.index_select(1, sort) for each in states]
    else:
        turned = bool(module.batch_first)
        steps = x.transpose(0, 1) if turned else x
        length, count = steps.shape[:2]
        rows, counts = steps.reshape(length * count, -1), _evenly(length, count)
    stack = bool(states), layers, directions, packed
    chains = chains_of(ChainLayout(counts, resets, module.sizes, *stack), len(rows))
    bound, parameters = module.bound()
    pulls = {"x": rows}
    for (name, _), state in zip(module.sizes, states, strict=False):
        pulls[first(name)] = state.reshape(-1, state.shape[-1])
    given = bound, parameters, chains.graphs, pulls, chains.outputs
    out, *final = evaluate(*given, training=module.training, rows=chains.rows)
    if order is not None:
        if order.shape != final[0].shape[1:2]:
            got = f"unsorted_indices of shape {list(order.shape)}"
            action = "pack them by torch.nn.utils.rnn"
            raise UsageError.at("torch", got, "one for each sequence", action)
        final = [each.index_select(1, order) for each in final]
    if packed:
        return PackedSequence._make((out, *x[1:])), final
    return out.transpose(0, 1) if turned else out, final


@lru_cache
def _evenly(length: int, count: int) -> bytes:
    """Return `ChainLayout.counts` of sequences of one length."""
    return np.full(length, count, np.int64).tobytes()


class Layers(BoundModule, nn.RNNBase):
    """What the three have in common: stacks of layers, in one direction or both."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.directions = 2 if self.bidirectional else 1
        self.sizes: tuple[tuple[str, int], ...] = (("h", self.hidden_size),)
        if self.mode == "LSTM":
            self.sizes = ("h", self.proj_size or self.hidden_size), ("c", self.hidden_size)
        own = self.mode, self.input_size, self.hidden_size, self.bias, self.proj_size
        stack = self.num_layers, self.directions, float(self.dropout)
        self.source = _source_of(own, self.sizes, *stack)
        self.owned = []
        for name in self.source.traced.params:
            kind, _, parameter = name.rpartition("cell.")
            self.owned.append(((), f"{parameter}_{kind.rstrip('.') or type_of(0, 0)}"))
        self.bind()

    def flatten_parameters(self) -> None:
        """Leave the parameters where the network has them."""

    @outside_graphs
    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Run the layers, as `forward` of PyTorch's layer does.

        Raises: ValueError and RuntimeError, as PyTorch's, when shapes do not fit.
        """
        several, packed = len(self.sizes) > 1, isinstance(input, PackedSequence)
        states = [] if hx is None else list(hx) if several else [hx]
        for given in (input, *states)[packed:]:
            if type(given) is not Tensor:
                check_tensor(given)
        if hx is not None and len(states) != len(self.sizes):
            raise RuntimeError("lstm expects two hidden states")
        batched = packed or input.dim() == 3
        if not packed:
            fits = input.dim() in (2, 3) and input.shape[:-1].numel()
            for each in states:
                fits = fits and each.dim() == input.dim()
            if not fits:  # nothing to run, or PyTorch says what is wrong
                refused: tuple[Any, Any] = super().forward(input, hx)
                return refused
        if not batched:
            input = input.unsqueeze(0 if self.batch_first else 1)
            states = [each.unsqueeze(1) for each in states]
        self._check(input, states)
        output, final = run_chains(self, input, states, b"", self.num_layers, self.directions)
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            final = [each.squeeze(1) for each in final]
        return output, tuple(final) if several else final[0]

    def _check(self, x: Any, states: list[Tensor]) -> None:
        """Let PyTorch's layer check its arguments, by the dtype of its first parameter."""
        data, batch_sizes = x[:2] if isinstance(x, PackedSequence) else (x, None)
        found = self._parameters.get("weight_ih_l0")
        self._flat_weights[0] = self._place() if found is None else found
        if states:
            hidden: Any = tuple(states) if len(states) > 1 else states[0]
            self.check_forward_args(data, hidden, batch_sizes)
        else:
            self.check_input(data, batch_sizes)


@lru_cache
def _source_of(
    own: tuple[str, int, int, bool, int],
    sizes: tuple[tuple[str, int], ...],
    layers: int,
    directions: int,
    dropout: float,
) -> NetworkSource:
    """Return what networks of equal layers are made from.

    Args:
        own: mode, elements of x and of h, bias, elements of a projection, as of `nn.RNNBase`.
    """
    mode, input_size, hidden_size, bias, projected = own
    steps: dict[str, CellStep] = {}
    lower: list[CellStep] = []
    for layer in range(layers):
        size = len(lower) * sizes[0][1] if layer else input_size
        made = []
        for way in range(directions):
            cell: cells.Cell
            if mode == "LSTM" and projected:
                cell = ProjectedLSTMCell(size, hidden_size, bias, projected)
            elif mode == "LSTM":
                cell = cells.LSTMCell(size, hidden_size, bias)
            elif mode == "GRU":
                cell = cells.GRUCell(size, hidden_size, bias)
            else:
                cell = cells.RNNCell(size, hidden_size, bias, mode.removeprefix("RNN_").lower())
            drops = dropout if layer < layers - 1 else 0.0
            step = steps[type_of(layer, way)] = CellStep(cell, size, dict(sizes), lower, drops)
            made.append(step)
        lower = made
    return NetworkSource.of(vrt.compile(Stack(steps) if len(steps) > 1 else step, device="cpu"))


class ProjectedLSTMCell(cells.LSTMCell):
    """An LSTM whose h is a projection (Sak et al. 2014), as `proj_size` of `nn.LSTM`.

    Parameters: those of LSTMCell, with weight_hh [4H, P]; weight_hr [P, H].
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool, projected: int) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.weight_hh = vrt.Parameter((4 * hidden_size, projected))
        self.weight_hr = vrt.Parameter((projected, hidden_size))

    def __call__(self, x: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the next (h, c), given (h, c)."""
        h, c = super().__call__(x, state)
        return self.weight_hr @ h, c


class LSTM(Layers, nn.LSTM):
    """In place of `torch.nn.LSTM`: its arguments, parameters, inputs and outputs."""


class GRU(Layers, nn.GRU):
    """In place of `torch.nn.GRU`: its arguments, parameters, inputs and outputs."""


class RNN(Layers, nn.RNN):
    """In place of `torch.nn.RNN`: its arguments, parameters, inputs and outputs."""


class Recurrent(BoundModule):
    """Any cell along sequences of any lengths, as `nn.LSTM` runs its own. Nothing is padded.

    Args:
        cell: a cell of `vrt.nn`, or anything with parameters that is called as `cell(x, h)`, or as
            `cell(x, (h, c))` where it has several states, and returns the next ones.
        input_size: elements of x.
        state: elements of each state, by name, the first one being the output; by default those of
            the cells of `vrt.nn`.
        batch_first: x and the output are [B, T, ...], else [T, B, ...].
    Raises: UsageError, when the states are not known.
    """

    def __init__(
        self,
        cell: Any,
        input_size: int,
        state: Mapping[str, int] | None = None,
        *,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        if state is None:
            names = getattr(cell, "states", None)
            if names is None:
                got = f"a {type(cell).__name__}, whose states are not known"
                action = "write Recurrent(cell, input_size, state={'h': 64})"
                if isinstance(cell, nn.Module):
                    action = f"take a cell of vrt.nn, such as vrt.nn.{type(cell).__name__}"
                raise _misfit(got, "their sizes", action)
            state = dict.fromkeys(names, cell.hidden_size)
        self.sizes, self.batch_first = tuple(state.items()), batch_first
        self.hold(vrt.compile(CellStep(cell, input_size, state), device="cpu"), "cell.")

    @outside_graphs
    def forward(
        self,
        x: Tensor | PackedSequence,
        state: Tensor | Sequence[Tensor] | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, ...]]:
        """Run the cell.

        Args:
            x: [T, B, I], or [B, T, I] if `batch_first`; or a PackedSequence of such steps.
            state: before the first step, [B, H] each; zeros by default.
            resets: bool [T, B] (or [B, T]), steps that take no state from the step before, nor one
                from outside; with a PackedSequence bool [rows of its data].
        Returns: the first state at all steps, as x is given; all states after the last step, [B, H]
            each.
        Raises: UsageError, when a shape does not fit.
        """
        given = (state,) if isinstance(state, Tensor) else tuple(state or ())
        if given and len(given) != len(self.sizes):
            names = ", ".join(name for name, _ in self.sizes)
            raise _misfit(f"{len(given)} states", f"those of {names}")
        turned = self.batch_first and not isinstance(x, PackedSequence)
        if type(x) not in (Tensor, PackedSequence):
            check_tensor(x)
        if isinstance(x, PackedSequence):
            steps, count = x.data.shape[:1], int(x.batch_sizes[0])
            total = int(x.batch_sizes.sum())
            if len(x.data) != total:
                raise _misfit(f"{len(x.data)} steps", f"{total}, as batch_sizes say")
        elif x.dim() != 3 or 0 in x.shape[:2]:
            raise _misfit(f"x of shape {list(x.shape)}", "[T, B, I], or [B, T, I] if batch_first")
        else:
            steps, count = x.shape[:2], x.shape[1 - self.batch_first]
        for (name, size), each in zip(self.sizes, given, strict=bool(given)):
            if tuple(each.shape) != (count, size):
                raise _misfit(f"{name} of shape {list(each.shape)}", f"[{count}, {size}]")
        marks = b""
        if resets is not None:
            if resets.dtype != torch.bool or resets.shape != steps:
                got = f"resets are {resets.dtype}, {list(resets.shape)}"
                raise _misfit(got, f"bool of shape {list(steps)}")
            marks = np.packbits((resets.T if turned else resets).cpu().numpy()).tobytes()
        out, last = run_chains(self, x, [each.unsqueeze(0) for each in given], marks)
        return out, tuple(each.squeeze(0) for each in last)


def _misfit(got: str, expected: str, action: str = "correct it") -> UsageError:
    return UsageError.at("Recurrent", got, expected, action)
