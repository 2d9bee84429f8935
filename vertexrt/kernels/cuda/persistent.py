"""The persistent kernel of a function: written, compiled for the smallest groups that have room for
its weights, and made ready for a device.

The kernel is specialised for the processors of a group. `persistent.cuh` has what does not depend
on the function; `persistent_launch.py` writes the scripts. All steps outside the path share one
loop over blocks, and a table says which words of the kernel are the arguments of each: with a loop
of its own for each step, the function is 80 KB larger, and takes a tenth of the time to compile a
training kernel more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.engine.variant import Passes
from vertexrt.errors import NoKernelError, message
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Stage
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda.cell_script import CellFacts
from vertexrt.kernels.cuda.cell_text import SharedSide, share_cells
from vertexrt.kernels.cuda.compile import ONE_BLOCK, Spilled
from vertexrt.kernels.cuda.cuts import ApartSteps, load_apart, stand_alone
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.driver import HEAD, encode, encode_products, wide_sources
from vertexrt.kernels.cuda.executable import Uploads, kernel_name, word_names
from vertexrt.kernels.cuda.instruction import COLUMNS, FIRST_OP
from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.launch_text import Kernel, Launches, write_launches
from vertexrt.kernels.cuda.path import (
    PlacedPath,
    cut_path,
    is_outside_path,
    place_path,
    without_sums,
)
from vertexrt.kernels.cuda.rounds import facts_of
from vertexrt.kernels.cuda.step_end import structs, update_cases
from vertexrt.kernels.cuda.structs import ORDERS
from vertexrt.kernels.cuda.task_launches import LaunchLowering
from vertexrt.kernels.cuda.weights import (
    MOST_OF_A_CLUSTER,
    SHARED_STATE_BYTES,
    THREADS,
    TILE_ROWS,
    Budget,
    Misfit,
    holds_pairs,
)
from vertexrt.kernels.layout import Binding
from vertexrt.lower.launches import LaunchPlan

Int64 = npt.NDArray[np.int64]

# Of a thread, to hold weights: the first number that leaves enough for code.
REGISTERS = (144, 112, 80, 48)
MOST_REGISTERS = REGISTERS[0]  # for a weight that lies in registers and in shared memory
# The same, to try: cells of an LSTM of 512 in clusters of 16 spill 1,254 bytes with the first, and
# none with the second.
IN_BOTH = REGISTERS[:2]
# Bytes of a thread that a kernel may spill: an LSTM of 512 that spills 52 takes 494 us a step on an
# H200, and 526 us with its weights in shared memory, which is the next choice. A tagger of five
# types that spills 180 bytes trains 2 to 3 times as fast as the batched engine.
LITTLE_SPILLED, MOST_SPILLED = 64, 512
# The same of a kernel with a weight in both: of an LSTM of 512 in clusters of 16 676 bytes; it
# trains 4 sequences in 452 us a step on an H200, and in groups of 32, the next choice, in 596.
MOST_IN_BOTH = 1024
# The same where the next choice is to run a phase in turn.
MOST_BEFORE_TURNS = 2048
GROUPS = (8, 16, 32, 64, 128)  # sizes to try, where none is given
MOST_OF_A_STEP = 768 // 8 - HEAD  # of a launch: `arguments` of processor.cuh


class KernelOptions(NamedTuple):
    """What is asked of a kernel.

    Attributes:
        processors: of a group; None for as few as the weights fit.
        in_turn: phases that are no cells, or whose weights fit in no group on chip, run in turn;
            else they are refused.
        rules: of the update: one, or none.
    """

    processors: int | None
    passes: Passes
    in_turn: bool
    rules: tuple[UpdateRule, ...]


def load_smallest(
    tasks: list[SegmentedTask],
    binding: Binding,
    device: Device,
    dtype: npt.DTypeLike,
    asked: KernelOptions,
) -> tuple[KernelWriter, int]:
    """Load a kernel for groups of so many processors, or of as few as the weights fit.

    Of each size the first is taken that leaves enough registers for code. If all spill, the one
    that spills least, unless that is much: larger groups have the same code. Whether one spills is
    known when it is compiled, so the next compiles beside it. Where none fits, phases run in turn.

    Raises: NoKernelError, when none fits or all spill much, and nothing may run in turn; and when
        the function has more words than a kernel takes.
    """
    most_words = (device.argument_bytes() - ORDERS.size) // 8
    _check_words(len(word_names(binding)), "a kernel", most_words)
    real = np.dtype(dtype)
    budgets = _budgets(device, real, asked)
    refused: dict[tuple[int, bool], str] = {}  # why a size is, the first reason
    written: set[str] = set()
    begun: list[KernelWriter] = []  # the next one, if it is written

    def different() -> Iterator[KernelWriter]:
        """Yield kernels that differ, in order, each written no sooner than it is asked for.

        The path is cut once a size, and placed for each budget in which its weights fit.
        """
        for processors, mine in itertools.groupby(budgets, lambda budget: budget.processors):
            sums = asked.passes.gradients and not budgets[0].pairs
            path = cut_path(tasks, binding, processors, sums)
            for budget in mine:
                placed = place_path(path, budget)
                if isinstance(placed, Misfit):
                    refused.setdefault(_size(budget), placed.text(device.processors))
                    continue
                if placed.in_turn and asked.passes.hold and not asked.in_turn:
                    phase, why = next(iter(placed.in_turn.items()))
                    text = message(
                        "cuda",
                        f"{phase.stage.word} of layer {phase.layer} is no cell: {why}",
                        "phases of the path that run as cells, with engine='auto'",
                        "take engine='persistent', which runs it in turn, or engine='batched'",
                    )
                    refused.setdefault(_size(budget), text)
                    continue
                if budget.hold and not placed.sides:  # groups have nothing to do
                    placed = placed._replace(budget=replace(budget, processors=1))
                writer = KernelWriter(tasks, binding, placed, device.precision, asked.rules)
                if writer.source not in written:
                    written.add(writer.source)
                    yield writer

    following = different()

    def ahead() -> list[str]:
        """Write the next one; return its source, or nothing where there is none."""
        if not begun:
            begun.extend(itertools.islice(following, 1))
        return [writer.source for writer in begun]

    def in_order() -> Iterator[KernelWriter]:
        while ahead():
            yield begun.pop()

    for size, mine in itertools.groupby(in_order(), lambda writer: _size(writer.budget)):
        tried: list[tuple[KernelWriter, Spilled]] = []
        for writer in mine:
            tried.append((writer, device.spills(writer.source, real, ahead)))
            if tried[-1][1].bytes <= LITTLE_SPILLED:
                break
        writer, spilled = min(tried, key=lambda each: each[1].bytes)
        refused[size] = spilled.text
        if spilled.bytes <= _most_spilled(writer, budgets) or not writer.cells:
            function = device.load([writer.source], real)[writer.name]
            if groups_of(writer.processors, function, device):
                return writer, function
            refused[size] = message(
                "cuda",
                f"a group of {writer.processors} processors",
                f"groups that fit on the {device.processors} processors of {device.name}",
                "take fewer processors a group, or engine='batched'",
            )
    raise NoKernelError(refused[_size(budgets[-1])])


def _size(budget: Budget) -> tuple[int, bool]:
    """Return the processors of a group, and whether phases may run in turn for want of room."""
    return budget.processors, budget.streams


def groups_of(processors: int, function: int, device: Device) -> int:
    """Return how many groups of so many processors run at once."""
    if 1 < processors <= MOST_OF_A_CLUSTER:
        return device.clusters(function, processors)
    return device.processors // processors


def _check_words(count: int, of: str, most: int) -> None:
    """Refuse a function with too many parameters, tensors and inputs for one kernel."""
    if count > most:
        got = f"parameters, tensors and inputs of the function are {count} words of {of}"
        raise NoKernelError.at("cuda", got, f"at most {most}", "take engine='batched'")


def _most_spilled(writer: KernelWriter, budgets: Sequence[Budget]) -> int:
    """Return how many bytes of a thread a kernel may spill.

    Args:
        budgets: all that are tried.
    """
    largest = writer.processors == max(budget.processors for budget in budgets)
    if budgets[-1].streams and largest and writer.needs_registers:
        return MOST_BEFORE_TURNS
    return MOST_IN_BOTH if any(side.divided for side in writer.sides) else MOST_SPILLED


def _budgets(device: Device, real: np.dtype[Any], asked: KernelOptions) -> list[Budget]:
    """List what weights may take, in the order in which that is tried; the last holds none."""
    wanted = GROUPS if asked.processors is None else (asked.processors,)
    few = () if device.has_clusters else range(2, MOST_OF_A_CLUSTER + 1)  # clusters, where any are
    sizes = [n for n in wanted if n <= device.processors and n not in few]
    budget = partial(
        Budget,
        itemsize=real.itemsize,
        shared_bytes=device.shared_bytes,
        pairs=holds_pairs(device.precision, real),
    )
    found: list[Budget] = []
    if asked.passes.hold and sizes:
        found += [budget(n, registers=most) for n in sizes for most in REGISTERS]
        # A weight may lie in registers and in shared memory, where it does not fit else. Where a
        # size is not asked for, smaller groups than the largest clusters are refused then: a
        # language model of 200 in groups of 4 takes 1.22 to 1.33 times as long a step on an H200
        # as in groups of 8, which hold its weights in one place.
        may = [n for n in sizes if asked.in_turn or n == MOST_OF_A_CLUSTER]
        found += [budget(n, registers=most, divides=True) for n in may for most in IN_BOTH]
        if asked.in_turn:
            found += [budget(sizes[-1], registers=n, streams=True) for n in REGISTERS]
    if asked.in_turn or not found:
        found.append(budget(1, registers=0, hold=False, streams=True))
    return found


class PersistentExecutable(Uploads):
    """The persistent kernel of a function on a device; see `Session.run_persistent`.

    Attributes:
        processors: of a group; groups: how many there may be.
        clustered: the groups are clusters; blocks: of a launch, those of whole clusters then.
        sides: [programs] on which side of the path groups run each, -1 for none.
        facts: what `rounds.write_rounds` knows of the programs; cells: the same of cells.
        gradients: how many there are.
        wide: processors of a device where launches are cut, 0 elsewhere; see `cuts`.
        function: the kernel; writer: what wrote its source.
    """

    def __init__(
        self,
        tasks: list[SegmentedTask],
        binding: Binding,
        device: Device,
        dtype: npt.DTypeLike,
        asked: KernelOptions,
    ) -> None:
        writer, self.function = load_smallest(tasks, binding, device, dtype, asked)
        other = asked._replace(passes=replace(asked.passes, hold=False))
        self._load_other = partial(PersistentExecutable, tasks, binding, device, dtype, other)
        super().__init__([t.task for t in tasks], writer.launches, binding)
        self.writer = writer
        self._load_apart = partial(load_apart, writer.launches, device=device, dtype=dtype)
        self.processors = writer.processors
        self.clustered = 1 < self.processors <= MOST_OF_A_CLUSTER
        self.groups = groups_of(self.processors, self.function, device)
        self.blocks = self.groups * self.processors if self.clustered else device.processors
        self.wide = device.processors if asked.passes.cuts and wide_sources(device, dtype) else 0
        self.want([self.numbers[word] for word in writer.words()])
        phases = {phase: side for side, phase in enumerate(writer.phases)}
        sides = [-1 if is_outside_path(t) else phases.get(t.task.phase, -1) for t in tasks]
        self.sides = np.array(sides, np.int64)
        steps_ptr, steps, _ = encode(writer.launches, writer.op, self.numbers)
        self.facts = facts_of(
            [t.task for t in tasks],
            (steps_ptr, steps, encode_products(writer.launches, self.numbers)),
            stand_alone(writer.all_steps),
            self,
            self.sides,
            sum(phase.stage == Stage.PATH for phase in phases),
        )
        self.cells = writer.cell_facts()
        self.gradients = len(binding.params)

    @cached_property
    def without_cells(self) -> PersistentExecutable:
        """Load the kernel for batches that do not fit the cells of this one, when there is one."""
        return self._load_other()

    @cached_property
    def apart(self) -> ApartSteps:
        """Load the steps that launches are cut at, when some launch is."""
        return self._load_apart(self.facts.products, self.numbers)


# Sides of the path that a kernel has in one function; more get functions of their own, else the
# compiler keeps in registers what several have in common, and spills.
SIDES_TOGETHER = 2


def kernel_loop(shared: Sequence[SharedSide]) -> list[str]:
    """Print the kernel itself, given the functions of the sides of the path."""
    apart = sum(len(each.sides) for each in shared) > SIDES_TOGETHER
    sides = []
    for each in shared:
        numbers = " || ".join(f"in.program == {side}" for side in each.sides)
        # The address of an argument would have all arguments copied to the stack.
        call, job = (f"apart<{each.name}>", "work") if apart else (each.name, "a")
        sides += [
            f"    if ((in.op == FORWARD || in.op == BACKWARD) && ({numbers})) {{",
            f"      if (!{call}({job}, group, in.program, waits, at, met, group_barrier,",
            "                stamps)) {",
            "        close_cluster(a.o);",
            "        return;",
            "      }",
            "      continue;",
            "    }",
        ]
    return [
        "VRT_KERNEL(NAME, Work, PROCESSOR) {",
        "  unsigned met = 0;",
        "  Timestamps stamps(a.o);",
        "  const Work& work = load_shared_state(a);",
        "  const int group = blockIdx.x / PROCESSORS;",
        "  GroupBarrier group_barrier{a.o.counters + 2 + group, 0, 0, 0};",
        "  if (gave_up_before(a.o)) return;",
        "  if (a.o.members && !open_cluster(a.o, group_barrier.counter)) return;",
        "  for (int at = (int)a.o.begin; at < (int)a.o.end; ++at) {",
        "    const Instruction in = instruction(a.o, at);",
        "    const bool waits = in.wait != NO_WAIT && at > (int)a.o.begin;",
        "    stamps.begin(at);",
        *sides,
        "    if (waits && !grid_barrier(a.o, met, at)) return;",
        "    stamps.waited();",
        "    if (in.op == END) {",
        "      stamps.both();",
        "      return;",
        "    }",
        "    outside_path(work, in);",
        "    stamps.end();",
        "  }",
        "}",
    ]


def outside_path(
    steps: Sequence[tuple[str, Sequence[int]]],
    rules: Sequence[UpdateRule],
    counted: tuple[int, int],
) -> list[str]:
    """Print it, with its tables.

    Args:
        steps: launches that all processors run: the function of each, and the numbers of the words
            that it is given. Their opcodes are FIRST_OP and those after it.
        counted: numbers of the words to which an instruction adds where its temporaries begin, and
            its counters.
    """
    words = [word for _, own in steps for word in own]
    first = itertools.accumulate((len(own) for _, own in steps), initial=0)
    cases: dict[str, list[int]] = {}
    for k, (name, own) in enumerate(steps):
        call = f"{name}(step_arguments<Args<{max(len(own), 1)}>>()); break;"
        cases.setdefault(call, []).append(FIRST_OP + k)
    return [
        f"__constant__ const short STEP_WORDS[] = {{{', '.join(map(str, [*words, 0]))}}};",
        f"__constant__ const short STEP_FIRST[] = {{{', '.join(map(str, first))}}};",
        "",
        "__device__ __noinline__ void outside_path(const Work& a, const Instruction in) {",
        "  switch (in.op) {",
        "    case SQUARES:",
        "      for_each_piece(a.o, [&](long long first) { sum_squares(a.o.store, first); });",
        "      break;",
        "    case FINISH:",
        "      if (blockIdx.x == gridDim.x - 1) finish_step<PROCESSOR>(a.o.finish);",
        "      break;",
        *update_cases(rules),
        "    default: {",
        f"      const int step = in.op - {FIRST_OP}, first = STEP_FIRST[step];",
        "      run_blocks(in, [&]() {",
        f"        fill_arguments(in, a.w, STEP_WORDS + first, STEP_FIRST[step + 1] - first, "
        f"{counted[0]}, {counted[1]});",
        "      }, [&]() {",
        "        switch (in.op) {",
        *(f"        {' '.join(f'case {op}:' for op in ops)} {call}" for call, ops in cases.items()),
        "        }",
        "      });",
        "    }",
        "  }",
        "}",
    ]


MANTISSA = {"float32": 0, "tf32": 10, "bf16": 7}  # bits that matrix units keep; 0 for all


class KernelWriter:
    """The source of a persistent kernel.

    Args:
        precision: of products of float32 by matrix units, see `vrt.compile`.
        rules: of the update: one, or none for a kernel without an update.

    Attributes:
        phases: of the sides of the path, which run cells; sides: the weights that they hold.
        cells: the sides, by number, and how many places each has for states and for edges;
            cell_functions: those that run them.
        cell_room: words in which processors of a large group send a level, of each of two rooms.
        source: the module; name: of its kernel.
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
        large = self.processors > MOST_OF_A_CLUSTER
        rooms = [x.cells.room * self.itemsize // 4 for x in placed.sides.values() if large]
        self.cell_room = max(rooms, default=0)
        self.needs_registers = any(x.needs_registers for x in placed.sides.values())
        self.launches = [self._launches(task, binding) for task in tasks]
        self.all_steps = [s for x in self.launches for s in x.steps if isinstance(s, Kernel)]
        different: dict[str, Kernel] = {}
        for step in self.all_steps:
            different.setdefault(self._key(step), step)
        self.steps = [*different.values()]
        self.ops = {key: FIRST_OP + k for k, key in enumerate(different)}
        _check_words(max((len(x.words) for x in self.steps), default=0), "a step", MOST_OF_A_STEP)
        text = self._text()
        self.name = kernel_name(text)
        self.source = text.replace("VRT_KERNEL(NAME", f"VRT_KERNEL({self.name}", 1)

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
            LaunchLowering(after, binding, vector, THREADS, shared, processors=processors).plan()
        )

    def _key(self, step: Kernel) -> str:
        return step.body + " ".join(step.words)

    def op(self, step: Kernel) -> int:
        """Return the opcode of a step outside the path."""
        return self.ops[self._key(step)]

    def words(self) -> set[str]:
        """Name the words that some part of the kernel reads."""
        found = {w for step in self.steps for w in step.words}
        return found.union(*(side.words for side in self.cell_functions))

    def _text(self) -> str:
        """Return the module, whose kernel is NAME."""
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
        for name, body in {kernel_name(step.body): step.body for step in self.steps}.items():
            lines += ["", body.replace("VRT_KERNEL(NAME", f"VRT_STEP({name}", 1)]
        lines.append(f"typedef Job<{len(self.numbers)}> Work;")
        placed = {k: (cells, self.sides[k], n) for k, (cells, n) in self.cells.items()}
        self.cell_functions = share_cells(placed, self.numbers)
        for side in self.cell_functions:
            lines += ["", *side.lines]
        words = [[self.numbers[word] for word in step.words] for step in self.steps]
        steps = [*zip([kernel_name(step.body) for step in self.steps], words, strict=True)]
        counted = self.numbers["temporary"], self.numbers["arrived"]
        lines += [
            "",
            *outside_path(steps, self.rules, counted),
            "",
            *kernel_loop(self.cell_functions),
        ]
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
