"""The same Tree-LSTM in PyTorch with the backward pass written by hand: the strongest peer.

No autograd graph is built. Every intermediate value lies in one buffer for the whole batch, kept
from batch to batch, so that a level writes its rows in place and each weight gradient is one GEMM
after the last level, which adds to the weight itself. This is what is left to gain in PyTorch by
hand; most experts would stop at `tree_lstm.LevelBatched`.
"""

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.torch_peer import (
    Buffers,
    Tensors,
    classify_by_hand,
    sigmoid_backward,
    tanh_backward,
)
from benchmarks.peers.tree_lstm import Plan, TreeLstmPeer
from vertexrt.bench.measure import Arrays


class LevelBatchedManual(TreeLstmPeer):
    """Batch by level, forward and backward by hand, in buffers that grow and never shrink."""

    def __init__(self, parameters: Arrays, device: str = "cpu") -> None:
        super().__init__(parameters, device)
        self._buffers = Buffers(self.weights["v"])

    def upload_orders(self, *orders: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return child_row alone."""
        take, untake, child_row = orders
        return take[:0], untake[:0], child_row

    @torch.no_grad()
    def accumulate(self, plan: Plan, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""
        weights = self.weights
        saved = self._forward(plan)
        leaves = len(plan.word)
        loss, d_logits = classify_by_hand(saved["h"], weights["v"], plan.label, plan.num_graphs)
        self._backward(plan, saved, d_logits)
        d_gates, d_forget = saved["d_gates"], saved["d_forget"]
        d_leaf, d_inner = d_gates[:leaves], d_gates[leaves:]
        d_x = d_leaf @ weights["w_iou"]
        into["v"].addmm_(d_logits.t(), saved["h"], alpha=scale)
        into["w_iou"].addmm_(d_leaf.t(), saved["x"], alpha=scale)
        into["u_iou"].addmm_(d_inner.t(), saved["h_sum"], alpha=scale)
        into["u_f"].addmm_(d_forget.t(), saved["child_h"], alpha=scale)
        into["b_iou"].add_(d_gates.sum(0), alpha=scale)
        into["b_f"].add_(d_forget.sum(0), alpha=scale)
        into["embedding"].index_add_(0, plan.word, d_x, alpha=scale)
        return loss

    def outputs(self, plan: Plan) -> Tensor:
        """Return the logits by row."""
        return self._forward(plan)["h"] @ self.weights["v"].t()

    def _forward(self, plan: Plan) -> Tensors:
        weights, hidden = self.weights, self.hidden
        rows, edges, leaves = len(plan.label), len(plan.child_row), len(plan.word)
        saved = {
            name: self._buffers.get(name, count, columns)
            for name, count, columns in (
                ("x", leaves, weights["embedding"].shape[1]),
                ("gates", rows, 3 * hidden),
                ("c", rows, hidden),
                ("tanh_c", rows, hidden),
                ("h", rows, hidden),
                ("child_h", edges, hidden),
                ("child_c", edges, hidden),
                ("forget", edges, hidden),
                ("h_sum", edges // 2, hidden),
            )
        }
        torch.index_select(weights["embedding"], 0, plan.word, out=saved["x"])
        u_iou_t, u_f_t = weights["u_iou"].t(), weights["u_f"].t()
        first = 0  # edge
        for level in range(len(plan.level_ptr) - 1):
            begin, end = plan.level_ptr[level], plan.level_ptr[level + 1]
            width = end - begin
            gates = saved["gates"][begin:end]
            c, tanh_c = saved["c"][begin:end], saved["tanh_c"][begin:end]
            i, o, u = gates.split(hidden, 1)
            mine = slice(first, first + 2 * width if level else 0)
            child_h, child_c = saved["child_h"][mine], saved["child_c"][mine]
            forget = saved["forget"][mine]
            if level:
                h_sum = saved["h_sum"][first // 2 : first // 2 + width]
                torch.index_select(saved["h"], 0, plan.child_row[mine], out=child_h)
                torch.index_select(saved["c"], 0, plan.child_row[mine], out=child_c)
                torch.addmm(weights["b_f"], child_h, u_f_t, out=forget).sigmoid_()
                torch.add(child_h[:width], child_h[width:], out=h_sum)
                torch.addmm(weights["b_iou"], h_sum, u_iou_t, out=gates)
                first += 2 * width
            else:
                torch.addmm(weights["b_iou"], saved["x"], weights["w_iou"].t(), out=gates)
            gates[:, : 2 * hidden].sigmoid_()
            torch.mul(i, u.tanh_(), out=c)
            if level:
                c.addcmul_(forget[:width], child_c[:width])
                c.addcmul_(forget[width:], child_c[width:])
            torch.tanh(c, out=tanh_c)
            torch.mul(o, tanh_c, out=saved["h"][begin:end])

        return saved

    def _backward(self, plan: Plan, saved: Tensors, d_logits: Tensor) -> None:
        weights, hidden = self.weights, self.hidden
        rows, edges = len(plan.label), len(plan.child_row)
        for name, count, columns in (
            ("d_gates", rows, 3 * hidden),
            ("d_c", rows, hidden),
            ("d_h", rows, hidden),
            ("d_forget", edges, hidden),
        ):
            saved[name] = self._buffers.get(name, count, columns)
        depth = len(plan.level_ptr) - 1
        widest = max(plan.level_ptr[k + 1] - plan.level_ptr[k] for k in range(depth))
        scratch = self._buffers.get("scratch", 2 * widest, hidden)
        d_h_sum = self._buffers.get("d_h_sum", widest, hidden)
        torch.mm(d_logits, weights["v"], out=saved["d_h"])
        saved["d_c"].zero_()
        last = len(plan.child_row)  # edge
        for level in range(depth - 1, -1, -1):
            begin, end = plan.level_ptr[level], plan.level_ptr[level + 1]
            width = end - begin
            gates, d_gates = saved["gates"][begin:end], saved["d_gates"][begin:end]
            i, o, u = gates.split(hidden, 1)
            d_i, d_o, d_u = d_gates.split(hidden, 1)
            d_h, d_c = saved["d_h"][begin:end], saved["d_c"][begin:end]
            tanh_c = saved["tanh_c"][begin:end]
            through = torch.mul(d_h, o, out=scratch[:width])
            d_c.add_(tanh_backward(through, tanh_c, grad_input=through))
            torch.mul(d_h, tanh_c, out=d_o)
            torch.mul(d_c, u, out=d_i)
            torch.mul(d_c, i, out=d_u)
            d_io = d_gates[:, : 2 * hidden]
            sigmoid_backward(d_io, gates[:, : 2 * hidden], grad_input=d_io)
            tanh_backward(d_u, u, grad_input=d_u)
            if level == 0:
                return
            mine = slice(last - 2 * width, last)
            last -= 2 * width
            forget, child_c = saved["forget"][mine], saved["child_c"][mine]
            d_child = scratch[: 2 * width]
            d_child_2bh, both = d_child.view(2, width, hidden), (2, width, hidden)
            torch.mul(forget.view(both), d_c, out=d_child_2bh)
            saved["d_c"].index_copy_(0, plan.child_row[mine], d_child)
            torch.mul(child_c.view(both), d_c, out=d_child_2bh)
            d_forget = saved["d_forget"][mine]
            sigmoid_backward(d_child, forget, grad_input=d_forget)
            torch.mm(d_forget, weights["u_f"], out=d_child)
            d_child_2bh.add_(torch.mm(d_gates, weights["u_iou"], out=d_h_sum[:width]))
            saved["d_h"].index_add_(0, plan.child_row[mine], d_child)
