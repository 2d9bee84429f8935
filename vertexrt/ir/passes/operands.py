"""Operands: what all vertices share becomes a row a vertex where a product reads it as rows.

A parameter or constant has no rows: other nodes read it where it stands, per vertex or per edge.
A product, or a sum over rows that a backend does alone, needs rows in memory, so it gets a copy of
its own, a concat of one part, whose rows are vertices for all readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.rewrite import Rewriter, rewrite
from vertexrt.ir.program import Domain, Node, Program, Type, attributes


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
