"""Fuse: cut the nodes of one stage of one kind into as few kernels as dependence allows.

What ends a group is a product (it needs all rows of its operand) or a change between vertices and
edges. Groups are numbered by how many of these lie on the longest path from the inputs, which
makes every group convex: a path that leaves a group only reaches higher numbers. A node sits as
late as its first reader allows, so that loads are not held over a product.

Source: Cavs section 3.4 (fusion of elementwise operators); row reductions, gather and scatter join
the groups here, since a group works row by row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace

from vertexrt.ir.layers import Phase, phase_of
from vertexrt.ir.ops import OPS, SUMS_OF_ROWS
from vertexrt.ir.passes.rewrite import Rewriter, rewrite
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key, Read, Stored, is_free
from vertexrt.ir.program import Domain, Node, Program, Stage, Type, attributes


def is_apart(node: Node, apart: Collection[str] = ()) -> bool:
    """Tell whether a node is a step of its own: it needs all rows of its operands."""
    return OPS[node.op].role == "product" or node.op in apart


def operand_positions(node: Node) -> range:
    """Return which inputs of a step of its own are rows: not a parameter, and not an index."""
    return range(1 if node.op in ("matmul", "embed_grad") else 0, len(node.inputs))


def children_read(program: Program, k: int) -> tuple[str, int] | None:
    """Return the state of which a value is that of all children, in the order of the slots.

    Returns: the state's name and its elements; None for other values.
    """
    node, nodes = program.nodes[k], program.nodes
    parts = [nodes[i] for i in node.inputs] if node.op == "concat" else [node]
    if program.sites or any(part.op != "gather" for part in parts):
        return None
    read = [(part["field"], part["slot"]) for part in parts]
    wanted = [(parts[0]["field"], slot) for slot in range(len(parts))]
    whole = (read, len(parts)) == (wanted, program.arity)
    return (parts[0]["field"], parts[0].type.size) if whole else None


def copy_operands(
    program: Program, apart: Collection[str], origin: Callable[[Hashable], int]
) -> Program:
    """Give every product of a parameter or a constant a copy of it, one a stage.

    Args:
        program: of one kind, placed.
        apart: ops besides products that the backend runs over all rows at once.
        origin: gives each copy its number, equal for equal ones.
    """

    def rule(out: Rewriter, node: Node) -> int | None:
        if not is_apart(node, apart):
            return None
        inputs = list(node.inputs)
        for position in operand_positions(node):
            source = out.nodes[inputs[position]]
            if source.type.domain == Domain.PARAM and OPS[source.op].role == "leaf":
                copy = replace(
                    node,
                    op="concat",
                    inputs=(inputs[position],),
                    type=Type(source.type.shape, "float", Domain.VERTEX),
                    attrs=attributes({"shape": source.type.shape}),
                    where=source.where,
                    origin=origin(("copy", source.op, source.attrs, node.stage)),
                )
                inputs[position] = out.append(copy)
        return out.append(node.moved(tuple(inputs)))

    return rewrite(program, rule)


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes computed together, row by row, in one domain."""

    domain: Domain
    nodes: tuple[int, ...]  # in an order in which they may run, effects among them


@dataclass(frozen=True, slots=True)
class Product:
    """One GEMM over all rows of the task, or another sum over rows that a backend does alone."""

    node: int

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return its node, as a group returns its nodes."""
        return (self.node,)


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

    @property
    def members(self) -> list[int]:
        """Return the nodes of all steps in the order in which they run."""
        return [k for step in self.steps for k in step.nodes]

    @property
    def phase(self) -> Phase:
        """Return when it runs."""
        program = self.program
        return phase_of(program, self.stage, program.layer_of(program.nodes[0].function))


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
    homes, done = _made_in_place(nodes, effects)
    live: set[int] = set()  # what the effects need of this stage, and the leaves that it reads
    stack = list(effects)
    while stack:
        k = stack.pop()
        if k not in live:
            live.add(k)
            stack += (i for i in nodes[k].inputs if nodes[i].stage == stage or is_free(nodes[i]))
    # Read from memory; leaves are read where they are used.
    given = (i for k in live for i in nodes[k].inputs if i not in live and not is_free(nodes[i]))
    reads = {i: stored.reads[i] for i in given}
    live -= done
    alone = {k for k in live if is_apart(nodes[k], apart)}
    # What products read and no earlier stage has put into memory.
    operands = {nodes[k].inputs[at] for k in alone for at in operand_positions(nodes[k])} & live
    steps = _steps(program, live, alone, operands, fuse)
    # A temporary must hold what another step reads.
    step_of = {k: s for s, step in enumerate(steps) for k in step.nodes}
    crossing = {
        i
        for k in live
        for i in nodes[k].inputs
        if i in live and not is_free(nodes[i]) and step_of[i] != step_of[k]
    }
    local = (crossing | operands) - set(homes)
    return TaskProgram(stage, program, reads, homes, frozenset(local), steps)


def _made_in_place(nodes: Sequence[Node], effects: list[int]) -> tuple[dict[int, Key], set[int]]:
    """Find the values that are made where an effect wants them.

    Returns: position of such a value -> its tensor; the effects that have nothing left to do. What
        `param_grad` reads adds to the gradient while it sums over the rows.
    """
    homes: dict[int, Key] = {}
    done: set[int] = set()
    for k in effects:
        effect, (i,) = nodes[k], nodes[k].inputs
        if effect.op == "param_grad":
            done.add(k)
        elif effect.op in TENSOR_OF_EFFECT and not is_free(nodes[i]):
            key = TENSOR_OF_EFFECT[effect.op](effect)
            if nodes[i].stage == effect.stage and homes.setdefault(i, key) == key:
                done.add(k)
    return homes, done


def _steps(
    program: Program, live: set[int], products: set[int], operands: set[int], fuse: bool
) -> tuple[Group | Product, ...]:
    """Order the steps by time: groups of vertices, groups of edges, and then products."""
    nodes = program.nodes

    def gap(source: int, reader: int) -> int:
        """Return 1 where a reader must be in a later group than its source."""
        made, reads = OPS[nodes[source].op].role, OPS[nodes[reader].op].role
        if source in products or reads == "segment":
            return 1
        return 0 if fuse or made == "leaf" or reader in products or reads == "effect" else 1

    order = sorted(live)
    time: dict[int, int] = {}  # the number of each one's group; a product runs after its group
    readers: dict[int, list[int]] = {k: [] for k in order}
    for k in order:
        sources = [i for i in nodes[k].inputs if i in live]
        time[k] = max((time[i] + gap(i, k) for i in sources), default=0)
        for i in sources:
            readers[i].append(k)
    for k in reversed(order):
        if readers[k] and k not in products:
            time[k] = min(time[r] - gap(k, r) for r in readers[k])
    groups: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for k in live - products:
        if k in operands or not is_free(nodes[k]):
            groups[time[k], _domain(program, k), -1 if fuse else k].add(k)
    steps: dict[tuple[int, int, int], Group | Product] = {
        (time[k], len(Domain), k): Product(k) for k in products
    }
    for key, members in groups.items():
        # Leaves are read where they stand, whatever their own domain.
        read = {i for k in members for i in nodes[k].inputs}
        members |= {i for i in read - operands if is_free(nodes[i])}
        steps[key] = Group(Domain(key[1]), tuple(sorted(members)))
    return tuple(steps[key] for key in sorted(steps))


def _domain(program: Program, k: int) -> Domain:
    """Return which loop a node belongs to: that of its rows, or of the rows that it adds up."""
    node = program.nodes[k]
    if node.op in SUMS_OF_ROWS:
        return _domain(program, node.inputs[-1])
    return max(Domain.VERTEX, node.type.domain)
