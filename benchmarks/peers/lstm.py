"""An LSTM over sentences in PyTorch: a loop over time steps, and `nn.LSTM`.

Both take the sentences sorted by length and packed (`packed.py`), look up all words at once and put
one classifier GEMM after all steps. `StepBatched` hoists the input products into one GEMM; a step
adds the recurrent one and then computes the gates, on CUDA in PyTorch's fused kernel (that of
`nn.LSTMCell`). Autograd goes back through the steps with the weights as constants and stops at the
gates; the gradients of the weights are one GEMM each. `CudnnLstm` is `nn.LSTM` over a
`PackedSequence`, or over a plain tensor where all sentences are of one length: cuDNN on CUDA.

The loss is the cross entropy summed over all words, divided by the number of sentences.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from benchmarks.peers.packed import build_packed
from benchmarks.peers.torch_peer import Peer, Tensors, classify
from vertexrt import GraphBatch
from vertexrt.bench.measure import Arrays

OURS = "ifou"  # the order of gates in the vertex function
TORCH = "ifuo"  # the same four in PyTorch, which calls u g


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the schedule of one batch on the device; the fields are those of `Packed`.

    `widths` stays on the host, where PyTorch reads it.
    """

    num_graphs: int
    widths: np.ndarray
    word: Tensor
    label: Tensor
    before: Tensor
    row: Tensor


class LstmPeer(Peer):
    """An LSTM with a classifier: w, u, b with the gates in the order `gates`."""

    gates = OURS

    @staticmethod
    def hidden_of(parameters: Arrays) -> int:
        """Return the number of hidden elements."""
        return int(parameters["u"].shape[1])

    def layout(self, parameters: Arrays) -> Arrays:
        """Return parameters by name with the gates in the peer's order."""
        return _reorder(parameters, OURS, self.gates)

    def named(self, values: Arrays) -> Arrays:
        """Return the parameters by name, gates in the order of the vertex function."""
        return _reorder(values, self.gates, OURS)

    def plan(self, batch: GraphBatch) -> Plan:
        """Build the packed schedule of a minibatch and upload it."""
        packed = build_packed(batch)
        uploaded = self.upload(packed.word, packed.label, packed.before, packed.row)
        return Plan(batch.num_graphs, packed.widths, *uploaded)


def _reorder(values: Arrays, given: str, wanted: str) -> Arrays:
    found = dict(values)
    for name in ("w", "u", "b"):
        parts = dict(zip(given, np.split(values[name], 4), strict=True))
        found[name] = np.concatenate([parts[gate] for gate in wanted])
    return found


class StepBatched(LstmPeer):
    """Batch by time step, with autograd for the backward pass."""

    def __init__(self, parameters: Arrays, device: str = "cpu") -> None:
        self.fused = torch.device(device).type == "cuda"
        self.gates = TORCH if self.fused else OURS
        super().__init__(parameters, device)

    def accumulate(self, plan: Plan, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""
        weights = self.weights
        x = weights["embedding"].index_select(0, plan.word)
        x_gates = torch.addmm(weights["b"], x, weights["w"].t()).requires_grad_()
        h = self._steps(plan, x_gates)
        v = weights["v"].detach().requires_grad_()
        loss = classify(h, v, plan.label, plan.num_graphs)
        d_v, d_gates = torch.autograd.grad(loss, [v, x_gates])
        d_x = d_gates @ weights["w"]
        d_later = d_gates[plan.num_graphs :]
        into["w"].addmm_(d_gates.t(), x, alpha=scale)
        into["u"].addmm_(d_later.t(), h.detach().index_select(0, plan.before), alpha=scale)
        into["b"].add_(d_gates.sum(0), alpha=scale)
        into["v"].add_(d_v, alpha=scale)
        into["embedding"].index_add_(0, plan.word, d_x, alpha=scale)
        return loss.detach()

    def outputs(self, plan: Plan) -> Tensor:
        """Return the logits by row."""
        weights = self.weights
        x = weights["embedding"].index_select(0, plan.word)
        x_gates = torch.addmm(weights["b"], x, weights["w"].t())
        return self._steps(plan, x_gates) @ weights["v"].t()

    def _steps(self, plan: Plan, x_gates: Tensor) -> Tensor:
        """Return h by row."""
        u = self.weights["u"].t()
        cell = _fused_cell if self.fused else self._cell
        h = c = x_gates.new_zeros(plan.num_graphs, self.hidden)
        states: list[Tensor] = []
        for x_t in x_gates.split(plan.widths.tolist()):
            if len(x_t) < len(h):
                h, c = h[: len(x_t)], c[: len(x_t)]
            h, c = cell(x_t, h, c, u, first=not states)
            states.append(h)
        return torch.cat(states)

    def _cell(
        self, x_t: Tensor, h: Tensor, c: Tensor, u: Tensor, first: bool
    ) -> tuple[Tensor, Tensor]:
        gates = x_t if first else torch.addmm(x_t, h, u)
        ifo, g = gates.split([3 * self.hidden, self.hidden], 1)
        i, f, o = torch.sigmoid(ifo).split(self.hidden, 1)
        c = i * torch.tanh(g) if first else torch.addcmul(i * torch.tanh(g), f, c)
        return o * torch.tanh(c), c


def _fused_cell(x_t: Tensor, h: Tensor, c: Tensor, u: Tensor, first: bool) -> tuple[Tensor, Tensor]:
    h_gates = torch.zeros_like(x_t) if first else h @ u
    h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(x_t, h_gates, c)
    return h, c


class CudnnLstm(LstmPeer):
    """`torch.nn.LSTM`; its second bias stays zero and is not trained."""

    gates = TORCH

    def make_weights(self, values: Arrays) -> Tensors:
        """Return the tensors that hold the parameters, those of the module among them."""
        embed = values["w"].shape[1]
        dtype = torch.from_numpy(values["w"]).dtype
        self.lstm = torch.nn.LSTM(embed, self.hidden, device=self.device, dtype=dtype)
        torch.nn.init.zeros_(self.lstm.bias_hh_l0)
        self.lstm.bias_hh_l0.requires_grad_(False)
        inside = {
            "w": self.lstm.weight_ih_l0,
            "u": self.lstm.weight_hh_l0,
            "b": self.lstm.bias_ih_l0,
        }
        outside = {name: value for name, value in values.items() if name not in inside}
        with torch.no_grad():
            for name, held in inside.items():
                held.copy_(torch.from_numpy(values[name]))
        return super().make_weights(outside) | inside

    def accumulate(self, plan: Plan, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""
        weights = self.weights
        x = weights["embedding"].index_select(0, plan.word).requires_grad_()
        v = weights["v"].detach().requires_grad_()
        loss = classify(self._run(plan, x), v, plan.label, plan.num_graphs)
        dense = ("w", "u", "b")
        d_x, d_v, *d_dense = torch.autograd.grad(loss, [x, v, *(weights[n] for n in dense)])
        with torch.no_grad():
            weights_of = [into[name] for name in ("v", *dense)]
            torch._foreach_add_(weights_of, [d_v, *d_dense], alpha=scale)
            into["embedding"].index_add_(0, plan.word, d_x, alpha=scale)
        return loss.detach()

    def outputs(self, plan: Plan) -> Tensor:
        """Return the logits by row."""
        x = self.weights["embedding"].index_select(0, plan.word)
        return self._run(plan, x) @ self.weights["v"].t()

    def _run(self, plan: Plan, x: Tensor) -> Tensor:
        """Return h by row."""
        given: Any
        if plan.widths[-1] == plan.num_graphs:
            given = x.view(len(plan.widths), plan.num_graphs, -1)
            return self.lstm(given)[0].view(len(x), self.hidden)
        given = PackedSequence(x, torch.from_numpy(plan.widths))
        return self.lstm(given)[0].data
