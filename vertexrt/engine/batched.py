"""The batched engine: schedule a minibatch, plan its memory, run its launches.

One launch table lists everything that a step runs, in order: eager kinds, batching tasks children
first, lazy kinds, the same tasks in reverse, what is final. On the CPU the table is one compiled
call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.engine.inputs import Inputs
from vertexrt.engine.layouts import BatchLayout
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.trace import Timeline
from vertexrt.engine.variant import Ready, Variant
from vertexrt.errors import RoomError
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import with_values
from vertexrt.graph.device_rows import refuse_device_rows
from vertexrt.graph.digest import BatchForm
from vertexrt.kernels.backend import HostExecutable, Processors, ScriptRun
from vertexrt.kernels.layout import PAD, Buffers
from vertexrt.kernels.ways import Configuration
from vertexrt.memory.aligned import GIB, aligned_zeros, machine_bytes
from vertexrt.scheduler.balance import Share
from vertexrt.scheduler.rows import ORDER, ROW_OF, part_of
from vertexrt.script.assemble import Batch, Scripts, assemble
from vertexrt.script.verify import verify_scripts

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]
T = TypeVar("T")

MOST_BOUND = 32  # kept runs that stay bound to a worker


def _room_for(elements: int, dtype: np.dtype[Any]) -> Array:
    """Return memory for a batch, and more, which later ones may need. Raises: RoomError."""
    size, most = elements * dtype.itemsize, machine_bytes()
    try:
        if size <= most:
            return aligned_zeros(int(elements * 1.25), dtype)
    except MemoryError:  # of a process that may have less
        pass
    got = f"the values of a batch take {size / GIB:.4g} GiB"
    expected = f"less than this process may have, of {most / GIB:.4g} GiB of memory"
    raise RoomError.at("batch", got, expected, "take fewer graphs a batch")


class Worker:
    """The memory of one thread: an arena that grows and never shrinks, and a gradient array.

    The first row of the arena stays zero: it is what an absent child reads.

    Attributes:
        bound: the runs that were bound to it last, of those that are kept; by their launches.
    """

    def __init__(self, gradients: Array) -> None:
        self.gradients = gradients
        self.arena: Array = np.zeros(0, gradients.dtype)
        self.bound: OrderedDict[tuple[int, int | None, int | None], BoundRun] = OrderedDict()
        self._zeros = 0

    def take(self, elements: int, zero_elements: int) -> Array:
        """Return an arena of at least that many elements.

        What it held stays: a backward pass reads what forward left, and may need more temporaries.
        """
        if len(self.arena) < elements:
            held = self.arena
            self.bound.clear()
            self.arena = _room_for(elements, held.dtype)
            self.arena[: len(held)] = held
            self._zeros = 0
        if self._zeros < zero_elements:
            self.arena[:zero_elements] = 0.0
        self._zeros = zero_elements  # what lies after them is written by this run
        return self.arena


@dataclass(slots=True)
class Run:
    """One minibatch, ready to run: everything is decided, nothing has been computed.

    Attributes:
        ready: what was compiled when its memory was planned; the variant may have met other kinds
            since, in another share of the batch, and then has other tensors.
        layout: shared by runs of batches with the same graphs.
        kept: what is found for it, where it is kept for batches like this one.
    """

    variant: Variant
    ready: Ready
    share: Share
    inputs: Inputs
    layout: BatchLayout
    configuration: Configuration
    kept: dict[object, Any] | None = None

    def once(self, name: tuple[object, ...], of: Sequence[object], find: Callable[[], T]) -> T:
        """Find something for this run; where it is kept, only if the last was of other objects.

        Args:
            name: of what is found; of: objects that it depends on, and is found again by.
        """
        if self.kept is None:
            return find()
        last = self.kept.get(name)
        if last is None or len(last[0]) != len(of) or not all(map(is_, last[0], of)):
            last = self.kept[name] = tuple(of), find()
        found: T = last[1]
        return found

    def bare(self) -> Run:
        """Return the same run without what was pulled."""
        return self.with_floats(with_values(self.share.batch, {}, {}, BatchForm()), ())

    def with_floats(self, batch: GraphBatch, floats: tuple[Array, ...]) -> Run:
        """Return the same run of a batch that differs in real pulls alone."""
        i = self.inputs
        structure = i.child_ptr, i.child, i.functions, i.edge_of, i.first_of
        inputs = Inputs(*structure, i.index, floats, i.no_reals)
        given = self.layout, self.configuration, self.kept
        return Run(self.variant, self.ready, Share(batch), inputs, *given)

    def reals(self, part: Part) -> tuple[Any, ...]:
        """Return the real pulls and the seeds that a part of it reads."""
        own = self.inputs.floats if part.reals is None else part.reals
        return *own, *part.seeds

    @property
    def zero_elements(self) -> int:
        """Elements of the row that an absent child reads."""
        return self.ready.programs.zero_elements

    def forward(self, seed: int = 0, seeds: tuple[Array, ...] = ()) -> Part:
        """Return the way forward.

        Args:
            seed: 32 random bits; seeds: of `Part`.
        """
        return Part(self.layout.forward, random_seed=seed, seeds=seeds)

    @property
    def num_rows(self) -> int:
        """Rows of the schedule."""
        return int(self.layout.extents[ORDER, 1])

    @property
    def user_numbers(self) -> tuple[Array, Array]:
        """The user's vertices and edges, where random numbers are drawn by them."""
        return self.share.numbers() if self.variant.draws else (NO_ROWS, NO_ROWS)

    @property
    def order(self) -> Array:
        """The user's vertex of each row."""
        return part_of(self.layout.indices, self.layout.extents, ORDER)

    @property
    def row_of(self) -> Array:
        """Row of each of the user's vertices."""
        begin, end = self.layout.extents[ROW_OF]
        return self.layout.indices[begin:end]


@dataclass(frozen=True, slots=True)
class Jobs:
    """What has to be called, at once where there are several, to run launches of a minibatch.

    Attributes:
        arena: whose tensors stay valid until the next run in it.
        calls: one for each processor.
        check: called when all have returned; stop: where they have to return before their end.
        calls_blas: some call may, see `HostExecutable`.
    """

    arena: Array
    calls: tuple[Callable[[], None], ...]
    check: Callable[[], None]
    stop: Callable[[], None]
    calls_blas: bool


class BoundRun(NamedTuple):
    """Launches of a run, bound to memory: they may run again and again.

    Attributes:
        table: the launches; scripts: of processors, where there are any.
        first, elements: of the arena, what the launches write.
    """

    run: Run
    table: Int64
    buffers: Buffers
    scripts: Scripts | None
    first: int
    elements: int


def bind(run: Run, store: ParameterStore, worker: Worker, param_at: Int64, part: Part) -> BoundRun:
    """Bind launches of a prepared minibatch to memory; gradients add to the worker's.

    A run that is kept stays bound to the worker, unless it reads real numbers, which may be others
    next time, and large.
    """
    floats, launches = run.inputs.floats, part.launches
    if run.kept is None or floats or part.seeds:
        refuse_device_rows(floats)
        return _bind(run, store, worker, param_at, part)
    key = id(run.kept), launches.start, launches.stop  # it lives as long as it is bound
    bound = worker.bound.get(key)
    if bound is None:
        bound = worker.bound[key] = _bind(run, store, worker, param_at, part)
        while len(worker.bound) > MOST_BOUND:
            worker.bound.popitem(last=False)
        return bound
    worker.bound.move_to_end(key)
    worker.take(bound.elements, run.zero_elements)
    bound.buffers.loss_scale, bound.buffers.random_seed = part.loss_scale, part.random_seed
    return bound


def _bind(run: Run, store: ParameterStore, worker: Worker, param_at: Int64, part: Part) -> BoundRun:
    plan = run.layout.plan
    table = run.layout.table[part.launches]
    scripts = None if run.ready.processors is None else _assemble(run, table)
    each = 0 if scripts is None else _padded(scripts.temporary)
    elements = max(plan.total, plan.temporary + run.configuration.processors * each)
    user_vertex, user_edge = run.user_numbers
    buffers = Buffers(
        arena=worker.take(elements, run.zero_elements),
        base=plan.base,
        temporary=plan.temporary,
        params=store.values,
        gradients=worker.gradients,
        param_at=param_at,
        schedule=run.layout.schedule,
        rows=run.layout.rows,
        user_vertex=user_vertex,
        user_edge=user_edge,
        ints=run.inputs.ints,
        floats=run.inputs.floats,
        float_index=run.inputs.float_index,
        seeds=part.seeds,
        loss_scale=part.loss_scale,
        random_seed=part.random_seed,
    )
    # Backward reads what forward left.
    first = plan.temporary if part.launches.start else run.zero_elements
    return BoundRun(run, table, buffers, scripts, first, elements)


def make_jobs(bound: BoundRun, timeline: Timeline | None = None) -> Jobs:
    """Return what to call to run launches once.

    Args:
        timeline: gets the times of all instructions, where there are processors.
    """
    buffers, run = bound.buffers, bound.run
    if config().check:  # what is not written shows
        buffers.arena[bound.first : bound.elements] = np.nan
    if bound.scripts is not None:
        return _follow(run, bound.scripts, buffers, timeline)
    executable = cast("HostExecutable", run.ready.executable)
    run_all = (partial(executable.run, bound.table, buffers),)
    return Jobs(buffers.arena, run_all, *(lambda: None,) * 2, executable.calls_blas)


def _padded(elements: int) -> int:
    return -(-elements // PAD) * PAD


def _assemble(run: Run, table: Int64) -> Scripts:
    """Write what each processor has to do for some launches."""
    s, shape, chosen = run.layout.schedule, run.ready.shape, run.configuration
    assert shape is not None
    batch = Batch(table, s.edge_ptr, s.every_ptr, s.child_row)
    found = assemble(shape, batch, chosen.processors, chosen.tile)
    if config().check:
        verify_scripts(found, shape, batch, run.layout.rows)
    return found


def _follow(run: Run, scripts: Scripts, buffers: Buffers, timeline: Timeline | None) -> Jobs:
    """Let each processor follow its script."""
    ready, processors = run.ready, run.configuration.processors
    executor = cast("Processors", ready.processors)
    counters = executor.new_counters(scripts.words.shape[1])
    times = np.zeros((processors, 0, 3), np.int64)
    if timeline is not None:
        assert ready.shape is not None
        times = timeline.add(executor, ready.shape, scripts.words)
    first, scratch = run.layout.plan.temporary, _padded(scripts.temporary)
    given = [
        ScriptRun(words, counters, r, processors, first + r * scratch, buffers, times[r])
        for r, words in enumerate(scripts.words)
    ]
    calls = tuple(partial(executor.run, each) for each in given)
    ends = partial(executor.check, counters), partial(executor.stop, counters)
    return Jobs(buffers.arena, calls, *ends, executor.calls_blas)


def start_of(run: Run, key: tuple[object, ...]) -> int:
    """Return the element of the arena where a tensor starts."""
    return int(run.layout.plan.base[run.variant.table.numbers[key]])


def read_rows(run: Run, data: Array, key: tuple[object, ...]) -> Array:
    """Return all rows of a tensor in execution order, [V, size]; a view of the arena."""
    table, rows = run.variant.table, run.num_rows
    number = table.numbers[key]
    start, size = int(run.layout.plan.base[number]), table.specs[number].size
    return data[start : start + rows * size].reshape(rows, size)


def rows_of_tensor(run: Run, data: Array, key: tuple[object, ...], rows: Array) -> Array:
    """Copy some rows of a tensor, [n, size]; only these need be in memory."""
    number = run.variant.table.numbers[key]
    size = run.variant.table.specs[number].size
    at = run.layout.plan.base[number] + rows.astype(np.int64) * size
    return np.asarray(data[at[:, None] + np.arange(size)])


NO_ROWS = np.zeros(0, np.int32)


class RowPlace(NamedTuple):
    """Rows of a tensor in the arena of a device.

    Attributes:
        first: element of the arena where the tensor begins; size: elements of one of its rows.
        start, length: which part of `Destination.rows` lists the rows.
    """

    first: int
    size: int
    start: int
    length: int


class RowCopies(NamedTuple):
    """Copies of rows of several tensors.

    Attributes:
        places: where the rows are; the same object, where they are the same again.
        to: addresses of the copies, real [length, size] each.
    """

    places: tuple[RowPlace, ...]
    to: Sequence[int]


class ShareGradients(NamedTuple):
    """Where the gradients and the loss of a share of a step of several processes are packed.

    Attributes:
        words: `Packing` of update.cu, but for the losses, which the run knows; blocks: of its
            launch.
    """

    words: bytes
    blocks: int


class Destination(NamedTuple):
    """Memory of a device, by its addresses, where a pass leaves what its caller keeps.

    Attributes:
        gradients: of the parameters, real [trained], which need not be zero before; 0, where the
            executor's own array gets them.
        loss: real [1], the summed loss times its scale; 0, where it is not wanted.
        packed: of a share; None, where gradients are not packed.
        copies: of rows, after the launches; rows: int32, of all copies, and of `Part.seed_rows`.
    """

    gradients: int = 0
    loss: int = 0
    packed: ShareGradients | None = None
    copies: RowCopies = RowCopies((), ())
    rows: Array = NO_ROWS


class Part(NamedTuple):
    """Launches of a run that are to be done, and what they are given.

    Attributes:
        launches: rows of the table.
        loss_scale: factor of the loss, in its gradient.
        random_seed: 32 bits.
        seeds: gradients of pushes, as `Buffers` has them.
        seed_rows: of a device, of each seed the place in `Destination.rows` of a list, which of its
            rows each row has; -1 for that of its vertex; none, where that is so of all.
        to: of a device, where its caller has memory for what is found.
        reals: the real pulls, in the order of `Inputs.floats`, of a run without them (`Run.bare`);
            None, where it has its own.
    """

    launches: slice = slice(None)
    loss_scale: float = 1.0
    random_seed: int = 0
    seeds: tuple[Array, ...] = ()
    seed_rows: tuple[int, ...] = ()
    to: Destination = Destination()
    reals: tuple[Any, ...] | None = None


MOST_SLICES = 16  # of rows that are copied apart; more copies would take longer than more rows


class RowsOfRun(NamedTuple):
    """Which rows of a run are wanted.

    Attributes:
        to: int64, which of the results they are; None for all, in order.
        rows: of the run, in that order.
    """

    to: Array | None
    rows: Array


class ChosenRows(NamedTuple):
    """Where the results of vertices lie.

    Attributes:
        length: of results; parts: of each run.
    """

    length: int
    parts: tuple[RowsOfRun, ...]


def chosen_rows(runs: Sequence[Run], vertices: Array | None = None) -> ChosenRows:
    """Find the rows of some of the user's vertices, in that order; of all by default."""
    if len(runs) == 1:
        rows = runs[0].row_of if vertices is None else runs[0].row_of[vertices]
        return ChosenRows(len(rows), (RowsOfRun(None, rows),))
    if vertices is None:
        parts = tuple(RowsOfRun(run.share.vertices, run.row_of) for run in runs)
        return ChosenRows(sum(len(part.rows) for part in parts), parts)
    return ChosenRows(len(vertices), tuple(_of_share(run, vertices) for run in runs))


def _of_share(run: Run, vertices: Array) -> RowsOfRun:
    """Find those of some vertices that a share of the batch has."""
    own = run.share.vertices
    number = np.minimum(np.searchsorted(own, vertices), len(own) - 1)
    to = np.flatnonzero(own[number] == vertices)
    return RowsOfRun(to, run.row_of[number[to]])


def outputs_of(
    runs: Sequence[Run], arenas: Sequence[Array], name: str, chosen: ChosenRows
) -> Array:
    """Return a push of chosen vertices: [n, *shape], a copy."""
    pushes = runs[0].variant.pushes
    key, shape = pushes.keys[name], pushes.shapes[name]
    parts = [
        read_rows(run, data, key).take(part.rows, axis=0)
        for run, data, part in zip(runs, arenas, chosen.parts, strict=True)
    ]
    if len(parts) == 1:
        return parts[0].reshape(chosen.length, *shape)
    whole = np.empty((chosen.length, *shape), parts[0].dtype)
    for found, part in zip(parts, chosen.parts, strict=True):
        whole[part.to] = found.reshape(len(found), *shape)
    return whole


def pushed_by(
    runs: Sequence[Run], arenas: Sequence[Array], names: Sequence[str], vertices: Array | None
) -> dict[str, Array]:
    """Return pushes by name, of chosen vertices; of all by default."""
    if not names:
        return {}
    chosen = chosen_rows(runs, vertices)
    return {name: outputs_of(runs, arenas, name, chosen) for name in names}


class CopiedRows(NamedTuple):
    """Slices of a run's rows that have all rows that are wanted.

    Attributes:
        slices: rising, without overlap.
        at: int64, the place of each wanted row among those of all slices.
    """

    slices: list[slice]
    at: npt.NDArray[np.int64]


def copied_rows(rows: Array) -> CopiedRows:
    """Cover rows by a few slices: neighbours are one; where there are too many, one has all."""
    if not len(rows):
        return CopiedRows([], np.zeros(0, np.int64))
    each = np.unique(rows).astype(np.int64)
    ends = np.flatnonzero(np.diff(each) > 1)
    if len(ends) >= MOST_SLICES:
        first = int(each[0])
        return CopiedRows([slice(first, int(each[-1]) + 1)], rows.astype(np.int64) - first)
    begin, end = np.append(each[0], each[ends + 1]), np.append(each[ends], each[-1]) + 1
    at = np.searchsorted(each, rows)
    return CopiedRows([slice(int(a), int(b)) for a, b in zip(begin, end, strict=True)], at)
