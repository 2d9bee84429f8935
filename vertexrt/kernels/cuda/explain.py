"""What `explain` says of a GPU: launches, and how the persistent engine runs a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.errors import number_of
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import PATH
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cell_text import CellText
from vertexrt.kernels.cuda.cuts import pieces_of
from vertexrt.kernels.cuda.device_scripts import write_launch
from vertexrt.kernels.cuda.driver import IS_GEMM, Grid, sizes_of
from vertexrt.kernels.cuda.executable import CudaExecutable
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    BACKWARD,
    CHECK,
    DOWN,
    END,
    FINISH,
    FORWARD,
    SQUARES,
    UPDATE,
)
from vertexrt.kernels.cuda.persistent_launch import (
    Paths,
    PersistentLaunch,
    WrittenScripts,
    flagged_words,
)
from vertexrt.kernels.cuda.rounds import launched_steps
from vertexrt.kernels.cuda.streams import Streams
from vertexrt.kernels.cuda.verify_cells import Level, Moved, decode_cells
from vertexrt.kernels.cuda.weight_layout import THREADS
from vertexrt.kernels.cuda.weights import Budget, ResidentWeight, SideWeights
from vertexrt.kernels.cuda.wide_products import has_wide, splits_of
from vertexrt.lower.launches import title_of
from vertexrt.script.isa import NONE, OP, PROGRAM, WAIT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

SIDE_WORD = ("forward", "backward")
SPECIAL = {
    FORWARD: "forward weights are loaded, and groups follow their scripts",
    BACKWARD: "backward weights are loaded, and groups follow their scripts",
    SQUARES: "norm of the gradients",
    FINISH: "loss",
    CHECK: "whether what the update makes is finite",
    UPDATE: "update",
    END: "end",
}


class LaunchCounts(NamedTuple):
    """What a run launches: kernels, products that warp groups make, and products of cuBLAS."""

    kernels: int
    wide: int
    library: int

    def __str__(self) -> str:
        wide = f"{self.wide} products by warp groups, " if self.wide else ""
        of = "" if self.wide else " products"
        return f"{self.kernels} kernels, {wide}{self.library}{of} of cuBLAS"


@dataclass(frozen=True, slots=True)
class DeviceExplanation:
    """See `Explanation`."""

    persistent_launch: PersistentLaunch
    streams: Streams | None

    def program(self, variant: Variant, number: int) -> list[str]:
        """Say in what a task program is launched, or that groups run it."""
        if not variant.processors:
            launches = cast("CudaExecutable", variant.ready().executable).launches
            return [f"launches: {title_of(step)}" for step in launches[number].plan.steps]
        executable = cast("PersistentExecutable", variant.ready().processors)
        if executable.sides[number] >= 0:
            return ["groups of processors run it as a cell"]
        steps = executable.launches[number].plan.steps
        return [f"all processors run: {title_of(step)}" for step in steps]

    def kernels(self, variant: Variant, number: int) -> str:
        """Print the groups' kernels, and name the others."""
        if not variant.processors:
            launches = cast("CudaExecutable", variant.ready().executable).launches
            return str(launches[number].plan)
        executable = cast("PersistentExecutable", variant.ready().processors)
        if executable.sides[number] < 0:
            return str(executable.launches[number].plan)
        side, writer = int(executable.sides[number]), executable.writer
        cells, places = writer.cells[side]
        text = CellText(f"side_{side}", cells, writer.sides[side], places, writer.numbers)
        return "\n".join(text.lines())

    def calls(self, run: Run) -> str:
        """Say how many kernels, and products, there are."""
        if run.configuration.persistent:
            return "1 kernel, which runs all of them and the end of the step"
        return f"{self._launched(run)}, and the end of the step"

    def _launched(self, run: Run) -> LaunchCounts:
        executable = cast("CudaExecutable", run.ready.executable)
        table = run.layout.table if self.streams is not None else executable.table_of(run)
        lookups = self.persistent_launch.session.sorted_lookups(run, table)
        steps = executable.program[1]
        grids = [(steps[s], g) for _, s, g in launched_steps(table, executable.program, lookups)]
        products = [(step, g) for step, g in grids if step[IS_GEMM]]
        wide = sum(self._is_wide(step, g) for step, g in products)
        return LaunchCounts(len(grids) - len(products), wide, len(products) - wide)

    def _is_wide(self, step: np.ndarray[Any, Any], grid: Grid) -> bool:
        session = self.persistent_launch.session
        if not has_wide(session.device, session.dtype):
            return False
        m, n, k = map(int, sizes_of(step, grid.across))
        splits = splits_of(m, n, k, session.device.processors)
        return splits == 1 or (splits > 1 and session.splits_depth)

    def counts(self, run: Run) -> dict[str, float]:
        """Count kernels; products, and what several streams share; or instructions and waits."""
        if run.configuration.persistent:
            _, _, written = self._written(run)
            return {
                "calls": 1,
                "kernels": 1,
                "instructions": len(written.script),
                "waits": int((written.script[:, WAIT] != NONE).sum()),
            }
        kernels, wide, library = self._launched(run)
        found: dict[str, float] = {
            "calls": 1,
            "kernels": kernels,
            "wide": wide,
            "library": library,
        }
        return found if self.streams is None else found | self.streams.counts(run)

    def _written(self, run: Run) -> tuple[PersistentExecutable, Paths, WrittenScripts]:
        trains = run.variant.use.backward
        return write_launch(run, run.layout.table, self.persistent_launch, False, trains)

    def scripts(self, run: Run) -> str:
        """Print what the persistent kernel runs: groups, what they hold, and their scripts."""
        executable, path, written = self._written(run)
        writer, params = executable.writer, run.variant.binding.params
        blocks, trains = self.persistent_launch.blocks(executable), run.variant.use.backward
        sections = {
            "The persistent kernel": _groups(executable, path, blocks),
            "Weights on chip: bytes that they take of a processor": _weights(
                executable, path.groups, params, trains
            ),
            "Phases that run as cells: see docs/device.md": _cells(executable, path),
            "Phases of the path that run in turn, by all processors": [
                f"{_side_word(phase)}: {why}" for phase, why in writer.in_turn.items()
            ],
            "Script of all processors": _common(executable, written),
        }
        told = ["\n  ".join([title, *lines]) for title, lines in sections.items() if lines]
        return "\n\n".join(told)


def _groups(executable: PersistentExecutable, path: Paths, blocks: int) -> list[str]:
    each, groups = executable.processors, path.groups
    lines = [f"processors: {blocks} blocks of {THREADS} threads"]
    if not executable.writer.cells:
        return lines
    lines[0] += (
        f"; groups: {groups} of {number_of(each, 'processor')}; "
        f"processors without a group: {blocks - groups * each}"
    )
    if each == 1:
        lines.append("a group is one processor, which waits for no other on the path")
    elif executable.clustered:
        lines.append("groups are clusters: they meet at barriers in shared memory")
    else:
        words = 8 * flagged_words(executable, path)
        lines.append(f"groups are no clusters: they send words with flags, in {words:,} bytes")
    return lines


def _cells(executable: PersistentExecutable, path: Paths) -> list[str]:
    """Say which phases run as cells, and what the script of the first group is."""
    lines, words = [], path.cells.reshape(-1, 4)
    for number, (side, (states, edges)) in executable.writer.cells.items():
        phase = executable.writer.phases[number]
        places = f"{edges} places for edges" if side.back else f"{states} places for rows"
        kinds = number_of(len(side.cells), "cell")
        lines.append(f"{_side_word(phase)}: {kinds}, up to {side.rows} rows a level, {places}")
        begin, first = path.cell_sections[number, 0].tolist()
        masks = {c: cell.mask for c, cell in enumerate(side.cells)}
        script = list(decode_cells(words[begin:], first, side.back, masks))
        levels = [x for x in script if isinstance(x, Level)]
        rows = sum(len(x.rows) for x in levels)
        taken = sum(len(x.pairs) for x in script if isinstance(x, Moved))
        lines.append(
            f"  group 0: {number_of(rows, 'row')} in {number_of(len(levels), 'level')}, "
            f"{taken} taken from memory"
        )
    return lines


# Weights.


def _weights(
    executable: PersistentExecutable, groups: int, params: Mapping[str, int], trains: bool
) -> list[str]:
    writer = executable.writer
    names = {f"param_{k}": name for name, k in params.items()}
    names |= {f"gradient_{k}": f"sums of the gradient of {x}" for x, k in params.items()}
    lines, loaded = [], 0
    if writer.cells:
        more = "; as pairs of bfloat16" if writer.budget.pairs else ""
        lines.append(
            f"placed in the order of the products: in registers while there is room in "
            f"{writer.budget.registers} of each thread, then in shared memory{more}"
        )
    for phase, side in zip(writer.phases, writer.sides, strict=True):
        lines += _held(_side_word(phase), side, writer.budget, names)
        held = [h for h in side.held if not h.is_sum]
        loaded += loaded_elements(held, groups) * writer.itemsize
    if trains:
        lines += _gradients(executable, names)
    if writer.in_turn:
        lines.append("those of phases in turn are in memory, and read by each product")
    if loaded:
        lines.append(f"loaded a step, by all groups: {loaded:,} bytes")
    return lines


def _held(word: str, side: SideWeights, budget: Budget, names: Mapping[str, str]) -> list[str]:
    """Say which weights a side of the path holds, and where."""
    held = budget.registers_of(side) * THREADS * 4
    lines = [f"{word}: {held:,} in registers, {side.shared:,} in shared memory"]
    for k, h in enumerate(side.held):
        what = "columns" if h.turned else "rows"
        rows, size = f"{h.rows(budget.processors)} {what} of {h.deep}", budget.bytes([h])
        part = side.divided_quartets(k) * budget.element * THREADS * 4
        both = f"{part:,} in registers, " if part else ""
        place = "registers" if k < side.in_registers else "shared memory"
        lines.append(f"  {names[h.word]}: {rows}, {both}{size - part:,} in {place}")
    return lines


def _gradients(executable: PersistentExecutable, names: dict[str, str]) -> list[str]:
    """Say where the gradients of these weights are made."""
    held = [*chain.from_iterable(x.held for x in executable.writer.sides)]
    sums = {h.word.replace("gradient", "param") for h in held if h.is_sum}
    made = dict.fromkeys(names[h.word] for h in held if not (h.is_sum or h.word in sums))
    after = f"gradients made after the path, by products over all rows: {', '.join(made)}"
    return [after] if made or not sums else []


def loaded_elements(held: Iterable[ResidentWeight], groups: int) -> int:
    """Count the elements of weights of which each of so many groups loads all, once."""
    return groups * sum((b - a) * h.deep for h in held for a, b in pairwise(h.cuts))


# Scripts.


def _common(executable: PersistentExecutable, written: WrittenScripts) -> list[str]:
    script = written.script
    waits = int((script[:, WAIT] != NONE).sum())
    lines = [
        f"instructions: {len(script)}; rounds: {waits + 1}; "
        f"elements of temporaries: {written.elements}"
    ]
    if len(written.apart):
        cuts = len(pieces_of(len(script), written.apart)) - 1
        lines.append(f"  cut in {cuts} places: {len(written.apart)} steps are launched apart")
    stages = executable.facts.stages
    rounds = np.cumsum(script[:, WAIT] != NONE)
    special = np.isin(script[:, OP], list(SPECIAL))
    label = np.where(special, -script[:, OP] - 1, stages[script[:, PROGRAM]])
    starts = [0, *(1 + np.flatnonzero(np.diff(label))).tolist(), len(script)]
    for lo, hi in pairwise(starts):
        if special[lo]:
            lines.append(f"  {SPECIAL[int(script[lo, OP])]}")
            continue
        stage = Stage(int(label[lo]))
        where = ", outside the groups" if stage in PATH else ""
        blocks = int((script[lo:hi, ACROSS].astype(np.int64) * script[lo:hi, DOWN]).sum())
        turns = len(np.unique(rounds[lo:hi]))
        lines.append(
            f"  {stage.word}{where}: {hi - lo} ops in "
            f"{number_of(turns, 'round')}, {blocks} blocks of work"
        )
    return lines


def _side_word(phase: Phase) -> str:
    """Name a side of the path: of which layer, if not of the lowest."""
    word = SIDE_WORD[PATH.index(phase.stage)]
    return f"{word} of layer {phase.layer}" if phase.layer else word
