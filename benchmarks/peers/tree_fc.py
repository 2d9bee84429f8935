"""Tree-FC of `vertexrt.models` in PyTorch, batched by level, with autograd and by hand.

Trees are complete, so the rows of a level, seen in pairs, are the operands of the next one
(`complete.py`): a level is one GEMM and one relu. The loss is the squared error of a linear
read-out at the roots, divided by the number of trees.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.peers.complete import build_complete
from benchmarks.peers.torch_peer import (
    Buffers,
    Peer,
    Product,
    Tensors,
    pack_floats,
    unpack_floats,
)
from vertexrt import GraphBatch
from vertexrt.bench.measure import Arrays


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the schedule of one batch on the device; the fields are those of `CompleteLevels`."""

    level_ptr: list[int]
    word: Tensor
    target: Tensor
    row: Tensor


class TreeFcPeer(Peer):
    """Tree-FC; its schedule."""

    @staticmethod
    def hidden_of(parameters: Arrays) -> int:
        """Return the number of hidden elements."""
        return int(parameters["b"].shape[0])

    def plan(self, batch: GraphBatch) -> Plan:
        """Build the schedule of a minibatch and upload it."""
        levels = build_complete(batch)
        dtype = self.weights["w"].dtype
        target = levels.target.astype(str(dtype).removeprefix("torch."))
        word, row, packed = self.upload(levels.word, levels.row, pack_floats(target))
        read = unpack_floats(packed, dtype, len(target)).unsqueeze(1)
        return Plan(levels.level_ptr, word, read, row)


class LevelBatched(TreeFcPeer):
    """Batch by level, with autograd for the backward pass."""

    def accumulate(self, plan: Plan, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""
        weights = self.weights
        leaf = weights["embedding"].index_select(0, plan.word).requires_grad_()
        v = weights["v"].detach().requires_grad_()
        product = Product(weights["w"], weights["b"], self.wide)
        roots = self._levels(plan, leaf, product)[-1]
        difference = roots @ v.t() - plan.target
        loss = torch.dot(difference[:, 0], difference[:, 0]) / len(plan.target)
        asked = [leaf, v, *product.asked]
        d_leaf, d_v, *rest = torch.autograd.grad(loss, asked, allow_unused=True)
        product.finish(iter(rest), into["w"], into["b"], scale)
        into["v"].add_(d_v, alpha=scale)
        into["embedding"].index_add_(0, plan.word, d_leaf, alpha=scale)
        return loss.detach()

    def outputs(self, plan: Plan) -> Tensor:
        """Return the read-out of every row."""
        weights = self.weights
        leaf = weights["embedding"].index_select(0, plan.word)
        product = Product(weights["w"], weights["b"], self.wide)
        return torch.cat([h @ weights["v"].t() for h in self._levels(plan, leaf, product)])

    def _levels(self, plan: Plan, leaf: Tensor, product: Product) -> list[Tensor]:
        """Return h of each level."""
        states = [leaf]
        for _ in range(len(plan.level_ptr) - 2):
            states.append(torch.relu(product(states[-1].view(-1, 2 * self.hidden))))
        return states


class LevelBatchedManual(TreeFcPeer):
    """Batch by level, forward and backward by hand, in buffers that grow and never shrink."""

    def __init__(self, parameters: Arrays, device: str = "cpu") -> None:
        super().__init__(parameters, device)
        self._buffers = Buffers(self.weights["v"])

    @torch.no_grad()
    def accumulate(self, plan: Plan, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""
        weights, hidden = self.weights, self.hidden
        h = self._forward(plan)
        d_h = self._buffers.get("d_h", len(h), hidden)
        ends = list(zip(plan.level_ptr, plan.level_ptr[1:], strict=False))
        leaves, first_root = ends[0][1], ends[-1][0]
        roots = h[first_root:]
        difference = roots @ weights["v"].t() - plan.target
        loss = torch.dot(difference[:, 0], difference[:, 0]) / len(plan.target)
        d_output = difference * (2.0 / len(plan.target))
        torch.mm(d_output, weights["v"], out=d_h[first_root:])
        d_v = d_output.t() @ roots
        for level in range(len(ends) - 1, 0, -1):
            begin, end = ends[level]
            below = slice(*ends[level - 1])
            d = d_h[begin:end]
            torch.ops.aten.threshold_backward.grad_input(d, h[begin:end], 0, grad_input=d)
            torch.mm(d, weights["w"], out=d_h[below].view(-1, 2 * hidden))
        d_inner = d_h[leaves:]
        pairs = h[:first_root].view(-1, 2 * hidden)
        into["w"].addmm_(d_inner.t(), pairs, alpha=scale)
        into["v"].add_(d_v, alpha=scale)
        into["b"].add_(d_inner.sum(0), alpha=scale)
        into["embedding"].index_add_(0, plan.word, d_h[:leaves], alpha=scale)
        return loss

    def outputs(self, plan: Plan) -> Tensor:
        """Return the read-out of every row."""
        return self._forward(plan) @ self.weights["v"].t()

    def _forward(self, plan: Plan) -> Tensor:
        weights, hidden = self.weights, self.hidden
        h = self._buffers.get("h", plan.level_ptr[-1], hidden)
        w = weights["w"].t()
        ends = list(zip(plan.level_ptr, plan.level_ptr[1:], strict=False))
        torch.index_select(weights["embedding"], 0, plan.word, out=h[: ends[0][1]])
        for level in range(1, len(ends)):
            pairs = h[slice(*ends[level - 1])].view(-1, 2 * hidden)
            torch.addmm(weights["b"], pairs, w, out=h[slice(*ends[level])]).relu_()
        return h
