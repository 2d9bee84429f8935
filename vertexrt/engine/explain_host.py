"""Explain how the host runs a batch, and what `explain` asks of any device."""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np

from vertexrt.engine.batched import Run, scripts_of
from vertexrt.engine.variant import Variant
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import segment_tasks, segments_of
from vertexrt.ir.program import Stage
from vertexrt.kernels.backend import HostBackend, LaunchByLaunch
from vertexrt.kernels.layout import PROGRAM
from vertexrt.lower.lowering import lower
from vertexrt.script import isa
from vertexrt.script.assemble import Scripts
from vertexrt.script.shape import Shape

Array = np.ndarray[Any, Any]

HEAD = 16  # instructions that are shown


class Explanation(Protocol):
    """What a device says of how it runs a function: all that `explain` asks one."""

    def program(self, variant: Variant, number: int) -> list[str]:
        """Say in what a task program is run."""

    def kernels(self, variant: Variant, number: int) -> str:
        """Print what a task program is lowered to: the kernel IR of the device."""

    def calls(self, run: Run) -> str:
        """Say what a step calls or launches."""

    def counts(self, run: Run) -> dict[str, float]:
        """Count what a step calls or launches, by name; see `bench.measure`."""

    def scripts(self, run: Run) -> str:
        """Print what the persistent engine runs."""


class HostExplanation:
    """That of a device whose memory is the host's."""

    def program(self, variant: Variant, number: int) -> list[str]:
        """Say what makes each product on a CPU; steps are loops and calls of one function."""
        backend = cast("HostBackend", variant.backend)
        return backend.made_by(variant.tasks[number], variant.binding)

    def kernels(self, variant: Variant, number: int) -> str:
        """Print loops over rows and products."""
        return str(lower(variant.tasks[number], variant.binding))

    def calls(self, run: Run) -> str:
        """Say how many fused groups and products there are."""
        return "{} fused groups, {} products".format(*kernel_calls(run))

    def counts(self, run: Run) -> dict[str, float]:
        """Count calls of compiled code; instructions and waits of scripts, where there are any."""
        if not run.configuration.persistent:
            launched = isinstance(run.ready.executable, LaunchByLaunch)
            return {"calls": len(run.layout.table) if launched else 1}
        words = scripts_of(run, run.layout.table).words
        return {
            "calls": run.configuration.processors,
            "instructions": words[..., isa.WAIT].size,
            "waits": int((words[..., isa.WAIT] != isa.NONE).sum()),
        }

    def scripts(self, run: Run) -> str:
        """Print segments, statistics and the head of a script of one group."""
        variant, shape, table = run.variant, run.ready.shape, run.layout.table
        scripts = scripts_of(run, table)
        assert shape is not None
        known = variant.tasks[: len(shape.stage)]  # a batch after it may have had other kinds
        tasks = segment_tasks(known, variant.processors == 1, variant.passes.segment)
        words = scripts.words
        names = [f"{t.task.stage.word}[{k}]" for k, t in enumerate(tasks)]
        lines = [f"Segments of the task programs, {run.configuration}"]
        for name, task in zip(names, tasks, strict=True):
            lines += ["  " + line for line in segments_of(name, task)]
        lines += ["", "Scripts of a group: what one processor does"]
        lines += ["  " + line for line in _statistics(shape, table, scripts)]
        count = words.shape[1]
        lines += [
            "",
            f"Script of processor 0, the first {min(HEAD, count)} of {count} instructions",
        ]
        segments = isa.segment_names(names, shape.segment_ptr.tolist())
        lines.append(isa.disassemble(words[0, :HEAD], segments))
        return "\n".join(lines)


def kernel_calls(run: Run) -> tuple[int, int]:
    """Count the kernels that a step runs: fused groups, and products."""
    tasks = run.variant.tasks
    groups = products = 0
    for program in run.layout.table[:, PROGRAM].tolist():
        mine = sum(isinstance(step, Group) for step in tasks[program].steps)
        groups += mine
        products += len(tasks[program].steps) - mine
    return groups, products


def _statistics(shape: Shape, table: Array, scripts: Scripts) -> list[str]:
    words, mine = scripts.words, scripts.words[0]
    total, waits = len(mine), int((mine[:, isa.WAIT] != isa.NONE).sum())
    lines = [
        f"instructions: {total}; waits: {waits}; "
        f"elements of temporaries of a processor: {scripts.temporary}"
    ]
    stage_of, launched = shape.stage[mine[:, isa.PROGRAM]], shape.stage[table[:, PROGRAM]]
    for stage in Stage:
        chosen = stage_of == stage
        if not chosen.any():
            continue
        part, tasks = mine[chosen], int((launched == stage).sum())
        tiles = int(np.isin(part[:, isa.OP], shape.segment_ptr).sum())
        waited = int((part[:, isa.WAIT] != isa.NONE).sum())
        rows = words[:, chosen, isa.ROWS]
        quartiles = np.percentile(rows, [0, 50, 100]).astype(int).tolist()
        in_tiles = f"{tiles} tiles, " if tiles > tasks else ""
        lines.append(
            f"  {stage.word}: {tasks} tasks, {in_tiles}{len(part)} instructions, "
            f"{waited / tasks:.2f} exchanges a task; rows a tile (min, median, max): {quartiles}"
        )
    return lines
