"""Write the persistent kernel of a function: its steps, the segments of its path, its weights.

The kernel is specialised for the processors of a group. `persistent.cuh` has what does not depend
on the function; `gpu_script.py` writes the scripts.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from vertexrt.config import config
from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.ir.passes.segment import SegmentedTask, Split
from vertexrt.ir.program import Stage
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda.cell_script import CellFacts
from vertexrt.kernels.cuda.cell_text import share_cells
from vertexrt.kernels.cuda.compile import ONE_BLOCK
from vertexrt.kernels.cuda.driver import encode, encode_products
from vertexrt.kernels.cuda.executable import kernel_name, word_names
from vertexrt.kernels.cuda.gradients_on_chip import sum_on_chip
from vertexrt.kernels.cuda.instruction import COLUMNS, FIRST_OP
from vertexrt.kernels.cuda.kernel_loop import kernel_loop
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.launch_text import write_launches
from vertexrt.kernels.cuda.outside_path import OutsideStep, outside_path
from vertexrt.kernels.cuda.overlap import may_overlap
from vertexrt.kernels.cuda.path_function import OF_RING, write_side
from vertexrt.kernels.cuda.path_sides import INDEX_WORDS, PathSide, RepeatedText
from vertexrt.kernels.cuda.placed_path import PlacedPath, room_of, tasks_of
from vertexrt.kernels.cuda.repeated_segments import (
    BUFFERS,
    COPYING_THREADS,
    MOST_REPEATED,
    RepeatedSegment,
    buffer_elements,
    can_send_flagged,
    repeat_segments,
)
from vertexrt.kernels.cuda.ring import RingSize, size_ring
from vertexrt.kernels.cuda.ring_script import NONE_READ
from vertexrt.kernels.cuda.ring_uses import children_read
from vertexrt.kernels.cuda.rows_at_once import MOST_OF_A_CLUSTER, temporaries_of
from vertexrt.kernels.cuda.rules import structs
from vertexrt.kernels.cuda.segment_text import SegmentText, write_path
from vertexrt.kernels.cuda.segments import PathSegment, RingUse
from vertexrt.kernels.cuda.shared_sides import share_sides
from vertexrt.kernels.cuda.steps import Kernel, Launches
from vertexrt.kernels.cuda.task_launches import lower_launches
from vertexrt.kernels.cuda.verify_repeated_segments import verify_repeated_segments
from vertexrt.kernels.cuda.weight_layout import THREADS, TILE_ROWS
from vertexrt.kernels.cuda.weights import SHARED_STATE_BYTES, ResidentWeight, copied_weights
from vertexrt.kernels.layout import Binding
from vertexrt.kernels.task_tensors import uses_edges
from vertexrt.lower.launches import LaunchPlan

Int64 = npt.NDArray[np.int64]

MOST_ROWS = 64  # of a tile, whose indices lie in shared memory
TILE_EDGES = 128  # of a tile, likewise
RING_TILE = 16  # rows of a tile for which a ring leaves room
FLAGGED_TILE = 32  # the same of a ring for flagged words: products take no more at a time
MANTISSA = {"float32": 0, "tf32": 10, "bf16": 7}  # bits that matrix units keep; 0 for all


class KernelWriter:
    """The source of a persistent kernel.

    Args:
        kinds: see `layout.Backend`.
        precision: of products of float32 by matrix units, see `vrt.compile`.
        rules: of the update: one, or none for a kernel without an update.

    Attributes:
        tasks: without the products that the path sums up instead.
        phases: of the sides of the path; sides: what they hold and where; of_sides: their tasks.
        registers: of a thread that may hold weights; summing: see `_summing`.
    """

    def __init__(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        kinds: npt.NDArray[np.int64],
        placed: PlacedPath,
        precision: str,
        rules: tuple[UpdateRule, ...],
    ) -> None:
        self.budget, self.precision, self.rules = placed.budget, precision, rules
        budget = placed.budget
        self.processors, self.registers = budget.processors, budget.registers
        self.itemsize = budget.itemsize
        self.splits_edges = binding.splits_edges
        self.numbers = {name: k for k, name in enumerate(word_names(binding))}
        self.tasks, self.cells = tasks, placed.cells
        self.path, self.phases, self.sides = placed.tasks, placed.phases, [*placed.sides]
        self.of_sides = [*map(partial(tasks_of, self.path), self.phases)]
        self.texts = write_path(self.path)
        self.flagged = [RingSize()] * len(self.phases)  # until it is known what sides repeat
        self.summing = self._summing()
        room = 0 if self.summing is None else self._spare(self.summing)
        self.sums = sum_on_chip(tasks, kinds, placed, self.summing, binding, room)
        if self.summing is not None:
            self.sides[self.summing] = self.sums.side
        self.tasks = self.sums.tasks
        self.launches = [self._launches(p, binding) for p in range(len(tasks))]
        self.all_steps = [s for x in self.launches for s in x.steps if isinstance(s, Kernel)]
        self.steps = self._different_steps()
        self.ops = {self._key(step): FIRST_OP + k for k, step in enumerate(self.steps)}
        numbers = range(len(self.phases))
        self.rings = [*map(self._ring, numbers)]
        self.repeated = [*map(self._repeated, numbers)]
        self.flagged = [*map(self._flagged, numbers)]

    def _summing(self) -> int | None:
        """Return the side that sums up gradients, if there is one backward side."""
        back = [k for k, phase in enumerate(self.phases) if phase.stage == Stage.PATH_BACKWARD]
        return back[0] if len(back) == 1 else None

    def _launches(self, p: int, binding: Binding) -> Launches:
        """Return what all processors run of a program, and its temporaries."""
        if p in self.path:
            return Launches(LaunchPlan(needs=self.path[p].segments[0].scratch))
        shared = (self.budget.shared_bytes - SHARED_STATE_BYTES) // self.itemsize
        vector = 16 // self.itemsize
        in_clusters = 1 < self.processors <= MOST_OF_A_CLUSTER
        processors = LIMITS.in_clusters if in_clusters else LIMITS.blocks
        return write_launches(
            lower_launches(
                self.tasks[p].task, binding, vector, THREADS, shared, processors=processors
            )
        )

    def _different_steps(self) -> list[Kernel]:
        found: dict[str, Kernel] = {}
        for step in self.all_steps:
            found.setdefault(self._key(step), step)
        return list(found.values())

    def _ring(self, side: int) -> RingSize:
        """Return the ring of a side: it uses the shared memory that temporaries leave free."""
        if self.processors > MOST_OF_A_CLUSTER or side in self.cells:
            return RingSize()
        segments = [x for _, x in self.segments(side)]
        entries = [e for x in segments for e in (*x.ring.puts, *x.ring.gathers)]
        room = self.room(side, False)
        room -= max(self.used(side, RING_TILE), room // 4)
        step = max((e.step for e in entries), default=0)
        return size_ring(step, room, any(x.ring.gathers for x in segments))

    def _flagged(self, side: int) -> RingSize:
        """Return the ring of a large group for rows that repetitions hand on through memory.

        It takes the shared memory that temporaries leave free.
        """
        levels = self.repeated[side].values()
        if side in self.cells:
            return RingSize()
        if self.processors <= MOST_OF_A_CLUSTER or not can_send_flagged(levels, self.itemsize):
            return RingSize()
        (step,) = {e.step for x in levels for e in x.parts[0].ring.gathers}
        found = RingSize(step, 2 * MOST_REPEATED)
        buffers = BUFFERS * max(buffer_elements(x.parts[0]) for x in levels)
        used = max(buffers, self.used(side, min(self.tile_rows(False), FLAGGED_TILE)))
        return found if used + found.elements <= self.room(side, False) else RingSize()

    @property
    def flagged_words(self) -> int:
        """The elements of a ring for rows that may be sent with flags: the most of a side."""
        return max((ring.elements for ring in self.flagged), default=0)

    def ring_facts(self) -> tuple[Int64, Int64, Int64]:
        """Return what `ring_script.write_ring` and `repeats.join_repeats` know.

        Returns: [segments, 6] about each segment; [sides, 2] rows of the ring; [segments, 2] how
            each may be repeated, see `RepeatFacts`.
        """
        facts = np.zeros((sum(len(plan.segments) for plan in self.tasks) + 1, 6), np.int64)
        first = self.segment_ptr()
        for p, lowered in self.path.items():
            reads = children_read(lowered.task)
            for s, x in enumerate(lowered.segments):
                facts[first[p] + s] = self._facts(x.ring, reads)
        rows = [(ring.rows, ring.far) for ring in self.rings]
        repeated = np.tile(np.array((-1, 1)), (len(facts), 1))
        for found in self.repeated:
            for number, level in found.items():
                repeated[number] = level.slot, len(level.parts)
        return facts, np.array(rows, np.int64).reshape(-1, 2), repeated

    def _repeated(self, side: int) -> dict[int, RepeatedSegment]:
        """Return the levels of a side that instructions may repeat, by number of a segment."""
        if side in self.cells or (side == self.summing and self.sums.words):
            return {}  # sums are added to after each tile
        first = self.segment_ptr()
        found = [(x, first[p]) for p, x in self.of_sides[side].items()]
        repeated = repeat_segments(found, self.room(side, True))
        if config().check:
            verify_repeated_segments({number: x.task for x, number in found}, repeated)
        return repeated

    def _facts(self, ring: RingUse, reads: int) -> tuple[int, ...]:
        """Return what `ring_script.write_ring` knows of a segment."""
        sent = [e for e in ring.puts if e.cuts]
        pieces = [b - a for e in sent for a, b in pairwise(e.cuts)]
        all_send = max(pieces, default=0) >= self.processors
        return (
            bool(ring.puts),
            sum(e.size for e in sent),
            reads if ring.gathers else NONE_READ,
            ring.operand,
            ring.needs_all,
            all_send,
        )

    def _key(self, step: Kernel) -> str:
        return step.body + " ".join(step.words)

    def op(self, step: Kernel) -> int:
        """Return the opcode of a step outside the path."""
        return self.ops[self._key(step)]

    def segments(self, side: int) -> list[tuple[int, PathSegment]]:
        """List the segments of a side with their numbers over all tasks."""
        return [(number, x.segment) for number, x in self._texts(side)]

    def _texts(self, side: int) -> list[tuple[int, SegmentText]]:
        first = self.segment_ptr()
        return [(first[p] + s, x) for p in self.of_sides[side] for s, x in enumerate(self.texts[p])]

    def words(self) -> set[str]:
        """Name the words that some part of the kernel reads."""
        found = {w for step in self.steps for w in step.words} | self.sums.words
        for side in range(len(self.phases)):
            found |= self.indices(side) - {OF_RING}
        for texts in self.texts.values():
            for text in texts:
                found |= {*text.words, *(h.word for h in text.segment.held)} - {OF_RING}
        for cells, _ in self.cells.values():
            found |= cells.words
        return found

    def indices(self, side: int) -> set[str]:
        """Name the indices that a side of the path reads."""
        if self.sums.words:
            return set(INDEX_WORDS)
        texts = [x for _, x in self._texts(side)]
        found = {w for x in texts for w in x.words if w in INDEX_WORDS}
        gathers = any(x.segment.ring.gathers for x in texts)
        return found | ({"child_row", OF_RING} if gathers else set())

    def encode(self) -> tuple[Int64, Int64, Int64]:
        """Return steps_ptr and steps of `driver.encode`, and the steps that are products.

        A function is a number of a script.
        """
        functions = [[self.op(s) for s in x.steps] for x in self.launches]  # type: ignore[arg-type]
        steps_ptr, steps, _ = encode(self.launches, functions, self.numbers)
        return steps_ptr, steps, encode_products(self.launches, self.numbers)

    def tile_rows(self, ring: bool) -> int:
        """Return the rows of a tile whose temporaries fit in shared memory, two edges a row.

        Args:
            ring: a ring takes shared memory, too.
        """
        for rows in range(MOST_ROWS, TILE_ROWS, -TILE_ROWS):
            others = (s for s in range(len(self.phases)) if s not in self.cells)
            if all(self.used(s, rows) <= self.room(s, ring) for s in others):
                return rows
        return TILE_ROWS

    def room(self, side: int, ring: bool) -> int:
        """Return the elements of shared memory that temporaries of a side may have."""
        room = room_of(self.sides[side], self.budget) - self.sides[side].partial
        room -= self.flagged[side].elements
        return room - (self.rings[side].elements if ring else 0)

    def used(self, side: int, rows: int) -> int:
        """Return the elements of temporaries of tiles with so many rows, as scripts place them."""
        return temporaries_of(self.of_sides[side].values(), rows)

    def fits(self, side: int) -> bool:
        """Tell whether temporaries are always in shared memory: rows of a tile have no edges."""
        by_edges = any(x.scratch[1] for _, x in self.segments(side))
        return not by_edges and all(
            self.used(side, self.tile_rows(ring)) <= self.room(side, ring) for ring in (False, True)
        )

    def _spare(self, side: int) -> int:
        """Return the shared memory that gradients may have without making tiles smaller."""
        used = self.used(side, self.tile_rows(False))
        return max(0, self.room(side, False) - used) * self.itemsize

    # Text.

    def source(self) -> str:
        """Return the module."""
        lines = [ONE_BLOCK, f"#define VRT_SHARED_BYTES {self.budget.shared_bytes}"]
        if kept := MANTISSA[self.precision]:
            lines.append(f"#define VRT_MANTISSA {kept}")
        lines += self._switches()
        lines += ['#include "persistent.cuh"', "", structs(self.rules)]
        lines += [f"constexpr int PROCESSORS = {self.processors};"]
        lines += [
            f"static_assert(PROCESSOR == {THREADS} && TILE_ROWS == {TILE_ROWS} && "
            f"SHARED_STATE_BYTES == {SHARED_STATE_BYTES} && TILE_POINTERS > {MOST_ROWS} && "
            f"TILE_EDGES == {TILE_EDGES} && "
            f"INSTRUCTION_WORDS == {COLUMNS} && REPEAT_BUFFERS == {BUFFERS} && "
            f"REPEATED_ROWS == {MOST_REPEATED} && "
            f'COPYING_THREADS == {COPYING_THREADS}, "as the host has it");'
        ]
        shapes = (h.layout(self.processors) for x in self.sides for h in (*x.held, *x.sums))
        lines += [shape.agrees for shape in dict.fromkeys(shapes)]
        names: dict[str, str] = {}
        for step in self.steps:
            name = kernel_name(step.body)
            if name not in names.values():
                lines += ["", step.body.replace("VRT_KERNEL(NAME", f"VRT_STEP({name}", 1)]
            names[self._key(step)] = name
        lines.append(f"typedef Job<{len(self.numbers)}> Work;")
        others = (k for k in range(len(self.phases)) if k not in self.cells)
        sides = share_sides({k: write_side(self._side(k)) for k in others})
        placed = {k: (cells, self.sides[k], n) for k, (cells, n) in self.cells.items()}
        sides += share_cells(placed, self.numbers)
        for side in sides:
            lines += ["", *side.lines]
        lines += ["", *self._outside_path(names), "", *kernel_loop(sides)]
        return "\n".join(lines) + "\n"

    def cell_facts(self) -> CellFacts:
        """Return what `cell_script.write_cells` knows."""
        facts, count = np.zeros((len(self.phases), 7), np.int64), len(self.tasks)
        side_of, cell_of = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        slots_of, chip_of = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for number, (side, places) in self.cells.items():
            facts[number] = 1, side.back, *places, side.rows, side.layer, side.above
            for c, cell in enumerate(side.cells):
                side_of[cell.task], cell_of[cell.task] = number, c
                slots_of[cell.task], chip_of[cell.task] = cell.slots, cell.mask
        return CellFacts(side_of, cell_of, slots_of, chip_of, facts)

    @property
    def cell_room(self) -> int:
        """The words in which processors of a large group send a level, of each of two rooms."""
        if self.processors <= MOST_OF_A_CLUSTER:
            return 0
        rooms = (side.room for side, _ in self.cells.values())
        return max(rooms, default=0) * self.itemsize // 4

    def _switches(self) -> list[str]:
        """Say what holds of the indices of tiles, and what the kernel has code for."""
        overlaps = may_overlap(self.processors, self.phases) and not self.cells
        switches = {
            "TILES_FIT": self.tiles_fit(),
            "SPLITS_EDGES": self.splits_edges,
            "OVERLAP": overlaps,
        }
        return [f"#define VRT_{name}" for name, on in switches.items() if on]

    def _side(self, number: int) -> PathSide:
        """Return what the function of a side is written from."""
        added = None
        if number == self.summing:
            added = self.sums.additions(self.segment_ptr(), self.numbers)
        return PathSide(
            number,
            self.processors,
            self.sides[number],
            self._texts(number),
            self.rings[number],
            self.indices(number),
            self.fits(number),
            self.numbers,
            added,
            self._repeated_texts(number),
            self.copied(number),
            self.flagged[number],
        )

    def copied(self, side: int) -> list[ResidentWeight]:
        """Return the weights of which registers get a copy while instructions are repeated."""
        read = {h for x in self.repeated[side].values() for part in x.parts for h in part.held}
        return copied_weights(self.sides[side], read, self.budget)

    def _repeated_texts(self, side: int) -> dict[int, RepeatedText]:
        """Return the texts of what may be repeated on a side, by number."""
        first = self.segment_ptr()
        copied = self.copied(side)
        task_of = {n: self.path[p].task for p in self.path for n in range(first[p], first[p + 1])}
        found = {}
        for number, x in self.repeated[side].items():
            parts = tuple(SegmentText(part, task_of[number], copied) for part in x.parts)
            found[number] = RepeatedText(parts, x.carried, x.slot)
        return found

    def tiles_fit(self) -> bool:
        """Tell whether the indices of every tile fit in shared memory: rows, and their children."""
        path = [self.tasks[p] for p in self.path]
        most = max((_most_children(plan.task) for plan in path), default=0)
        if self.splits_edges or most * MOST_ROWS > TILE_EDGES:
            return False
        return all(x.split != Split.SUMS for plan in path for x in plan.segments)

    def segment_ptr(self) -> list[int]:
        """Return the number of the first segment of each program."""
        return [0, *accumulate(len(plan.segments) for plan in self.tasks)]

    def _outside_path(self, names: dict[str, str]) -> list[str]:
        """Print the function that runs an instruction outside the path."""
        steps = [
            OutsideStep(names[self._key(step)], [self.numbers[word] for word in step.words])
            for step in self.steps
        ]
        collect = self.sums.collect(self.numbers)
        own = self.numbers["temporary"], self.numbers["arrived"]
        return outside_path(steps, collect, self.rules, own)


def _most_children(task: TaskProgram) -> float:
    """Return how many children a row of a task may have."""
    program, nodes = task.program, task.program.nodes
    over_all = uses_edges(task) or any(nodes[k].op == "degree" for k in task.members)
    if program.arity is None or (program.sites and over_all):
        return math.inf
    return program.arity
