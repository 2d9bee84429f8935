"""Operands of products on the path that are read where children left them.

The operand of a product is often the state of a child, or a sum of such states. Put into shared
memory first it would cost a copy and a barrier in every level; so the product's threads read, and
add up, the elements that they need themselves. What is left of the group that made the operand,
copies that later passes want, runs behind the products.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product
from vertexrt.ir.passes.segment import SegmentedTask
from vertexrt.ir.program import Domain, Node, Stage
from vertexrt.kernels.cuda.path_rows import PathGroup, PathRows
from vertexrt.kernels.cuda.rows import Cuts, Rows
from vertexrt.kernels.cuda.values import J

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.path import SegmentWriter

Step = list[Group | Product]  # a group, or products side by side

QUARTET = 4  # elements that a thread reads at once, see `part_of_row` of resident_matmul.cuh
MOST_LEAVES = 4  # of an operand that is worked out where it is read


def read_directly(plan: SegmentedTask, steps: Sequence[Step]) -> tuple[list[Step], frozenset[int]]:
    """Take operands that products can read directly out of the group in front of them.

    Args:
        steps: of a segment.
    Returns: the steps that are left, and those operands.
    """
    if plan.task.stage != Stage.PATH:
        return list(steps), frozenset()
    nodes = plan.task.program.nodes
    found: set[int] = set()
    left: list[Step] = []
    late: list[Step] = []  # nobody behind the products waits for it
    for side in steps:
        if isinstance(side[0], Product):
            left, late = [*left, *late], []
        group = left[-1][0] if left and isinstance(side[0], Product) else None
        if not isinstance(group, Group) or group.domain != Domain.VERTEX:
            left.append(side)
            continue
        products = [step.node for step in side if isinstance(step, Product)]
        operands = {nodes[k].inputs[1] for k in products} & set(group.nodes)
        if not all(_is_direct(plan, x, products, group) for x in operands):
            left.append(side)
            continue
        found |= operands
        left.pop()
        left.append(side)
        rest = _what_is_left(plan, group, operands)
        if rest:
            apart = {*rest, *products}  # which read the operands themselves
            read = any(readers_of(plan, k) - apart for k in rest)
            (left if read else late).append([Group(group.domain, rest)])
    return [*left, *late], frozenset(found)


def readers_of(plan: SegmentedTask, k: int) -> set[int]:
    """List what reads a value, of all that a task makes."""
    steps = [step for segment in plan.segments for step in segment.steps]
    made = {i for s in steps for i in s.nodes}
    return {i for i in made if k in plan.task.program.nodes[i].inputs}


def _is_direct(plan: SegmentedTask, x: int, products: Sequence[int], group: Group) -> bool:
    """Tell whether an operand is worked out from children's states, for these products alone."""
    nodes = plan.task.program.nodes
    node = nodes[x]
    home = plan.task.homes.get(x)
    if node.type.domain != Domain.VERTEX or (home is not None and home[0] != "value"):
        return False
    effects = {k for k in group.nodes if OPS[nodes[k].op].role == "effect"}
    if not readers_of(plan, x) <= {*products} | effects:
        return False
    deep = node.type.shape[-1]
    if deep % QUARTET:
        return False
    if node.op == "concat":
        return all(nodes[i].op == "gather" and nodes[i].type.size == deep for i in node.inputs)
    leaves = list(_leaves(nodes, x))
    return (
        len(node.type.shape) == 1
        and len(leaves) <= MOST_LEAVES
        and all(nodes[i].op == "gather" and nodes[i].type == node.type for i in leaves)
    )


def _leaves(nodes: Sequence[Node], k: int) -> Iterator[int]:
    """Yield what a value is worked out from, element by element."""
    if OPS[nodes[k].op].role != "scalar" or nodes[k].op == "dropout":
        yield k
        return
    for i in nodes[k].inputs:
        yield from _leaves(nodes, i)


def _what_is_left(plan: SegmentedTask, group: Group, operands: set[int]) -> tuple[int, ...]:
    """List the members of a group that others than those operands' readers want."""
    nodes, task = plan.task.program.nodes, plan.task
    roots = [
        k
        for k in group.nodes
        if OPS[nodes[k].op].role == "effect"
        or k in task.homes
        or (k in task.local and k not in operands)
    ]
    wanted: set[int] = set()
    while roots:
        k = roots.pop()
        if k in group.nodes and k not in wanted:
            wanted.add(k)
            roots.extend(nodes[k].inputs)
    return tuple(k for k in group.nodes if k in wanted)


class OperandRow(PathGroup):
    """A row of an operand, as the expression that gives four elements of it."""

    def __init__(self, writer: SegmentWriter, x: int) -> None:
        self._x = x
        nodes = writer.nodes
        made = [x] if nodes[x].op == "concat" else sorted(_inner(nodes, x))
        writer.group_nodes = made
        super().__init__(writer, Group(Domain.VERTEX, tuple(made)), {})
        children = [k for k in self.place if nodes[k].op == "gather"]
        for k in (*made, *children):  # where groups put them is not written yet
            self.place.pop(k, None)

    def new_rows(self, widest: int, vector: int, block: int) -> Rows:
        """Have no loop: each thread says which elements it wants."""
        return PathRows(1, vector, self.writer.processors)

    def cuts_of(self, k: int) -> Cuts:
        """Have all elements."""
        return ()

    def text(self, times: int) -> list[str]:
        """Return a function from the row of a product to one from a column to four elements.

        Args:
            times: rows of the product for each row of the tile.
        """
        t, node = self.t, self.nodes[self._x]
        row = "i" if times == 1 else f"i / {times}"
        if node.op == "concat":
            bases = [self._base_of(k) for k in node.inputs]
            which = "".join(f"i % {times} == {n} ? {base} : " for n, base in enumerate(bases[:-1]))
            body = [f"return load<{QUARTET}>(from + j);"]
            t._head.append(f"const real* const from = {which}{bases[-1]};")
        else:
            t.open(node.type.size)
            if self.members:
                self.write_all()
                register = f"r{self._x}"
            else:
                register = self.element(self._x, J).removesuffix(".v[c]")
            loop = t.loop
            assert loop is not None
            assert loop.vector == t.vector, "states are whole vectors"
            body = [f"constexpr int W = {QUARTET};", *loop.body, f"return {register};"]
        return [
            "[&](int i) {",
            f"  const int row = (int)a.lo + {row};",
            *(f"  {line}" for line in t._head),
            "  return [=](int j) {",
            *(f"    {line}" for line in body),
            "  };",
            "}",
        ]

    def write_all(self) -> None:
        """Write the members in the open loop."""
        for k in self.members:
            self._emit(k)

    def _base_of(self, k: int) -> str:
        node = self.nodes[k]
        return self.t.row_value(f"c{k}", "auto", self.state_of_child(k, node, node.type.size))


def _inner(nodes: Sequence[Node], x: int) -> set[int]:
    """Collect the nodes between an operand and its leaves, itself among them."""
    if OPS[nodes[x].op].role != "scalar":
        return {x}
    found = {x}
    for i in nodes[x].inputs:
        if OPS[nodes[i].op].role == "scalar":
            found |= _inner(nodes, i)
    return found
