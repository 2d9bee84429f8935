"""The binary child-sum Tree-LSTM in PyTorch, one vertex at a time: plain, to compare numbers."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.levels import children_first
from vertexrt import GraphBatch
from vertexrt.bench.measure import Arrays


@dataclass(frozen=True, slots=True)
class Result:
    """Hold one evaluation: the loss, logits [V, C] by vertex, gradients by parameter name."""

    loss: float
    logits: np.ndarray
    gradients: Arrays


def recursive(trees: GraphBatch, parameters: Arrays) -> Result:
    """Evaluate one vertex at a time under autograd, in the dtype of the parameters.

    Takes any acyclic batch with at most two child slots; an empty slot reads zeros.
    """
    p = {name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()}
    hidden = p["u_f"].shape[0]
    zeros = p["b"].new_zeros(hidden)
    h: dict[int, Tensor] = {-1: zeros}
    c: dict[int, Tensor] = {-1: zeros}
    for v in children_first(trees):
        kids = trees.child[trees.child_ptr[v] : trees.child_ptr[v + 1]].tolist()
        kids += [-1] * (2 - len(kids))
        word = int(np.asarray(trees.pulls["word"])[v])
        x = p["embedding"][word] if word >= 0 else torch.zeros_like(p["embedding"][0])
        x_i, x_f, x_o, x_u = (p["w"] @ x + p["b"]).chunk(4)
        u_i, u_o, u_u = (p["u_iou"] @ (h[kids[0]] + h[kids[1]])).chunk(3)
        c_v = torch.sigmoid(x_i + u_i) * torch.tanh(x_u + u_u)
        for kid in kids:
            c_v = c_v + torch.sigmoid(x_f + p["u_f"] @ h[kid]) * c[kid]
        c[v] = c_v
        h[v] = torch.sigmoid(x_o + u_o) * torch.tanh(c_v)
    logits = torch.stack([h[v] for v in range(trees.num_vertices)]) @ p["v"].T
    label = torch.from_numpy(np.asarray(trees.pulls["label"]).astype(np.int64))
    loss = F.cross_entropy(logits, label, ignore_index=-1, reduction="sum") / trees.num_graphs
    loss.backward()
    gradients = {
        name: np.zeros_like(parameters[name]) if value.grad is None else value.grad.numpy()
        for name, value in p.items()
    }
    return Result(loss.item(), logits.detach().numpy(), gradients)
