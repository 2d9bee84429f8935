"""Explain how the persistent engine of a GPU runs a batch: groups, weights on chip, scripts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from vertexrt.errors import number_of
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import PATH, segments_of
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.cuts import pieces_of
from vertexrt.kernels.cuda.instruction import (
    ACROSS,
    BACKWARD,
    CHECK,
    COLLECT,
    DOWN,
    END,
    FINISH,
    FORWARD,
    OVERLAP,
    SQUARES,
    STEP,
    TIMES,
    UPDATE,
)
from vertexrt.kernels.cuda.persistent_launch import Paths, WrittenScripts, flagged_words
from vertexrt.kernels.cuda.repeats import PARTS
from vertexrt.kernels.cuda.verify_cells import Level, Moved, decode_cells
from vertexrt.kernels.cuda.weight_layout import THREADS
from vertexrt.kernels.cuda.weights import Budget, ResidentWeight, SideWeights
from vertexrt.script.isa import (
    NONE,
    OP,
    PROGRAM,
    ROWS,
    WAIT,
    Script,
    decode,
    describe,
    segment_names,
)

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

HEAD = 16  # instructions that are shown
SIDE_WORD = ("forward", "backward")
SPECIAL = {
    FORWARD: "forward weights are loaded, and groups follow their scripts",
    BACKWARD: "backward weights are loaded, and groups follow their scripts",
    COLLECT: "what groups summed up of gradients is added, in their order",
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
    tasks = executable.writer.tasks
    names = [f"{t.task.stage.word}[{k}]" for k, t in enumerate(tasks)]
    lines = ["The persistent kernel"]
    lines += ["  " + line for line in _groups(executable, path, launch.blocks)]
    lines += ["", "Weights on chip, and sums of gradients: bytes that they take of a processor"]
    lines += ["  " + line for line in _weights(launch)]
    lines += ["", "Segments of the task programs that groups run"]
    for name, task, side in zip(names, tasks, executable.sides.tolist(), strict=True):
        if side >= 0:
            lines += ["  " + line for line in segments_of(name, task)]
    if executable.writer.cells:
        lines += ["", "Phases that run as cells: see docs/device.md"]
        lines += ["  " + line for line in _cells(executable, path)]
    lines += ["", "Script of all processors"]
    lines += ["  " + line for line in _common(executable, written)]
    scripts, segment_ptr = written.script[written.common :], executable.writer.segment_ptr()
    lines += ["", "Scripts of the groups"]
    lines += ["  " + line for line in _paths(scripts, path, executable)]
    first = scripts[: path.lengths[:1, :1].sum()]
    head = min(HEAD, len(first))
    lines += ["", f"Script of group 0, forward, the first {head} of {len(first)} instructions"]
    lines += _listing(first[:head], segment_names(names, segment_ptr))
    return "\n".join(lines)


def _groups(executable: PersistentExecutable, path: Paths, blocks: int) -> list[str]:
    each, groups = executable.processors, path.lengths.shape[1]
    lines = [
        f"processors: {blocks} blocks of {THREADS} threads; groups: {groups} of "
        f"{number_of(each, 'processor')}; processors without a group: {blocks - groups * each}"
    ]
    if each == 1:
        lines.append("a group is one processor, which waits for no other on the path")
    elif path.clustered:
        lines.append("groups are clusters: they meet at barriers in shared memory")
    else:
        lines.append("groups are no clusters: they meet at counters in the second-level cache")
    if words := flagged_words(executable, path):
        lines.append(f"elements of repeated levels are sent with flags, in {8 * words:,} bytes")
    lines.append(f"rows of a tile: {executable.tile} at most")
    return lines


def _cells(executable: PersistentExecutable, path: Paths) -> list[str]:
    """Say which phases run as cells, and what the script of the first group is."""
    lines, words = [], path.cells.reshape(-1, 4)
    for number, (side, (states, edges)) in executable.writer.cells.items():
        phase = executable.writer.phases[number]
        word = _of_layer(SIDE_WORD[PATH.index(phase.stage)], phase)
        places = f"{edges} places for edges" if side.back else f"{states} places for rows"
        kinds = number_of(len(side.cells), "cell")
        lines.append(f"{word}: {kinds}, up to {side.rows} rows a level, {places}")
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
    groups, itemsize = launch.path.lengths.shape[1], writer.itemsize
    names = {f"param_{k}": name for name, k in launch.params.items()}
    lines, loaded = [], 0
    if writer.budget.hold:
        more = ", then in memory" if executable.weights_in_memory else ""
        more += "; as pairs of bfloat16" if writer.budget.pairs else ""
        lines.append(
            f"placed in the order of the products: in registers while there is room in "
            f"{writer.registers} of each thread, then in shared memory{more}"
        )
    for number, (phase, side) in enumerate(zip(writer.phases, writer.sides, strict=True)):
        copied = writer.copied(number)
        word = _of_layer(SIDE_WORD[PATH.index(phase.stage)], phase)
        lines += _held(word, side, writer.budget, names, copied)
        on_chip = side.held[: side.in_registers + side.in_shared]
        loaded += loaded_elements(on_chip, groups) * itemsize
    if launch.trains:
        lines += _gradients(executable, names)
    if executable.weights_in_memory:
        lines.append("what is in memory is read by each product")
    if loaded:
        lines.append(f"loaded a step, by all groups: {loaded:,} bytes")
    return lines


def _held(
    word: str,
    side: SideWeights,
    budget: Budget,
    names: Mapping[str, str],
    copied: Collection[ResidentWeight],
) -> list[str]:
    """Say which weights a side of the path holds, and where.

    Args:
        copied: weights of which registers get a copy while instructions are repeated.
    """
    sizes, sums = ([budget.bytes([h]) for h in some] for some in (side.held, side.sums))
    held = budget.registers_of(side) * THREADS * 4 + sum(sums[: side.sums_in_registers])
    memory = f", {side.memory:,} in memory" if side.memory else ""
    lines = [f"{word}: {held:,} in registers, {side.shared:,} in shared memory{memory}"]
    for k, (h, size) in enumerate(zip(side.held, sizes, strict=True)):
        what = "columns" if h.turned else "rows"
        rows = f"{h.rows(budget.processors)} {what} of {h.deep}"
        part = side.divided_quartets(k) * budget.element(h) * THREADS * 4
        both = f"{part:,} in registers, " if part else ""
        copy = ", copied to registers for repeated levels" if h in copied else ""
        lines.append(f"  {names[h.word]}: {rows}, {both}{size - part:,} in {_place(side, k)}{copy}")
    return lines


def _place(side: SideWeights, k: int) -> str:
    """Name the place of a weight, or of what registers do not have of it."""
    if k < side.in_registers:
        return "registers"
    return "shared memory" if k < side.in_registers + side.in_shared else "memory"


def _gradients(executable: PersistentExecutable, names: dict[str, str]) -> list[str]:
    """Say where the gradients of these weights are made."""
    writer, lines = executable.writer, list[str]()
    on_chip = writer.sums.side.sums
    lines += [_summed(executable, names, k) for k in range(len(on_chip))]
    done = {h.word.replace("gradient", "param") for h in on_chip}
    held = chain.from_iterable(x.held for x in writer.sides[: executable.facts.forward])
    rest = dict.fromkeys(h.word for h in held if h.word not in done)
    if rest:
        after = ", ".join(names[word] for word in rest)
        lines.append(f"gradients made after the path, by products over all rows: {after}")
    if on_chip:
        lines.append(
            f"left for the sums of the groups, by each processor: {executable.sums_left:,}"
        )
    return lines


def _summed(executable: PersistentExecutable, names: dict[str, str], k: int) -> str:
    """Say where a gradient is that is summed up on chip."""
    writer, each = executable.writer, executable.processors
    side = writer.sums.side
    h, where = side.sums[k], "registers" if k < side.sums_in_registers else "shared memory"
    name, size = names[h.word.replace("gradient", "param")], writer.budget.bytes([h])
    return f"  gradient of {name}: {h.rows(each)} rows of {h.deep}, {size:,} in {where}"


def loaded_elements(held: Iterable[ResidentWeight], groups: int) -> int:
    """Count the elements of weights of which each of so many groups loads all, once."""
    return groups * sum((b - a) * h.deep for h in held for a, b in pairwise(h.cuts))


# Scripts.


def _common(executable: PersistentExecutable, written: WrittenScripts) -> list[str]:
    script = written.script[: written.common]
    waits = int((script[:, WAIT] != NONE).sum())
    lines = [
        f"instructions: {len(script)}; rounds: {waits + 1}; "
        f"elements of temporaries: {written.elements}"
    ]
    if len(written.apart):
        cuts = len(pieces_of(written.common, written.apart)) - 1
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
        overlapped = ", overlapped with the path" if script[lo:hi, OVERLAP].any() else ""
        blocks = int((script[lo:hi, ACROSS].astype(np.int64) * script[lo:hi, DOWN]).sum())
        turns = len(np.unique(rounds[lo:hi]))
        lines.append(
            f"  {stage.word}{where}: {hi - lo} ops in "
            f"{number_of(turns, 'round')}, {blocks} blocks of work{overlapped}"
        )
    return lines


def _of_layer(word: str, phase: Phase) -> str:
    """Say of which layer something is, if not of the lowest."""
    return f"{word} of layer {phase.layer}" if phase.layer else word


def _paths(scripts: Script, path: Paths, executable: PersistentExecutable) -> list[str]:
    writer, lines = executable.writer, []
    segment_ptr = writer.segment_ptr()
    start = 0
    for lengths, phase in zip(path.lengths, writer.phases, strict=True):
        side = scripts[start : start + int(lengths.sum())]
        start += len(side)
        if not len(side):
            continue
        inside = executable.facts.repeated[side[:, OP], PARTS] - 1
        meets = (side[:, WAIT] != NONE) + (side[:, TIMES] > 1) * inside
        waits = int((meets * side[:, TIMES]).sum())
        tiles = int(side[np.isin(side[:, OP], segment_ptr), TIMES].sum())
        word = _of_layer(phase.stage.word, phase)
        lines.append(
            f"{word}: instructions of a group (min, median, max): "
            f"{_quartiles(lengths)}; all groups: {len(side)} instructions, {tiles} tiles, "
            f"{waits} meetings; rows a tile: {_quartiles(side[:, ROWS])}"
        )
    return lines or ["no task program is the groups'"]


def _quartiles(values: Array) -> list[int]:
    found: list[int] = np.percentile(values, [0, 50, 100]).astype(int).tolist()
    return found


def _listing(script: Script, names: list[str]) -> list[str]:
    """Print instructions; a wait is a meeting of the group."""
    lines = []
    for k, i in enumerate(decode(script)):
        times, step = script[k, [TIMES, STEP]]
        more = f", {times} times, {step} rows further each time" if times > 1 else ""
        meet = "meet; " if i.wait != NONE else ""
        lines.append(f"{k:5} {meet}{describe(replace(i, wait=NONE), names)}{more}")
    return lines
