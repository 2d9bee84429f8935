"""Say in words what the segments of a task program do, and what is exchanged before each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import READ_IN_FULL, Segment, SegmentedTask, Split
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Node, Stage

SPLIT_WORD = {Split.UNITS: "own units of all rows", Split.ROWS: "own rows", Split.SUMS: "own sums"}

Note = tuple[str, str]  # what it is, and the values


def segments_of(name: str, task: SegmentedTask) -> list[str]:
    """List the segments of a task program, and what is exchanged before each."""
    count = len(task.segments)
    lines = [f"{name}: {count} segment{'s' if count > 1 else ''}"]
    if task.gathers and task.task.stage == Stage.PATH:
        lines[0] += "; waits for the tiles of the children"
    made: set[int] = set()
    for number, segment in enumerate(task.segments):
        work = _work(task.task.program.nodes, segment)
        lines.append(f"  {name}.{number} {SPLIT_WORD[segment.split]}: {work}")
        lines += [f"    {what}: {found}" for what, found in _notes(task, segment, made) if found]
        made.update(segment.members)
    return lines


def _notes(task: SegmentedTask, segment: Segment, made: Collection[int]) -> Iterator[Note]:
    """Yield what processors have of each other, and what all of them make.

    Args:
        made: the nodes of earlier segments.
    """
    nodes = task.task.program.nodes
    own = [k for k in segment.members if k in task.whole]
    fields = dict.fromkeys(nodes[k]["field"] for k in own if nodes[k].op == "gather")
    yield "exchanged before it", _values(nodes, _received(nodes, segment, made))
    yield "every processor makes for itself", _values(nodes, own)
    yield "read in full from other processors", ", ".join(fields)


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


def _received(nodes: Sequence[Node], segment: Segment, made: Collection[int]) -> list[int]:
    """List what a segment reads of which each processor has made a part in an earlier one."""
    found: dict[int, None] = {}
    for k in segment.members:
        for position, i in enumerate(nodes[k].inputs):
            if segment.split != Split.UNITS or READ_IN_FULL.get(nodes[k].op) == position:
                found[i] = None
    return [i for i in found if i in made and i not in segment.members]


def _values(nodes: Sequence[Node], positions: list[int]) -> str:
    """Name values; leaves are read where they are used."""
    found = [k for k in positions if not is_free(nodes[k])]
    return ", ".join(f"%{k} {nodes[k].op} {nodes[k].type}" for k in found)
