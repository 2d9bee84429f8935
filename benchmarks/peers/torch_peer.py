"""What all PyTorch peers share: parameters, one upload a minibatch, the classifier, sparse rows.

Parameters go in and out by the names and layouts of the vertex function; a peer keeps them in the
layout that it computes with. The update is plain SGD: dense gradients are added to their weights
in one `foreach` call or by the GEMM that makes them; of the embedding only the rows that were
looked up are touched (`index_add_`).

On CUDA all index arrays of a minibatch go up in one pinned tensor, without waiting; the loss stays
on the device; outputs come down into pinned memory and are complete after `sync`. Nothing else
synchronises. TF32 is off.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.float32 import only_float32
from vertexrt import GraphBatch
from vertexrt.bench.measure import Arrays, Contender

Tensors = dict[str, Tensor]

# Rows from which a level's own weight-gradient GEMM beats a share in one over the copied rows of
# all levels: on the CPU for one thread and H 256; on CUDA a narrow GEMM costs its launch.
WIDE = {"cpu": 48, "cuda": 4096}

# For what is written by hand: with buffers of their own to write to.
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Peer(Contender):
    """A model whose parameters live in `weights`."""

    def __init__(self, parameters: Arrays, device: str = "cpu") -> None:
        only_float32(device)
        self.device = torch.device(device)
        self.wide = WIDE[self.device.type]
        self.hidden = self.hidden_of(parameters)
        self.weights = self.make_weights(self.layout(parameters))

    def make_weights(self, values: Arrays) -> Tensors:
        """Return the tensors that hold the parameters."""
        return {name: torch.tensor(value, device=self.device) for name, value in values.items()}

    @staticmethod
    @abstractmethod
    def hidden_of(parameters: Arrays) -> int:
        """Return the number of hidden elements."""

    def layout(self, parameters: Arrays) -> Arrays:
        """Return parameters by name in the layout that the peer computes with."""
        return parameters

    def named(self, values: Arrays) -> Arrays:
        """Return the parameters by name: the inverse of `layout`."""
        return values

    @abstractmethod
    def plan(self, batch: GraphBatch) -> Any:
        """Build the schedule of a minibatch and upload it; `row` is the row of each vertex."""

    @abstractmethod
    def accumulate(self, plan: Any, into: Tensors, scale: float) -> Tensor:
        """Add `scale` times the gradients to `into`; return the loss."""

    @abstractmethod
    def outputs(self, plan: Any) -> Tensor:
        """Return the outputs by row; called without gradients."""

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD."""
        self._loss = self.accumulate(self.plan(batch), self.weights, -lr)

    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""
        return float(self._loss)

    def gradients(self, batch: GraphBatch) -> tuple[float, Arrays]:
        """Return the loss and the gradients by parameter name."""
        total = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        loss = self.accumulate(self.plan(batch), total, 1.0)
        return float(loss), self.named({name: _to_numpy(value) for name, value in total.items()})

    def infer(self, batch: GraphBatch) -> Tensor:
        """Return the output of every vertex in the order of the batch; complete after `sync`."""
        plan = self.plan(batch)
        with torch.no_grad():
            found = self.outputs(plan).index_select(0, plan.row)
        if self.device.type == "cpu":
            return found
        host = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
        return host.copy_(found, non_blocking=True)

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def parameters(self) -> Arrays:
        """Return copies of the parameters, by the names and layouts of the vertex function."""
        return self.named({name: _to_numpy(value) for name, value in self.weights.items()})

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""
        with torch.no_grad():
            for name, value in self.layout(values).items():
                self.weights[name].copy_(torch.from_numpy(np.ascontiguousarray(value)))

    def upload(self, *arrays: np.ndarray) -> Iterator[Tensor]:
        """Return int64 arrays as tensors on the device: views of one pinned upload on CUDA."""
        if self.device.type == "cpu":
            return iter([torch.from_numpy(array) for array in arrays])
        sizes = [len(array) for array in arrays]
        host = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=True)
        np.concatenate(arrays, out=host.numpy())
        return iter(host.to(self.device, non_blocking=True).split(sizes))


class Product:
    """Multiply by one weight and add its bias; autograd adds up gradients of wide calls only.

    In narrow calls weight and bias are constants: autograd is asked for the gradient of what they
    returned, and `finish` makes one GEMM of all of them.
    """

    def __init__(self, weight: Tensor, bias: Tensor, wide: int) -> None:
        self._constants = bias, weight.t()
        self._weight = weight.detach().requires_grad_()
        self._bias = bias.detach().requires_grad_()
        self._transposed = self._weight.t()
        self._wide = wide
        self._rows: list[Tensor] = []  # of the narrow calls
        self._outputs: list[Tensor] = []

    def __call__(self, rows: Tensor) -> Tensor:
        """Return rows @ weight.T + bias."""
        if len(rows) >= self._wide:
            return torch.addmm(self._bias, rows, self._transposed)
        output = torch.addmm(self._constants[0], rows, self._constants[1])
        if output.requires_grad:
            self._rows.append(rows.detach())
            self._outputs.append(output)
        return output

    @property
    def asked(self) -> list[Tensor]:
        """What `finish` needs the gradients of."""
        return [self._weight, self._bias, *self._outputs]

    def finish(
        self, gradients: Iterator[Tensor | None], weight: Tensor, bias: Tensor, scale: float
    ) -> None:
        """Take the gradients of what was asked; add `scale` times those of weight and bias."""
        d_weight, d_bias = next(gradients), next(gradients)
        if d_weight is not None:
            torch._foreach_add_([weight, bias], [d_weight, d_bias], alpha=scale)
        if self._outputs:
            d_rows = torch.cat([next(gradients) for _ in self._outputs])
            weight.addmm_(d_rows.t(), torch.cat(self._rows), alpha=scale)
            bias.add_(d_rows.sum(0), alpha=scale)


def pack_floats(values: np.ndarray) -> np.ndarray:
    """Return floats as int64 words, to travel with indices."""
    flat = np.ascontiguousarray(values).reshape(-1)
    padded = np.zeros(-(-flat.nbytes // 8) * 8 // flat.itemsize, flat.dtype)
    padded[: len(flat)] = flat
    return padded.view(np.int64)


def unpack_floats(words: Tensor, dtype: torch.dtype, count: int) -> Tensor:
    """Return the floats that `pack_floats` packed."""
    return words.view(dtype)[:count]


def classify(h: Tensor, v: Tensor, label: Tensor, num_graphs: int) -> Tensor:
    """Return the cross entropy of h @ v.T summed over all labels, divided by the graphs."""
    logits = h @ v.t()
    return F.cross_entropy(logits, label, ignore_index=-1, reduction="sum") / num_graphs


def classify_by_hand(h: Tensor, v: Tensor, label: Tensor, num_graphs: int) -> tuple[Tensor, Tensor]:
    """Return the loss of `classify` and its gradient by the logits."""
    log_p = F.log_softmax(h @ v.t(), 1)
    loss = F.nll_loss(log_p, label, ignore_index=-1, reduction="sum") / num_graphs
    labelled = (label >= 0).to(log_p.dtype).unsqueeze(1)
    d_logits = log_p.exp_().scatter_add_(1, label.clamp(min=0).unsqueeze(1), -labelled)
    return loss, d_logits.mul_(labelled / num_graphs)


class Buffers:
    """Keep tensors from minibatch to minibatch; they grow and never shrink."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._held: Tensors = {}

    def get(self, name: str, rows: int, columns: int) -> Tensor:
        """Return [rows, columns] of no defined content, the same memory for the same name."""
        held = self._held.get(name)
        if held is None or len(held) < rows:
            held = self._like.new_empty(rows + rows // 4 + 16, columns)
            self._held[name] = held
        return held[:rows]


def _to_numpy(value: Tensor) -> np.ndarray:
    return np.array(value.detach().cpu().numpy())
