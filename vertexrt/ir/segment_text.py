"""Say in words what the segments of a task program do, and what is exchanged before each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import WHOLE_ROW, Segment, SegmentedTask, Split
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Node, Stage

SPLIT_WORD = {Split.UNITS: "own units of all rows", Split.ROWS: "own rows", Split.SUMS: "own sums"}


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
