"""What a task program reads and writes: tensors, their rows, parameters; and which do the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from vertexrt.ir.passes.fuse import Group, TaskProgram, children_read
from vertexrt.ir.passes.store import TENSOR_OF_EFFECT, Key
from vertexrt.ir.program import Domain, Node, Stage

# Whose rows of a tensor, or edges, a launch reads: those of its own vertices, and of others.
OWN, CHILDREN, PARENTS = 1, 2, 4


def gradients_of(program: TaskProgram, position: int) -> list[str]:
    """Name the parameters whose gradient a summed value adds to."""
    nodes = program.program.nodes
    return [n["name"] for n in nodes if n.op == "param_grad" and n.inputs[0] == position]


def gradient_owners(params: Mapping[str, int]) -> dict[int, int]:
    """Return whose memory each gradient is a part of: the stack's of a parameter that is in one.

    Args:
        params: of `Binding`; the name of a stack is its members', with + between them.
    """
    owners = {number: number for number in params.values()}
    for name, number in params.items():
        for member in name.split("+"):
            owners[params[member]] = number if "+" in name else owners[params[member]]
    return owners


def edge_key(field: str, every: bool) -> Key:
    """Name the tensor of gradients that parents leave on their edges."""
    return ("edge", field, "every" if every else "slot")


def tensor_uses(program: TaskProgram) -> Iterator[tuple[Key, int, bool, bool]]:
    """Yield the tensors a task program touches: key, elements a row, rows are edges, written."""
    nodes = program.program.nodes
    for position, read in program.reads.items():
        yield read.key, read.width, nodes[position].type.domain == Domain.EDGE, False
        if states := children_read(program.program, position):  # which may be read instead
            yield ("state", states[0]), states[1], False, False
    for position, key in program.homes.items():
        made = nodes[position].type
        yield key, made.size, made.domain == Domain.EDGE, True
    for k in program.members:
        node = nodes[k]
        if node.op in TENSOR_OF_EFFECT:
            source = nodes[node.inputs[0]]
            edges = per_edge(node, source)
            yield TENSOR_OF_EFFECT[node.op](node), stored_size(node, source), edges, True
        elif node.op in ("gather", "gather_all"):
            yield ("state", node["field"]), node.type.size, False, False
        elif node.op in ("scatter_child", "scatter_children"):
            size = stored_size(node, nodes[node.inputs[0]])
            yield edge_key(node["field"], node["every"]), size, True, True
        elif node.op == "gather_parents":
            for every in (False, True):
                if node["every" if every else "slots"]:
                    yield edge_key(node["field"], every), node.type.size, True, False


def rows_read(key: Key) -> int:
    """Return whose rows of a tensor a launch may read: bits of OWN, CHILDREN and PARENTS."""
    return {"state": OWN | CHILDREN, "edge": OWN | PARENTS}.get(str(key[0]), OWN)


def per_edge(effect: Node, source: Node) -> bool:
    """Tell whether an effect writes a row per edge (its value may have become a constant)."""
    return Domain.EDGE in (effect.type.domain, source.type.domain)


def stored_size(effect: Node, source: Node) -> int:
    """Return the elements a row of what an effect writes (a constant may be a bare scalar)."""
    if effect.has("shape"):
        return int(math.prod(effect["shape"]))
    return source.type.size


def uses_edges(program: TaskProgram) -> bool:
    """Tell whether a task program makes or reads values per edge: its rows must be contiguous."""
    nodes = program.program.nodes
    seen = {i for k in program.members for i in (k, *nodes[k].inputs)}
    return any(nodes[i].type.domain == Domain.EDGE for i in seen)


def by_rows(stage: Stage) -> bool:
    """Tell whether a stage runs over lists of rows, not over slices that are tasks."""
    return stage not in (Stage.PATH, Stage.PATH_BACKWARD)


def fingerprint(program: TaskProgram) -> str:
    """Return a text that is equal for task programs of one phase that do the same work."""
    nodes = program.program.nodes
    order = program.members
    number = {k: i for i, k in enumerate(order)}

    def name(i: int) -> str:
        return f"%{number[i]}" if i in number else f"@{program.reads.get(i, nodes[i].attrs)}"

    lines = [program.phase.name]
    for step in program.steps:
        lines.append(f"group {step.domain.name}" if isinstance(step, Group) else "product")
        for k in step.nodes:
            node = nodes[k]
            place = program.homes.get(k, "local" if k in program.local else "")
            grads = gradients_of(program, k)
            inputs = [name(i) for i in node.inputs]
            lines.append(f"{node.op} {inputs} {node.attrs} {node.type} {place} {grads}")
    return "\n".join(lines)
