"""Simplify: fold constants, propagate zeros, merge views. Zeros are what specialisation creates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.rewrite import Rewriter, rewrite
from vertexrt.ir.program import Domain, Node, Program
from vertexrt.ir.scalar import evaluate

# Ops that are zero as soon as the operand at this position is.
ZERO_IF_ZERO = {
    "matmul": (1,),
    "outer": (0, 1),
    "sum_rows": (0,),
    "embed_grad": (1,),
    "nll_grad": (3,),
    "mul": (0, 1),
    "div": (0,),
    "neg": (0,),
    "slice": (0,),
    "spread": (0,),
    "to_edges": (0,),
    "segment_sum": (0,),
    "segment_max": (0,),
    "reduce_sum": (0,),
    "reduce_max": (0,),
    "dropout": (0,),
}


def simplify(program: Program) -> Program:
    """Return an equal program with fewer nodes: constants folded, equal nodes merged."""
    return rewrite(program, simplified)


def without_dropout(program: Program) -> Program:
    """Return the program as inference runs it: dropout passes its operand on."""
    return rewrite(program, lambda out, node: node.inputs[0] if node.op == "dropout" else None)


def simplified(out: Rewriter, node: Node) -> int | None:
    """Return the position of a simpler value equal to a node, or None (a rule for `rewrite`)."""
    for position in ZERO_IF_ZERO.get(node.op, ()):
        if out.is_zero(node.inputs[position]):
            return _zero(out, node)
    if OPS[node.op].role == "scalar":
        return _scalar(out, node)
    if node.op == "concat":
        return _concat(out, node)
    if node.op == "slice":
        return _slice(out, node)
    if node.op in ("spread", "to_edges"):
        return _spread(out, node)
    if node.op == "param_grad" and out.is_zero(node.inputs[0]):
        return node.inputs[0]  # nothing to add to a gradient
    return None


def _zero(out: Rewriter, node: Node) -> int:
    return out.const(node, 0.0)


Known = list[float | None]  # of each operand: its value, where it is a constant


def _scalar(out: Rewriter, node: Node) -> int | None:
    known = [out.constant_of(i) for i in node.inputs]
    if all(k is not None for k in known):
        expression = OPS[node.op].scalar
        assert expression is not None
        value = evaluate(expression, [k for k in known if k is not None])
        return None if value is None else out.const(node, value)
    rule = WITH_CONSTANTS.get(node.op)
    return rule(out, node, known) if rule is not None else None


def _add(out: Rewriter, node: Node, known: Known) -> int | None:
    for side in (0, 1):
        if known[side] == 0.0:
            return _as(out, node, node.inputs[1 - side])
    return _disjoint_sum(out, node)


def _sub(out: Rewriter, node: Node, known: Known) -> int | None:
    if known[1] == 0.0:
        return _as(out, node, node.inputs[0])
    if known[0] == 0.0 and out.nodes[node.inputs[1]].type.shape == node.type.shape:
        return out.derived(node, "neg", (node.inputs[1],), node.type)
    return None


def _mul(out: Rewriter, node: Node, known: Known) -> int | None:
    for side in (0, 1):
        if known[side] == 1.0:
            return _as(out, node, node.inputs[1 - side])
    return None


def _div(out: Rewriter, node: Node, known: Known) -> int | None:
    return _as(out, node, node.inputs[0]) if known[1] == 1.0 else None


def _where(out: Rewriter, node: Node, known: Known) -> int | None:
    if known[0] is None:
        return None
    return _as(out, node, node.inputs[1 if known[0] != 0.0 else 2])


# What an operand that is a constant makes of an op.
WITH_CONSTANTS: dict[str, Callable[[Rewriter, Node, Known], int | None]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "where": _where,
}


def _as(out: Rewriter, node: Node, source: int) -> int | None:
    """Return a value equal to `source` with the shape and domain of `node`."""
    found = out.nodes[source]
    if found.op == "const":
        return out.const(node, found["value"])
    if found.type.shape != node.type.shape:
        return out.derived(node, "spread", (source,), node.type, shape=node.type.shape)
    if found.type.domain == node.type.domain or found.type.domain == Domain.PARAM:
        return source
    return None


def _spread(out: Rewriter, node: Node) -> int | None:
    value = out.constant_of(node.inputs[0])
    if value is not None:
        return out.const(node, value)
    if node.op == "spread" and out.nodes[node.inputs[0]].type.shape == node.type.shape:
        return node.inputs[0]
    return None


def _disjoint_sum(out: Rewriter, node: Node) -> int | None:
    """Merge concat(a, 0) + concat(0, b) into concat(a, b), where their parts line up."""
    left, right = (out.nodes[i] for i in node.inputs)
    if left.op != "concat" or right.op != "concat" or left.type.shape != right.type.shape:
        return None
    a, b = _parts(out, left), _parts(out, right)
    taken: dict[int, tuple[int, int]] = {}  # start -> (part, size)
    for start, part, size in [*a, *b]:
        if not out.is_zero(part):
            taken[start] = (part, size) if start not in taken else (-1, size)
    end, inputs = 0, []
    for start in sorted(taken):
        part, size = taken[start]
        if part < 0 or start < end:
            return None  # two values on the same elements
        if start > end:
            inputs.append(_zeros(out, node, start - end))
        inputs.append(part)
        end = start + size
    if end < node.type.size:
        inputs.append(_zeros(out, node, node.type.size - end))
    return out.derived(node, "concat", tuple(inputs), node.type, shape=node.type.shape)


def _zeros(out: Rewriter, node: Node, size: int) -> int:
    return out.const(node, 0.0, replace(node.type, shape=(size,)))


def _parts(out: Rewriter, node: Node) -> list[tuple[int, int, int]]:
    parts, start = [], 0
    for i in node.inputs:
        size = out.nodes[i].type.size
        parts.append((start, i, size))
        start += size
    return parts


def _concat(out: Rewriter, node: Node) -> int | None:
    if len(node.inputs) == 1 and out.nodes[node.inputs[0]].type == node.type:
        return node.inputs[0]
    known = {out.constant_of(i) for i in node.inputs}
    if len(known) == 1 and None not in known:
        return out.const(node, known.pop() or 0.0)
    sources = [out.nodes[i] for i in node.inputs]
    if all(s.op == "slice" for s in sources) and len({s.inputs for s in sources}) == 1:
        whole = out.nodes[sources[0].inputs[0]]
        starts = [s["start"] for s in sources]
        sizes = [s.type.size for s in sources]
        joined = all(a + n == b for a, n, b in zip(starts, sizes, starts[1:], strict=False))
        if joined and starts[0] == 0 and whole.type == node.type:
            return sources[0].inputs[0]
    return None


def _slice(out: Rewriter, node: Node) -> int | None:
    source = out.nodes[node.inputs[0]]
    start, size = node["start"], node.type.size
    if source.type.shape == node.type.shape:
        return node.inputs[0]
    value = out.constant_of(node.inputs[0])
    if value is not None:
        return out.const(node, value)
    if source.op == "slice":
        moved = source["start"] + start
        return out.derived(
            node, "slice", source.inputs, node.type, start=moved, shape=node.type.shape
        )
    if source.op == "concat":
        for first, part, length in _parts(out, source):
            if first <= start and start + size <= first + length:
                if length == size and out.nodes[part].type.shape == node.type.shape:
                    return part
                if out.constant_of(part) is not None:
                    return out.const(node, out.constant_of(part) or 0.0)
                inner = start - first
                return out.derived(
                    node, "slice", (part,), node.type, start=inner, shape=node.type.shape
                )
    return None
