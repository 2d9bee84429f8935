"""Operands of products on the path that are read where children left them.

The operand of a product is often the state of a child, or a sum of such states. A copy of it in
shared memory would cost a barrier in every level. Instead, the product's threads read the states,
and add up the elements that they need. The rest of the group that made the operand (copies that
later stages read) runs after the products. A state just as it is may also be read by elementwise
operations, as in a GRU: they read it where the child left it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Domain, Node, Stage
from vertexrt.kernels.cuda.path_steps import Step, products_in, readers_of

QUARTET = 4  # elements of a row next to each other that a thread has, see `part_of_row`
MOST_LEAVES = 4  # of an operand that is computed where it is read


def inline_operands(plan: SegmentedTask, steps: Sequence[Step]) -> tuple[list[Step], set[int]]:
    """Take operands that products can read themselves out of the groups before them.

    Args:
        steps: of a segment.
    Returns: the steps that are left, and those operands.
    """
    if plan.task.stage != Stage.PATH:
        return list(steps), set()
    found: set[int] = set()
    left: list[Step] = []
    late: list[Step] = []  # which no later step reads
    for step in steps:
        products = products_in(step)
        if products:
            left, late = [*left, *late], []
        operands = _inlined(plan, products, left)
        if operands is None:
            left.append(step)
            continue
        found |= operands
        (group,) = left.pop()
        assert isinstance(group, Group)
        left.append(step)
        rest = _rest_of(plan, group, operands)
        if rest.nodes:
            (left if _is_read(plan, rest, products) else late).append([rest])
    return [*left, *late], found


def _inlined(
    plan: SegmentedTask, products: Sequence[int], before: Sequence[Step]
) -> set[int] | None:
    """Return what the last group makes for products that they can all read themselves.

    Args:
        before: steps before the products.
    Returns: operands; None where there is no such group, or some product cannot.
    """
    group = before[-1][0] if products and before else None
    if not isinstance(group, Group) or group.domain != Domain.VERTEX:
        return None
    nodes = plan.task.program.nodes
    operands = {nodes[k].inputs[1] for k in products} & set(group.nodes)
    able = all(_is_of_states(nodes, x) and _is_for(plan, x, products, group) for x in operands)
    return operands if able else None


def _is_for(plan: SegmentedTask, x: int, products: Sequence[int], group: Group) -> bool:
    """Tell whether nothing reads a value but products and effects of the group that makes it.

    A child's state that is stored nowhere else may be read element by element, too.
    """
    nodes, home = plan.task.program.nodes, plan.task.homes.get(x)
    if home is not None and home[0] != "value":
        return False
    others = readers_of(plan, x).difference(products)
    roles = {OPS[nodes[k].op].role for k in others}
    if nodes[x].op == "gather" and home is None:
        return roles <= {"effect", "scalar"}
    return roles <= {"effect"} and others <= {*group.nodes}


def _is_of_states(nodes: Sequence[Node], x: int) -> bool:
    """Tell whether an operand is computed from a few states of children."""
    node = nodes[x]
    deep = node.type.shape[-1]
    if node.type.domain != Domain.VERTEX:
        return False
    leaves = node.inputs if node.op == "concat" else tuple(_leaves(nodes, x))
    if node.op != "concat" and (len(node.type.shape) > 1 or len(leaves) > MOST_LEAVES):
        return False
    return all(nodes[i].op == "gather" and nodes[i].type.size == deep for i in leaves)


def _leaves(nodes: Sequence[Node], k: int) -> Iterator[int]:
    """Yield what a value is computed from, element by element."""
    if OPS[nodes[k].op].role != "scalar" or OPS[nodes[k].op].draws:
        yield k
        return
    for i in nodes[k].inputs:
        yield from _leaves(nodes, i)


def _rest_of(plan: SegmentedTask, group: Group, operands: set[int]) -> Group:
    """Return the members of a group that are needed although the products read its operands."""
    nodes, task = plan.task.program.nodes, plan.task
    kept = {*task.homes, *(task.local - operands)}
    roots = [k for k in group.nodes if OPS[nodes[k].op].role == "effect" or k in kept]
    wanted: set[int] = set()
    while roots:
        k = roots.pop()
        if k in group.nodes and k not in wanted:
            wanted.add(k)
            roots.extend(nodes[k].inputs)
    return Group(group.domain, tuple(k for k in group.nodes if k in wanted))


def _is_read(plan: SegmentedTask, group: Group, products: Sequence[int]) -> bool:
    """Tell whether other steps than those products read what a group makes."""
    apart = {*group.nodes, *products}  # which read the operands themselves
    return any(readers_of(plan, k) - apart for k in group.nodes)
