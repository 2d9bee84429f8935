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

Job = Callable[[], None]
MOST_BOUND = 32  # kept runs that stay bound to memory


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


class RunMemory:
    """The memory of a share of a batch: an arena that grows and never shrinks, and gradients.

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
        inputs = Inputs(self.inputs.structure, self.inputs.index, floats, self.inputs.no_reals)
        given = self.layout, self.configuration, self.kept
        return Run(self.variant, self.ready, Share(batch), inputs, *given)

    def reals(self, part: Part) -> tuple[Any, ...]:
        """Return the real pulls and the gradients of pushes that a part of it reads."""
        own = self.inputs.floats if part.reals is None else part.reals
        return *own, *part.d_pushes

    def forward(self, random_seed: int = 0, d_pushes: tuple[Array, ...] = ()) -> Part:
        """Return the way forward.

        Args:
            random_seed: 32 bits; d_pushes: of `Part`.
        """
        return Part(self.layout.forward, random_seed=random_seed, d_pushes=d_pushes)

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


def bind(
    run: Run, store: ParameterStore, memory: RunMemory, param_at: Int64, part: Part
) -> BoundRun:
    """Bind launches of a prepared minibatch to memory, whose gradients they add to.

    A run that is kept stays bound to that memory, and gets its real numbers each time.
    """
    reals, launches = run.inputs.floats, part.launches
    plan, zero_elements = run.layout.plan, run.ready.programs.zero_elements
    if reals:
        refuse_device_rows(reals)
    key = id(run.kept), launches.start, launches.stop  # it lives as long as it is bound
    bound = None if run.kept is None else memory.bound.get(key)
    if bound is not None:
        memory.bound.move_to_end(key)
        memory.take(bound.elements, zero_elements)
        buffers = bound.buffers
        buffers.loss_scale, buffers.random_seed = part.loss_scale, part.random_seed
        buffers.floats, buffers.d_pushes = reals, part.d_pushes
        return bound
    table = run.layout.table[launches]
    scripts = None if run.ready.processors is None else scripts_of(run, table)
    each = 0 if scripts is None else _padded(scripts.temporary)
    elements = max(plan.total, plan.temporary + run.configuration.processors * each)
    user_vertex, user_edge = run.user_numbers
    buffers = Buffers(
        arena=memory.take(elements, zero_elements),
        base=plan.base,
        temporary=plan.temporary,
        params=store.values,
        gradients=memory.gradients,
        param_at=param_at,
        schedule=run.layout.schedule,
        rows=run.layout.rows,
        user_vertex=user_vertex,
        user_edge=user_edge,
        ints=run.inputs.ints,
        floats=reals,
        float_index=run.inputs.index[len(run.inputs.ints) :],
        d_pushes=part.d_pushes,
        loss_scale=part.loss_scale,
        random_seed=part.random_seed,
    )
    # Backward reads what forward left.
    first = plan.temporary if launches.start else zero_elements
    lasting = run if run.kept is None else run.bare()
    bound = BoundRun(lasting, table, buffers, scripts, first, elements)
    if run.kept is not None:
        memory.bound[key] = bound
        while len(memory.bound) > MOST_BOUND:
            memory.bound.popitem(last=False)
    return bound


def calls_of(
    bound: BoundRun, timeline: Timeline | None = None
) -> tuple[list[Job], list[Job], list[Job]]:
    """Return what has to be called, at once where it is several, to run launches once.

    Args:
        timeline: gets the times of all instructions, where there are processors.
    Returns: a call for each processor; what is called when all have returned; what is called where
        they have to return before their end.
    """
    buffers, run = bound.buffers, bound.run
    if config().check:  # what is not written shows
        buffers.arena[bound.first : bound.elements] = np.nan
    if bound.scripts is not None:
        return _follow(run, bound.scripts, buffers, timeline)
    executable = cast("HostExecutable", run.ready.executable)
    return [partial(executable.run, bound.table, buffers)], [], []


def _padded(elements: int) -> int:
    return -(-elements // PAD) * PAD


def scripts_of(run: Run, table: Int64) -> Scripts:
    """Write what each processor has to do for some launches."""
    s, shape, chosen = run.layout.schedule, run.ready.shape, run.configuration
    assert shape is not None
    batch = Batch(table, s.edge_ptr, s.every_ptr, s.child_row)
    found = assemble(shape, batch, chosen.processors, chosen.tile)
    if config().check:
        verify_scripts(found, shape, batch, run.layout.rows)
    return found


def _follow(
    run: Run, scripts: Scripts, buffers: Buffers, timeline: Timeline | None
) -> tuple[list[Job], list[Job], list[Job]]:
    """Let each processor follow its script; see `calls_of`."""
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
    calls: list[Job] = [partial(executor.run, each) for each in given]
    check: list[Job] = [partial(executor.check, counters)]
    return calls, check, [partial(executor.stop, counters)]


def read_rows(run: Run, data: Array, key: tuple[object, ...]) -> Array:
    """Return all rows of a tensor in execution order, [V, size]; a view of the arena."""
    table, layout = run.variant.table, run.layout
    number = table.numbers[key]
    start, size = int(layout.plan.base[number]), table.specs[number].size
    rows = int(layout.extents[ORDER, 1])
    return data[start : start + rows * size].reshape(rows, size)


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


class ShareGradients(NamedTuple):
    """Where the gradients and the loss of a share of a step of several processes are packed.

    Attributes:
        words: `Packing` of update.cu, whose losses the run knows; blocks: of its launch.
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
        places: rows that are copied after the launches; copies: address of that of each tensor,
            real [length, size].
        rows: int32, of all copies, and of `Part.seed_rows`.
    """

    gradients: int = 0
    loss: int = 0
    packed: ShareGradients | None = None
    places: tuple[RowPlace, ...] = ()
    copies: Sequence[int] = ()
    rows: Array = NO_ROWS


class Part(NamedTuple):
    """Launches of a run that are to be done, and what they are given.

    Attributes:
        launches: rows of the table.
        loss_scale: factor of the loss, in its gradient.
        random_seed: 32 bits.
        d_pushes: gradients of pushes, as `Buffers` has them.
        seed_rows: of a device, whose kernels call each of these a seed: the place in
            `Destination.rows` of a list, which of its rows each row has; -1 for that of its vertex;
            none, where that is so of all.
        to: of a device, where its caller has memory for what is found.
        reals: the real pulls, in the order of `Inputs.floats`, of a run without them (`Run.bare`);
            None, where it has its own.
    """

    launches: slice = slice(None)
    loss_scale: float = 1.0
    random_seed: int = 0
    d_pushes: tuple[Array, ...] = ()
    seed_rows: tuple[int, ...] = ()
    to: Destination = Destination()
    reals: tuple[Any, ...] | None = None


def pushed_rows(run: Run, data: Array, name: str) -> Array:
    """Return a push in execution order, [V, *shape]; a view of the arena."""
    pushes = run.variant.pushes
    return read_rows(run, data, pushes.keys[name]).reshape(-1, *pushes.shapes[name])


def pushed(
    runs: Sequence[Run], arenas: Sequence[Array], name: str, vertices: Array | None = None
) -> Array:
    """Return a push of some of the user's vertices, in that order; of all by default: a copy."""
    if len(runs) == 1:
        (run,), (data,) = runs, arenas
        rows = run.row_of if vertices is None else run.row_of.take(vertices)
        return pushed_rows(run, data, name).take(rows, axis=0)
    own = [run.share.vertices for run in runs]
    shape = runs[0].variant.pushes.shapes[name]
    found = np.empty((sum(map(len, own)), *shape), arenas[0].dtype)
    for run, data, whose in zip(runs, arenas, own, strict=True):
        found[whose] = pushed_rows(run, data, name).take(run.row_of, axis=0)
    return found if vertices is None else found.take(vertices, axis=0)
