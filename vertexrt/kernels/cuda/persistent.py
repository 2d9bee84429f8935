"""The persistent kernel of a function made ready for a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.errors import NoKernelError, message
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Stage
from vertexrt.ir.updates import UpdateRule
from vertexrt.kernels.cuda.compile import Spilled
from vertexrt.kernels.cuda.cuts import ApartSteps, load_apart, stand_alone
from vertexrt.kernels.cuda.device import Ahead, Device
from vertexrt.kernels.cuda.driver import HEAD, has_wide
from vertexrt.kernels.cuda.executable import Uploads, kernel_name, word_names
from vertexrt.kernels.cuda.kernel import KernelWriter
from vertexrt.kernels.cuda.path import (
    PlacedPath,
    cut_path,
    is_outside_path,
    place_path,
)
from vertexrt.kernels.cuda.script_rounds import Facts
from vertexrt.kernels.cuda.step_end import FINISH, STORE
from vertexrt.kernels.cuda.weights import MOST_OF_A_CLUSTER, Budget, Misfit, holds_pairs
from vertexrt.kernels.layout import Binding

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
ORDER_NAMES = (  # of processor.cuh, in front of `Store` and `Finish`
    *("script", "counters", "flagged", "record", "groups", "patience", "stamps", "most_stamps"),
    *("shared_bytes", "begin", "end", "members", "gave_up", "cells", "cell_sections"),
)
ORDERS = Struct(f"{len(ORDER_NAMES)}q")
BESIDE_WORDS = ORDERS.size + STORE.size + FINISH.size  # bytes of the arguments of a kernel
MOST_OF_A_STEP = 768 // 8 - HEAD  # of a launch: `arguments` of processor.cuh


class KernelOptions(NamedTuple):
    """What is asked of a kernel.

    Attributes:
        processors: of a group; None for as few as the weights fit.
        hold, gradients, cuts: what is on chip, launches are cut at wide products: see `Passes`.
        in_turn: phases that are no cells, or whose weights fit in no group on chip, run in turn;
            else they are refused.
        rules: of the update: one, or none.
    """

    processors: int | None
    hold: bool
    gradients: bool
    cuts: bool
    in_turn: bool
    rules: tuple[UpdateRule, ...]


class Size(NamedTuple):
    """Of groups: how many processors, and whether phases may run in turn for want of room."""

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
) -> tuple[KernelWriter, int]:
    """Load a kernel for groups of so many processors, or of as few as the weights fit.

    Of each size the first is taken that leaves enough registers for code. If all spill, the one
    that spills least, unless that is much: larger groups have the same code. Whether one spills is
    known when it is compiled, so the next compiles beside it. Where none fits, phases run in turn.

    Raises: NoKernelError, when none fits or all spill much, and nothing may run in turn; and when
        the function has more words than a kernel takes.
    """
    most_words = (device.argument_bytes() - BESIDE_WORDS) // 8
    _check_words(len(word_names(binding)), "a kernel", most_words)
    real = np.dtype(dtype)
    budgets = _budgets(device, real, asked)
    refused: dict[Size, str] = {}  # why
    writers = (
        KernelWriter(tasks, binding, placed, device.precision, asked.rules)
        for placed in _placed(tasks, binding, budgets, device.processors, refused, asked)
    )
    in_order = _Candidates(_different(writers))
    for size, mine in itertools.groupby(in_order, lambda each: Size.of(each.writer.budget)):
        candidate, spilled = _least_spilled(mine, in_order.ahead, device, real)
        most = _most_spilled(candidate.writer, budgets)
        if spilled.bytes <= most or not candidate.writer.cells:
            function = device.load([candidate.source], real)[candidate.name]
            if groups_of(candidate.writer.processors, function, device):
                return candidate.writer, function
            spilled = Spilled(0, _no_groups(size.processors, device))
        refused[size] = spilled.text
    raise NoKernelError(refused[Size.of(budgets[-1])])


def groups_of(processors: int, function: int, device: Device) -> int:
    """Return how many groups of so many processors run at once."""
    if 1 < processors <= MOST_OF_A_CLUSTER:
        return device.clusters(function, processors, device.shared_bytes)
    return device.processors // processors


def _no_groups(processors: int, device: Device) -> str:
    return message(
        "cuda",
        f"a group of {processors} processors",
        f"groups that fit on the {device.processors} processors of {device.name}",
        "take fewer processors a group, or engine='batched'",
    )


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


def _least_spilled(
    candidates: Iterable[_Candidate],
    ahead: Ahead,
    device: Device,
    real: np.dtype[Any],
) -> tuple[_Candidate, Spilled]:
    """Compile kernels in order; return the first that spills little, or the one that does least.

    Args:
        ahead: gives the source of the candidate after the last one.
    """
    found: list[tuple[_Candidate, Spilled]] = []
    for candidate in candidates:
        found.append((candidate, device.spills(candidate.source, real, ahead)))
        if found[-1][1].bytes <= LITTLE_SPILLED:
            return found[-1]
    return min(found, key=lambda each: each[1].bytes)


def _budgets(device: Device, real: np.dtype[Any], asked: KernelOptions) -> list[Budget]:
    """List what weights may take, in the order in which that is tried; the last holds none."""
    sizes = _group_sizes(device, asked.processors)
    budget = partial(
        Budget,
        itemsize=real.itemsize,
        shared_bytes=device.shared_bytes,
        pairs=holds_pairs(device.precision, real),
    )
    found: list[Budget] = []
    if asked.hold and sizes:
        found += [budget(n, registers=most) for n in sizes for most in REGISTERS]
        may = [*filter(partial(_may_divide, asked), sizes)]
        found += [budget(n, registers=most, divides=True) for n in may for most in IN_BOTH]
        if asked.in_turn:
            found += [budget(sizes[-1], registers=n, streams=True) for n in REGISTERS]
    if asked.in_turn or not found:
        found.append(budget(1, registers=0, hold=False, streams=True))
    return found


def _may_divide(asked: KernelOptions, size: int) -> bool:
    """Tell whether a weight may lie in registers and in shared memory, where it does not fit else.

    Where a size is not asked for, smaller groups than the largest clusters are refused then: a
    language model of 200 in groups of 4 takes 1.22 to 1.33 times as long a step on an H200 as in
    groups of 8, which hold its weights in one place.
    """
    return asked.in_turn or size == MOST_OF_A_CLUSTER


def _group_sizes(device: Device, asked: int | None) -> tuple[int, ...]:
    """Return the sizes that groups may have; small ones are clusters, where there are any."""
    wanted = GROUPS if asked is None else (asked,)
    few = () if device.has_clusters else range(2, MOST_OF_A_CLUSTER + 1)
    return tuple(n for n in wanted if n <= device.processors and n not in few)


def _placed(
    tasks: list[SegmentedTask],
    binding: Binding,
    budgets: Sequence[Budget],
    most: int,
    refused: dict[Size, str],
    asked: KernelOptions,
) -> Iterator[PlacedPath]:
    """Yield the path, cut once a size, for each budget in which its weights fit.

    Args:
        most: processors of the device.
        refused: gets why a group of some size cannot hold the weights, the first reason.
    """
    for size, mine in itertools.groupby(budgets, lambda budget: budget.processors):
        path = cut_path(tasks, binding, size, asked.gradients and not budgets[0].pairs)
        for budget in mine:
            placed = place_path(path, budget)
            if isinstance(placed, Misfit):
                refused.setdefault(Size.of(budget), placed.text(most))
            elif placed.in_turn and asked.hold and not asked.in_turn:
                refused.setdefault(Size.of(budget), _in_turn(placed))
            elif placed.sides or not budget.hold:
                yield placed
            else:  # groups have nothing to do
                yield placed._replace(budget=replace(budget, processors=1))


def _in_turn(placed: PlacedPath) -> str:
    """Say which phase is no cell."""
    phase, why = next(iter(placed.in_turn.items()))
    return message(
        "cuda",
        f"{phase.stage.word} of layer {phase.layer} is no cell: {why}",
        "phases of the path that run as cells, with engine='auto'",
        "take engine='persistent', which runs it in turn, or engine='batched'",
    )


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
        processors: of a group; groups: how many there may be.
        clustered: the groups are clusters.
        sides: [programs] on which side of the path groups run each, -1 for none.
        facts: what `script_rounds.write_common` knows of the programs; cells: the same of cells.
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
        other = asked._replace(hold=False)
        self._load_other = partial(PersistentExecutable, tasks, binding, device, dtype, other)
        super().__init__([t.task for t in tasks], writer.launches, binding)
        self.writer = writer
        self._load_apart = partial(load_apart, writer.launches, device=device, dtype=dtype)
        self.processors = writer.processors
        self.clustered = 1 < self.processors <= MOST_OF_A_CLUSTER
        self.groups = groups_of(self.processors, self.function, device)
        self.wide = _cut(device, dtype, asked)
        self.want([self.numbers[word] for word in writer.words()])
        self.sides = _sides(tasks, writer.phases)
        self.facts = Facts(
            np.array([int(t.task.stage) for t in tasks], np.int64),
            np.array([t.task.phase.place for t in tasks], np.int64),
            self.sides,
            sum(phase.stage == Stage.PATH for phase in writer.phases),
            *writer.encode(),
            stand_alone([step for x in writer.launches for step in x.steps]),
            self.effects.only,
            self.effects.counters,
            self.effects.ptr,
            self.effects.gradients,
            np.array(self.scratch, np.int64).reshape(-1, 3),
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


def _sides(tasks: Sequence[SegmentedTask], phases: Sequence[Phase]) -> Int64:
    """Return on which side of the path groups run each task, -1 for none."""
    inside = [t.task.phase in phases and not is_outside_path(t) for t in tasks]
    found = [phases.index(t.task.phase) if x else -1 for t, x in zip(tasks, inside, strict=True)]
    return np.array(found, np.int64)


def _cut(device: Device, dtype: npt.DTypeLike, asked: KernelOptions) -> int:
    """Return the processors of a device where launches are cut, 0 elsewhere."""
    return device.processors if asked.cuts and has_wide(device, dtype) else 0
