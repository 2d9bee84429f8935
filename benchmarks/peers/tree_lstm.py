"""The binary child-sum Tree-LSTM of `vertexrt.models` in PyTorch, batched by level.

This is what an expert writes by hand for trees whose vertices have 0 or 2 children and whose leaves
have words: one step per level, the input products of all leaves in one GEMM (only the three gates
that a leaf has), the classifier in one GEMM over all vertices, each state read once by a
permutation whose adjoint is the inverse one, sparse update of the embedding. Autograd adds up the
weight gradients of wide levels; those of all narrow ones are one GEMM after it.

The layout: embedding [words, E]; w_iou, w_f and b_iou, b_f apart, since leaves have no child and so
no forget gate, and inner vertices have no word: `w_f` meets no vertex, and its gradient is zero.
The loss is the cross entropy summed over all labelled vertices, divided by the number of trees.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.gates import join_gates, split_gates
from benchmarks.peers.levels import build_levels
from benchmarks.peers.torch_peer import Peer, Product, Tensors, classify
from vertexrt import GraphBatch
from vertexrt.bench.measure import Arrays


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the schedule of one batch on the device; the fields are those of `Levels`."""

    num_graphs: int
    level_ptr: list[int]
    pieces: list[list[int]]
    take: Tensor
    untake: Tensor
    child_row: Tensor
    word: Tensor
    label: Tensor
    row: Tensor


class TreeLstmPeer(Peer):
    """A Tree-LSTM; the layout of its parameters and its schedule."""

    @staticmethod
    def hidden_of(parameters: Arrays) -> int:
        """Return the number of hidden elements."""
        return int(parameters["u_f"].shape[0])

    def layout(self, parameters: Arrays) -> Arrays:
        """Return parameters by name with the forget gate apart."""
        return split_gates(parameters)

    def named(self, values: Arrays) -> Arrays:
        """Return the parameters by name."""
        return join_gates(values)

    def plan(self, batch: GraphBatch) -> Plan:
        """Build the level schedule of a minibatch and upload it."""
        levels = build_levels(batch)
        orders = self.upload_orders(levels.take, levels.untake, levels.child_row)
        uploaded = self.upload(*orders, levels.word, levels.label, levels.row)
        return Plan(batch.num_graphs, levels.level_ptr, levels.pieces, *uploaded)

    def upload_orders(self, *orders: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return those of take, untake and child_row that the peer reads, the others empty."""
        take, untake, child_row = orders
        return take, untake, child_row[:0]


class LevelBatched(TreeLstmPeer):
    """Batch by level, with autograd for the backward pass."""

    def accumulate(self, plan: Plan, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""
        weights = self.weights
        x = weights["embedding"].index_select(0, plan.word).requires_grad_()
        leaf = Product(weights["w_iou"], weights["b_iou"], self.wide)
        inner = Product(weights["u_iou"], weights["b_iou"], self.wide)
        forget = Product(weights["u_f"], weights["b_f"], self.wide)
        v = weights["v"].detach().requires_grad_()
        h = self._levels(plan, x, leaf, inner, forget)
        loss = classify(h, v, plan.label, plan.num_graphs)
        asked = [x, v, *leaf.asked, *inner.asked, *forget.asked]
        d_x, d_v, *rest = torch.autograd.grad(loss, asked, allow_unused=True)
        gradients = iter(rest)
        leaf.finish(gradients, into["w_iou"], into["b_iou"], scale)
        inner.finish(gradients, into["u_iou"], into["b_iou"], scale)
        forget.finish(gradients, into["u_f"], into["b_f"], scale)
        into["v"].add_(d_v, alpha=scale)
        into["embedding"].index_add_(0, plan.word, d_x, alpha=scale)
        return loss.detach()

    def outputs(self, plan: Plan) -> Tensor:
        """Return the logits by row."""
        weights = self.weights
        x = weights["embedding"].index_select(0, plan.word)
        leaf = Product(weights["w_iou"], weights["b_iou"], self.wide)
        inner = Product(weights["u_iou"], weights["b_iou"], self.wide)
        forget = Product(weights["u_f"], weights["b_f"], self.wide)
        return self._levels(plan, x, leaf, inner, forget) @ weights["v"].t()

    def _levels(
        self, plan: Plan, x: Tensor, leaf: Product, inner: Product, forget: Product
    ) -> Tensor:
        """Return h by row."""
        hidden = self.hidden
        depth = len(plan.level_ptr) - 1
        permute = Permute.apply if x.requires_grad else permuted
        pool_h: list[list[Tensor]] = [[] for _ in range(depth + 1)]  # by the level that reads
        pool_c: list[list[Tensor]] = [[] for _ in range(depth + 1)]
        i, o, u = leaf(x).split(hidden, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        states = [h]
        begin = 0
        for level in range(1, depth):
            _deal(plan.pieces[level - 1], h, c, pool_h, pool_c)
            width = plan.level_ptr[level + 1] - plan.level_ptr[level]
            order = plan.take[begin : begin + 2 * width]
            back = plan.untake[begin : begin + 2 * width]
            begin += 2 * width
            child_h, child_c = permute(order, back, *pool_h[level], *pool_c[level])
            left_h, right_h = child_h.split(width)
            left, right = (torch.sigmoid(forget(child_h)) * child_c).split(width)
            i, o, u = inner(left_h + right_h).split(hidden, 1)
            c = torch.sigmoid(i) * torch.tanh(u) + left + right
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.cat(states)


def _deal(
    pieces: list[int], h: Tensor, c: Tensor, pool_h: list[list[Tensor]], pool_c: list[list[Tensor]]
) -> None:
    """Hand the rows of a level to the levels that read them."""
    readers = [level for level, rows in enumerate(pieces) if rows]
    if len(readers) == 1:
        pool_h[readers[0]].append(h)
        pool_c[readers[0]].append(c)
        return
    sizes = [pieces[level] for level in readers]
    for level, part_h, part_c in zip(readers, h.split(sizes), c.split(sizes), strict=True):
        pool_h[level].append(part_h)
        pool_c[level].append(part_c)


def permuted(order: Tensor, back: Tensor, *pieces: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate pieces of h, and pieces of c; return the rows of both in `order`."""
    half = len(pieces) // 2
    h, c = pieces if half == 1 else (torch.cat(pieces[:half]), torch.cat(pieces[half:]))
    return h.index_select(0, order), c.index_select(0, order)


class Permute(torch.autograd.Function):
    """`permuted`, of which each row is read once: its adjoint is the permutation `back`."""

    @staticmethod
    def forward(ctx: Any, order: Tensor, back: Tensor, *pieces: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of both in `order`."""
        ctx.back = back
        ctx.sizes = [len(piece) for piece in pieces[: len(pieces) // 2]]
        return permuted(order, back, *pieces)

    @staticmethod
    def backward(ctx: Any, d_h: Tensor, d_c: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient rows to their pieces."""
        d_h, d_c = d_h.index_select(0, ctx.back), d_c.index_select(0, ctx.back)
        return (None, None, *d_h.split(ctx.sizes), *d_c.split(ctx.sizes))
