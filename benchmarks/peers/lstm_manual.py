"""The same LSTM in PyTorch with the backward pass written by hand, in buffers that are kept."""

import torch
from torch import Tensor

from benchmarks.peers.lstm import LstmPeer, Plan
from benchmarks.peers.torch_peer import (
    Buffers,
    Tensors,
    classify_by_hand,
    sigmoid_backward,
    tanh_backward,
)
from vertexrt.bench.measure import Arrays


class StepBatchedManual(LstmPeer):
    """Batch by time step, forward and backward by hand."""

    def __init__(self, parameters: Arrays, device: str = "cpu") -> None:
        super().__init__(parameters, device)
        self._buffers = Buffers(self.weights["v"])

    @torch.no_grad()
    def accumulate(self, plan: Plan, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""
        weights = self.weights
        saved = self._forward(plan)
        loss, d_logits = classify_by_hand(saved["h"], weights["v"], plan.label, plan.num_graphs)
        d_gates = self._backward(plan, saved, d_logits)
        d_x = d_gates @ weights["w"]
        rows = len(plan.before)
        h_before = self._buffers.get("h_before", rows, self.hidden)
        torch.index_select(saved["h"], 0, plan.before, out=h_before)
        into["v"].addmm_(d_logits.t(), saved["h"], alpha=scale)
        into["w"].addmm_(d_gates.t(), saved["x"], alpha=scale)
        into["u"].addmm_(d_gates[plan.num_graphs :].t(), h_before, alpha=scale)
        into["b"].add_(d_gates.sum(0), alpha=scale)
        into["embedding"].index_add_(0, plan.word, d_x, alpha=scale)
        return loss

    def outputs(self, plan: Plan) -> Tensor:
        """Return the logits by row."""
        return self._forward(plan)["h"] @ self.weights["v"].t()

    def _forward(self, plan: Plan) -> Tensors:
        weights, hidden = self.weights, self.hidden
        rows = len(plan.word)
        saved = {
            name: self._buffers.get(name, rows, columns)
            for name, columns in (
                ("x", weights["w"].shape[1]),
                ("gates", 4 * hidden),
                ("c", hidden),
                ("tanh_c", hidden),
                ("h", hidden),
            )
        }
        u = weights["u"].t()
        torch.index_select(weights["embedding"], 0, plan.word, out=saved["x"])
        torch.addmm(weights["b"], saved["x"], weights["w"].t(), out=saved["gates"])
        end = before = 0
        for width in plan.widths.tolist():
            begin, end = end, end + width
            gates, c = saved["gates"][begin:end], saved["c"][begin:end]
            ifo, g = gates.split([3 * hidden, hidden], 1)
            i, f, o = ifo.split(hidden, 1)
            if begin:
                gates.addmm_(saved["h"][before : before + width], u)
            ifo.sigmoid_()
            torch.mul(i, g.tanh_(), out=c)
            if begin:
                c.addcmul_(f, saved["c"][before : before + width])
            tanh_c = torch.tanh(c, out=saved["tanh_c"][begin:end])
            torch.mul(o, tanh_c, out=saved["h"][begin:end])
            before = begin
        return saved

    def _backward(self, plan: Plan, saved: Tensors, d_logits: Tensor) -> Tensor:
        """Return the gradient by the gates, by row."""
        weights, hidden = self.weights, self.hidden
        rows = len(plan.word)
        all_gates = self._buffers.get("d_gates", rows, 4 * hidden)
        all_h = torch.mm(d_logits, weights["v"], out=self._buffers.get("d_h", rows, hidden))
        all_c = self._buffers.get("d_c", rows, hidden).zero_()
        scratch = self._buffers.get("scratch", plan.num_graphs, hidden)
        begin = rows
        widths = plan.widths.tolist()
        for step in range(len(widths) - 1, -1, -1):
            begin, end = begin - widths[step], begin
            gates, d_gates = saved["gates"][begin:end], all_gates[begin:end]
            i, f, o, g = gates.split(hidden, 1)
            d_i, d_f, d_o, d_g = d_gates.split(hidden, 1)
            d_h, d_c, tanh_c = all_h[begin:end], all_c[begin:end], saved["tanh_c"][begin:end]
            through = torch.mul(d_h, o, out=scratch[: end - begin])
            d_c.add_(tanh_backward(through, tanh_c, grad_input=through))
            torch.mul(d_h, tanh_c, out=d_o)
            torch.mul(d_c, g, out=d_i)
            torch.mul(d_c, i, out=d_g)
            if step:
                first = begin - widths[step - 1]
                earlier = slice(first, first + widths[step])
                torch.mul(d_c, saved["c"][earlier], out=d_f)
                all_c[earlier].addcmul_(d_c, f)
            else:
                d_f.zero_()
            d_ifo = d_gates[:, : 3 * hidden]
            sigmoid_backward(d_ifo, gates[:, : 3 * hidden], grad_input=d_ifo)
            tanh_backward(d_g, g, grad_input=d_g)
            if step:
                all_h[earlier].addmm_(d_gates, weights["u"])
        return all_gates
