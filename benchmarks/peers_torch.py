"""The binary child-sum Tree-LSTM of `vertexrt.models` in PyTorch, as a check and as a peer.

`recursive` evaluates one vertex at a time under autograd: slow, plain, for comparing numbers.

`LevelBatched` is what an expert writes by hand for trees whose vertices have 0 or 2 children and
whose leaves have words: one step per level, the input products of all leaves in one GEMM (only the
three gates that a leaf has), the classifier in one GEMM over all vertices, each state read once by
a permutation whose adjoint is the inverse one, sparse update of the embedding. Below `WIDE` rows a
level leaves its weight gradient to one GEMM after the backward pass; a wider one is left to
autograd, which is as fast there.

Parameters go in and out by the names and layouts of the vertex function: embedding [words, E],
w [4H, E] and b [4H] (i, f, o, u), u_iou [3H, H] (i, o, u), u_f [H, H], v [C, H].
The loss is the cross entropy summed over all labelled vertices, divided by the number of trees.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.levels import Trees, build_levels

WIDE = (
    48  # rows from which a level's own weight-gradient GEMM beats a deferred one (1 thread, H 256)
)

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Result:
    """Hold one evaluation: the loss, logits [V, C] by vertex, gradients by parameter name."""

    loss: float
    logits: np.ndarray
    gradients: Arrays


def recursive(trees: Trees, parameters: Arrays) -> Result:
    """Evaluate one vertex at a time under autograd, in the dtype of the parameters.

    Takes any acyclic batch with at most two child slots; an empty slot reads zeros.
    """
    p = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    hidden = p["u_f"].shape[0]
    zeros = p["b"].new_zeros(hidden)
    h: dict[int, Tensor] = {-1: zeros}
    c: dict[int, Tensor] = {-1: zeros}
    for v in _children_first(trees):
        kids = trees.child[trees.child_ptr[v] : trees.child_ptr[v + 1]].tolist()
        kids += [-1] * (2 - len(kids))
        word = int(trees.word[v])
        x = p["embedding"][word] if word >= 0 else torch.zeros_like(p["embedding"][0])
        x_i, x_f, x_o, x_u = (p["w"] @ x + p["b"]).chunk(4)
        u_i, u_o, u_u = (p["u_iou"] @ (h[kids[0]] + h[kids[1]])).chunk(3)
        c_v = torch.sigmoid(x_i + u_i) * torch.tanh(x_u + u_u)
        for kid in kids:
            c_v = c_v + torch.sigmoid(x_f + p["u_f"] @ h[kid]) * c[kid]
        c[v] = c_v
        h[v] = torch.sigmoid(x_o + u_o) * torch.tanh(c_v)
    logits = torch.stack([h[v] for v in range(trees.num_vertices)]) @ p["v"].T
    label = torch.from_numpy(trees.label.astype(np.int64))
    loss = F.cross_entropy(logits, label, ignore_index=-1, reduction="sum") / trees.num_graphs
    loss.backward()
    gradients = {
        name: np.zeros_like(parameters[name]) if value.grad is None else value.grad.numpy()
        for name, value in p.items()
    }
    return Result(loss.item(), logits.detach().numpy(), gradients)


def _children_first(trees: Trees) -> Iterator[int]:
    done = {-1}
    stack = list(range(trees.num_vertices))
    while stack:
        v = stack[-1]
        kids = trees.child[trees.child_ptr[v] : trees.child_ptr[v + 1]].tolist()
        missing = [kid for kid in kids if kid not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if v not in done:
            done.add(v)
            yield v


@dataclass(slots=True)
class Weights:
    """Hold the parameters in the layout that the level-batched peers compute with.

    Leaves have no child and so no forget gate; inner vertices have no word: `w_f` meets no vertex,
    and its gradient is zero.
    """

    embedding: Tensor
    w_iou: Tensor
    w_f: Tensor
    b_iou: Tensor
    b_f: Tensor
    u_iou: Tensor
    u_f: Tensor
    v: Tensor

    @classmethod
    def from_named(cls, parameters: Arrays) -> "Weights":
        """Copy the parameters by name into this layout."""
        w_i, w_f, w_o, w_u = np.split(parameters["w"], 4)
        b_i, b_f, b_o, b_u = np.split(parameters["b"], 4)
        return cls(
            embedding=torch.tensor(parameters["embedding"]),
            w_iou=torch.tensor(np.concatenate([w_i, w_o, w_u])),
            w_f=torch.tensor(w_f),
            b_iou=torch.tensor(np.concatenate([b_i, b_o, b_u])),
            b_f=torch.tensor(b_f),
            u_iou=torch.tensor(parameters["u_iou"]),
            u_f=torch.tensor(parameters["u_f"]),
            v=torch.tensor(parameters["v"]),
        )

    def to_named(self) -> Arrays:
        """Return the parameters, or gradients of them, by name."""
        w_i, w_o, w_u = self.w_iou.chunk(3)
        b_i, b_o, b_u = self.b_iou.chunk(3)
        named = {
            "embedding": self.embedding,
            "w": torch.cat([w_i, self.w_f, w_o, w_u]),
            "u_iou": self.u_iou,
            "u_f": self.u_f,
            "b": torch.cat([b_i, self.b_f, b_o, b_u]),
            "v": self.v,
        }
        return {name: value.detach().numpy().copy() for name, value in named.items()}

    def zeros_like(self) -> "Weights":
        """Return zeros in the same layout."""
        return Weights(*(torch.zeros_like(getattr(self, field.name)) for field in fields(self)))


class Peer(ABC):
    """Train a Tree-LSTM whose parameters live in `weights`."""

    def __init__(self, parameters: Arrays) -> None:
        self.weights = Weights.from_named(parameters)

    def step(self, trees: Trees, lr: float) -> float:
        """Run forward, backward and one SGD update; return the loss."""
        return self.accumulate(trees, self.weights, -lr)

    def gradients(self, trees: Trees) -> tuple[float, Arrays]:
        """Return the loss and the gradients by parameter name."""
        total = self.weights.zeros_like()
        loss = self.accumulate(trees, total, 1.0)
        return loss, total.to_named()

    @abstractmethod
    def accumulate(self, trees: Trees, into: Weights, scale: float) -> float:
        """Add `scale` times the gradients to `into`; return the loss."""


class LevelBatched(Peer):
    """Batch by level, with autograd for the backward pass."""

    def accumulate(self, trees: Trees, into: Weights, scale: float) -> float:
        """Add `scale` times the gradients to `into`; return the loss."""
        plan = build_levels(trees)
        depth = len(plan.level_ptr) - 1
        take, untake = torch.from_numpy(plan.take), torch.from_numpy(plan.untake)
        word, label = torch.from_numpy(plan.word), torch.from_numpy(plan.label)
        dense = ("w_iou", "b_iou", "b_f", "u_iou", "u_f", "v")
        leaf = {name: getattr(self.weights, name).detach().requires_grad_() for name in dense}
        iou, forget = Product(leaf["u_iou"], leaf["b_iou"]), Product(leaf["u_f"], leaf["b_f"])
        hidden = self.weights.u_f.shape[0]

        pool_h: list[list[Tensor]] = [[] for _ in range(depth + 1)]  # by the level that reads
        pool_c: list[list[Tensor]] = [[] for _ in range(depth + 1)]
        x = self.weights.embedding.index_select(0, word).requires_grad_()
        i, o, u = torch.addmm(leaf["b_iou"], x, leaf["w_iou"].t()).split(hidden, 1)
        c = torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        states = [h]
        begin = 0
        for level in range(1, depth):
            _deal(plan.pieces[level - 1], h, c, pool_h, pool_c)
            width = plan.level_ptr[level + 1] - plan.level_ptr[level]
            order, back = take[begin : begin + 2 * width], untake[begin : begin + 2 * width]
            begin += 2 * width
            child_h = Permute.apply(order, back, *pool_h[level])
            child_c = Permute.apply(order, back, *pool_c[level])
            left_h, right_h = child_h.split(width)
            left, right = (torch.sigmoid(forget(child_h)) * child_c).split(width)
            i, o, u = iou(left_h + right_h).split(hidden, 1)
            c = torch.sigmoid(i) * torch.tanh(u) + left + right
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        logits = torch.cat(states) @ leaf["v"].t()
        loss = F.cross_entropy(logits, label, ignore_index=-1, reduction="sum") / trees.num_graphs
        loss.backward()

        with torch.no_grad():
            for name, value in leaf.items():
                if value.grad is not None:
                    getattr(into, name).add_(value.grad, alpha=scale)
            iou.finish(into.u_iou, into.b_iou, scale)
            forget.finish(into.u_f, into.b_f, scale)
            into.embedding.index_add_(0, word, x.grad, alpha=scale)
        return loss.item()


def _deal(
    pieces: list[int], h: Tensor, c: Tensor, pool_h: list[list[Tensor]], pool_c: list[list[Tensor]]
) -> None:
    readers = [level for level, rows in enumerate(pieces) if rows]
    if len(readers) == 1:
        pool_h[readers[0]].append(h)
        pool_c[readers[0]].append(c)
        return
    sizes = [pieces[level] for level in readers]
    for level, part_h, part_c in zip(readers, h.split(sizes), c.split(sizes), strict=True):
        pool_h[level].append(part_h)
        pool_c[level].append(part_c)


class Permute(torch.autograd.Function):
    """Lay pieces behind one another and read their rows in a given order, each row once."""

    @staticmethod
    def forward(ctx: Any, order: Tensor, back: Tensor, *pieces: Tensor) -> Tensor:
        """Return the rows of the pieces in `order`."""
        ctx.back = back
        ctx.sizes = [len(piece) for piece in pieces]
        rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient rows to their pieces."""
        d_rows = d_rows.index_select(0, ctx.back)
        return (None, None, *d_rows.split(ctx.sizes))


class Product:
    """Multiply by one weight and add its bias; narrow calls defer their part of its gradient."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias
        self.frozen = weight.detach(), bias.detach()
        self.transposed, self.frozen_transposed = weight.t(), weight.detach().t()
        self.inputs: list[Tensor] = []
        self.d_outputs: list[Tensor] = []

    def __call__(self, rows: Tensor) -> Tensor:
        """Return rows @ weight.T + bias."""
        if len(rows) >= WIDE:
            return torch.addmm(self.bias, rows, self.transposed)
        return _Deferred.apply(rows, self)

    def finish(self, into_weight: Tensor, into_bias: Tensor, scale: float) -> None:
        """Add `scale` times the deferred gradients."""
        if self.inputs:
            d_rows = torch.cat(self.d_outputs)
            into_weight.addmm_(d_rows.t(), torch.cat(self.inputs), alpha=scale)
            into_bias.add_(d_rows.sum(0), alpha=scale)


class _Deferred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, product: Product) -> Tensor:
        ctx.rows, ctx.product = rows.detach(), product  # detached: no cycle keeps the graph
        return torch.addmm(product.frozen[1], rows, product.frozen_transposed)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor) -> tuple[Tensor, None]:
        ctx.product.inputs.append(ctx.rows)
        ctx.product.d_outputs.append(d_rows)
        return d_rows @ ctx.product.frozen[0], None
