"""Fuse: cut the nodes of one stage of one kind into as few kernels as dependence allows.

What ends a group is a product (it needs all rows of its operand) or a change between vertices and
edges. Groups are numbered by how many of these lie on the longest path from the inputs, which
makes every group convex: a path that leaves a group only reaches higher numbers. A node sits as
late as its first reader allows, so that loads are not held over a product.

Source: Cavs section 3.5 (fusion of elementwise operators); row reductions, gather and scatter join
the groups here, since a group works row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.operands import is_apart, operand_positions
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key, Read, Stored, is_free
from vertexrt.ir.program import Domain, Node, Program, Stage


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes computed together, row by row, in one domain."""

    domain: Domain
    nodes: tuple[int, ...]  # in an order in which they may run, effects among them


@dataclass(frozen=True, slots=True)
class Product:
    """One GEMM over all rows of the task, or another sum over rows that a backend does alone."""

    node: int


def stored_inputs(nodes: Sequence[Node], step: Group | Product, k: int) -> list[int]:
    """List the inputs of a node that its step reads from where they were stored.

    A leaf is read again where it is used; but a product reads rows of memory, a leaf's too.
    """
    rows = operand_positions(nodes[k]) if isinstance(step, Product) else range(0)
    return [i for at, i in enumerate(nodes[k].inputs) if at in rows or not is_free(nodes[i])]


@dataclass(frozen=True, slots=True)
class TaskProgram:
    """What one kind does in one stage: kernels in order, and where values live.

    Attributes:
        program: the program of the kind; positions below refer to it.
        reads: position of a value of an earlier stage -> where it lies.
        homes: position -> the tensor of execution rows that it is written to.
        local: positions kept in a temporary with the rows of one task.
        steps: groups and products in order.
    """

    stage: Stage
    program: Program
    reads: dict[int, Read]
    homes: dict[int, Key]
    local: frozenset[int]
    steps: tuple[Group | Product, ...]


def cut(
    stored: Stored, stage: Stage, fuse: bool = True, apart: frozenset[str] = frozenset()
) -> TaskProgram | None:
    """Extract one stage of a kind's program and cut it into kernels.

    Args:
        stored: the program of one kind, and where its values lie.
        fuse: False makes a group of every node (the ablation's baseline).
        apart: ops besides products that the backend runs over all rows at once.
    Returns: None, when the kind has nothing to do in this stage.
    """
    program, nodes = stored.program, stored.program.nodes
    effects = [k for k, n in enumerate(nodes) if n.stage == stage and OPS[n.op].role == "effect"]
    if not effects:
        return None
    homes: dict[int, Key] = {}
    silent: set[int] = set()  # effects that cost nothing: the value is made in its tensor
    for k in effects:
        (i,) = nodes[k].inputs
        source = nodes[i]
        if nodes[k].op in TENSOR_OF_EFFECT:
            key = TENSOR_OF_EFFECT[nodes[k].op](nodes[k])
            if source.stage == stage and not is_free(source) and homes.setdefault(i, key) == key:
                silent.add(k)
        elif nodes[k].op == "param_grad":
            silent.add(k)  # what it reads adds into the gradient as it sums over the rows
    live = _live(program, stage, effects)
    reads = {
        i: stored.reads[i]
        for k in live
        for i in nodes[k].inputs
        if i not in live and not is_free(nodes[i])
    }
    live -= silent
    alone = {k for k in live if is_apart(nodes[k], apart)}
    time = _times(program, live, alone, fuse)
    operands = _operands(program, live, alone)
    steps = _steps(program, live, time, alone, operands, fuse)
    local = (_crossing(program, live, steps) | operands) - set(homes)
    return TaskProgram(stage, program, reads, homes, frozenset(local), steps)


def _live(program: Program, stage: Stage, effects: list[int]) -> set[int]:
    """Collect the nodes of this stage that its effects need, and the leaves they read."""
    live: set[int] = set()
    stack = list(effects)
    while stack:
        k = stack.pop()
        if k not in live:
            live.add(k)
            for i in program.nodes[k].inputs:
                if program.nodes[i].stage == stage or is_free(program.nodes[i]):
                    stack.append(i)
    return live


def _times(program: Program, live: set[int], apart: set[int], fuse: bool) -> dict[int, int]:
    """Return the number of the group of each node; a product of time t runs after group t."""
    order = sorted(live)
    time: dict[int, int] = {}
    readers: dict[int, list[int]] = {k: [] for k in order}
    for k in order:
        time[k] = 0
        for i in program.nodes[k].inputs:
            if i in live:
                time[k] = max(time[k], time[i] + _gap(program, apart, i, k, fuse))
                readers[i].append(k)
    for k in reversed(order):
        if readers[k] and k not in apart:
            time[k] = min(time[r] - _gap(program, apart, k, r, fuse) for r in readers[k])
    return time


def _gap(program: Program, apart: set[int], source: int, reader: int, fuse: bool) -> int:
    """Return 1 where a reader must be in a later group than its source."""
    made, reads = OPS[program.nodes[source].op].role, OPS[program.nodes[reader].op].role
    if source in apart or reads == "segment":
        return 1
    return 0 if fuse or made == "leaf" or reader in apart or reads == "effect" else 1


def _operands(program: Program, live: set[int], apart: set[int]) -> set[int]:
    """List the values that products read and that no earlier stage has put into memory."""
    found: set[int] = set()
    for k in apart:
        node = program.nodes[k]
        found |= {node.inputs[position] for position in operand_positions(node)} & live
    return found


def _steps(
    program: Program,
    live: set[int],
    time: dict[int, int],
    products: set[int],
    operands: set[int],
    fuse: bool,
) -> tuple[Group | Product, ...]:
    steps: list[Group | Product] = []
    for t in range(max(time.values(), default=-1) + 1):
        members = [k for k in sorted(live) if time[k] == t and k not in products]
        for domain in (Domain.VERTEX, Domain.EDGE):
            nodes = {k for k in members if _domain(program, k) == domain}
            work = [k for k in sorted(nodes) if k in operands or not is_free(program.nodes[k])]
            for together in [set(work)] if fuse and work else [{k} for k in work]:
                together |= _leaves(program, together, operands)
                steps.append(Group(domain, tuple(sorted(together))))
        steps.extend(Product(k) for k in sorted(products) if time[k] == t)
    return tuple(steps)


def _leaves(program: Program, nodes: set[int], operands: set[int]) -> set[int]:
    """List the leaves that nodes read where they stand, whatever the leaves' own domain."""
    read = {i for k in nodes for i in program.nodes[k].inputs}
    return {i for i in read - operands if is_free(program.nodes[i])}


def _domain(program: Program, k: int) -> Domain:
    """Return which loop a node belongs to: that of its rows, or of the rows that it adds up."""
    node = program.nodes[k]
    if node.op in ("sum_rows", "embed_grad"):
        return _domain(program, node.inputs[-1])
    return max(Domain.VERTEX, node.type.domain)


def _crossing(program: Program, live: set[int], steps: tuple[Group | Product, ...]) -> set[int]:
    """Find the values that a temporary must hold, since another step reads them."""
    step_of: dict[int, int] = {}
    for s, step in enumerate(steps):
        for k in step.nodes if isinstance(step, Group) else (step.node,):
            step_of[k] = s
    return {
        i
        for k in live
        for i in program.nodes[k].inputs
        if i in live and not is_free(program.nodes[i]) and step_of[i] != step_of[k]
    }
