"""Verify programs: every rule that a pass may not break, with the offending node in the error."""

from __future__ import annotations

from vertexrt.errors import PlanError, message
from vertexrt.ir.ops import OPS
from vertexrt.ir.pretty import format_node
from vertexrt.ir.program import Program
from vertexrt.ir.shapes import ShapeError


def verify(program: Program, where: str = "verify", placed: bool = False) -> Program:
    """Check a program and return it.

    Checks: known op, arity, operands defined before use, types equal to the shape rule's, each
    stage reads only its own and earlier ones, one scatter a field and one push a name.

    Args:
        where: the pass that made the program, for the message.
        placed: stages are final, so check their order too.
    Raises: PlanError with the node and its neighbours.
    """
    seen: set[tuple[str, str]] = set()
    for k, node in enumerate(program.nodes):
        fault = _fault(program, k, placed)
        if node.op in ("scatter", "push"):
            name = (node.op, node["field"] if node.op == "scatter" else node["name"])
            fault = fault or (f"a second {name[0]} of {name[1]!r}" if name in seen else None)
            seen.add(name)
        if fault:
            near = range(max(0, k - 2), min(len(program.nodes), k + 3))
            lines = "\n".join(
                ("> " if i == k else "  ") + format_node(i, program.nodes[i], placed) for i in near
            )
            raise PlanError(
                message(where, f"node %{k}: {fault}", "a valid program", "report this as a bug")
                + f"\n{lines}"
            )
    return program


def _fault(program: Program, k: int, placed: bool) -> str | None:
    node = program.nodes[k]
    row = OPS.get(node.op)
    if row is None:
        return f"unknown op {node.op!r}"
    if row.arity >= 0 and len(node.inputs) != row.arity:
        return f"{len(node.inputs)} operands, the op takes {row.arity}"
    if any(not 0 <= i < k for i in node.inputs):
        return f"reads {node.inputs}, defined later or nowhere"
    sources = [program.nodes[i] for i in node.inputs]
    if any(s.type.dtype == "none" for s in sources):
        return "reads an effect"
    if placed and any(s.stage > node.stage for s in sources):
        return f"runs in stage {node.stage.name} and reads a later one"
    try:
        expected = row.shape([s.type for s in sources], dict(node.attrs))
    except ShapeError as error:
        return f"operands {[str(s.type) for s in sources]}; expected {error}"
    if (expected.shape, expected.dtype) != (node.type.shape, node.type.dtype):
        return f"has type {node.type}, its shape rule gives {expected}"
    return None
