"""Passes whose pushes and gradients are PyTorch's tensors on a GPU, in the order of its stream.

What PyTorch allocates and launches by itself costs a host less than arrays of CuPy that are lent to
it, and its memory comes from one pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.engine.batched import Part, Run, rows_at
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.results import (
    Gradients,
    LaunchesHere,
    WayBack,
    is_of_edges,
    pulled_rows,
    table_of,
)
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
        self, runs: Sequence[Run], parts: Sequence[Part], names: Sequence[str]
    ) -> dict[str, Any]:
        """Run launches; return new tensors of the pushes."""
        (run,), (part,) = runs, parts
        order = self._here(run.row_of)
        arena, found = self._launch(run, part), {}
        for name in names:
            at = rows_at(run, ("push", name))
            size = (at.stop - at.start) // run.num_rows
            rows = arena.as_strided((run.num_rows, size), (size, 1), at.start)
            shape = len(order), *run.variant.push_shape(name)
            found[name] = rows.index_select(0, order).view(shape)
        return found

    def backward(self, way: WayBack) -> Gradients:
        """Go back; the gradients of the store on the host stay as they are."""
        (run,) = way.runs
        seeds = [d if way.scale == 1.0 else d * way.scale for d in way.d_outputs.values()]
        starts = tuple([rows_of(d.reshape(-1)) for d in seeds])
        pulled = [PulledAt.of(way, run, name, self._here) for name in way.pulls]
        touched = self._executor.model.touched(run) if way.sparse else {}
        rows = {name: self._here(numbers.astype(np.int64)) for name, numbers in touched.items()}
        part = Part(slice(run.forward_launches, None), 1.0, way.seed, starts)
        arena = self._launch(run, part)
        found = self._gradients(rows)
        of_pulls: dict[str, Any] = found.pulled
        for name, at in zip(way.pulls, pulled, strict=True):
            of_pulls[name] = at.added(arena)
        return found

    def _gradients(self, rows: Mapping[str, Tensor]) -> Gradients:
        """Return copies of the gradients of parameters.

        Args:
            rows: of tables of which these alone are wanted.
        """
        store, live = self._executor.model.store, self._gradients_here
        whole = (live[: store.dense_size] if rows else live).clone()
        parts: dict[str, Any] = {n: p.part(whole) for n, p in self._places.items() if n not in rows}
        looked_up: dict[str, Any] = {
            name: (at, self._places[name].part(live).index_select(0, at))
            for name, at in rows.items()
        }
        return Gradients(parts, {}, looked_up)

    def _launch(self, run: Run, part: Part) -> Tensor:
        """Run launches in the order of PyTorch's current stream; return the arena."""
        stream = None
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device).cuda_stream
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


class PulledAt(NamedTuple):
    """Where gradients of a pull are, and where they go.

    Attributes:
        shape: of the pull.
        first, size: element of the arena where its rows begin, and elements of one.
        at: rows there; to: rows of the pull that they are added to; None where none is.
    """

    shape: tuple[int, ...]
    first: int
    size: int
    at: Tensor | None
    to: Tensor | None

    @staticmethod
    def of(way: WayBack, run: Run, name: str, here: Callable[[Array], Tensor]) -> PulledAt:
        """Find it.

        Args:
            here: copies numbers to the device.
        """
        table, _ = table_of(way.batch, name, is_of_edges(run, name))
        tensors, key = run.variant.table, ("pull_grad", name)
        to, at = pulled_rows(way.batch, run, name)
        if key not in tensors.numbers or not len(to):
            return PulledAt(tuple(table.shape), 0, 0, None, None)
        number = tensors.numbers[key]
        first, size = int(run.plan.base[number]), tensors.specs[number].size
        if len(to) == len(table) and np.array_equal(np.sort(to), np.arange(len(to))):
            ordered = np.empty(len(to), np.int64)
            ordered[to] = at
            return PulledAt(tuple(table.shape), first, size, here(ordered), None)
        return PulledAt(tuple(table.shape), first, size, here(at), here(to))

    def added(self, arena: Tensor) -> Tensor:
        """Return the gradient of the pull."""
        if self.at is None:
            return arena.new_zeros(self.shape)
        rows = arena[self.first :]
        rows = rows[: len(rows) // self.size * self.size].view(-1, self.size)
        found = rows.index_select(0, self.at).view(len(self.at), *self.shape[1:])
        if self.to is None:
            return found
        return arena.new_zeros(self.shape).index_add_(0, self.to, found)


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
