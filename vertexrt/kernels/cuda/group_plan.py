"""The plan of a fused group's kernel: what it makes, and where values lie."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.store import is_free
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.cuda.row_text import RowText
from vertexrt.lower.places import Memory, ValuePlace
from vertexrt.lower.values import Memories

Scratch = dict[int, ValuePlace | None]  # values that need memory; None until some is set aside


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What the kernel of a group makes.

    Attributes:
        nodes: of the program.
        members: values that it makes, and effects, by position.
        in_parts: values that are made where slices of them are read.
        widest: elements of the longest value.
        edges: its rows are edges.
    """

    nodes: Sequence[Node]
    members: tuple[int, ...]
    in_parts: frozenset[int]
    widest: int
    edges: bool

    def needs(self, k: int) -> set[int]:
        """List the members that a member reads, also through views."""
        found: set[int] = set()
        stack = list(self.nodes[k].inputs)
        while stack:
            i = stack.pop()
            if i in self.members:
                found.add(i)
            elif i in self.in_parts or _inline(self.nodes[i]):
                stack.extend(self.nodes[i].inputs)
        return found


def plan_group(nodes: Sequence[Node], group: Group, held: Collection[int]) -> GroupPlan:
    """Say what the kernel of a group makes.

    Args:
        held: values that have a place in memory.
    """
    made = [k for k in group.nodes if k in held or not _inline(nodes[k])]
    in_parts = frozenset(k for k in made if k not in held and _read_in_parts(nodes, k, held))
    members = tuple(k for k in made if k not in in_parts)
    edges = group.domain == Domain.EDGE
    return GroupPlan(nodes, members, in_parts, _widest(nodes, made), edges)


def _widest(nodes: Sequence[Node], made: Collection[int]) -> int:
    """Return the elements of the longest value that is made or read."""
    read = {i for k in made for i in (k, *nodes[k].inputs)}
    sizes = (nodes[i].type.size for i in read if nodes[i].type.domain != Domain.PARAM)
    return max(sizes, default=1)


def _inline(node: Node) -> bool:
    """Tell whether a value is written where it is read: leaves, views of them."""
    return is_free(node) or (OPS[node.op].role == "view" and node.op != "concat")


def _read_in_parts(nodes: Sequence[Node], k: int, held: Collection[int]) -> bool:
    """Tell whether all that is read of a value is slices: each makes its elements then."""
    readers = [i for i, node in enumerate(nodes) if k in node.inputs]
    return (
        OPS[nodes[k].op].role == "scalar"
        and bool(readers)
        and all(nodes[i].op == "slice" and i not in held for i in readers)
    )


def lay_out(
    plan: GroupPlan,
    place: Mapping[int, ValuePlace],
    scratch: Scratch,
    rows: RowText,
    temporaries: Memories,
    alias: bool = True,
) -> dict[int, ValuePlace]:
    """Return where the values of a group lie.

    Args:
        place: where values of earlier steps and stages lie, and where this group's belong.
        scratch: gets a place for each value in it: scratch of the row, or a temporary.
        alias: parts of a whole that is stored are made where they end up.
    """
    found = dict(place)
    if alias:
        _alias_parts(plan, found)
    for k, at in scratch.items():
        if k in found:
            continue
        if at is None or at.memory == Memory.SCRATCH:
            node = plan.nodes[k]
            size = max(node.type.size, 1)
            at = rows.scratch(size) or temporaries.temporary(size, node.type.domain == Domain.EDGE)
        scratch[k] = found[k] = at
    if scratch and alias:
        _alias_parts(plan, found)
    return found


def _alias_parts(plan: GroupPlan, place: dict[int, ValuePlace]) -> None:
    """Let the parts of a stored concat be made where they end up."""
    for k in plan.members:
        if plan.nodes[k].op != "concat" or k not in place:
            continue
        start = 0
        for i in plan.nodes[k].inputs:
            size = plan.nodes[i].type.size
            if size > 1 and i in plan.members and i not in place and _can_move(plan.nodes[i]):
                place[i] = place[k].part(start, size)
            start += size


def _can_move(node: Node) -> bool:
    """Tell whether a value can be made as a part of a whole."""
    return not is_free(node) and OPS[node.op].role in ("scalar", "row")
