"""Passes whose pushes and gradients are PyTorch's tensors on a GPU, in the order of its stream.

What PyTorch allocates and launches by itself costs a host less than arrays of CuPy that are lent to
it, and its memory comes from one pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.engine.batched import Run
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.part import NO_ROWS, Destination, Part, RowCopy
from vertexrt.engine.results import (
    Gradients,
    LaunchesHere,
    LossAndGradients,
    LossWay,
    PushRows,
    WayBack,
    joined,
    pulled_rows,
    pushes_to,
    table_of,
)
from vertexrt.graph import GraphBatch
from vertexrt.graph.device_rows import ALIGNED, DeviceRows
from vertexrt.ir.program import Pull

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
            return self._zeros_of(math.prod(shape))
        found = torch.as_tensor(given, dtype=like.dtype, device=self._device)
        return readable(found.detach())

    def _zeros_of(self, count: int) -> DeviceRows:
        """Return zeros that passes only read; filling them anew takes an op.

        Those before are held: launches on whatever stream may read them.
        """
        if len(self._zeros[-1]) < count:
            most = max(count, 2 * len(self._zeros[-1]))
            self._zeros.append(rows_of(self._gradients_here.new_zeros(most)))
        return self._zeros[-1]

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Any]:
        """Run launches; return new tensors of the pushes."""
        (run,), (part,), like = runs, parts, self._gradients_here
        found = []
        for name, vertices, _, axes in wanted:
            count = len(run.row_of) if vertices is None else len(vertices)
            shape = *(1,) * axes, count, *run.variant.push_shape(name)
            found.append(like.new_empty(shape))
        to = pushes_to(run, wanted, [tensor.data_ptr() for tensor in found])
        self._launch(run, part._replace(to=to))
        return found

    def backward(self, way: WayBack) -> Gradients:
        """Go back; the gradients of the store on the host stay as they are."""
        (run,) = way.runs
        seeds, seed_rows, rows = _seeds_of(way, run)
        to = Destination(rows=rows)
        part = Part(slice(run.forward_launches, None), 1.0, way.seed, seeds, seed_rows, to)
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
        model, live = self._executor.model, self._gradients_here
        pulled, to = self._pulls_to(way, run, part.to)
        touched = model.touched(run) if way.sparse else {}
        rows = {name: self._here(numbers.astype(np.int64)) for name, numbers in touched.items()}
        if rows:
            arena = self._launch(run, part._replace(to=to))
            flat = live[: model.store.dense_size].clone()
        else:
            flat = torch.empty_like(live)
            arena = self._launch(run, part._replace(to=to._replace(gradients=flat.data_ptr())))
        looked_up = {
            name: (at, self._places[name].part(live).index_select(0, at))
            for name, at in rows.items()
        }
        return flat, looked_up, {name: _added(arena, *found) for name, found in pulled.items()}

    def _pulls_to(
        self, way: WayBack | LossWay, run: Run, to: Destination
    ) -> tuple[dict[str, tuple[Tensor, list[PulledTerm]]], Destination]:
        """Make room for the gradients of pulls; let launches copy those that are rows of a tensor.

        Returns: by name a tensor, and what is to be added to it; where launches leave all.
        """
        found: dict[str, tuple[Tensor, list[PulledTerm]]] = {}
        copies, end, like = [], len(to.rows), self._gradients_here
        lists = [to.rows] if end else []
        for name in way.pulls:
            place = _pulled_at(way.batch, run, name)
            whole = place.whole
            if whole is None:
                terms = [t._replace(at=self._here(t.at), to=self._here(t.to)) for t in place.terms]
                found[name] = like.new_zeros(place.shape), terms
                continue
            tensor, length = like.new_empty(place.shape), len(whole.at)
            found[name] = tensor, []
            copies.append(RowCopy(tensor.data_ptr(), whole.first, whole.size, end, length))
            lists.append(whole.at)
            end += length
        if not copies:
            return found, to
        rows = joined(run, "rows of a way back", lists)
        return found, to._replace(copies=tuple(copies), rows=rows)

    def _launch(self, run: Run, part: Part) -> Tensor:
        """Run launches on PyTorch's current stream; return the arena."""
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


class RowsOf(NamedTuple):
    """Rows in the order of a caller, of which each vertex has one; row_of: int32 [V], which."""

    whole: Tensor
    row_of: Array


def _seeds_of(way: WayBack, run: Run) -> tuple[tuple[Any, ...], tuple[int, ...], Array]:
    """Return the seeds of launches, and which rows of them these read: see `Part.seed_rows`."""
    assert way.scale == 1.0, way.scale  # autograd has scaled them
    seeds: list[DeviceRows] = []
    starts: list[int] = []
    lists: list[Array] = []
    for name, d in way.d_outputs.items():
        if isinstance(d, RowsOf):
            starts.append(sum(map(len, lists)))
            seeds.append(rows_of(d.whole))
            key, find = ("rows of a seed", name), partial(_rows_read, run, d.row_of)
            lists.append(run.once(key, [d.row_of], find))
        else:
            starts.append(-1)
            seeds.append(d if isinstance(d, DeviceRows) else rows_of(d))
    if not lists:
        return tuple(seeds), (), NO_ROWS
    return tuple(seeds), tuple(starts), joined(run, "rows of seeds", lists)


def _rows_read(run: Run, row_of: Array) -> Array:
    """Return which row of a caller each row of a run is, given that of each vertex."""
    found: Array = row_of[run.orders[0]]
    return found


class PulledTerm(NamedTuple):
    """A part of the gradient of a pull.

    Attributes:
        first, size: element of the arena where its rows begin, and elements of one.
        at: rows there, whole numbers; to: rows of the pull that they are added to.
    """

    first: int
    size: int
    at: Any
    to: Any


class PulledPlace(NamedTuple):
    """Where the gradient of a pull is.

    Attributes:
        shape: of what the batch gives; terms: what adds up to it.
        whole: a term that has each of its rows once, in their order; None, where there is none.
    """

    shape: tuple[int, ...]
    terms: list[PulledTerm]
    whole: PulledTerm | None = None


def _pulled_at(batch: GraphBatch, run: Run, name: str) -> PulledPlace:
    """Find the gradient of a pull."""
    pulls = run.variant.program.pulls_from(name)
    table, index = table_of(batch, pulls[0])
    key = "pulled", name, len(table)
    terms, whole = run.once(key, [index], lambda: _terms_of(batch, run, pulls))
    return PulledPlace(tuple(table.shape), terms, whole)


def _terms_of(
    batch: GraphBatch, run: Run, pulls: Sequence[Pull]
) -> tuple[list[PulledTerm], PulledTerm | None]:
    """Return what adds up to the gradient of a pull: the last two fields of `PulledPlace`."""
    tensors, (table, index) = run.variant.table, table_of(batch, pulls[0])
    terms, none = [], len(run.plan.base)
    for pull in pulls:
        number = tensors.numbers.get(("pull_grad", pull.name), none)
        if number >= none:  # none of its vertices has it, perhaps those of kinds that came later
            continue
        place = int(run.plan.base[number]), tensors.specs[number].size
        if index is None and not pull.of_edges and not len(run.inputs.functions):
            return [], PulledTerm(*place, run.row_of, None)  # of its vertex
        to, at = pulled_rows(batch, run, pull)
        ordered = _by_row(to, at, len(table)) if len(pulls) == 1 else None
        if ordered is not None:
            return [], PulledTerm(*place, ordered, None)
        if len(to):
            terms.append(PulledTerm(*place, at, to))
    return terms, None


def _by_row(to: Array, at: Array, count: int) -> Array | None:
    """Return what is at each row of a pull, where each has one; else None."""
    if len(to) != count:
        return None
    found = np.full(count, -1, np.int32)
    found[to] = at
    return found if count and found.min() >= 0 else None


def _added(arena: Tensor, total: Tensor, terms: Sequence[PulledTerm]) -> Tensor:
    """Return the gradient of a pull, given the tensor that terms are added to."""
    for first, size, at, to in terms:
        count = (len(arena) - first) // size
        rows = arena.as_strided((count, size), (size, 1), first).index_select(0, at)
        total.index_add_(0, to, rows.view(len(at), *total.shape[1:]))
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


def rows_of(tensor: Tensor) -> DeviceRows:
    """Return what `readable` returned as the engine takes it."""
    return DeviceRows.at(tensor.data_ptr(), tensor, tensor.shape, DTYPES[tensor.dtype])
