"""The persistent kernel of a function made ready for a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.errors import NoKernelError
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Stage
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda import weights
from vertexrt.kernels.cuda.compile import Spilled
from vertexrt.kernels.cuda.cuts import ApartSteps, load_apart, stand_alone
from vertexrt.kernels.cuda.device import Ahead, Device
from vertexrt.kernels.cuda.driver import HEAD
from vertexrt.kernels.cuda.executable import Uploads, kernel_name, word_names
from vertexrt.kernels.cuda.kernel import KernelWriter
from vertexrt.kernels.cuda.overlap import may_overlap
from vertexrt.kernels.cuda.path import is_outside_path, lower_path
from vertexrt.kernels.cuda.placed_path import (
    CellSides,
    LoweredPath,
    PlacedPath,
    cut_path,
    needs_registers,
    place_path,
)
from vertexrt.kernels.cuda.rows_at_once import MOST_OF_A_CLUSTER
from vertexrt.kernels.cuda.script_rounds import Facts
from vertexrt.kernels.cuda.step_end import FINISH, STORE
from vertexrt.kernels.cuda.weights import Budget, Misfit, holds_pairs
from vertexrt.kernels.cuda.wide_products import has_wide
from vertexrt.kernels.layout import Binding

Int64 = npt.NDArray[np.int64]

# Of a thread, to hold weights and gradients: the first number that leaves enough for code, with
# gradients in the first of the places where they leave enough.
REGISTERS = (144, 112, 80, 48)
PLACES: tuple[tuple[str, ...], ...] = ((weights.REGISTERS, weights.SHARED), (weights.SHARED,))
AFTER_PATH: tuple[tuple[str, ...], ...] = ((),)  # all gradients are made after the path
# For a weight that lies in registers and in shared memory, and for copies of weights.
MOST_REGISTERS = REGISTERS[0]
GRAPHS_A_CLUSTER = 2  # at most, of a group that is one
# Bytes of a thread that a kernel may spill: an LSTM of 512 that spills 52 takes 494 us a step on an
# H200, and 526 us with its weights in shared memory, which is the next choice. A tagger of five
# types that spills 180 bytes trains 2 to 3 times as fast as the batched engine.
LITTLE_SPILLED, MOST_SPILLED = 64, 512
# Of a kernel with copies of weights, before one without is tried, and how much less that one has to
# spill: of an LSTM of 512 in groups of 32 a kernel with copies spills 232 bytes, without them 72,
# and trains 1, 4 and 16 sequences of 50 steps 1.10, 1.40 and 1.27 times as fast on an H200.
MOST_WITH_COPIES, WORTH_OF_COPIES = 256, 160
# The same of a kernel with a weight in both: of an LSTM of 512 in clusters of 16 676 bytes; it
# trains 4 sequences in 452 us a step on an H200, and in groups of 32, the next choice, in 596.
MOST_IN_BOTH = 1024
# The same where the next choice is to read weights from memory in each product. What such a kernel
# spills is outside its products: of two LSTMs of 650 1,048 bytes, with NVRTC 13.5.
MOST_BEFORE_MEMORY = 2048
GROUPS = (8, 16, 32, 64, 128)  # sizes to try, where none is given
ORDER_NAMES = (  # of processor.cuh, in front of `Store` and `Finish`
    *("script", "sections", "counters", "flagged", "record", "groups", "patience", "spill"),
    *("spill_bytes", "stamps", "most_stamps", "shared_bytes", "begin", "end", "members"),
    *("child_slot", "gave_up", "cells", "cell_sections"),
)
ORDERS = Struct(f"{len(ORDER_NAMES)}q")
BESIDE_WORDS = ORDERS.size + STORE.size + FINISH.size  # bytes of the arguments of a kernel
MOST_OF_A_STEP = 768 // 8 - HEAD  # of a launch: `arguments` of processor.cuh


class KernelOptions(NamedTuple):
    """What is asked of a kernel.

    Attributes:
        processors: of a group; None for as few as the weights fit.
        hold, gradients, cuts: weights stay on chip, their gradients are summed up there, launches
            are cut at wide products: see `Passes`.
        streams: weights that fit in no group on chip are read from memory, else it is refused: a
            size was asked for, or any that holds them.
        rules: of the update: one, or none.
        cells: see `Passes`.
    """

    processors: int | None
    hold: bool
    gradients: bool
    cuts: bool
    streams: bool
    rules: tuple[UpdateRule, ...]
    cells: bool = False


class Size(NamedTuple):
    """Of groups: how many processors, and whether they may read weights from memory."""

    processors: int
    streams: bool

    @staticmethod
    def of(budget: Budget) -> Size:
        """Return that of a budget."""
        return Size(budget.processors, budget.streams)


class _Candidate(NamedTuple):
    """A kernel that fits on chip; `name` is that of the function in its source."""

    writer: KernelWriter
    name: str
    source: str


class _Candidates(Iterator[_Candidate]):
    """Kernels in order, each written no sooner than it is asked for."""

    def __init__(self, written: Iterator[_Candidate]) -> None:
        self._written = written
        self._begun: list[_Candidate] = []  # the next one, if it is written

    def __next__(self) -> _Candidate:
        return self._begun.pop() if self._begun else next(self._written)

    def ahead(self) -> list[str]:
        """Write the next one; return its source, or nothing where there is none."""
        if not self._begun:
            self._begun = [*itertools.islice(self._written, 1)]
        return [each.source for each in self._begun]


def load_smallest(
    tasks: list[SegmentedTask],
    binding: Binding,
    device: Device,
    dtype: npt.DTypeLike,
    asked: KernelOptions,
    kinds: npt.NDArray[np.int64],
) -> tuple[KernelWriter, int]:
    """Load a kernel for groups of so many processors, or of as few as the weights fit.

    Of each size the first is taken that leaves enough registers for code: gradients give way before
    weights, and copies of weights for repeated instructions last. If all spill, the one that spills
    least, unless that is much: larger groups have the same code. Whether one spills is known when
    it is compiled, so the next compiles beside it. Where none fits, the largest groups read from
    memory what they cannot hold.

    Raises: NoKernelError, when none fits or all spill much, and weights must be on chip; and when
        the function has more words than a kernel takes.
    """
    most_words = (device.argument_bytes() - BESIDE_WORDS) // 8
    _check_words(len(word_names(binding)), "a kernel", most_words)
    real = np.dtype(dtype)
    budgets = _budgets(device, real, asked)
    refused: dict[Size, str] = {}  # why
    writers = (
        KernelWriter(tasks, binding, kinds, placed, device.precision, asked.rules)
        for placed in _placed(tasks, binding, budgets, device.processors, refused, asked.cells)
    )
    in_order = _Candidates(_different(writers))
    for size, mine in itertools.groupby(in_order, lambda each: Size.of(each.writer.budget)):
        candidate, spilled = _least_spilled(mine, in_order.ahead, device, real)
        most = _most_spilled(candidate.writer, budgets[-1])
        if spilled.bytes <= most or candidate.writer.budget.streams:
            return candidate.writer, device.load([candidate.source], real)[candidate.name]
        refused[size] = spilled.text
    raise NoKernelError(refused[Size.of(budgets[-1])])


def _check_words(count: int, of: str, most: int) -> None:
    """Refuse a function with too many parameters, tensors and inputs for one kernel."""
    if count > most:
        got = f"parameters, tensors and inputs of the function are {count} words of {of}"
        raise NoKernelError.at("cuda", got, f"at most {most}", "take engine='batched'")


def _most_spilled(writer: KernelWriter, last: Budget) -> int:
    """Return how many bytes of a thread a kernel may spill.

    Args:
        last: the budget that is tried last.
    """
    largest = writer.processors == last.processors
    on_chip_only_so = any(needs_registers(side, writer.budget) for side in writer.sides)
    if last.streams and largest and on_chip_only_so:
        return MOST_BEFORE_MEMORY
    return MOST_IN_BOTH if any(side.divided for side in writer.sides) else MOST_SPILLED


def _least_spilled(
    candidates: Iterable[_Candidate],
    ahead: Ahead,
    device: Device,
    real: np.dtype[Any],
) -> tuple[_Candidate, Spilled]:
    """Compile kernels in order; return the first that spills little, or the one that does least.

    Those without copies are compiled where all before spill more than MOST_WITH_COPIES, and are
    taken where they spill WORTH_OF_COPIES less.

    Args:
        ahead: gives the source of the candidate after the last one.
    """
    found: list[tuple[_Candidate, Spilled]] = []
    for candidate in candidates:
        if not candidate.writer.budget.copies and found:
            best = min(found, key=_spilled)
            if best[1].bytes <= MOST_WITH_COPIES:
                return best
        found.append((candidate, device.spills(candidate.source, real, ahead)))
        if found[-1][1].bytes <= LITTLE_SPILLED:
            return found[-1]
    return min(found, key=_spilled)


def _spilled(each: tuple[_Candidate, Spilled]) -> int:
    candidate, spilled = each
    return spilled.bytes + (0 if candidate.writer.budget.copies else WORTH_OF_COPIES)


def _budgets(device: Device, real: np.dtype[Any], asked: KernelOptions) -> list[Budget]:
    """List what weights and gradients may take, in the order in which that is tried."""
    sizes = _group_sizes(device, asked.processors)
    choices = (PLACES if asked.gradients else ()) + AFTER_PATH
    budget = partial(
        Budget,
        itemsize=real.itemsize,
        shared_bytes=device.shared_bytes,
        hold=asked.hold,
        pairs=holds_pairs(device.precision, real),
    )
    copies = MOST_REGISTERS, 0
    found = [
        budget(size, copies=most, registers=registers, gradients=places)
        for size, most, registers, places in itertools.product(sizes, copies, REGISTERS, choices)
    ]
    if asked.hold:
        may = [*filter(partial(_may_divide, asked), sizes)]
        found += [budget(size, registers=MOST_REGISTERS, divides=True) for size in may]
    if asked.streams:
        found += [budget(sizes[-1], registers=n, streams=True) for n in (*REGISTERS, 0)]
    return found


def _may_divide(asked: KernelOptions, size: int) -> bool:
    """Tell whether a weight may lie in registers and in shared memory, where it does not fit else.

    Where a size is not asked for, smaller groups than the largest clusters are refused then: a
    language model of 200 in groups of 4 takes 1.22 to 1.33 times as long a step on an H200 as in
    groups of 8, which hold its weights in one place.
    """
    return asked.streams or size == MOST_OF_A_CLUSTER


def _group_sizes(device: Device, asked: int | None) -> tuple[int, ...]:
    wanted = GROUPS if asked is None else (asked,)
    return tuple(n for n in wanted if n <= device.processors) or wanted[:1]


def _placed(
    tasks: list[SegmentedTask],
    binding: Binding,
    budgets: Sequence[Budget],
    most: int,
    refused: dict[Size, str],
    cells: bool,
) -> Iterator[PlacedPath]:
    """Yield the path, lowered once a size, for each budget in which its weights fit.

    Args:
        most: processors of the device.
        refused: gets why a group of some size cannot hold the weights, the first reason.
    """
    for size, mine in itertools.groupby(budgets, lambda budget: budget.processors):
        path: LoweredPath = {}
        found: CellSides = {}
        for budget in mine:
            if not path:
                path = lower_path(tasks, binding, 16 // budget.itemsize, size)
                found = cut_path(tasks, path, binding, size) if cells else {}
            placed = place_path(path, budget, found)
            if isinstance(placed, Misfit):
                refused.setdefault(Size.of(budget), placed.text(most))
            else:
                yield placed


def _different(writers: Iterable[KernelWriter]) -> Iterator[_Candidate]:
    """Yield kernels that differ, in order."""
    written: set[str] = set()
    for writer in writers:
        longest = max((len(step.words) for step in writer.steps), default=0)
        _check_words(longest, "a step", MOST_OF_A_STEP)
        source = writer.source()
        if source not in written:
            written.add(source)
            name = kernel_name(source)
            named = source.replace("VRT_KERNEL(NAME", f"VRT_KERNEL({name}", 1)
            yield _Candidate(writer, name, named)


class PersistentExecutable(Uploads):
    """The persistent kernel of a function on a device; see `Session.run_persistent`.

    Attributes:
        processors: of a group; groups: that there is room for; clusters: how many of them can be
            clusters, 0 for none.
        tile: most rows of an instruction on the path; tile_beside_ring: where groups have a ring.
        weights_in_memory: bytes of each processor's weights that are not held on chip.
        sums_left: bytes in which each processor leaves its sums of gradients.
        sides: [programs] on which side of the path groups run each, -1 for none.
        facts: what `gpu_script.write_scripts` knows of the programs.
        gradients: [gradients] whether the groups sum it up, or a part of it.
        cells: of the sides that run cells; assembled: `sides` without these.
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
        kinds: npt.NDArray[np.int64],
    ) -> None:
        writer, self.function = load_smallest(tasks, binding, device, dtype, asked, kinds)
        other = asked._replace(cells=False)
        self._load_other = partial(
            PersistentExecutable, tasks, binding, device, dtype, other, kinds
        )
        super().__init__([t.task for t in tasks], writer.launches, binding)
        self.writer = writer
        self._load_apart = partial(load_apart, writer.launches, device=device, dtype=dtype)
        self.processors = writer.processors
        self.weights_in_memory = max((side.memory for side in writer.sides), default=0)
        self.sums_left = writer.sums.elements * writer.itemsize
        self.clusters = device.clusters(self.function, self.processors, device.shared_bytes)
        self.groups = device.processors // self.processors
        self.wide = _cut(device, dtype, asked)
        self.may_overlap = may_overlap(self.processors, writer.phases) and not writer.cells
        self.tile = writer.tile_rows(False)
        self.tile_beside_ring = writer.tile_rows(True)
        self.want([self.numbers[word] for word in writer.words()])
        phases = writer.phases
        self.sides = _sides(tasks, phases)
        places = np.array([t.task.phase.place for t in tasks], np.int64)
        self.facts = Facts(
            np.array([int(t.task.stage) for t in tasks], np.int64),
            places,
            self.sides,
            _sides_by_place(phases, places),
            sum(phase.stage == Stage.PATH for phase in writer.phases),
            *writer.encode(),
            stand_alone([step for x in writer.launches for step in x.steps]),
            self.effects.only,
            self.effects.counters,
            self.effects.ptr,
            self.effects.gradients,
            np.array(self.scratch, np.int64).reshape(-1, 3),
            *writer.ring_facts(),
        )
        self.cells = writer.cell_facts()
        self.assembled = np.where(self.cells.side_of >= 0, -1, self.sides)
        self.gradients = np.zeros(len(binding.params), np.bool_)
        self.gradients[writer.sums.gradients] = True

    @cached_property
    def without_cells(self) -> PersistentExecutable:
        """Load the kernel for batches that do not fit the cells of this one, when there is one."""
        return self._load_other()

    @cached_property
    def apart(self) -> ApartSteps:
        """Load the steps that launches are cut at, when some launch is."""
        return self._load_apart(self.facts.products, self.numbers)

    def clustered(self, graphs: int) -> bool:
        """Tell whether groups are clusters, which meet faster, but leave some processors out.

        Cells of groups of that size are for clusters alone.
        """
        few = graphs <= GRAPHS_A_CLUSTER * self.clusters
        return self.clusters > 0 and (few or bool(self.writer.cells))

    def has_ring(self, graphs: int) -> bool:
        """Tell whether processors of a group hand each other rows in shared memory."""
        if self.processors == 1:
            return graphs <= GRAPHS_A_CLUSTER * self.groups
        return self.clustered(graphs)

    def most_groups(self, graphs: int) -> int:
        """Return how many groups there are for so many graphs or more."""
        return self.clusters if self.clustered(graphs) else self.groups


def _sides(tasks: Sequence[SegmentedTask], phases: Sequence[Phase]) -> Int64:
    """Return on which side of the path groups run each task, -1 for none."""
    sides = [-1 if is_outside_path(t) else phases.index(t.task.phase) for t in tasks]
    return np.array(sides, np.int64)


def _cut(device: Device, dtype: npt.DTypeLike, asked: KernelOptions) -> int:
    """Return the processors of a device where launches are cut, 0 elsewhere."""
    return device.processors if asked.cuts and has_wide(device, dtype) else 0


def _sides_by_place(phases: Sequence[Phase], places: Int64) -> Int64:
    """Return which side of the path each phase has, by its place; -1 for none.

    Args:
        phases: of the sides; places: [programs].
    """
    found = np.full(int(places.max(initial=-1)) + 1, -1, np.int64)
    found[[phase.place for phase in phases]] = range(len(phases))
    return found
