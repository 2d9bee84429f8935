"""Explain how a GPU runs a batch: launches, groups, weights on chip, scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Variant
from vertexrt.errors import number_of
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import PATH
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cell_text import CellText
from vertexrt.kernels.cuda.cuts import pieces_of
from vertexrt.kernels.cuda.driver import IS_GEMM, sizes_of, wide_splits
from vertexrt.kernels.cuda.executable import CudaExecutable, Uploads
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
    PersistentLaunch,
    WrittenScripts,
    write_launch,
)
from vertexrt.kernels.cuda.rounds import launched_steps
from vertexrt.kernels.cuda.streams import Streams
from vertexrt.kernels.cuda.verify_cells import Level, Moved, decode_cells
from vertexrt.kernels.cuda.weights import THREADS, Budget, ResidentWeight, SideWeights
from vertexrt.lower.launches import title_of
from vertexrt.script.isa import NONE, OP, PROGRAM, WAIT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable


@dataclass(frozen=True, slots=True)
class DeviceExplanation:
    """See `Explanation`."""

    persistent_launch: PersistentLaunch
    streams: Streams | None

    def program(self, variant: Variant, number: int) -> list[str]:
        """Say in what a task program is launched, or that groups run it."""
        executable, side = _executable_of(variant, number)
        if side >= 0:
            return ["groups of processors run it as a cell"]
        word = "all processors run" if variant.processors else "launches"
        steps = executable.launches[number].plan.steps
        return [f"{word}: {title_of(step)}" for step in steps]

    def kernels(self, variant: Variant, number: int) -> str:
        """Print the groups' kernels, and name the others."""
        executable, side = _executable_of(variant, number)
        if side < 0:
            return str(executable.launches[number].plan)
        writer = cast("PersistentExecutable", executable).writer
        cells, places = writer.cells[side]
        text = CellText(f"side_{side}", cells, writer.sides[side], places, writer.numbers)
        return "\n".join(text.lines())

    def calls(self, run: Run) -> str:
        """Say how many kernels, and products, there are."""
        if run.configuration.persistent:
            return "1 kernel, which runs all of them and the end of the step"
        kernels, wide, library = self._launched(run)
        products = f"{wide} products by warp groups, {library}" if wide else f"{library} products"
        return f"{kernels} kernels, {products} of cuBLAS, and the end of the step"

    def _launched(self, run: Run) -> tuple[int, int, int]:
        """Count what a run launches: kernels, products by warp groups, and products of cuBLAS."""
        executable = cast("CudaExecutable", run.ready.executable)
        table = run.layout.table if self.streams is not None else executable.table_of(run)
        session = self.persistent_launch.session
        lookups = session.sorted_lookups(run, table)
        steps = executable.program[1]
        grids = [(steps[s], g) for _, s, g in launched_steps(table, executable.program, lookups)]
        products = [(step, g) for step, g in grids if step[IS_GEMM]]
        calls = session.calls_of(session.device.calls)
        wide = sum(wide_splits(calls, *sizes_of(step, g.across)) > 0 for step, g in products)
        return len(grids) - len(products), wide, len(products) - wide

    def counts(self, run: Run) -> dict[str, float]:
        """Count kernels; products, and what several streams share; or instructions and waits."""
        if run.configuration.persistent:
            written = self._written(run)
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

    def _written(self, run: Run) -> WrittenScripts:
        trains = run.variant.use.backward
        return write_launch(run, run.layout.table, self.persistent_launch, False, trains)

    def scripts(self, run: Run) -> str:
        """Print what a step on a batch runs: groups, what they hold, and their scripts."""
        written = self._written(run)
        params, trains = run.variant.binding.params, run.variant.use.backward
        in_turn = written.executable.writer.in_turn.items()
        weights = _weights(written, params, trains)
        sections = (
            ("The persistent kernel", _groups(written)),
            ("Weights on chip: bytes that they take of a processor", weights),
            ("Phases that run as cells: see docs/device.md", _cells(written)),
            (
                "Phases of the path that run in turn, by all processors",
                [f"{_side_word(phase)}: {why}" for phase, why in in_turn],
            ),
            ("Script of all processors", _common(written)),
        )
        return "\n\n".join("\n  ".join([title, *lines]) for title, lines in sections if lines)


def _executable_of(variant: Variant, number: int) -> tuple[Uploads, int]:
    """Return what runs a task program, and on which side of the path, -1 for none."""
    if not variant.processors:
        return cast("CudaExecutable", variant.ready().executable), -1
    executable = cast("PersistentExecutable", variant.ready().processors)
    return executable, int(executable.sides[number])


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


def _groups(written: WrittenScripts) -> list[str]:
    executable, groups = written.executable, written.groups
    each, blocks = executable.processors, executable.blocks
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
        words = 8 * written.flagged_words
        lines.append(f"groups are no clusters: they send words with flags, in {words:,} bytes")
    return lines


def _cells(written: WrittenScripts) -> list[str]:
    """Say which phases run as cells, and what the script of the first group is."""
    lines, words = list[str](), written.cells.reshape(-1, 4)
    writer = written.executable.writer
    for number, (side, (states, edges)) in writer.cells.items():
        phase = writer.phases[number]
        places = f"{edges} places for edges" if side.back else f"{states} places for rows"
        kinds = number_of(len(side.cells), "cell")
        lines.append(f"{_side_word(phase)}: {kinds}, up to {side.rows} rows a level, {places}")
        begin, first = written.cell_sections[number, 0].tolist()
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


def _weights(written: WrittenScripts, params: Mapping[str, int], trains: bool) -> list[str]:
    writer = written.executable.writer
    names = {f"param_{k}": name for name, k in params.items()}
    names |= {f"gradient_{k}": f"sums of the gradient of {x}" for x, k in params.items()}
    lines, loaded = list[str](), 0
    if writer.cells:
        more = "; as pairs of bfloat16" if writer.budget.pairs else ""
        lines.append(
            f"placed in the order of the products: in registers while there is room in "
            f"{writer.budget.registers} of each thread, then in shared memory{more}"
        )
    for phase, side in zip(writer.phases, writer.sides, strict=True):
        lines += _held(_side_word(phase), side, writer.budget, names)
        held = [h for h in side.held if not h.is_sum]
        loaded += loaded_elements(held, written.groups) * writer.itemsize
    held = [*chain.from_iterable(side.held for side in writer.sides)]
    sums = {h.word.replace("gradient", "param") for h in held if h.is_sum}
    made = dict.fromkeys(names[h.word] for h in held if not (h.is_sum or h.word in sums))
    if trains and (made or not sums):
        after = "gradients made after the path, by products over all rows"
        lines.append(f"{after}: {', '.join(made)}")
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


def loaded_elements(held: Iterable[ResidentWeight], groups: int) -> int:
    """Count the elements of weights of which each of so many groups loads all, once."""
    return groups * sum((b - a) * h.deep for h in held for a, b in pairwise(h.cuts))


# Scripts.


def _common(written: WrittenScripts) -> list[str]:
    script = written.script
    waits = int((script[:, WAIT] != NONE).sum())
    lines = [
        f"instructions: {len(script)}; rounds: {waits + 1}; "
        f"elements of temporaries: {written.elements}"
    ]
    if len(written.apart):
        cuts = len(pieces_of(len(script), written.apart)) - 1
        lines.append(f"  cut in {cuts} places: {len(written.apart)} steps are launched apart")
    stages = written.executable.facts.stages
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
