"""Explain how the persistent engine of the host runs a batch: segments and scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import PATH, WHOLE_ROW, Segment, SegmentedTask, Split, segment_tasks
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.pretty import STAGE_WORD
from vertexrt.ir.program import Node, Stage
from vertexrt.kernels.layout import PROGRAM as LAUNCHED
from vertexrt.script.assemble import Scripts, assemble
from vertexrt.script.isa import EDGES, NONE, OP, PROGRAM, ROWS, WAIT, disassemble, segment_names
from vertexrt.script.shape import Shape

Array = np.ndarray[Any, Any]

HEAD = 16  # instructions that are shown
SPLIT_WORD = {Split.UNITS: "own units of all rows", Split.ROWS: "own rows", Split.SUMS: "own sums"}


def explain_scripts(run: Run) -> str:
    """Print segments, statistics and the head of a script of one group.

    Args:
        run: of a persistent variant.
    """
    variant, processors = run.variant, run.configuration.processors
    shape = variant.ready().shape
    assert shape is not None, f"{run.configuration} has no scripts"
    tasks = segment_tasks(variant.tasks, alone=variant.processors == 1)
    s = run.schedule
    tile = run.configuration.tile
    scripts = assemble(shape, run.table, s.edge_ptr, s.child_row, processors, tile)
    words = scripts.words
    names = [f"{STAGE_WORD[t.task.stage]}[{k}]" for k, t in enumerate(tasks)]
    lines = [f"Segments of the task programs, {run.configuration}"]
    for name, task in zip(names, tasks, strict=True):
        lines += ["  " + line for line in segments_of(name, task)]
    lines += ["", "Scripts of a group: what one processor does"]
    lines += ["  " + line for line in _statistics(shape, run.table, scripts)]
    count = words.shape[1]
    lines += ["", f"Script of processor 0, the first {min(HEAD, count)} of {count} instructions"]
    segments = segment_names(names, shape.segment_ptr.tolist())
    lines.append(disassemble(words[0, :HEAD], segments))
    return "\n".join(lines)


# Segments.


def segments_of(name: str, task: SegmentedTask) -> list[str]:
    """List the segments of a task program, and what is exchanged before each."""
    count = len(task.segments)
    from_children = task.gathers and task.task.stage == Stage.PATH
    waits = "; waits for the tiles of the children" if from_children else ""
    lines = [f"{name}: {count} segment{'s' if count > 1 else ''}{waits}"]
    nodes = task.task.program.nodes
    made: dict[int, int] = {}
    for number, segment in enumerate(task.segments):
        lines.append(f"  {name}.{number} {SPLIT_WORD[segment.split]}: {_work(nodes, segment)}")
        members = list(_members(segment))
        received = [i for i in _read_in_full(nodes, members, segment.split) if i in made]
        if received:
            lines.append(f"    exchanged before it: {_values(nodes, received)}")
        own = [k for k in members if k in task.whole and not is_free(nodes[k])]
        if own:
            lines.append(f"    every processor makes for itself: {_values(nodes, own)}")
        gathered = [k for k in members if nodes[k].op == "gather" and k in task.whole]
        fields = dict.fromkeys(nodes[k]["field"] for k in gathered)
        if fields:
            lines.append(f"    read in full from other processors: {', '.join(fields)}")
        made |= {k: number for k in members if not is_free(nodes[k])}
    return lines


def _members(segment: Segment) -> Iterator[int]:
    for step in segment.steps:
        yield from step.nodes if isinstance(step, Group) else (step.node,)


def _work(nodes: Sequence[Node], segment: Segment) -> str:
    found = []
    for step in segment.steps:
        if isinstance(step, Group):
            count = sum(not is_free(nodes[k]) for k in step.nodes)
            found.append(f"fused {count} ops")
        else:
            node = nodes[step.node]
            weight = nodes[node.inputs[0]]
            turned = "'" if node.op == "matmul" and node["transpose"] else ""
            what = weight["name"] + turned if node.op == "matmul" else "outer"
            found.append(f"product {what} {node.type}")
    return ", ".join(found)


def _read_in_full(nodes: Sequence[Node], members: list[int], split: Split) -> list[int]:
    """List what a segment reads of which each processor has made a part."""
    found: dict[int, None] = {}
    for k in members:
        for position, i in enumerate(nodes[k].inputs):
            product = nodes[k].op == "matmul" and position == 1
            row = nodes[k].op in WHOLE_ROW and position == 0
            if split != Split.UNITS or product or row:
                found[i] = None
    own = set(members)
    return [i for i in found if i not in own]


def _values(nodes: Sequence[Node], positions: list[int]) -> str:
    return ", ".join(f"%{k} {nodes[k].op} {nodes[k].type}" for k in positions)


# Scripts.


def _statistics(shape: Shape, table: Array, scripts: Scripts) -> list[str]:
    words, mine = scripts.words, scripts.words[0]
    total, waits = len(mine), int((mine[:, WAIT] != NONE).sum())
    seconds = words[:, :, ROWS] * shape.row_cost[words[:, :, OP]]
    seconds += words[:, :, EDGES] * shape.edge_cost[words[:, :, OP]]
    lines = [
        f"instructions: {total}; waits: {waits}; "
        f"elements of temporaries of a processor: {scripts.temporary}"
    ]
    stage_of, launched = shape.stage[mine[:, PROGRAM]], shape.stage[table[:, LAUNCHED]]
    for stage in Stage:
        chosen = stage_of == stage
        if not chosen.any():
            continue
        part, tasks = mine[chosen], int((launched == stage).sum())
        tiles = int(np.isin(part[:, OP], shape.segment_ptr).sum())
        waited = int((part[:, WAIT] != NONE).sum())
        rows = words[:, chosen, ROWS]
        quartiles = np.percentile(rows, [0, 50, 100]).astype(int).tolist()
        in_tiles = f"{tiles} tiles, " if tiles > tasks else ""
        lines.append(
            f"  {STAGE_WORD[stage]}: {tasks} tasks, {in_tiles}{len(part)} instructions, "
            f"{waited / tasks:.2f} exchanges a task; rows a tile (min, median, max): {quartiles}"
        )
        if len(words) > 1 and stage not in PATH:
            loads = seconds[:, chosen].sum(axis=1)
            lines[-1] += f"; the most work of a processor: {loads.max() / loads.mean():.2f} of mean"
    return lines
