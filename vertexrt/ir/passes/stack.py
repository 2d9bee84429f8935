"""Stack products: one GEMM where several share an operand.

`stack_parameters` joins products of one vector with several parameters (the gates of a GRU declared
apart); the stacked matrix becomes THE storage, each parameter a view of its rows. `stack_rows`
joins products of one parameter with several vectors (a forget gate for each child): the vectors
become rows of one operand, and the two gradients of such products become one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from vertexrt.ir.passes.rewrite import drop_dead
from vertexrt.ir.program import Domain, Node, Program, Stage, Type, attributes, longest_chains


def stack_parameters(program: Program) -> Program:
    """Join products of one operand with several parameters, in a placed forward program.

    A parameter joins one stack at most, and none if it is looked up in (its gradient is sparse).
    Frozen parameters join others that are frozen.
    Functions of a network that share the parameters of a stack share the stack.
    """
    while found := _shared_operand(program):
        names = tuple(found)
        program = _join_parameters(program, list(found.values()), names)
        if names not in program.stacks:
            frozen = program.frozen & {names[0]} and {"+".join(names)}
            program = replace(
                program, stacks=(*program.stacks, names), frozen=program.frozen | frozen
            )
    nodes = [replace(n, stage=Stage.PATH) for n in program.nodes]  # to be placed anew with dF
    return program.with_nodes(nodes)


def _shared_operand(program: Program) -> dict[str, int]:
    """Find parameters, not stacked yet, that multiply one vector: name -> the product."""
    operands = _by_operand(program)
    several = [names for names in program.stacks if len(names) > 1]
    for weights, names in itertools.product(operands, several):
        if weights.keys() >= {*names}:
            return {name: weights[name] for name in names}
    stacked = {*itertools.chain(*program.stacks), *map("+".join, program.stacks)}
    free = [{n: k for n, k in each.items() if n not in stacked} for each in operands]
    return next((weights for weights in free if len(weights) > 1), {})


def _by_operand(program: Program) -> list[dict[str, int]]:
    """List, for each vector that is multiplied, parameters with their products."""
    nodes = program.nodes
    looked_up = {nodes[n.inputs[0]]["name"] for n in nodes if n.op == "embed"}
    found: dict[Hashable, dict[str, int]] = defaultdict(dict)
    for k, node in enumerate(nodes):
        # With an operand of several rows, gates and rows would interleave.
        if _multiplies_vectors(node) and not node["transpose"]:
            name = nodes[node.inputs[0]]["name"]
            if name not in looked_up:
                key = node.inputs[1], node.stage, name in program.frozen
                found[key].setdefault(name, k)
    return list(found.values())


def _multiplies_vectors(node: Node) -> bool:
    return node.op == "matmul" and len(node.type.shape) == 1


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
    draft = _Draft(program)
    at = draft.add(weight)
    type_ = replace(first.type, shape=(shape[0],))
    return draft.sliced(members, replace(first, inputs=(at, operand), type=type_))


def stack_rows(
    program: Program, stages: Sequence[Stage], origin: Callable[[Hashable], int]
) -> Program:
    """Join products of one parameter with several vectors, and the gradients of such products.

    Args:
        program: the program of one kind.
        stages: which stages to look at.
        origin: gives each new tensor its number, equal for equal parts.
    """
    for find, join in ((_same_weight, _join_products), (_same_gradient, _join_gradients)):
        while groups := find(program, stages):
            program = join(program, groups[0], origin)
    return program


def _same_weight(program: Program, stages: Sequence[Stage]) -> list[list[int]]:
    """Group independent products of one parameter.

    Autodiff goes backwards, so the products of dF come in the reverse order of those of F; turned
    round, their operands make the same rows, and rows that F has stacked need not be stacked again.
    """
    nodes = program.nodes
    # Products with as many others below them are independent.
    level = longest_chains(nodes, lambda k: nodes[k].op == "matmul")
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for k, node in enumerate(nodes):
        if node.stage not in stages or not _multiplies_vectors(node):
            continue
        if nodes[node.inputs[1]].type.domain != Domain.PARAM:
            key = (node.inputs[0], node["transpose"], node.stage, node.type.domain, level[k])
            groups[key].append(k)
    return [
        members[::-1] if nodes[members[0]]["transpose"] else members
        for members in groups.values()
        if len(members) > 1
    ]


def _same_gradient(program: Program, stages: Sequence[Stage]) -> list[list[int]]:
    """Group outer products, of one vector each, that add to the gradient of one parameter."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    readers = program.consumers()
    for node in program.nodes:
        if node.op != "param_grad" or node.stage not in stages:
            continue
        (k,) = node.inputs
        made = program.nodes[k]
        # Equal gradients of two uses were merged: such a one counts twice.
        if made.op == "outer" and len(readers[k]) == 1:
            d, x = (program.nodes[i].type for i in made.inputs)
            if len(d.shape) == len(x.shape) == 1 and d.domain == x.domain:
                groups[node["name"], made.stage, d.domain].append(k)
    return [members[::-1] for members in groups.values() if len(members) > 1]


def _join_products(
    program: Program, members: list[int], origin: Callable[[Hashable], int]
) -> Program:
    """Make one product of several: each is a slice of it."""
    nodes = program.nodes
    first = nodes[members[0]]
    draft = _Draft(program)
    operand = _rows(draft, [nodes[k].inputs[1] for k in members], first, origin)
    whole = replace(
        first,
        inputs=(first.inputs[0], operand),
        type=replace(first.type, shape=(len(members), first.type.size)),
        origin=origin(("product", tuple(nodes[k].origin for k in members))),
    )
    return draft.sliced(members, whole)


def _join_gradients(
    program: Program, members: list[int], origin: Callable[[Hashable], int]
) -> Program:
    """Make one outer product of several, and keep the first of the effects that take them."""
    nodes = program.nodes
    first = nodes[members[0]]
    draft = _Draft(program)
    d, x = (
        _rows(draft, [nodes[k].inputs[side] for k in members], first, origin) for side in (0, 1)
    )
    draft.instead[members[0]] = draft.add(replace(first, inputs=(d, x)))
    for k, node in enumerate(nodes):
        if node.op == "param_grad" and node.inputs[0] in members[1:]:
            draft.gone.add(k)
    return draft.finished()


def _rows(draft: _Draft, sources: list[int], like: Node, origin: Callable[[Hashable], int]) -> int:
    """Find or make the concatenation of some vectors as rows of one value."""
    parts = [draft.nodes[i] for i in sources]
    shape = (len(sources), parts[0].type.size)
    made = replace(
        like,
        op="concat",
        inputs=tuple(sources),
        type=Type(shape, "float", max(p.type.domain for p in parts)),
        attrs=attributes({"shape": shape}),
    )
    for k, node in enumerate(draft.nodes):
        same = (node.op, node.inputs, node.attrs) == (made.op, made.inputs, made.attrs)
        if same and node.stage <= made.stage:
            return k
    key = ("rows", tuple((p.origin, p.attrs if p.op == "const" else ()) for p in parts))
    return draft.add(replace(made, origin=origin(key)))


class _Draft:
    """Nodes in any order, and which positions others now stand for."""

    def __init__(self, program: Program) -> None:
        self.program, self.nodes = program, list(program.nodes)
        self.instead: dict[int, int] = {}  # what stands for a node
        self.gone: set[int] = set()  # effects that are dropped

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def sliced(self, members: list[int], joined: Node) -> Program:
        """Add a joined product: members become their own parts of it, under their own origins."""
        whole, start = self.add(joined), 0
        for k in members:
            node = self.nodes[k]
            made = attributes({"start": start, "shape": node.type.shape})
            part = replace(node, op="slice", inputs=(whole,), attrs=made)
            self.instead[k] = self.add(part)
            start += node.type.size
        return self.finished()

    def finished(self) -> Program:
        """Redirect readers, sort by dependence (otherwise in the old order), drop what is dead."""
        nodes = [n.moved(tuple(self.instead.get(i, i) for i in n.inputs)) for n in self.nodes]
        placed: dict[int, int] = {}  # position -> its new number
        stack = sorted({*range(len(nodes))} - self.gone - self.instead.keys(), reverse=True)
        while stack:
            waiting = [i for i in nodes[stack[-1]].inputs if i not in placed]
            if waiting:
                stack.extend(waiting)
            else:
                placed.setdefault(stack.pop(), len(placed))
        final = [nodes[k].moved(tuple(placed[i] for i in nodes[k].inputs)) for k in placed]
        return drop_dead(self.program.with_nodes(final))
