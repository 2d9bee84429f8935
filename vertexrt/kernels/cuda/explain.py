"""Explain how the persistent engine of a GPU runs a batch: groups, weights on chip, scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.errors import number_of
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import PATH
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cuts import pieces_of
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
from vertexrt.kernels.cuda.persistent_launch import Paths, WrittenScripts, flagged_words
from vertexrt.kernels.cuda.verify_cells import Level, Moved, decode_cells
from vertexrt.kernels.cuda.weight_layout import THREADS
from vertexrt.kernels.cuda.weights import Budget, ResidentWeight, SideWeights
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


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a persistent kernel, to be explained.

    Attributes:
        path, written: its scripts; blocks: processors that it has.
        params: of `Binding`.
        trains: it has a backward side.
    """

    executable: PersistentExecutable
    path: Paths
    written: WrittenScripts
    blocks: int
    params: Mapping[str, int]
    trains: bool


def explain_launch(launch: Launch) -> str:
    """Print what a step on a batch runs: groups, what they hold, and their scripts."""
    executable, path, written = launch.executable, launch.path, launch.written
    lines = ["The persistent kernel"]
    lines += ["  " + line for line in _groups(executable, path, launch.blocks)]
    lines += ["", "Weights on chip: bytes that they take of a processor"]
    lines += ["  " + line for line in _weights(launch)]
    if executable.writer.cells:
        lines += ["", "Phases that run as cells: see docs/device.md"]
        lines += ["  " + line for line in _cells(executable, path)]
    if executable.writer.in_turn:
        lines += ["", "Phases of the path that run in turn, by all processors"]
        for phase, why in executable.writer.in_turn.items():
            lines.append(f"  {_side_word(phase)}: {why}")
    lines += ["", "Script of all processors"]
    lines += ["  " + line for line in _common(executable, written)]
    return "\n".join(lines)


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


def _weights(launch: Launch) -> list[str]:
    executable, writer = launch.executable, launch.executable.writer
    groups, itemsize = launch.path.groups, writer.itemsize
    names = {f"param_{k}": name for name, k in launch.params.items()}
    names |= {f"gradient_{k}": f"sums of the gradient of {x}" for x, k in launch.params.items()}
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
        loaded += loaded_elements(held, groups) * itemsize
    if launch.trains:
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
