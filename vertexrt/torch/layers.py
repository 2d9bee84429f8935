"""Recurrent layers in place of PyTorch's: `LSTM`, `GRU` and `RNN`, with their own parameters.

Each *is* the layer of `torch.nn`, a subclass of it: signature, parameters, `state_dict`, checks and
errors are PyTorch's; what `forward` computes with are networks, one a layer and direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import vertexrt as vrt
from vertexrt import nn as cells
from vertexrt.torch.binding import BoundModule, NetworkSource
from vertexrt.torch.chains import ChainLayout
from vertexrt.torch.recurrent import CellStep, FinalStates, outside_graphs, run_chains


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


class Layers(BoundModule, nn.RNNBase):
    """What the three have in common: stacks of layers, in one direction or both."""

    what = ""  # after the dimensions, in PyTorch's error

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.directions = 2 if self.bidirectional else 1
        self.sizes = self._sizes()
        self.sources, self.owned, made = [], [], {}
        width = self.sizes[0][1] * self.directions
        for layer in range(self.num_layers):
            size = width if layer else self.input_size
            if size not in made:
                step = CellStep(self._cell(size), size, dict(self.sizes))
                made[size] = NetworkSource.of(vrt.compile(step, device="cpu"))
            names = [name.removeprefix("cell.") for name in made[size].traced.params]
            for suffix in ("", "_reverse")[: self.directions]:
                self.sources.append(made[size])
                self.owned.append([((), f"{name}_l{layer}{suffix}") for name in names])
        self.bind()

    def _sizes(self) -> tuple[tuple[str, int], ...]:
        """Return the elements of each state."""
        return (("h", self.hidden_size),)

    def _cell(self, input_size: int) -> Any:
        """Return the cell of a layer."""
        raise NotImplementedError

    def flatten_parameters(self) -> None:
        """Leave the parameters where the networks have them."""

    @outside_graphs
    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Run the layers, as `forward` of PyTorch's layer does.

        Raises: ValueError and RuntimeError, as PyTorch's, when shapes do not fit.
        """
        if isinstance(input, PackedSequence):
            return self._run_packed(input, hx)
        if input.dim() not in (2, 3):
            got = f"{input.dim()}D{self.what} instead"
            raise ValueError(f"{self._get_name()}: Expected input to be 2D or 3D, got {got}")
        if not input.shape[:-1].numel():  # nothing to run, and PyTorch says what it refuses
            nothing: tuple[Any, Any] = super().forward(input, hx)
            return nothing
        return self._run_whole(input, hx)

    def _run_whole(self, input: Tensor, hx: Any) -> tuple[Tensor, Any]:
        """Run the layers on sequences of one length, or on one without a batch."""
        batched, batch_dim = input.dim() == 3, 0 if self.batch_first else 1
        whole = input if batched else input.unsqueeze(batch_dim)
        states = self._batched(self._states(hx), batched)
        self._check(whole, states, None)
        steps = whole.transpose(0, 1) if self.batch_first else whole
        length, count = steps.shape[:2]
        rows, final = self._run(steps.reshape(length * count, -1), np.full(length, count), states)
        output = rows.reshape(length, count, -1)
        if not batched:
            return output.squeeze(1), self._hidden([each.squeeze(1) for each in final])
        return output.transpose(0, 1) if self.batch_first else output, self._hidden(final)

    def _run_packed(self, given: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        """Run the layers on packed sequences, whose states come in the order of the user."""
        data, sizes, sort, unsort = given
        states = self._states(hx)
        if sort is not None:
            states = [each.index_select(1, sort) for each in states]
        self._check(data, states, sizes)
        rows, final = self._run(data, sizes.numpy(), states, unsort)
        return PackedSequence._make((rows, sizes, sort, unsort)), self._hidden(final)

    def _states(self, hx: Any) -> list[Tensor]:
        """Return the states that are given, [layers * directions, B, H] each; none for zeros."""
        if hx is None:
            return []
        states = list(hx) if len(self.sizes) > 1 else [hx]
        if len(states) != len(self.sizes):
            raise RuntimeError("lstm expects two hidden states")
        return states

    def _batched(self, states: list[Tensor], batched: bool) -> list[Tensor]:
        """Return states [layers * directions, B, H], which are given as the input is."""
        dims = 3 if batched else 2
        if any(each.dim() != dims for each in states):
            raise _other_dims([f"{each.dim()}-D" for each in states], dims)
        return states if batched else [each.unsqueeze(1) for each in states]

    def _check(self, data: Tensor, states: list[Tensor], batch_sizes: Tensor | None) -> None:
        """Let PyTorch's layer check its arguments, by the dtype of its first parameter."""
        first = self._parameters.get("weight_ih_l0")
        self._flat_weights[0] = self._place() if first is None else first
        if states:
            self.check_forward_args(data, self._hidden(states), batch_sizes)
        else:
            self.check_input(data, batch_sizes)

    def _hidden(self, states: list[Tensor]) -> Any:
        """Return states in the form of PyTorch's layer."""
        return tuple(states) if len(self.sizes) > 1 else states[0]

    def _run(
        self,
        rows: Tensor,
        sizes: np.ndarray[Any, Any],
        states: list[Tensor],
        unsort: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Run all layers.

        Args:
            rows: [steps of all sequences, I], those of one time side by side.
            sizes: how many sequences there are at each time.
            states: [layers * directions, B, H] each; none for zeros.
            unsort: which sequence comes where in the final states; None, where they are in order.
        """
        wanted = FinalStates(unsort, axes=1)
        counts = sizes.astype(np.int64, copy=False).tobytes()
        final: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            made = []
            for back in range(self.directions):
                k = layer * self.directions + back
                layout = ChainLayout(counts, b"", self.sizes, bool(states), bool(back))
                bound, parameters = self.bound(k)
                own = [state[k] for state in states]
                steps = rows, layout
                out, last = run_chains(bound, parameters, steps, own, False, wanted)
                made.append(out)
                final.append(last)
            rows = torch.cat(made, 1) if self.directions > 1 else made[0]
            if self.dropout and layer < self.num_layers - 1:
                rows = nn.functional.dropout(rows, self.dropout, self.training)
        if len(final) == 1:
            return rows, final[0]
        return rows, [torch.cat(each) for each in zip(*final, strict=True)]


def _other_dims(got: list[str], dims: int) -> RuntimeError:
    """Return PyTorch's error for states that have other dimensions than the input asks for."""
    given, wanted = "batched 3-D" if dims == 3 else "unbatched 2-D", f"also be {dims}-D but got"
    if len(got) > 1:
        text = f"For {given} input, hx and cx should {wanted} ({', '.join(got)}) tensors"
    else:
        text = f"For {given} input, hx should {wanted} {got[0]} tensor"
    return RuntimeError(text)


class LSTM(Layers, nn.LSTM):
    """In place of `torch.nn.LSTM`: its arguments, parameters, inputs and outputs."""

    def _sizes(self) -> tuple[tuple[str, int], ...]:
        return (("h", self.proj_size or self.hidden_size), ("c", self.hidden_size))

    def _cell(self, input_size: int) -> Any:
        if self.proj_size:
            return ProjectedLSTMCell(input_size, self.hidden_size, self.bias, self.proj_size)
        return cells.LSTMCell(input_size, self.hidden_size, self.bias)


class GRU(Layers, nn.GRU):
    """In place of `torch.nn.GRU`: its arguments, parameters, inputs and outputs."""

    def _cell(self, input_size: int) -> Any:
        return cells.GRUCell(input_size, self.hidden_size, self.bias)


class RNN(Layers, nn.RNN):
    """In place of `torch.nn.RNN`: its arguments, parameters, inputs and outputs."""

    what = " tensor"

    def _cell(self, input_size: int) -> Any:
        return cells.RNNCell(input_size, self.hidden_size, self.bias, self.nonlinearity)
