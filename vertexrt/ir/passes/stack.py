"""Stack products: one GEMM where several share an operand.

`stack_parameters` joins products of one vector with several parameters (the gates of a GRU declared
apart); the stacked matrix becomes THE storage, each parameter a view of its rows. `stack_rows`
joins products of one parameter with several vectors (a forget gate for each child): the vectors
become rows of one operand, and the two gradients of such products become one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace

from vertexrt.ir.passes.rewrite import drop_dead
from vertexrt.ir.program import Domain, Node, Program, Stage, Type, attributes


def stack_parameters(program: Program) -> Program:
    """Join products of one operand with several parameters, in a placed forward program.

    A parameter joins one stack at most, and none if it is looked up in (its gradient is sparse).
    """
    stacked: set[str] = set()
    while found := _shared_operand(program, stacked):
        stacked.update(found)
        program = _join_parameters(program, list(found.values()), tuple(found))
        program = replace(program, stacks=(*program.stacks, tuple(found)))
    nodes = [replace(n, stage=Stage.PATH) for n in program.nodes]  # to be placed anew with dF
    return program.with_nodes(nodes)


def _shared_operand(program: Program, stacked: Collection[str]) -> dict[str, int]:
    """Find parameters, not stacked yet, that multiply one vector: name -> the product."""
    nodes = program.nodes
    tables = {nodes[n.inputs[0]]["name"] for n in nodes if n.op == "embed"}
    groups: dict[Hashable, dict[str, int]] = defaultdict(dict)
    for k, node in enumerate(nodes):
        # With an operand of several rows, gates and rows would interleave.
        if node.op == "matmul" and not node["transpose"] and len(node.type.shape) == 1:
            name = nodes[node.inputs[0]]["name"]
            if name not in stacked and name not in tables:
                groups[node.inputs[1], node.stage].setdefault(name, k)
    return next((weights for weights in groups.values() if len(weights) > 1), {})


def _join_parameters(program: Program, members: list[int], names: tuple[str, ...]) -> Program:
    nodes = program.nodes
    first = nodes[members[0]]
    operand = first.inputs[1]
    rows = [nodes[nodes[k].inputs[0]].type.shape[0] for k in members]
    columns = nodes[first.inputs[0]].type.shape[1]
    shape = (sum(rows), columns)
    weight = replace(
        nodes[first.inputs[0]],
        type=Type(shape, "float", Domain.PARAM),
        attrs=attributes({"name": "+".join(names), "shape": shape}),
    )
    draft = _Draft(list(nodes))
    at = draft.add(weight)
    type_ = replace(first.type, shape=(shape[0],))
    whole = draft.add(replace(first, inputs=(at, operand), type=type_))
    start = 0
    for k, n in zip(members, rows, strict=True):
        node = nodes[k]
        part = draft.add(_slice(node, whole, start))
        draft.stand_for(k, part)
        start += n
    return draft.program(program)


def stack_rows(
    program: Program, stages: Sequence[Stage], origin: Callable[[Hashable], int]
) -> Program:
    """Join products of one parameter with several vectors, and the gradients of such products.

    Args:
        program: the program of one kind.
        stages: which stages to look at.
        origin: gives each new tensor its number, equal for equal parts.
    """
    for find in (_same_weight, _same_gradient):
        while groups := find(program, stages):
            program = _join_rows(program, groups[0], origin)
    return program


def _same_weight(program: Program, stages: Sequence[Stage]) -> list[list[int]]:
    """Group independent products of one parameter.

    Autodiff goes backwards, so the products of dF come in the reverse order of those of F; turned
    round, their operands make the same rows, and rows that F has stacked need not be stacked again.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for k, node in enumerate(program.nodes):
        if node.op == "matmul" and node.stage in stages and len(node.type.shape) == 1:
            if program.nodes[node.inputs[1]].type.domain == Domain.PARAM:
                continue
            level = _products_below(program, k)
            key = (node.inputs[0], node["transpose"], node.stage, node.type.domain, level)
            groups[key].append(k)
    return [
        members[::-1] if program.nodes[members[0]]["transpose"] else members
        for members in groups.values()
        if len(members) > 1
    ]


def _same_gradient(program: Program, stages: Sequence[Stage]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    readers = program.consumers()
    for node in program.nodes:
        if node.op != "param_grad" or node.stage not in stages:
            continue
        k = node.inputs[0]
        if len(readers[k]) > 1:
            continue  # equal gradients of two uses, merged: this one counts twice
        made = program.nodes[k]
        if made.op == "outer":
            d, x = (program.nodes[i] for i in made.inputs)
            if len(d.type.shape) == len(x.type.shape) == 1 and d.type.domain == x.type.domain:
                groups[node["name"], made.stage, d.type.domain].append(k)
    return [members[::-1] for members in groups.values() if len(members) > 1]


def _products_below(program: Program, index: int) -> int:
    """Count the products on the longest chain under a node: equal counts are independent."""
    depth: dict[int, int] = {}
    for k in range(index):
        node = program.nodes[k]
        below = max((depth[i] for i in node.inputs), default=0)
        depth[k] = below + (node.op == "matmul")
    return max((depth[i] for i in program.nodes[index].inputs), default=0)


def _join_rows(program: Program, members: list[int], origin: Callable[[Hashable], int]) -> Program:
    nodes = program.nodes
    first = nodes[members[0]]
    draft = _Draft(list(nodes))

    def rows_of(sources: list[int]) -> int:
        return _rows(draft, sources, first, origin)

    if first.op == "matmul":
        operand = rows_of([nodes[k].inputs[1] for k in members])
        shape = (len(members), first.type.size)
        whole = draft.add(
            replace(
                first,
                inputs=(first.inputs[0], operand),
                type=replace(first.type, shape=shape),
                origin=origin(("product", tuple(nodes[k].origin for k in members))),
            )
        )
        for m, k in enumerate(members):
            draft.stand_for(k, draft.add(_slice(nodes[k], whole, m * first.type.size)))
    else:
        d = rows_of([nodes[k].inputs[0] for k in members])
        x = rows_of([nodes[k].inputs[1] for k in members])
        draft.stand_for(members[0], draft.add(replace(first, inputs=(d, x))))
        gone = {
            k for k, n in enumerate(nodes) if n.op == "param_grad" and n.inputs[0] in members[1:]
        }
        return draft.program(program, gone)
    return draft.program(program)


def _rows(draft: _Draft, sources: list[int], like: Node, origin: Callable[[Hashable], int]) -> int:
    """Find or make the concatenation of some vectors as rows of one value."""
    parts = [draft.nodes[i] for i in sources]
    shape = (len(sources), parts[0].type.size)
    domain = max(p.type.domain for p in parts)
    stage = like.stage
    for k, node in enumerate(draft.nodes):
        same = node.op == "concat" and node.inputs == tuple(sources) and node.type.shape == shape
        if same and node.stage <= stage:
            return k
    key = ("rows", tuple((p.origin, p.attrs if p.op == "const" else ()) for p in parts))
    made = Node(
        "concat",
        tuple(sources),
        Type(shape, "float", domain),
        attributes({"shape": shape}),
        like.where,
        stage,
        origin(key),
    )
    return draft.add(made)


def _slice(node: Node, whole: int, start: int) -> Node:
    """Stand for a joined product: its own part of the whole, under its own origin."""
    made = attributes({"start": start, "shape": node.type.shape})
    return replace(node, op="slice", inputs=(whole,), attrs=made)


@dataclass
class _Draft:
    """Nodes in any order, and which positions others now stand for."""

    nodes: list[Node]

    def __post_init__(self) -> None:
        self._instead: dict[int, int] = {}

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def stand_for(self, old: int, new: int) -> None:
        self._instead[old] = new

    def program(self, program: Program, gone: set[int] | None = None) -> Program:
        """Redirect readers, sort by dependence (otherwise in the old order), drop what is dead."""
        nodes = [n.moved(tuple(self._instead.get(i, i) for i in n.inputs)) for n in self.nodes]
        placed: dict[int, int] = {}
        order: list[int] = []

        def visit(k: int) -> None:
            stack = [k]
            while stack:
                top = stack[-1]
                waiting = [i for i in nodes[top].inputs if i not in placed]
                if waiting:
                    stack.extend(waiting)
                    continue
                stack.pop()
                if top not in placed:
                    placed[top] = len(order)
                    order.append(top)

        for k in range(len(nodes)):
            if not (gone and k in gone) and k not in self._instead:
                visit(k)
        final = [nodes[k].moved(tuple(placed[i] for i in nodes[k].inputs)) for k in order]
        return drop_dead(program.with_nodes(final))
