"""Recurrent layers of PyTorch, as the stacks of `benchmarks.papers`: oneDNN or cuDNN, and loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.papers.stacks import Form
from benchmarks.peers.cuda_graph import Graph
from benchmarks.peers.float32 import only_float32

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Layers(nn.Module):
    """`nn.LSTM`, `GRU` or `RNN` of a form; where it is residual, one for each layer."""

    def __init__(self, form: Form, parameters: Mapping[str, Any], device: str) -> None:
        super().__init__()
        only_float32(device)
        self.form = form
        kind = getattr(nn, form.cell)
        each = 1 if form.residual else form.layers
        self.parts = nn.ModuleList(
            kind(form.hidden, form.hidden, each) for _ in range(form.layers // each)
        )
        for part, own in zip(self.parts, self._names(), strict=True):
            part.load_state_dict(
                {mine: torch.tensor(np.asarray(parameters[ours])) for mine, ours in own.items()}
            )
        self.to(device)

    def _names(self) -> list[dict[str, str]]:
        """Return the names of our parameters by those of PyTorch, part by part."""
        form = self.form
        per = [[k] for k in range(form.layers)] if form.residual else [list(range(form.layers))]
        return [
            {f"{w}_l{i}": f"layers.{k}.cell.{w}" for i, k in enumerate(ks) for w in WEIGHTS}
            for ks in per
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Return h [STEPS, B, H] of the top layer, given x of that shape."""
        for part in self.parts:
            h, _ = part(x)
            x = h + x if self.form.residual else h
        return x

    def loss(self, x: Tensor) -> Tensor:
        """Return the sum of the squares of h, divided by the sequences."""
        h: Tensor = self(x)
        return h.square().sum() / x.shape[1]

    def gradients(self, x: Tensor) -> dict[str, Any]:
        """Return the gradients by the names of our parameters, and the loss as `loss`."""
        self.zero_grad()
        loss = self.loss(x)
        loss.backward()
        found: dict[str, Any] = {"loss": float(loss.detach())}
        for part, own in zip(self.parts, self._names(), strict=True):
            grads: dict[str, Any] = {name: p.grad for name, p in part.named_parameters()}
            found |= {ours: grads[mine].detach().cpu().numpy() for mine, ours in own.items()}
        return found


class CudnnRecurrence(nn.Module):
    """`nn.RNN` whose input is one element: a product that costs next to nothing."""

    def __init__(self, u: Any, w: Any, device: str) -> None:
        super().__init__()
        only_float32(device)
        u, w = torch.tensor(np.asarray(u)), torch.tensor(np.asarray(w))
        self.rnn = nn.RNN(1, len(u), bias=False)
        self.rnn.load_state_dict({"weight_ih_l0": w[:, None], "weight_hh_l0": u})
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """Return h [STEPS, B, H], given the elements [STEPS, B, 1]."""
        found: Tensor = self.rnn(x)[0]
        return found


class LoopedRecurrence(nn.Module):
    """A product and a tanh for each step, which other libraries' RNNs were in 2016."""

    def __init__(self, u: Any, device: str) -> None:
        super().__init__()
        only_float32(device)
        self.u = torch.tensor(np.asarray(u), device=device).t()

    def forward(self, x: Tensor) -> Tensor:
        """Return h [STEPS, B, H], given x of that shape."""
        h = torch.zeros_like(x[0])
        found = torch.empty_like(x)
        for step, given in enumerate(x):
            h = torch.tanh(torch.addmm(given, h, self.u), out=found[step])
        return found


def exact(module: nn.Module, x: Tensor) -> Any:
    """Return what a module finds in float64, as an array of the host."""
    wide = deepcopy(module).double()
    with torch.inference_mode():
        return wide(x.double()).cpu().numpy()


def time_first(x: Any, device: str) -> Tensor:
    """Return sequences [B, STEPS, H] of the host as PyTorch reads them: [STEPS, B, H]."""
    return torch.from_numpy(np.ascontiguousarray(np.swapaxes(x, 0, 1))).to(device)


def steps_first(rows: Any, count: int) -> Any:
    """Return rows of so many sequences, one after the other, as PyTorch has them: [STEPS, B, H]."""
    return np.swapaxes(rows.reshape(count, -1, rows.shape[-1]), 0, 1)


class Request:
    """A forward pass over arrays of one shape; on a GPU it is a CUDA graph.

    Attributes:
        result: what the last pass returned, on the device.
    """

    def __init__(self, module: nn.Module, x: Tensor, last: bool = False) -> None:
        self._module, self._held, self._last = module.eval(), x.clone(), last
        self._graph: Graph | None = None
        self._host: Tensor | None = None
        if x.is_cuda:
            with torch.inference_mode():
                self._graph = Graph(self._evaluate)
                self.result = self._graph.result
            self._host = torch.empty_like(self.result, device="cpu", pin_memory=True)

    def _evaluate(self) -> Tensor:
        found: Tensor = self._module(self._held)
        return found[-1] if self._last else found

    def __call__(self, x: Tensor) -> Tensor:
        """Ask for a pass over what lies on the device."""
        with torch.inference_mode():
            if self._graph is None:
                self._held = x
                self.result = self._evaluate()
            else:
                self._held.copy_(x, non_blocking=True)
                self._graph()
        found: Tensor = self.result
        return found

    def replay(self) -> None:
        """Ask for a pass over what was given last, and nothing else."""
        assert self._graph is not None, "a CUDA graph"
        self._graph()

    def host(self, x: Tensor) -> Any:
        """Return the result of a pass as an array of the host, given one there."""
        with torch.inference_mode():
            found = self(x)
            if self._host is None:
                return found.numpy()
            self._host.copy_(found, non_blocking=True)
            torch.cuda.synchronize()
            return self._host.numpy()


def train_step(layers: Layers, x: Tensor, rate: float) -> Callable[[], None]:
    """Return what takes a step of plain SGD on x, which lies there; on a GPU a CUDA graph."""
    optimizer = torch.optim.SGD(layers.parameters(), lr=rate, fused=x.is_cuda or None)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        layers.loss(x).backward()
        optimizer.step()

    return Graph(step) if x.is_cuda else step


def event_seconds(call: Callable[[], None], times: int) -> float:
    """Return what a call takes on the GPU, the mean of so many one after the other."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / times


def synchronize() -> None:
    """Wait for the GPU."""
    torch.cuda.synchronize()
