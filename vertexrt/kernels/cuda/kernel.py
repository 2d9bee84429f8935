"""Write the persistent kernel of a function: its steps, and the cells of its path.

The kernel is specialised for the processors of a group. `persistent.cuh` has what does not depend
on the function; `gpu_script.py` writes the scripts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda.cell_script import CellFacts
from vertexrt.kernels.cuda.cell_text import share_cells
from vertexrt.kernels.cuda.compile import ONE_BLOCK
from vertexrt.kernels.cuda.driver import encode, encode_products
from vertexrt.kernels.cuda.executable import kernel_name, word_names
from vertexrt.kernels.cuda.instruction import COLUMNS, FIRST_OP
from vertexrt.kernels.cuda.kernel_loop import OutsideStep, kernel_loop, outside_path
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.launch_text import write_launches
from vertexrt.kernels.cuda.path import PlacedPath, is_outside_path, without_sums
from vertexrt.kernels.cuda.step_end import structs
from vertexrt.kernels.cuda.steps import Kernel, Launches
from vertexrt.kernels.cuda.task_launches import lower_launches
from vertexrt.kernels.cuda.weight_layout import THREADS, TILE_ROWS
from vertexrt.kernels.cuda.weights import MOST_OF_A_CLUSTER, SHARED_STATE_BYTES
from vertexrt.kernels.layout import Binding
from vertexrt.lower.launches import LaunchPlan

Int64 = npt.NDArray[np.int64]

MANTISSA = {"float32": 0, "tf32": 10, "bf16": 7}  # bits that matrix units keep; 0 for all


class KernelWriter:
    """The source of a persistent kernel.

    Args:
        precision: of products of float32 by matrix units, see `vrt.compile`.
        rules: of the update: one, or none for a kernel without an update.

    Attributes:
        phases: of the sides of the path, which run cells; sides: the weights that they hold.
        cells: the sides, by number, and how many places each has for states and for edges.
        in_turn: of `PlacedPath`; needs_registers: whether some side does.
    """

    def __init__(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        placed: PlacedPath,
        precision: str,
        rules: tuple[UpdateRule, ...],
    ) -> None:
        self.budget, self.precision, self.rules = placed.budget, precision, rules
        self.processors, self.itemsize = placed.budget.processors, placed.budget.itemsize
        self.numbers = {name: k for k, name in enumerate(word_names(binding))}
        self.tasks, self.in_turn = tasks, placed.in_turn
        self.phases = tuple(placed.sides)
        self.sides = [side.weights for side in placed.sides.values()]
        self.cells = {k: (x.cells, x.places) for k, x in enumerate(placed.sides.values())}
        self.needs_registers = any(x.needs_registers for x in placed.sides.values())
        self.launches = [self._launches(task, binding) for task in tasks]
        self.all_steps = [s for x in self.launches for s in x.steps if isinstance(s, Kernel)]
        self.steps = self._different_steps()
        self.ops = {self._key(step): FIRST_OP + k for k, step in enumerate(self.steps)}

    def _launches(self, task: SegmentedTask, binding: Binding) -> Launches:
        """Return what all processors run of a program, and its temporaries."""
        if task.task.phase in self.phases and not is_outside_path(task):
            return Launches(LaunchPlan())
        shared = (self.budget.shared_bytes - SHARED_STATE_BYTES) // self.itemsize
        vector = 16 // self.itemsize
        here = (x for x, _ in self.cells.values() if x.phase.layer == task.task.phase.layer)
        after = without_sums(task.task, {name for side in here for name in side.summed})
        in_clusters = 1 < self.processors <= MOST_OF_A_CLUSTER
        processors = LIMITS.in_clusters if in_clusters else LIMITS.blocks
        return write_launches(
            lower_launches(after, binding, vector, THREADS, shared, processors=processors)
        )

    def _different_steps(self) -> list[Kernel]:
        found: dict[str, Kernel] = {}
        for step in self.all_steps:
            found.setdefault(self._key(step), step)
        return list(found.values())

    def _key(self, step: Kernel) -> str:
        return step.body + " ".join(step.words)

    def op(self, step: Kernel) -> int:
        """Return the opcode of a step outside the path."""
        return self.ops[self._key(step)]

    def words(self) -> set[str]:
        """Name the words that some part of the kernel reads."""
        found = {w for step in self.steps for w in step.words}
        return found.union(*(cells.words for cells, _ in self.cells.values()))

    def encode(self) -> tuple[Int64, Int64, Int64]:
        """Return steps_ptr and steps of `driver.encode`, and the steps that are products.

        A function is a number of a script.
        """
        functions = [[self.op(s) for s in x.steps] for x in self.launches]  # type: ignore[arg-type]
        steps_ptr, steps, _ = encode(self.launches, functions, self.numbers)
        return steps_ptr, steps, encode_products(self.launches, self.numbers)

    # Text.

    def source(self) -> str:
        """Return the module."""
        lines = [ONE_BLOCK, f"#define VRT_SHARED_BYTES {self.budget.shared_bytes}"]
        if kept := MANTISSA[self.precision]:
            lines.append(f"#define VRT_MANTISSA {kept}")
        lines += ['#include "persistent.cuh"', "", structs(self.rules)]
        lines += [f"constexpr int PROCESSORS = {self.processors};"]
        lines += [
            f"static_assert(PROCESSOR == {THREADS} && TILE_ROWS == {TILE_ROWS} && "
            f"SHARED_STATE_BYTES == {SHARED_STATE_BYTES} && "
            f'INSTRUCTION_WORDS == {COLUMNS}, "as the host has it");'
        ]
        shapes = (h.layout(self.processors) for x in self.sides for h in x.held)
        lines += [shape.agrees for shape in dict.fromkeys(shapes)]
        names: dict[str, str] = {}
        for step in self.steps:
            name = kernel_name(step.body)
            if name not in names.values():
                lines += ["", step.body.replace("VRT_KERNEL(NAME", f"VRT_STEP({name}", 1)]
            names[self._key(step)] = name
        lines.append(f"typedef Job<{len(self.numbers)}> Work;")
        placed = {k: (cells, self.sides[k], n) for k, (cells, n) in self.cells.items()}
        sides = share_cells(placed, self.numbers)
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

    def _outside_path(self, names: dict[str, str]) -> list[str]:
        """Print the function that runs an instruction outside the path."""
        steps = [
            OutsideStep(names[self._key(step)], [self.numbers[word] for word in step.words])
            for step in self.steps
        ]
        own = self.numbers["temporary"], self.numbers["arrived"]
        return outside_path(steps, self.rules, own)
