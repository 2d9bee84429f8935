"""Verify programs: every rule that a pass may not break, with the offending node in the error."""

from __future__ import annotations

from vertexrt.errors import PlanError, message
from vertexrt.ir.builder import ShapeError
from vertexrt.ir.ops import OPS
from vertexrt.ir.pretty import format_node
from vertexrt.ir.program import Program


def verify(program: Program, where: str = "verify", placed: bool = False) -> Program:
    """Check a program and return it.

    Checks: known op, arity, operands defined before use, types equal to the shape rule's, each
    stage reads only its own and earlier ones, one scatter a field and one push a name, in each
    function.

    Args:
        where: the pass that made the program, for the message.
        placed: stages are final, so check their order too.
    Raises: PlanError with the node and its neighbours.
    """
    seen: set[tuple[int, str, str]] = set()
    for k, node in enumerate(program.nodes):
        fault = _fault(program, k, placed)
        if node.op in ("scatter", "push"):
            name = node["field"] if node.op == "scatter" else node["name"]
            key = (node.function, node.op, name)
            fault = fault or (f"a second {node.op} of {name!r}" if key in seen else None)
            seen.add(key)
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
    """Return what is wrong with a node; None, if nothing is."""
    node = program.nodes[k]
    row = OPS.get(node.op)
    if row is None:
        return f"unknown op {node.op!r}"
    if len(node.inputs) != row.arity >= 0:
        return f"{len(node.inputs)} operands, the op takes {row.arity}"
    if any(not 0 <= i < k for i in node.inputs):
        return f"reads {node.inputs}, defined later or nowhere"
    sources = [program.nodes[i] for i in node.inputs]
    if placed and any(s.stage > node.stage for s in sources):
        return f"runs in stage {node.stage.name} and reads a later one"
    types = [s.type for s in sources]
    if any(t.dtype == "none" for t in types):
        return "reads an effect"
    try:
        expected = row.shape(types, dict(node.attrs))
    except ShapeError as error:
        return f"operands {[str(t) for t in types]}; expected {error}"
    if (expected.shape, expected.dtype) != (node.type.shape, node.type.dtype):
        return f"has type {node.type}, its shape rule gives {expected}"
    return None
