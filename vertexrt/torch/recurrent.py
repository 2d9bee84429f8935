"""Chains: a cell along sequences of any lengths, with resets, as a module of PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn.utils.rnn import PackedSequence

import vertexrt as vrt
from vertexrt.errors import UsageError
from vertexrt.torch.binding import BoundModule, BoundNetwork
from vertexrt.torch.chains import ChainLayout, chains_of, first
from vertexrt.torch.evaluate import Evaluate, evaluate_here

Forward = TypeVar("Forward", bound=Callable[..., Any])


class CellStep(vrt.VertexFunction):
    """A step of a cell. Pulls `x`, and of the first vertex of a chain `h_first` and the like.

    Args:
        cell: called as `cell(x, h)`, or `cell(x, (h, c))` with several states.
        input_size: elements of x; sizes: of each state, by name.
    """

    def __init__(self, cell: Any, input_size: int, sizes: Mapping[str, int]) -> None:
        super().__init__(state=dict(sizes), arity=1)
        self.cell, self.input_size, self.sizes = cell, input_size, dict(sizes)

    def forward(self) -> None:
        """Compute one step."""
        x, before = self.pull("x", shape=(self.input_size,)), self.gather(0)
        state = [
            getattr(before, name) + self.pull(first(name), shape=(size,))
            for name, size in self.sizes.items()
        ]
        found = self.cell(x, tuple(state) if len(state) > 1 else state[0])
        named = dict(zip(self.sizes, found if len(state) > 1 else (found,), strict=True))
        self.scatter(**named)
        for name, value in named.items():
            self.push(name, value)


class FinalStates(NamedTuple):
    """How states after the last steps of sequences are wanted.

    Attributes:
        order: int64 [B], which sequence comes where; None, where they are in order.
        axes: of length 1, in front of [B, H].
    """

    order: Tensor | None = None
    axes: int = 0


def run_chains(
    bound: BoundNetwork,
    parameters: list[Tensor],
    steps: tuple[Tensor, ChainLayout],
    states: Sequence[Tensor],
    training: bool,
    final: FinalStates,
) -> tuple[Tensor, list[Tensor]]:
    """Run a cell along sequences.

    Args:
        steps: x [rows, I], and where its rows belong; states: [B, H] each, or none.
        final: how the states after the last steps are wanted.
    Returns: the first state, in the order of the rows; of each state the final values.
    Raises: UsageError, where there are too few rows, or `final` has an order of other sequences.
    """
    x, layout = steps
    chains, by = chains_of(layout), final.order
    if len(x) < chains.count:
        got, expected = f"{len(x)} steps", f"{chains.count}, as batch_sizes say"
        raise UsageError.at("torch", got, expected, "pack them by torch.nn.utils.rnn")
    pulls = {"x": x}
    if states:
        names = [name for name, _ in layout.sizes]
        pulls |= {first(name): state for name, state in zip(names, states, strict=True)}
    if by is not None:
        if by.shape != chains.last.vertices.shape:
            got, expected = f"unsorted_indices of shape {list(by.shape)}", "one for each sequence"
            raise UsageError.at("torch", got, expected, "pack them by torch.nn.utils.rnn")
        if by.dtype != torch.int64 or by.device != bound.device or not by.is_contiguous():
            by = by.to(bound.device, torch.int64).contiguous()
    orders = chains.orders(by is not None, final.axes)
    asked = Evaluate(chains.graphs, pulls, chains.outputs, training, False, orders, by)
    out, *last = evaluate_here(bound, parameters, asked, chains.graphs)
    return out, last


def outside_graphs(forward: Forward) -> Forward:
    """Let a compiler leave a function outside of its graphs: it reads structures of the host."""
    apart = _disable_dynamo(forward)  # which imports the compiler when it is called

    @wraps(forward)
    def choose(*args: Any, **kwargs: Any) -> Any:
        return (apart if "torch._dynamo" in sys.modules else forward)(*args, **kwargs)

    return cast("Forward", choose)


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
        sizes = _sizes(cell) if state is None else state
        self.sizes, self.batch_first = tuple(sizes.items()), batch_first
        self.hold(vrt.compile(CellStep(cell, input_size, sizes), device="cpu"), "cell.")

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
        rows = _rows_of(x, self.batch_first)
        self._check_states(given, int(np.frombuffer(rows.counts, np.int64)[0]))
        marks = b"" if resets is None else _marks(resets, x, self.batch_first)
        layout = ChainLayout(rows.counts, marks, self.sizes, bool(given), False)
        bound, parameters = self.bound(0)
        steps = rows.x, layout
        own = [_in_order(each, rows.sort) for each in given]
        final = FinalStates(rows.unsort)
        out, last = run_chains(bound, parameters, steps, own, self.training, final)
        return _as_given(out, x, self.batch_first), tuple(last)

    def _check_states(self, given: Sequence[Tensor], count: int) -> None:
        """Refuse states, if any, that are not of so many sequences. Raises: UsageError."""
        for (name, size), each in zip(self.sizes, given, strict=bool(given)):
            if tuple(each.shape) != (count, size):
                raise _misfit(f"{name} of shape {list(each.shape)}", str([count, size]))


class _Steps(NamedTuple):
    """Steps as rows.

    Attributes:
        counts: of `ChainLayout`.
        sort, unsort: how sequences were sorted, and back; None, if they were not.
    """

    x: Tensor
    counts: bytes
    sort: Tensor | None = None
    unsort: Tensor | None = None


def _in_order(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else rows.index_select(0, order)


def _sizes(cell: Any) -> dict[str, int]:
    """Return the elements of each state of a cell of `vrt.nn`."""
    names = getattr(cell, "states", None)
    if names is None:
        got = f"a {type(cell).__name__}, whose states are not known"
        raise _misfit(got, "their sizes", "write Recurrent(cell, input_size, state={'h': 64})")
    return dict.fromkeys(names, cell.hidden_size)


def _rows_of(x: Tensor | PackedSequence, batch_first: bool) -> _Steps:
    """Return steps as rows, those of one time side by side."""
    if isinstance(x, PackedSequence):
        sizes = x.batch_sizes.numpy().astype(np.int64, copy=False)
        if len(x.data) != sizes.sum():
            raise _misfit(f"{len(x.data)} steps", f"{sizes.sum()}, as batch_sizes say")
        return _Steps(x.data, sizes.tobytes(), x.sorted_indices, x.unsorted_indices)
    if x.dim() != 3 or 0 in x.shape[:2]:
        raise _misfit(f"x of shape {list(x.shape)}", "[T, B, I], or [B, T, I] if batch_first")
    steps = x.transpose(0, 1) if batch_first else x
    length, count = steps.shape[:2]
    return _Steps(steps.reshape(length * count, -1), np.full(length, count).tobytes())


def _marks(resets: Tensor, x: Tensor | PackedSequence, batch_first: bool) -> bytes:
    """Return resets as the bytes of `ChainLayout`."""
    shape = x.data.shape[:1] if isinstance(x, PackedSequence) else x.shape[:2]
    if resets.dtype != torch.bool or resets.shape != shape:
        got = f"resets are {resets.dtype}, {list(resets.shape)}"
        raise _misfit(got, f"bool of shape {list(shape)}")
    rows = resets.transpose(0, 1) if batch_first and resets.dim() == 2 else resets
    found: bytes = rows.reshape(-1).cpu().numpy().tobytes()
    return found


def _as_given(
    rows: Tensor, x: Tensor | PackedSequence, batch_first: bool
) -> Tensor | PackedSequence:
    """Return rows in the form of x."""
    if isinstance(x, PackedSequence):
        return PackedSequence(rows, x.batch_sizes, x.sorted_indices, x.unsorted_indices)
    length, count = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    steps = rows.reshape(length, count, -1)
    return steps.transpose(0, 1) if batch_first else steps


def _misfit(got: str, expected: str, action: str = "correct it") -> UsageError:
    return UsageError.at("Recurrent", got, expected, action)
