"""Passes whose pushes and gradients are PyTorch's tensors on a GPU, in the order of its stream.

What PyTorch allocates and launches by itself costs a host less than arrays of CuPy that are lent to
it, and its memory comes from one pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.engine.batched import Run
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.part import Destination, Part
from vertexrt.engine.results import (
    CopiedPush,
    Gradients,
    LaunchesHere,
    LossAndGradients,
    LossWay,
    PushRows,
    WayBack,
    pulled_rows,
    pushes_to,
    table_of,
)
from vertexrt.graph import GraphBatch
from vertexrt.graph.device_rows import ALIGNED, DeviceRows

Array = np.ndarray[Any, Any]


class TensorResults:
    """PassResults are tensors of a device."""

    def __init__(self, executor: LaunchesHere) -> None:
        self._executor = executor
        store = executor.model.store
        self._places = {name: ParameterPlace.of(store, name) for name in store.trained}
        self._gradients_here = tensor_of(executor.gradients_here())
        self._arena: tuple[Any, Tensor] = None, self._gradients_here
        self._device = self._gradients_here.device

    def parameters(self) -> dict[str, Any]:
        """Return live tensors."""
        flat = tensor_of(self._executor.share_values())
        store = self._executor.model.store
        return {name: ParameterPlace.of(store, name).part(flat) for name in store.names}

    def array(self, given: Any, shape: tuple[int, ...]) -> Any:
        """Return a tensor that kernels can read."""
        like = self._gradients_here
        if given is None:
            return like.new_zeros(shape)
        found = torch.as_tensor(given, dtype=like.dtype, device=self._device)
        return readable(found.detach())

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Any]:
        """Run launches; return new tensors of the pushes."""
        (run,), (part,), like = runs, parts, self._gradients_here
        found, copies = [], []
        for name, vertices in wanted:
            count = len(run.row_of) if vertices is None else len(vertices)
            tensor = like.new_empty((count, *run.variant.push_shape(name)))
            found.append(tensor)
            copies.append(CopiedPush(name, vertices, tensor.data_ptr()))
        self._launch(run, part._replace(to=pushes_to(run, copies)))
        return found

    def backward(self, way: WayBack) -> Gradients:
        """Go back; the gradients of the store on the host stay as they are."""
        (run,) = way.runs
        seeds = [d if way.scale == 1.0 else d * way.scale for d in way.d_outputs.values()]
        starts = tuple([rows_of(d.reshape(-1)) for d in seeds])
        part = Part(slice(run.forward_launches, None), 1.0, way.seed, starts)
        flat, rows, pulled = self._go_back(way, run, part)
        parts: dict[str, Any] = {n: p.part(flat) for n, p in self._places.items() if n not in rows}
        return Gradients(parts, pulled, rows)

    def loss(self, way: LossWay) -> LossAndGradients:
        """Evaluate the loss and go back from it, in one launch; all is in memory of its own."""
        (run,) = way.runs
        loss = self._gradients_here.new_empty(())
        part = Part(slice(None), way.scale, way.seed, to=Destination(loss=loss.data_ptr()))
        if run.variant.use.backward:
            return LossAndGradients(loss, *self._go_back(way, run, part))
        self._launch(run, part)
        return LossAndGradients(loss, None, {}, {})

    def _go_back(self, way: WayBack | LossWay, run: Run, part: Part) -> tuple[Any, Any, Any]:
        """Run launches that go back; return the last three fields of `LossAndGradients`.

        Gradients of parameters are written where their caller keeps them; tables of which rows are
        wanted stay in the executor's own array, since these are few of its rows.
        """
        pulled = [self._pulled_at(way.batch, run, name) for name in way.pulls]
        model, live = self._executor.model, self._gradients_here
        touched = model.touched(run) if way.sparse else {}
        rows = {name: self._here(numbers.astype(np.int64)) for name, numbers in touched.items()}
        if rows:
            arena = self._launch(run, part)
            flat = live[: model.store.dense_size].clone()
        else:
            flat = torch.empty_like(live)
            arena = self._launch(run, part._replace(to=part.to._replace(gradients=flat.data_ptr())))
        looked_up = {
            name: (at, self._places[name].part(live).index_select(0, at))
            for name, at in rows.items()
        }
        found = zip(way.pulls, pulled, strict=True)
        return (
            flat,
            looked_up,
            {name: _added(arena, shape, terms) for name, (shape, terms) in found},
        )

    def _pulled_at(
        self, batch: GraphBatch, run: Run, name: str
    ) -> tuple[tuple[int, ...], list[Term]]:
        """Return the shape of what a batch gives, and where its gradient is."""
        pulls, tensors = run.variant.program.pulls_from(name), run.variant.table
        table, _ = table_of(batch, pulls[0])
        terms = []
        for pull in pulls:
            to, at = pulled_rows(batch, run, pull)
            key = "pull_grad", pull.name
            if key not in tensors.numbers or not len(to):
                continue
            number = tensors.numbers[key]
            place = int(run.plan.base[number]), tensors.specs[number].size
            if len(pulls) == 1 and np.array_equal(np.sort(to), np.arange(len(table))):
                ordered = np.empty(len(to), np.int64)
                ordered[to] = at
                return tuple(table.shape), [Term(*place, self._here(ordered), None)]
            terms.append(Term(*place, self._here(at), self._here(to)))
        return tuple(table.shape), terms

    def _launch(self, run: Run, part: Part) -> Tensor:
        """Run launches in the order of PyTorch's current stream; return the arena."""
        stream = None
        if self._device.type == "cuda":
            # `torch.cuda.current_stream` makes an object of it, which takes ten times as long.
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        arena = self._executor.launch_between(run, part, stream)
        if self._arena[0] is not arena:
            self._arena = arena, tensor_of(arena)
        return self._arena[1]

    def _here(self, numbers: Array) -> Tensor:
        """Copy whole numbers to the device; behind a launch that would wait for its end."""
        return torch.from_numpy(numbers).to(self._device, non_blocking=True)


class ParameterPlace(NamedTuple):
    """Where a parameter is among all: its shape, its strides, its first element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    @staticmethod
    def of(store: ParameterStore, name: str) -> ParameterPlace:
        """Return that in a store."""
        shape = tuple(store.shapes[name])
        strides = tuple([math.prod(shape[k + 1 :]) for k in range(len(shape))])
        return ParameterPlace(shape, strides, int(store.offsets[name]))

    def part(self, flat: Tensor) -> Tensor:
        """Return the parameter's part of a tensor in the store's layout."""
        return flat.as_strided(self.shape, self.strides, self.start)


class Term(NamedTuple):
    """A part of the gradient of a pull.

    Attributes:
        first, size: element of the arena where its rows begin, and elements of one.
        at: rows there; to: rows of the pull that they are added to; None for all, in their order.
    """

    first: int
    size: int
    at: Tensor
    to: Tensor | None


def _added(arena: Tensor, shape: tuple[int, ...], terms: Sequence[Term]) -> Tensor:
    """Return the gradient of a pull in its shape."""
    total = arena.new_zeros(shape) if not terms or terms[0].to is not None else arena
    for first, size, at, to in terms:
        count = (len(arena) - first) // size
        rows = arena.as_strided((count, size), (size, 1), first).index_select(0, at)
        found = rows.view(len(at), *shape[1:])
        total = found if to is None else total.index_add_(0, to, found)
    return total


def tensor_of(array: Any) -> Tensor:
    """Return an array of the host or of a GPU as a tensor with the same memory."""
    if isinstance(array, Tensor):
        return array
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    found: Tensor = torch.utils.dlpack.from_dlpack(array)
    return found


def readable(tensor: Tensor) -> Tensor:
    """Return a tensor, or a copy, that kernels can read: in C order, at an aligned address."""
    found = tensor.contiguous()
    return found.clone() if found.data_ptr() % ALIGNED else found


def rows_of(tensor: Tensor) -> Any:
    """Return what `readable` returned as the engine takes it."""
    return tensor.numpy() if tensor.device.type == "cpu" else DeviceRows(tensor)
