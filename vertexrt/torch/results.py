"""Passes whose pushes and gradients are PyTorch's tensors on a GPU, in the order of its stream.

What PyTorch allocates and launches by itself costs a host less than arrays of CuPy that are lent to
it, and its memory comes from one pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.engine.batched import Run
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.part import Destination, Part, RowCopies
from vertexrt.engine.results import (
    Gradients,
    LaunchesHere,
    LossAndGradients,
    PushPlaces,
    PushRows,
    WayBack,
)
from vertexrt.graph.device_rows import ALIGNED, DeviceRows
from vertexrt.torch.pulled import PulledPlaces, here

Array = np.ndarray[Any, Any]
DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
}


class TensorResults:
    """PassResults are tensors of a device."""

    def __init__(self, executor: LaunchesHere) -> None:
        self._executor = executor
        store = executor.model.store
        self._places = {name: ParameterPlace.of(store, name) for name in store.trained}
        self._gradients_here = tensor_of(executor.gradients_here())
        self._arena: tuple[Any, Tensor] = None, self._gradients_here
        self._device = self._gradients_here.device
        self._on_gpu = self._device.type == "cuda"
        self._zeros = [rows_of(self._gradients_here.new_zeros(0))]

    def parameters(self) -> dict[str, Any]:
        """Return live tensors."""
        flat = tensor_of(self._executor.share_values())
        store = self._executor.model.store
        return {name: ParameterPlace.of(store, name).part(flat) for name in store.names}

    def array(self, given: Any, shape: tuple[int, ...]) -> Any:
        """Return a tensor that kernels can read; for None rows of as many zeros, or more."""
        like = self._gradients_here
        if given is None:
            return self.zeros(math.prod(shape))
        found = torch.as_tensor(given, dtype=like.dtype, device=self._device)
        return readable(found.detach())

    def zeros(self, count: int) -> DeviceRows:
        """Return zeros that passes only read; filling them anew takes an op.

        Those before are held: launches on whatever stream may read them.
        """
        found = self._zeros[-1]
        if found.shape[0] < count:
            most = max(count, 2 * found.shape[0])
            self._zeros.append(rows_of(self._gradients_here.new_zeros(most)))
        return self._zeros[-1]

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Any]:
        """Run launches; return new tensors of the pushes."""
        (run,), (part,) = runs, parts
        orders = [push.order for push in wanted]
        found, to = self.room(PushPlaces.of(run, wanted), orders)
        self.launch(run, part._replace(to=to))
        return found

    def room(self, places: PushPlaces, orders: Sequence[int]) -> tuple[list[Tensor], Destination]:
        """Make room for pushes; say what a launch copies there.

        Args:
            orders: of `RowCopies`.
        """
        new_empty = self._gradients_here.new_empty
        found = [new_empty(shape) for shape in places.shapes]
        copies = RowCopies(places.places, [tensor.data_ptr() for tensor in found], orders)
        return found, Destination(0, 0, None, copies, places.rows)

    def backward(self, way: WayBack) -> Gradients:
        """Go back; the gradients of the store on the host stay as they are."""
        assert way.scale == 1.0, way.scale  # autograd has scaled them
        (run,) = way.runs
        seeds = Seeds.of(way.d_outputs, run)
        places = PulledPlaces.of(way.batch, run, way.pulls, seeds.lists)
        part = seeds.part(run, way.seed, way.reals)
        flat, rows, pulled = self._go_back(way, run, part, places)
        parts: dict[str, Any] = {n: p.part(flat) for n, p in self._places.items() if n not in rows}
        return Gradients(parts, pulled, rows)

    def loss(self, way: WayBack) -> LossAndGradients:
        """Evaluate the loss and go back from it, in one launch; all is in memory of its own."""
        (run,) = way.runs
        loss = self._gradients_here.new_empty(())
        part = Part(slice(None), way.scale, way.seed, to=Destination(loss=loss.data_ptr()))
        if run.variant.use.backward:
            places = PulledPlaces.of(way.batch, run, way.pulls)
            return LossAndGradients(loss, *self._go_back(way, run, part, places))
        self.launch(run, part)
        return LossAndGradients(loss, None, {}, {})

    def _go_back(
        self, way: WayBack, run: Run, part: Part, places: PulledPlaces
    ) -> tuple[Any, Any, Any]:
        """Run launches that go back; return the last three fields of `LossAndGradients`.

        Tables of which rows are wanted stay in the executor's own array, since these are few of its
        rows.
        """
        model, live = self._executor.model, self._gradients_here
        touched = model.touched(run) if way.sparse else {}
        if not touched:
            flat, pulled, to = self.room_back(places)
            arena = self.launch(run, part._replace(to=to._replace(loss=part.to.loss)))
            places.add(arena, pulled)
            return flat, {}, dict(zip(way.pulls, pulled, strict=True))
        rows = {n: here(numbers.astype(np.int64), self._device) for n, numbers in touched.items()}
        pulled, copies = places.room(live)
        to = part.to._replace(copies=copies, rows=places.rows)
        arena = self.launch(run, part._replace(to=to))
        flat = live[: model.store.dense_size].clone()
        looked_up = {
            name: (at, self._places[name].part(live).index_select(0, at))
            for name, at in rows.items()
        }
        places.add(arena, pulled)
        return flat, looked_up, dict(zip(way.pulls, pulled, strict=True))

    def room_back(self, places: PulledPlaces) -> tuple[Tensor, list[Tensor], Destination]:
        """Make room for the gradients of parameters, in the store's layout, and of pulls.

        Returns: also what a launch leaves there; see `PulledPlaces.add`.
        """
        flat = torch.empty_like(self._gradients_here)
        pulled, copies = places.room(flat)
        return flat, pulled, Destination(flat.data_ptr(), 0, None, copies, places.rows)

    def launch(self, run: Run, part: Part) -> Tensor:
        """Run launches on PyTorch's current stream; return the arena."""
        stream = None
        if self._on_gpu:
            # `torch.cuda.current_stream` makes an object of it, which takes ten times as long.
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
        arena = self._executor.launch_between(run, part, stream)
        if self._arena[0] is not arena:
            self._arena = arena, tensor_of(arena)
        return self._arena[1]


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
        return flat.as_strided(*self)


class RowsOf(NamedTuple):
    """Rows in the order of a caller, of which each vertex has one; row_of: int32 [V], which."""

    whole: Tensor
    row_of: Array


class Seeds(NamedTuple):
    """Gradients of pushes, in the order of their names, as launches read them.

    Attributes:
        rows: of each; lists: int32, which row of its own each row of a run has.
        starts: of `Part.seed_rows`.
    """

    rows: tuple[Any, ...]
    lists: tuple[Array, ...]
    starts: tuple[int, ...]

    @staticmethod
    def of(d_outputs: Mapping[str, Any], run: Run) -> Seeds:
        """Return those of a way back, given what `BoundNetwork.passed` returned."""
        rows: list[Any] = []
        starts: list[int] = []
        lists: list[Array] = []
        for name, d in d_outputs.items():
            starts.append(sum(map(len, lists)) if isinstance(d, RowsOf) else -1)
            rows.append(seed_of(d))
            if isinstance(d, RowsOf):
                key, find = ("rows of a seed", name), partial(d.row_of.take, run.order)
                lists.append(run.once(key, [d.row_of], find))
        return Seeds(tuple(rows), tuple(lists), tuple(starts) if lists else ())

    def part(self, run: Run, random_seed: int, reals: tuple[Any, ...] | None) -> Part:
        """Return the way back of a run."""
        return Part(run.layout.backward, 1.0, random_seed, self.rows, self.starts, reals=reals)


def seed_of(d: Any) -> Any:
    """Return the gradient of a push as launches read it."""
    if isinstance(d, DeviceRows):
        return d
    return rows_of(d.whole if isinstance(d, RowsOf) else d)


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


def lent(tensor: Tensor) -> DeviceRows:
    """Return a tensor, or a copy, as the engine takes it."""
    found = tensor.detach()
    address = found.data_ptr()
    if address % ALIGNED or not found.is_contiguous() or found.is_neg():
        return rows_of(readable(found.resolve_neg()))
    return DeviceRows.at(address, found, found.shape, DTYPES[found.dtype])


def rows_of(tensor: Tensor) -> DeviceRows:
    """Return what `readable` returned as the engine takes it."""
    return DeviceRows.at(tensor.data_ptr(), tensor, tensor.shape, DTYPES[tensor.dtype])
