"""Fuse: cut the nodes of one stage of one kind into as few kernels as dependence allows.

What ends a group is a product (it needs all rows of its operand) or a change between vertices and
edges. Groups are numbered by how many of these lie on the longest path from the inputs, which
makes every group convex: a path that leaves a group only reaches higher numbers. A node sits as
late as its first reader allows, so that loads are not held over a product.

Source: Cavs section 3.5 (fusion of elementwise operators); row reductions, gather and scatter join
the groups here, since a group works row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.specialise import keep_effect
from vertexrt.ir.program import Domain, Node, Program, Stage

LAZY_STAGES = (Stage.LAZY, Stage.LAZY_BACKWARD)

Key = tuple[object, ...]  # names a tensor: ("state", "h"), ("value", 17), ("push", "loss"), ...


@dataclass(frozen=True, slots=True)
class Read:
    """Where a value of an earlier stage lies: some elements of each row of a tensor."""

    key: Key
    start: int
    width: int  # of the tensor's rows


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes computed together, row by row, in one domain."""

    domain: Domain
    nodes: tuple[int, ...]  # in an order in which they may run, effects among them


@dataclass(frozen=True, slots=True)
class Product:
    """One GEMM over all rows of the task, or another sum over rows that a backend does alone."""

    node: int


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


# Effects that put a value into a tensor, and the tensor's name.
TENSOR_OF_EFFECT: dict[str, Callable[[Node], Key]] = {
    "scatter": lambda n: ("state", n["field"]),
    "push": lambda n: ("push", n["name"]),
    "keep": lambda n: ("value", n["origin"]),
    "pull_grad": lambda n: ("pull_grad", n["name"]),
}


def is_free(node: Node) -> bool:
    """Tell whether a node is read where it is used, never stored: a leaf other than a sum."""
    return OPS[node.op].role == "leaf" and node.op != "gather_parents"


def own_tensor(program: Program, position: int) -> Read:
    """Name the tensor in which a value lies: its state, or one of its own."""
    made = program.nodes[position]
    size = max(made.type.size, 1)
    for node in program.nodes:
        if node.op == "scatter" and node.inputs[0] == position and node.stage == made.stage:
            return Read(TENSOR_OF_EFFECT["scatter"](node), 0, size)
    return Read(("value", made.origin), 0, size)


def read_from(program: Program, position: int, reader: Stage) -> Read:
    """Say where a later stage reads a value.

    A value that is a part of a stored concat (the gradient of one gate among those of all gates) is
    read from there, and not stored twice, unless a product wants its rows alone. Lazy stages know
    other facts and see other concats, so they always read the value's own tensor.
    """
    if reader not in LAZY_STAGES and not _read_alone(program, position):
        for whole in _concats_with(program, position):
            start = 0
            for i in program.nodes[whole].inputs:
                if i == position:
                    own = own_tensor(program, whole)
                    return Read(own.key, start, own.width)
                start += program.nodes[i].type.size
    return own_tensor(program, position)


def _read_alone(program: Program, position: int) -> bool:
    stage = program.nodes[position].stage
    return any(
        position in n.inputs and n.stage > stage and OPS[n.op].role in ("product", "effect")
        for n in program.nodes
    )


def _concats_with(program: Program, position: int) -> list[int]:
    """List the concats of a value that later path stages find in memory."""
    made = program.nodes[position]
    return [
        k
        for k, n in enumerate(program.nodes)
        if n.op == "concat"
        and n.stage == made.stage
        and position in n.inputs
        and any(
            k in r.inputs and r.stage > n.stage and r.stage not in LAZY_STAGES
            for r in program.nodes
        )
    ]


def keep_across_stages(program: Program) -> Program:
    """Add an effect `keep` for every value that a later stage reads from a tensor of its own."""
    kept = {n["origin"] for n in program.nodes if n.op == "keep"}
    nodes = list(program.nodes)
    readers = program.consumers()
    for position, node in enumerate(program.nodes):
        stages = {nodes[r].stage for r in readers[position]} - {node.stage}
        if not stages or is_free(node) or node.origin in kept:
            continue
        own = own_tensor(program, position)
        if own.key[0] != "state" and any(
            read_from(program, position, stage) == own for stage in stages
        ):
            nodes.append(keep_effect(position, node, node.origin))
    return program.with_nodes(nodes)


def cut(
    program: Program, stage: Stage, fuse: bool = True, apart: frozenset[str] = frozenset()
) -> TaskProgram | None:
    """Extract one stage of a kind's program and cut it into kernels.

    Args:
        program: of one kind, with `keep` effects.
        fuse: False makes a group of every node (the ablation's baseline).
        apart: ops besides products that the backend runs over all rows at once.
    Returns: None, when the kind has nothing to do in this stage.
    """
    nodes = program.nodes
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
        i: read_from(program, i, stage)
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


def is_apart(node: Node, apart: frozenset[str] = frozenset()) -> bool:
    """Tell whether a node is a step of its own: it needs all rows of its operands."""
    return OPS[node.op].role == "product" or node.op in apart


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
        beside = node.op in ("matmul", "embed_grad")  # a parameter, an index
        found |= set(node.inputs[1:] if beside else node.inputs) & live
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
