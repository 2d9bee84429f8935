"""Interpret the scripts of all processors of a group: the oracle of the persistent engine.

Processors take turns, one instruction each, in a fixed order or one drawn from a seed, so that a
run repeats bit for bit. A processor sees only what it made itself and what reached it through a
wait: every element remembers who wrote it, at which instruction, and who read it (vector clocks).
An element that has not been received reads as NaN, and two accesses that no wait puts in order are
an error when one of them writes; so a missing exchange shows whatever the order of the turns.

Source: the interpreter in Megakernels runs scripts in Python too; the clocks are those of a race
detector (Fidge 1988, Mattern 1989).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from vertexrt.errors import DeviceError, message
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import Segment, SegmentedTask, Split, rows_in_storage
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import (
    Array,
    Binding,
    Buffers,
    edge_key,
    gradients_of,
    per_edge,
    stored_size,
)
from vertexrt.kernels.reference.ops import FUNCTIONS, Frame, child_rows
from vertexrt.script.isa import NONE, Instruction, decode, describe

Tile = tuple[int, ...]  # program, first row, first entry of the list, rows
EVERYTHING_BEFORE = -1  # who wrote what was in memory before the run


class Memory:
    """An array of which every element knows who wrote and who read it last.

    Attributes:
        writer: [elements] processor, or EVERYTHING_BEFORE; written: its instruction.
        read: [processors, elements] instruction of each processor's last read, -1 for none.
    """

    def __init__(self, array: Array, processors: int) -> None:
        self.array = array
        self.writer = np.full(len(array), EVERYTHING_BEFORE, np.int32)
        self.written = np.zeros(len(array), np.int32)
        self.read = np.full((processors, len(array)), -1, np.int32)

    def load(self, at: Array, who: Processor) -> Array:
        """Return elements, NaN where no wait has brought them to the processor."""
        self.read[who.number, at] = who.instruction
        writer = self.writer[at]
        known = (writer == EVERYTHING_BEFORE) | (writer == who.number)
        known |= self.written[at] < who.clock[writer]
        return np.where(known, self.array[at], np.array(np.nan, self.array.dtype))

    def store(self, at: Array, value: Array, who: Processor) -> None:
        """Set elements.

        Raises: DeviceError, when another processor wrote or read one and nothing says in which
            order.
        """
        writer = self.writer[at]
        others = (writer != EVERYTHING_BEFORE) & (writer != who.number)
        if np.any(others & (self.written[at] >= who.clock[writer])):
            other = int(writer[others & (self.written[at] >= who.clock[writer])][0])
            raise _race(who, other, "written")
        for other in range(len(self.read)):
            if other != who.number and np.any(self.read[other, at] >= who.clock[other]):
                raise _race(who, other, "read")
        self.array[at] = value
        self.writer[at] = who.number
        self.written[at] = who.instruction


@dataclass(slots=True)
class Processor:
    """Where one processor is.

    Attributes:
        instruction: the one that it runs or waits at.
        clock: [processors] how many instructions of each are known to be done.
        kept: by where their temporaries start, the tiles under way and what it has of each.
    """

    number: int
    script: list[Instruction]
    names: list[str]
    clock: Array
    instruction: int = 0
    kept: dict[int, tuple[Tile, dict[int, Array]]] = field(default_factory=dict)

    @property
    def values(self) -> dict[int, Array]:
        """Return what it has of the tile in hand."""
        return self.kept[self.script[self.instruction].temporary][1]

    def where(self) -> str:
        """Name processor and instruction, for messages."""
        line = describe(self.script[self.instruction], self.names)
        return f"processor {self.number}, instruction {self.instruction} ({line})"


def _race(who: Processor, other: int, verb: str) -> DeviceError:
    return DeviceError(
        message(
            "interpreter",
            f"{who.where()} writes what processor {other} has {verb}, in no order",
            "a wait between two processors that share elements",
            "report this as a bug; engine='batched' goes on",
        )
    )


@dataclass(slots=True)
class View(Frame):
    """A frame whose memory is seen by one processor."""

    arena: Memory
    who: Processor
    only: Array | None = None  # the elements of a row that are read; None for all

    def read(self, tensor: int, size: int, rows: Array) -> Array:
        """Return rows of a tensor, [len(rows), size]; NaN where not received."""
        elements = np.arange(size) if self.only is None else np.flatnonzero(self.only)
        at = self.buffers.base[tensor] + rows.astype(np.int64) * size
        out = np.full((len(rows), size), np.nan, self.buffers.arena.dtype)
        out[:, elements] = self.arena.load(at[:, None] + elements, self.who)
        return out

    def write_part(
        self, tensor: int, size: int, rows: Array, value: Array, own: Array | None
    ) -> None:
        """Set some elements of rows of a tensor."""
        elements = np.arange(size) if own is None else np.flatnonzero(own)
        value = np.broadcast_to(value, (len(rows), size))[:, elements]
        at = self.buffers.base[tensor] + rows.astype(np.int64) * size
        self.arena.store(at[:, None] + elements, value, self.who)


class Evaluator:
    """One segment of one processor: a straight line of nodes."""

    def __init__(
        self,
        plan: SegmentedTask,
        segment: Segment,
        view: View,
        gradients: Memory,
        parts: int,
    ) -> None:
        self.plan, self.segment, self.view = plan, segment, view
        self.gradients, self.parts = gradients, parts
        self.nodes = plan.task.program.nodes
        self.made: dict[int, Array] = {}

    def run(self) -> None:
        """Run the steps in order."""
        for step in self.segment.steps:
            for k in step.nodes if isinstance(step, Group) else (step.node,):
                node = self.nodes[k]
                if OPS[node.op].role == "effect":
                    self._effect(k, node)
                else:
                    self._node(k, node)
        self.view.who.values.update(self.made)

    def _own(self, k: int, size: int) -> Array | None:
        """Return which elements of a value this processor makes; None for all."""
        if self.segment.split == Split.ROWS:
            return None
        by_units = self.segment.split == Split.UNITS
        cuts = self.plan.cuts.get(k, (0, size)) if by_units else (0, size)
        own = np.zeros(size, np.bool_)
        part = self.view.who.number
        for a, b in pairwise(cuts):
            own[a + (b - a) * part // self.parts : a + (b - a) * (part + 1) // self.parts] = True
        return own

    def _rows(self, node: Node) -> Array:
        return self.view.edges if node.type.domain == Domain.EDGE else self.view.rows

    def _value(self, i: int) -> Array:
        """Return an operand as the processor has it."""
        if i in self.made:
            return self.made[i]
        task, node = self.plan.task, self.nodes[i]
        if i in task.reads:
            read = task.reads[i]
            whole = self.view.read(
                self.view.binding.tensors[read.key], read.width, self._rows(node)
            )
            self.made[i] = whole[:, read.start : read.start + max(node.type.size, 1)]
        elif i in task.homes and i not in self.plan.whole:
            tensor = self.view.binding.tensors[task.homes[i]]
            self.made[i] = self.view.read(tensor, max(node.type.size, 1), self._rows(node))
        elif i in self.view.who.values:
            return self.view.who.values[i]
        else:
            self._compute(i, node)  # read again where it is used
        return self.made[i]

    def _compute(self, k: int, node: Node) -> None:
        view = self.view
        operands = [
            view.weight(self.nodes[i]["name"], self.nodes[i].type.shape)
            if node.op in ("matmul", "embed") and p == 0
            else self._value(i)
            for p, i in enumerate(node.inputs)
        ]
        if node.op in ("sum_rows", "outer"):  # a row that stands for all counts as often
            domain = max(Domain.VERTEX, *(self.nodes[i].type.domain for i in node.inputs))
            operands = [view.all_rows(x, domain) for x in operands]
        if node.op == "gather_parents":  # the parents left own units; others are not looked at
            view.only = self._own(k, max(node.type.size, 1))
        with np.errstate(all="ignore"):
            value = FUNCTIONS[node.op](view, node, operands)
        view.only = None
        if node.type.dtype != "int":
            value = value.astype(view.buffers.arena.dtype, copy=False)
            value = view.all_rows(value, node.type.domain)
        self.made[k] = value

    def _node(self, k: int, node: Node) -> None:
        task = self.plan.task
        self._compute(k, node)
        names = gradients_of(task, k)
        if names:
            self._add_gradient(k, node, names)
            return
        parts = self.segment.split == Split.UNITS and k not in self.plan.whole
        stored = k in task.homes or k in task.local
        if parts and node.type.shape and (stored or OPS[node.op].role in ("product", "scalar")):
            own = self._own(k, max(node.type.size, 1))
            assert own is not None
            self.made[k] = np.where(own, self.made[k], np.nan).astype(self.made[k].dtype)
        if k in task.homes:
            size = max(node.type.size, 1)
            tensor = self.view.binding.tensors[task.homes[k]]
            self.view.write_part(tensor, size, self._rows(node), self.made[k], self._own(k, size))

    def _add_gradient(self, k: int, node: Node, names: list[str]) -> None:
        """Add own rows (or own columns) of a sum over all rows."""
        size = max(node.type.size, 1)
        value = np.broadcast_to(self.made[k].reshape(-1), size)
        for name in names:
            own = self._owned(name, node.type.shape)
            if node.op == "embed_grad":
                touched = self._value(node.inputs[0])[:, 0]
                own &= np.isin(np.arange(len(own)), touched)[:, None]
            elements = np.flatnonzero(own)
            at = int(self.view.buffers.param_at[self.view.binding.params[name]]) + elements
            old = self.gradients.load(at, self.view.who)
            self.gradients.store(at, old + value[elements], self.view.who)

    def _owned(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return which elements of a gradient this processor adds to: [rows, elements of a row]."""
        rows = shape[0] if shape else 1
        own = np.ones((rows, max(math.prod(shape), 1) // rows), np.bool_)
        if self.segment.split == Split.ROWS:
            return own
        start, whole = rows_in_storage(self.plan.task.program, name)
        by_columns = name in self.plan.by_columns
        part, total = self.view.who.number, own.shape[1] if by_columns else whole
        first, end = total * part // self.parts, total * (part + 1) // self.parts
        if by_columns:
            mine = np.arange(total)
            return own & ((first <= mine) & (mine < end))
        mine = np.arange(start, start + rows)
        return own & ((first <= mine) & (mine < end))[:, None]

    def _effect(self, k: int, node: Node) -> None:
        (i,) = node.inputs
        source, value = self.nodes[i], self._value(i)
        size = max(stored_size(node, source), 1)
        key: Key
        if node.op in TENSOR_OF_EFFECT:
            where = self.view.edges if per_edge(node, source) else self.view.rows
            key = TENSOR_OF_EFFECT[node.op](node)
        elif node.op == "scatter_children":
            where, key = self.view.edges, edge_key(node["field"], True)
        else:  # a vertex may have fewer slots than F: only where there is a child
            has = child_rows(self.view, node["slot"]) >= 0
            where = (self.view.buffers.schedule.edge_ptr[self.view.rows] + node["slot"])[has]
            value = np.broadcast_to(value, (len(has), value.shape[1]))[has]
            key = edge_key(node["field"], False)
        own = self._own(k, size)
        self.view.write_part(self.view.binding.tensors[key], size, where, value, own)


class ReferenceProcessors:
    """Segments under interpretation: the last processor to arrive runs the scripts of all.

    Args:
        seed: of the order of the turns; None takes processors in turn.
    """

    def __init__(
        self, tasks: list[SegmentedTask], binding: Binding, seed: int | None = None
    ) -> None:
        self.binding = binding
        self.seed = seed
        self.scratch = [(1, 0, 0)] * len(tasks)  # so that tiles under way are told apart
        self.segments = [(t, segment) for t in tasks for segment in t.segments]
        self.names = [
            f"{t.task.stage.name.lower()}.{k}.{s}"
            for k, t in enumerate(tasks)
            for s in range(len(t.segments))
        ]
        self._lock = threading.Lock()
        self._arrived: dict[int, dict[int, tuple[Array, Array]]] = {}

    def new_counters(self, count: int) -> Array:
        """Return counters at zero."""
        return np.zeros(count, np.int64)

    def cycles_per_second(self) -> float:
        """Return the rate of the clock in `times`: an instruction a microsecond."""
        return 1e6

    def check(self, counters: Array) -> None:
        """Do nothing: `run` has raised what there was to raise."""

    def run(
        self,
        script: Array,
        counters: Array,
        part: int,
        parts: int,
        temporary: int,
        buffers: Buffers,
        times: Array,
    ) -> None:
        """Run the scripts of all processors, once all of them are known.

        Args:
            times: see `Processors`; the clock counts instructions of the whole group.
        Raises: DeviceError, when no processor can go on, and for accesses in no order.
        """
        del temporary  # values live in NumPy arrays
        with self._lock:
            arrived = self._arrived.setdefault(id(counters), {})
            arrived[part] = script, times
            if len(arrived) < parts:
                return
            del self._arrived[id(counters)]
        processors = [
            Processor(r, decode(arrived[r][0]), self.names, np.zeros(parts, np.int64))
            for r in range(parts)
        ]
        arena = Memory(buffers.arena, parts)
        gradients = Memory(buffers.gradients, parts)
        clocks = np.zeros((len(counters), parts), np.int64)
        clock = 0
        while True:
            moved = False
            for who in self._turn(processors):
                if who.instruction == len(who.script):
                    continue
                step = who.script[who.instruction]
                if step.wait != NONE:
                    if counters[step.wait] < parts:
                        continue
                    np.maximum(who.clock, clocks[step.wait], out=who.clock)
                self._execute(who, step, arena, gradients, buffers, parts)
                moved = True
                noted = arrived[who.number][1]
                if len(noted):
                    noted[who.instruction] = clock, clock, clock + 1
                clock += 1
                who.clock[who.number] = who.instruction + 1
                counters[who.instruction] += 1
                done = clocks[who.instruction]
                np.maximum(done, who.clock, out=done)
                who.instruction += 1
            waiting = [who for who in processors if who.instruction < len(who.script)]
            if not waiting:
                return
            if not moved:
                counter = waiting[0].script[waiting[0].instruction].wait
                raise DeviceError(
                    message(
                        "interpreter",
                        f"{waiting[0].where()} waits and nobody moves: counter {counter} stands "
                        f"at {counters[counter]}",
                        "every wait is met",
                        "report this as a bug; engine='batched' goes on",
                    )
                )

    def _turn(self, processors: list[Processor]) -> Iterator[Processor]:
        """Yield the processors in the order of this round."""
        if self.seed is None:
            yield from processors
            return
        if not hasattr(self, "_rng"):
            self._rng: Any = np.random.default_rng(self.seed)
        for k in self._rng.integers(len(processors), size=2 * len(processors)):
            yield processors[k]
        yield from processors  # fair: everybody has a turn in each round

    def _execute(
        self,
        who: Processor,
        step: Instruction,
        arena: Memory,
        gradients: Memory,
        buffers: Buffers,
        parts: int,
    ) -> None:
        plan, segment = self.segments[step.op]
        begins = segment is plan.segments[0]
        tile = (step.program, step.first, step.listed, step.rows)
        if begins or who.kept.get(step.temporary, ((), {}))[0] != tile:
            if not begins and segment.split == Split.UNITS:
                raise DeviceError(
                    message(
                        "interpreter",
                        f"{who.where()} goes on with a tile whose temporaries are gone",
                        "tiles that are under way at once lie apart",
                        "report this as a bug; engine='batched' goes on",
                    )
                )
            who.kept[step.temporary] = tile, {}
        rows = (
            np.arange(step.first, step.first + step.rows)
            if step.first >= 0
            else buffers.rows[step.listed : step.listed + step.rows]
        )
        first, end = buffers.schedule.edge_ptr[rows], buffers.schedule.edge_ptr[rows + 1]
        owner = np.repeat(np.arange(len(rows)), end - first)
        starts = np.cumsum(end - first) - (end - first)
        edges = np.arange(len(owner)) - np.repeat(starts - first, end - first)
        view = View(self.binding, buffers, rows, edges, owner, arena, who)
        Evaluator(plan, segment, view, gradients, parts).run()
