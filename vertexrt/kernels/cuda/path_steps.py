"""The steps of a segment of the path: groups, and products that do not depend on each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vertexrt.ir.passes.fuse import Group, Product
from vertexrt.ir.passes.segment import Segment, SegmentedTask
from vertexrt.ir.program import Domain, Node
from vertexrt.lower.threads import Cuts

Step = list[Group | Product]  # one group, or products that share their barriers


def steps_of(plan: SegmentedTask, segment: Segment) -> list[Step]:
    """List the steps of a segment; two products that are independent are one."""
    nodes = plan.task.program.nodes
    found: list[Step] = []
    for step in segment.steps:
        assert isinstance(step, Group) or nodes[step.node].op == "matmul", "a sum over rows"
        last = products_in(found[-1]) if found else []
        if isinstance(step, Product) and len(last) == 1 and not follows(nodes, step.node, last[0]):
            found[-1].append(step)
        else:
            found.append([step])
    return found


def follows(nodes: Sequence[Node], k: int, other: int) -> bool:
    """Tell whether a value is made from another."""
    inputs = nodes[k].inputs
    return other in inputs or any(follows(nodes, i, other) for i in inputs if i > other)


def products_in(step: Step) -> list[int]:
    """List the products of a step."""
    return [part.node for part in step if isinstance(part, Product)]


def nodes_in(parts: Iterable[Group | Product]) -> Iterator[int]:
    """Yield what groups and products make."""
    for part in parts:
        yield from part.nodes


def groups_after(steps: Sequence[Step], number: int) -> list[Group]:
    """List the groups between a step and the next products, if all are of rows; else nothing."""
    found: list[Group] = []
    for step in steps[number + 1 :]:
        if not isinstance(step[0], Group):
            break
        found.append(step[0])
    return found if all(group.domain == Domain.VERTEX for group in found) else []


def readers_of(plan: SegmentedTask, k: int) -> set[int]:
    """List what reads a value, of all that a task makes."""
    made = (i for segment in plan.segments for i in segment.members)
    return {i for i in made if k in plan.task.program.nodes[i].inputs}


def own_cuts(plan: SegmentedTask, k: int) -> Cuts:
    """Return where the elements of a value are cut in pieces, of which a processor has a share."""
    return plan.cuts.get(k, (0, max(plan.task.program.nodes[k].type.size, 1)))
