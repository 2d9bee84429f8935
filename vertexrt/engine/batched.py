"""The batched engine: schedule a minibatch, plan its memory, run its launches.

One launch table lists everything that a step runs, in order: eager kinds, batching tasks children
first, lazy kinds, the same tasks in reverse, what is final. On the CPU the table is one compiled
call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.inputs import Inputs, read_inputs
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.variant import Kind, Variant
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Domain, Program, Stage
from vertexrt.kernels.layout import COLUMNS, Buffers
from vertexrt.memory.plan import MemoryPlan, plan_memory
from vertexrt.scheduler import Schedule, make_schedule
from vertexrt.scheduler.compiled import add_presence, classify, slot_bits

Array = np.ndarray[Any, Any]
Int64 = npt.NDArray[np.int64]
NO_ROWS = np.zeros(0, np.int32)


class Worker:
    """The memory of one thread: an arena that grows and never shrinks, and a gradient array.

    The first row of the arena stays zero: it is what an absent child reads.
    """

    def __init__(self, gradients: Array) -> None:
        self.gradients = gradients
        self.arena: Array = np.zeros(0, gradients.dtype)
        self._zeros = 0

    def take(self, elements: int, zero_elements: int) -> Array:
        """Return an arena of at least that many elements."""
        if len(self.arena) < elements:
            self.arena = np.empty(int(elements * 1.25) + 64, self.arena.dtype)
            self._zeros = 0
        if self._zeros < zero_elements:
            self.arena[:zero_elements] = 0.0
            self._zeros = zero_elements
        return self.arena


@dataclass(slots=True)
class Run:
    """One minibatch, ready to run: everything is decided, nothing has been computed.

    Attributes:
        table: launches; forward launches are the first `forward_launches` rows.
        lazy_rows: rows whose loss counts.
    """

    variant: Variant
    batch: GraphBatch
    inputs: Inputs
    schedule: Schedule
    table: Int64
    forward_launches: int
    rows: Array
    plan: MemoryPlan
    zero_elements: int
    lazy_rows: int


def prepare(variant: Variant, batch: GraphBatch, policy: str, dtype: npt.DTypeLike) -> Run:
    """Schedule a batch and plan its memory.

    Raises: PullError, when pulled values do not fit.
    """
    inputs = read_inputs(variant.program, batch, dtype)
    atoms = variant.atoms
    bits = slot_bits(batch.child_ptr, batch.child, atoms.slots - 1)
    for k, index in enumerate(inputs.presence):
        add_presence(bits, index, atoms.slots + k)
    path_kinds = _number(variant, bits, atoms.path, variant.path_kinds, variant.add_path_kind)
    lazy_kinds = _number(variant, bits, atoms.lazy, variant.lazy_kinds, variant.add_lazy_kind)
    if variant.executable is None:
        variant.load()
    kinds = list(variant.path_kinds.values())
    schedule = make_schedule(batch, path_kinds, max(len(kinds), 1), policy)
    return _Launches(variant, batch, inputs, schedule, kinds, lazy_kinds).run()


def _number(variant: Variant, bits: Int64, mask: int, known: dict[int, Kind], add: Any) -> Array:
    """Number the kind of each vertex, compiling kinds not seen before."""
    out = np.zeros(len(bits), np.int32)
    while True:
        found = np.fromiter(known, np.int64, len(known))
        new = classify(bits, mask, found, np.arange(len(known), dtype=np.int32), out)
        if new < 0:
            return out
        add(int(new))
        variant.executable = None


class _Launches:
    """Builds the launch table and the extents of the tensors."""

    def __init__(
        self,
        variant: Variant,
        batch: GraphBatch,
        inputs: Inputs,
        schedule: Schedule,
        kinds: list[Kind],
        lazy_kinds: Array,
    ) -> None:
        self.variant = variant
        self.batch = batch
        self.inputs = inputs
        self.schedule = schedule
        self.kinds = kinds
        self.lazy_kinds = lazy_kinds
        self.rows: list[Array] = []
        self.listed = 0
        self.parts: list[Int64] = []
        count = len(variant.table)
        self.first_row = np.full(count, np.iinfo(np.int64).max, np.int64)
        self.end_row = np.zeros(count, np.int64)
        self.temporary = 0

    def run(self) -> Run:
        s, v = self.schedule, self.variant
        self._by_kind(Stage.EAGER)
        self._tasks(Stage.PATH)
        counted = self._lazy(Stage.LAZY)
        forward = sum(len(part) for part in self.parts)
        self._lazy(Stage.LAZY_BACKWARD)
        self._tasks(Stage.PATH_BACKWARD)
        self._by_kind(Stage.FINAL)
        table = np.concatenate(self.parts) if self.parts else np.zeros((0, COLUMNS), np.int64)
        zero = max((spec.size for spec in v.table), default=1)
        assert v.sharing is not None
        plan = plan_memory(v.sharing, v.sizes, self.first_row, self.end_row, zero, self.temporary)
        rows = np.concatenate(self.rows).astype(np.int32) if self.rows else NO_ROWS
        return Run(v, self.batch, self.inputs, s, table, forward, rows, plan, zero, counted)

    def _tasks(self, stage: Stage) -> None:
        """Launch the batching tasks, forward in order, backward reversed."""
        programs = np.array([k.programs[stage] for k in self.kinds] or [-1], np.int64)
        s = self.schedule
        part = np.zeros((s.num_tasks, COLUMNS), np.int64)
        part[:, 0] = programs[s.task_kind]
        part[:, 1] = np.diff(s.task_lo)
        part[:, 2] = s.task_lo[:-1]
        part[:, 5] = s.edge_ptr[s.task_lo[:-1]]
        part[:, 4] = s.edge_ptr[s.task_lo[1:]] - part[:, 5]
        part = part[part[:, 0] >= 0]
        self._append(part[::-1] if stage == Stage.PATH_BACKWARD else part)

    def _by_kind(self, stage: Stage) -> None:
        """Launch each program of a stage once over all rows of the tasks that it belongs to."""
        s = self.schedule
        programs = np.array([k.programs[stage] for k in self.kinds] or [-1], np.int64)
        of_task = programs[s.task_kind]
        for program in np.unique(programs[programs >= 0]):
            mine = of_task == program
            if not mine.any():
                continue
            starts, ends = s.task_lo[:-1][mine], s.task_lo[1:][mine]
            breaks = np.flatnonzero(starts[1:] != ends[:-1])
            lo = starts[np.concatenate([[0], breaks + 1])]
            hi = ends[np.concatenate([breaks, [len(ends) - 1]])]
            self._ranges(int(program), lo, hi)

    def _lazy(self, stage: Stage) -> int:
        """Launch each lazy program over all rows of its kinds; count the rows that have a loss."""
        kinds = list(self.variant.lazy_kinds.values())
        of_row = self.lazy_kinds[self.schedule.order] if len(kinds) > 1 else None
        counted = 0
        by_program: dict[int, list[int]] = {}
        for k, kind in enumerate(kinds):
            rows = len(self.schedule.order) if of_row is None else int((of_row == k).sum())
            counted += rows if kind.has_loss else 0
            if kind.programs[stage] >= 0 and rows:
                by_program.setdefault(kind.programs[stage], []).append(k)
        for program, members in by_program.items():
            if of_row is None:
                lo, hi = np.array([0]), np.array([len(self.schedule.order)])
            else:
                edge = np.diff(np.isin(of_row, members), prepend=False, append=False)
                lo, hi = np.flatnonzero(edge)[::2], np.flatnonzero(edge)[1::2]
            self._ranges(program, lo, hi)
        return counted

    def _ranges(self, program: int, lo: Array, hi: Array) -> None:
        """Launch a program over ranges of rows: one range as a slice, several as a list."""
        s = self.schedule
        task = self.variant.tasks[program]
        if len(lo) == 1 or _uses_edges(task.program, task.stage):
            part = np.zeros((len(lo), COLUMNS), np.int64)
            part[:, 0] = program
            part[:, 1] = hi - lo
            part[:, 2] = lo
            part[:, 4] = s.edge_ptr[hi] - s.edge_ptr[lo]
            part[:, 5] = s.edge_ptr[lo]
        else:
            lengths = hi - lo
            starts = np.cumsum(lengths) - lengths
            rows = np.arange(lengths.sum()) + np.repeat(lo - starts, lengths)
            part = np.array([[program, len(rows), -1, self.listed, 0, 0]], np.int64)
            self.rows.append(rows)
            self.listed += len(rows)
        self._append(part)

    def _append(self, part: Int64) -> None:
        """Add launches; note which rows they write and what scratch they need."""
        if not len(part):
            return
        self.parts.append(part)
        executable = self.variant.executable
        assert executable is not None
        for program in {int(p) for p in part[:, 0]}:
            mine = part[part[:, 0] == program]
            edges = mine[:, 4]
            need = executable.temporary_elements(program, int(mine[:, 1].max()), int(edges.max()))
            self.temporary = max(self.temporary, need)
            if mine[0, 2] >= 0:
                first, end = int(mine[:, 2].min()), int((mine[:, 2] + mine[:, 1]).max())
            else:
                first, end = 0, len(self.schedule.order)
            rows, edge_tensors = self.variant.written_by(program)
            self.first_row[rows] = np.minimum(self.first_row[rows], first)
            self.end_row[rows] = np.maximum(self.end_row[rows], end)
            self.first_row[edge_tensors] = 0
            self.end_row[edge_tensors] = len(self.schedule.child_row)


def _uses_edges(program: Program, stage: Stage) -> bool:
    return any(n.stage == stage and n.type.domain == Domain.EDGE for n in program.nodes)


def execute(
    run: Run,
    store: ParameterStore,
    worker: Worker,
    param_at: Int64,
    *,
    loss_scale: float = 1.0,
    random_seed: int = 0,
    seeds: tuple[Array, ...] = (),
    part: slice = slice(None),
) -> Array:
    """Run launches of a prepared minibatch; gradients add to the worker's.

    Returns: the arena, whose tensors stay valid until the next run in it.
    """
    s, variant = run.schedule, run.variant
    data = worker.take(run.plan.total, run.zero_elements)
    buffers = Buffers(
        arena=data,
        base=run.plan.base,
        temporary=run.plan.temporary,
        params=store.values,
        gradients=worker.gradients,
        param_at=param_at,
        rows=run.rows,
        order=s.order,
        edge_ptr=s.edge_ptr,
        child_row=s.child_row,
        edge_row=s.edge_row,
        parent_ptr=s.parent_ptr,
        parent_edge=s.parent_edge,
        user_edge=run.batch.child_ptr,
        ints=run.inputs.ints or (NO_ROWS,),
        floats=run.inputs.floats or (data[:0],),
        float_index=run.inputs.float_index or (NO_ROWS,),
        seeds=seeds or (data[:0],),
        loss_scale=loss_scale,
        random_seed=random_seed,
    )
    assert variant.executable is not None
    variant.executable.run(run.table[part], buffers)
    return data


def read_rows(run: Run, data: Array, key: tuple[object, ...]) -> Array:
    """Return all rows of a tensor in execution order, [V, size]; a view of the arena."""
    number = run.variant.table.numbers[key]
    size = run.variant.table.specs[number].size
    base = int(run.plan.base[number])
    return data[base : base + len(run.schedule.order) * size].reshape(-1, size)


def in_user_order(run: Run, rows: Array) -> Array:
    """Copy rows into the user's vertex order."""
    out = np.empty_like(rows)
    out[run.schedule.order] = rows
    return out
