"""Tensors of PyTorch as the engine takes them and gives them back, on the host and on a GPU.

On a GPU pushes and gradients are PyTorch's tensors, in the order of its stream. What PyTorch
allocates and launches by itself costs a host less than arrays of CuPy that are lent to it, and its
memory comes from one pool.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.engine.batched import NO_ROWS, Destination, Part, RowPlace, Run, pushed
from vertexrt.engine.executor import total_loss
from vertexrt.engine.results import (
    LaunchesHere,
    LossAndGradients,
    PassResults,
    PushPlaces,
    PushRows,
    WayBack,
    pulled_rows,
    table_of,
)
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import with_values
from vertexrt.graph.device_rows import ALIGNED, DeviceRows
from vertexrt.graph.pulls import parts_of, rows_unchecked

Array = np.ndarray[Any, Any]
DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype("float32"),
    torch.float64: np.dtype("float64"),
}
OF_NUMPY = {real: dtype for dtype, real in DTYPES.items()}


def tensor_of(array: Any) -> Tensor:
    """Return an array of the host or of a GPU as a tensor with the same memory."""
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array)
    found: Tensor = torch.utils.dlpack.from_dlpack(array)
    return found


def readable(tensor: Tensor) -> Tensor:
    """Return a tensor, or a copy that kernels can read: in C order, at an aligned address."""
    found = tensor.contiguous()
    return found.clone() if found.data_ptr() % ALIGNED else found


def device_rows(tensor: Tensor) -> DeviceRows:
    """Return a tensor of a GPU as the engine takes it."""
    found = readable(tensor)
    return DeviceRows.at(found.data_ptr(), found, found.shape, DTYPES[found.dtype])


class Feeds:
    """A run that is kept, whose real pulls are tensors: batches of one form, with one list of them.

    Args:
        run: of such a batch; graphs: the batch; batch: with tensors; names: of these pulls.

    Attributes:
        batch: its graphs, and the shapes of these.
        holds: how many bytes of other real pulls it has.
    """

    def __init__(
        self, run: Run, graphs: GraphBatch, batch: GraphBatch, names: Sequence[str]
    ) -> None:
        reader, shapes = run.variant.reader, {}
        for name in names:
            table, index = parts_of(batch.pulls[name])
            bare: Any = DeviceRows.at(0, None, table.shape, table.dtype)
            shapes[name] = bare if index is None else rows_unchecked(bare, index)
        self._floats: list[Any] = list(run.inputs.floats)
        self._tensors: list[tuple[int, int, tuple[int, ...]]] = []  # number, place in names, shape
        self._graphs: Callable[[], GraphBatch | None] | None = None  # which gives other real pulls
        for number, k in enumerate(reader.reals):
            pull = reader.pulls[k]
            if not pull.of_edges and pull.source in shapes:
                shape = tuple(table_of(batch, pull)[0].shape)
                self._tensors.append((number, names.index(pull.source), shape))
                self._floats[number] = None
            elif reader.is_used[k]:
                self._graphs = weakref.ref(graphs)
        self._dtype = run.inputs.no_reals.dtype
        self.holds = sum([given.nbytes for given in self._floats if given is not None])
        self.batch = with_values(batch, shapes, {}, batch.form)

    def run_of(
        self, run: Run, graphs: GraphBatch, given: Sequence[Tensor], lend: Callable[[Tensor], Any]
    ) -> Run | None:
        """Return the run of a batch of the form, which reads tensors.

        Args:
            run: that is kept, which has these feeds.
        Returns: None, where it has to be prepared like a batch that is new, which copies what
            kernels cannot read, or says what is wrong.
        """
        if self._graphs is not None and self._graphs() is not graphs:
            return None
        floats = self._floats.copy()
        for number, place, shape in self._tensors:
            tensor = given[place]
            if tensor.shape != shape or DTYPES.get(tensor.dtype) != self._dtype:
                return None
            if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNED:
                return None
            floats[number] = lend(tensor.detach())
        return run.with_floats(self.batch, tuple(floats))


class WaysBack(NamedTuple):
    """Where a way back finds rows, and where it leaves them.

    Attributes:
        starts: of each gradient of a push where in `rows` it says which of its rows each row of the
            run has; -1 for that of its vertex.
        rows: int32, lists of rows, one after the other.
        places: of the gradients of pulls, rows of the arena that are copied.
        sums: of each pull the shape of what the batch gives, and of each of its copies, on the
            device, to which rows of the pull they are added; None, where one has all, in order.
    """

    starts: tuple[int, ...]
    rows: Array
    places: tuple[RowPlace, ...]
    sums: tuple[tuple[tuple[int, ...], list[Tensor] | None], ...]


def _ways_back(way: WayBack, device: torch.device) -> WaysBack:
    (run,) = way.runs
    tensors, base = run.variant.table, run.layout.plan.base
    lists: list[Array] = []
    starts, places, sums = [], [], []
    for _, row_of in way.d_outputs.values():
        starts.append(-1 if row_of is None else sum(map(len, lists)))
        if row_of is not None:
            lists.append(row_of.take(run.order))
    for name in way.pulls:
        pulls, found = run.variant.program.pulls_from(name), []
        table, _ = table_of(way.batch, pulls[0])
        for pull in pulls:
            number = tensors.numbers.get(("pull_grad", pull.name), len(base))
            to, at = pulled_rows(way.batch, run, pull)
            if number < len(base) and len(to):  # else none of its vertices has it, or later kinds
                found.append((number, to, at))
        added: list[Tensor] | None = [torch.from_numpy(to).to(device) for _, to, _ in found]
        if len(found) == 1 and len(found[0][1]) == len(table):
            number, to, at = found[0]
            order = np.argsort(to)
            if np.array_equal(to[order], np.arange(len(table))):
                found, added = [(number, to, at[order])], None
        for number, _, at in found:
            size = tensors.specs[number].size
            places.append(RowPlace(int(base[number]), size, sum(map(len, lists)), len(at)))
            lists.append(at.astype(np.int32))
        sums.append((tuple(table.shape), added))
    rows = np.concatenate(lists) if lists else NO_ROWS
    return WaysBack(tuple(starts), rows, tuple(places), tuple(sums))


class HostTensors:
    """How passes run on the host whose results are tensors.

    Attributes:
        device: of the tensors; on_gpu: an executor of a GPU launches.
    """

    on_gpu = False
    device = torch.device("cpu")

    def __init__(self, executor: Any) -> None:
        self._executor, self._results = executor, PassResults(executor, stays=False)
        self._dtype = OF_NUMPY[executor.model.store.dtype]

    @staticmethod
    def lend(tensor: Tensor) -> Any:
        """Return a tensor of the host, in C order, as compiled code reads it."""
        found = tensor.numpy().reshape(-1)
        found.flags.writeable = False  # compiled code is by type
        return found

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Tensor]:
        """Run launches; return what is wanted, [n, *shape] each."""
        arenas = self._executor.launch(runs, parts)
        return [torch.from_numpy(pushed(runs, arenas, *push)) for push in wanted]

    def gradients(self, way: WayBack, reals: tuple[Any, ...] | None) -> LossAndGradients:
        """Go back from pushes, or evaluate the loss and go back from it, if the use says so.

        Args:
            way: its gradients of pushes are tensors, each with int32 [V], which of its rows each
                vertex has, or None for its own.
            reals: of `Part`.
        Returns: tensors.
        """
        runs, d_pushes, parts = way.runs, [], []
        for tensor, row_of in way.d_outputs.values():
            own = tensor.numpy()
            d_pushes.append(own if row_of is None else own.take(row_of, axis=0))
        for run in runs:
            part = Part(slice(None), way.scale, way.seed)
            if d_pushes:
                mine = d_pushes
                if len(runs) > 1:
                    mine = [each[run.share.vertices] for each in d_pushes]
                given = tuple([np.ascontiguousarray(each).reshape(-1) for each in mine])
                part = Part(run.layout.backward, 1.0, way.seed, given)
            parts.append(part)
        loss, whole, rows, pulled = None, None, {}, {}
        if d_pushes or runs[0].variant.use.backward:
            arenas, whole, rows, pulled = self._results.go_back(way, parts)
        else:
            arenas = self._executor.launch(runs, parts)
        if not d_pushes:
            loss = torch.tensor(total_loss(runs, arenas) * way.scale, dtype=self._dtype)
        tables, gradients = {}, {}
        for name, (at, found) in rows.items():
            tables[name] = torch.from_numpy(at), torch.from_numpy(found)
        for name, gradient in pulled.items():
            gradients[name] = torch.from_numpy(gradient)
        flat = None if whole is None else torch.from_numpy(whole)
        return LossAndGradients(loss, flat, tables, gradients)


class DeviceTensors:
    """How passes run on a GPU whose results are tensors there; see `HostTensors`.

    Attributes:
        kept: the executor's gradients, which each way back may fill.
    """

    on_gpu = True
    lend = staticmethod(device_rows)

    def __init__(self, executor: LaunchesHere) -> None:
        self._executor, self.kept = executor, tensor_of(executor.gradients_here())
        self.device = self.kept.device

    def forward(
        self, runs: Sequence[Run], parts: Sequence[Part], wanted: Sequence[PushRows]
    ) -> list[Tensor]:
        """Run launches; return what is wanted, [n, *shape] each."""
        places = PushPlaces.of(runs[0], wanted)
        found = [*map(self.kept.new_empty, places.shapes)]
        to = Destination(0, 0, None, places.places, [*map(Tensor.data_ptr, found)], places.rows)
        self._launch(runs[0], parts[0], to)
        return found

    def gradients(self, way: WayBack, reals: tuple[Any, ...] | None) -> LossAndGradients:
        """Go back; see `HostTensors`.

        Tables of which rows are wanted stay in the executor's own array, since these are few of its
        rows.
        """
        (run,), model, flat = way.runs, self._executor.model, self.kept
        loss = None if way.d_outputs else flat.new_empty(())
        at = 0 if loss is None else loss.data_ptr()
        part = Part(slice(None), way.scale, way.seed, reals=reals)
        if loss is not None and not run.variant.use.backward:
            self._launch(run, part, Destination(loss=at))
            return LossAndGradients(loss, None, {}, {})
        given = [row_of for _, row_of in way.d_outputs.values()]
        find = partial(_ways_back, way, self.device)
        if reals is None:  # the batch is another each time
            starts, rows, places, sums = find()
        else:
            key = "way back", *way.pulls
            starts, rows, places, sums = run.once(key, (way.batch, *given), find)
        if given:
            d_pushes: Any = tuple([device_rows(tensor) for tensor, _ in way.d_outputs.values()])
            part = part._replace(launches=run.layout.backward, d_pushes=d_pushes, seed_rows=starts)
        touched = model.touched(run) if way.sparse else {}
        if not touched:
            flat = torch.empty_like(flat)
        copies = [flat.new_empty((place.length, place.size)) for place in places]
        to = [*map(Tensor.data_ptr, copies)]
        gradients = 0 if touched else flat.data_ptr()
        self._launch(run, part, Destination(gradients, at, None, places, to, rows))
        pulled, looked_up = {}, {}
        for name, (shape, added) in zip(way.pulls, sums, strict=True):
            if added is None:
                pulled[name] = copies.pop(0).view(shape)
                continue
            pulled[name] = flat.new_zeros(shape)
            for where in added:
                pulled[name].index_add_(0, where, copies.pop(0).view(-1, *shape[1:]))
        for name, numbers in touched.items():
            start, shape = int(model.store.offsets[name]), model.store.shapes[name]
            whole = flat[start : start + math.prod(shape)].view(shape)
            here = torch.from_numpy(numbers.astype(np.int64)).to(flat.device, non_blocking=True)
            looked_up[name] = here, whole.index_select(0, here)
        if touched:
            flat = flat[: model.store.dense_size].clone()
        return LossAndGradients(loss, flat, looked_up, pulled)

    def _launch(self, run: Run, part: Part, to: Destination) -> None:
        """Run launches on PyTorch's current stream."""
        stream = None
        if self.kept.is_cuda:
            # `torch.cuda.current_stream` makes an object of it, which takes ten times as long.
            stream = torch._C._cuda_getCurrentRawStream(self.kept.device.index)
        self._executor.launch_between(run, part._replace(to=to), stream)
