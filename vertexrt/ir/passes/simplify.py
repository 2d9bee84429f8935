"""Simplify: fold constants, propagate zeros, merge views. Zeros are what specialisation creates."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from vertexrt.ir.expressions import evaluate
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.rewrite import Rewriter, rewrite
from vertexrt.ir.program import COPIED, Domain, Node, Program

# Ops that are zero as soon as the operand at this position is.
ZERO_IF_ZERO = {
    "matmul": (1,),
    "outer": (0, 1),
    "embed_grad": (1,),
    "nll_grad": (3,),
    "mul": (0, 1),
    **dict.fromkeys(("div", "neg", "slice", "spread", "to_edges", "dropout", "dropout_by"), (0,)),
    **dict.fromkeys(("repeat", "sum_repeated"), (0,)),
    **dict.fromkeys(("sum_rows", "reduce_sum", "reduce_max", "segment_sum", "segment_max"), (0,)),
}


def simplify(program: Program) -> Program:
    """Return an equal program with fewer nodes: constants folded, equal nodes merged."""
    return rewrite(program, simplified)


def for_use(program: Program, drops: bool) -> Program:
    """Return the program as training or inference runs it, where dropout passes its operand on."""

    def rule(out: Rewriter, node: Node) -> int | None:
        if node.op == "training":
            return out.const(node, float(drops))
        return node.inputs[0] if node.op in ("dropout", "dropout_by") and not drops else None

    return rewrite(program, rule)


def simplified(out: Rewriter, node: Node) -> int | None:
    """Return the position of a simpler value equal to a node, or None (a rule for `rewrite`)."""
    if any(out.is_zero(node.inputs[position]) for position in ZERO_IF_ZERO.get(node.op, ())):
        return out.const(node, 0.0)
    if OPS[node.op].role == "scalar":
        return _scalar(out, node)
    for rule in RULES.get(node.op, ()):
        found = rule(out, node)
        if found is not None:
            return found
    return None


Known = list[float | None]  # of each operand: its value, where it is a constant


def _scalar(out: Rewriter, node: Node) -> int | None:
    known = [out.constant_of(i) for i in node.inputs]
    if all(k is not None for k in known):
        expression = OPS[node.op].scalar
        assert expression is not None
        value = evaluate(expression, [k for k in known if k is not None])
        return None if value is None else out.const(node, value)
    number, sides = NEUTRAL.get(node.op, (0.0, ()))
    for side in sides:
        if known[side] == number:
            return _as(out, node, node.inputs[1 - side])
    rule = WITH_CONSTANTS.get(node.op)
    return rule(out, node, known) if rule is not None else None


# Numbers that leave the other operand as it is, and on which sides.
NEUTRAL = {"add": (0.0, (0, 1)), "sub": (0.0, (1,)), "mul": (1.0, (0, 1)), "div": (1.0, (1,))}


def _sub(out: Rewriter, node: Node, known: Known) -> int | None:
    if known[0] == 0.0 and out.nodes[node.inputs[1]].type.shape == node.type.shape:
        return out.derived(node, "neg", (node.inputs[1],), node.type)
    return None


def _where(out: Rewriter, node: Node, known: Known) -> int | None:
    if known[0] is None:
        constants = known[1] is not None and repr(known[1]) == repr(known[2])  # and their sign
        same = constants or node.inputs[1] == node.inputs[2]
        return _as(out, node, node.inputs[1]) if same else None
    return _as(out, node, node.inputs[1 if known[0] != 0.0 else 2])


def _equal(out: Rewriter, node: Node, known: Known) -> int | None:
    """Return zeros where a number is compared with those of elements, and is none of them."""
    for number, other in zip(known, reversed(node.inputs), strict=True):
        elements = out.nodes[other]
        if (
            number is not None
            and elements.op == "arange"
            and number not in range(elements.type.size)
        ):
            return out.const(node, 0.0)
    return None


# What an operand that is a constant makes of an op.
WITH_CONSTANTS: dict[str, Callable[[Rewriter, Node, Known], int | None]] = {
    "add": lambda out, node, _: _disjoint_sum(out, node),
    "sub": _sub,
    "where": _where,
    "equal": _equal,
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


class _Piece(NamedTuple):
    """A part of a concat: its position, and which elements it is."""

    start: int
    end: int
    part: int


def _pieces(out: Rewriter, node: Node) -> list[_Piece]:
    sizes = [out.nodes[i].type.size for i in node.inputs]
    ends = itertools.accumulate(sizes)
    return [_Piece(e - n, e, i) for i, n, e in zip(node.inputs, sizes, ends, strict=True)]


def _disjoint_sum(out: Rewriter, node: Node) -> int | None:
    """Merge concat(a, 0) + concat(0, b) into concat(a, b), with zeros where neither has a part."""
    sides = [out.nodes[i] for i in node.inputs]
    if any(s.op != "concat" or s.type.shape != node.type.shape for s in sides):
        return None
    both = [*_pieces(out, sides[0]), *_pieces(out, sides[1])]
    found = sorted((p for p in both if not out.is_zero(p.part)), key=lambda p: p.start)
    if any(piece.end > after.start for piece, after in itertools.pairwise(found)):
        return None  # two values on the same elements
    end, inputs = 0, []
    for piece in [*found, _Piece(node.type.size, node.type.size, -1)]:
        if piece.start > end:
            inputs.append(out.const(node, 0.0, replace(node.type, shape=(piece.start - end,))))
        inputs.append(piece.part)
        end = piece.end
    return out.derived(node, "concat", tuple(inputs[:-1]), node.type, shape=node.type.shape)


def _one_part(out: Rewriter, node: Node) -> int | None:
    """Take the part for the whole, unless it is a copy on purpose, of `place`."""
    part = out.nodes[node.inputs[0]]
    alone = len(node.inputs) == 1 and part.type == node.type
    return node.inputs[0] if alone and (part.op == "const" or not node.has(COPIED)) else None


def _equal_constants(out: Rewriter, node: Node) -> int | None:
    known = {out.constant_of(i) for i in node.inputs}
    value = known.pop()
    return None if known or value is None else out.const(node, value)


def _all_slices(out: Rewriter, node: Node) -> int | None:
    """Take concat(x[:k], x[k:]) for x."""
    sources = [out.nodes[i] for i in node.inputs]
    if any(s.op != "slice" or s.inputs != sources[0].inputs for s in sources):
        return None
    starts = [piece.start for piece in _pieces(out, node)]
    (whole,) = sources[0].inputs
    joined = [s["start"] for s in sources] == starts and out.nodes[whole].type == node.type
    return whole if joined else None


def _slice(out: Rewriter, node: Node) -> int | None:
    """Slice what was sliced, or the part of a concat that holds all of a slice."""
    (whole,) = node.inputs
    source, start, end = out.nodes[whole], node["start"], node["start"] + node.type.size
    if source.type.shape == node.type.shape:
        return whole
    if source.op == "slice":
        return _elements(out, node, source.inputs[0], source["start"] + start)
    if source.op == "concat":
        for piece in _pieces(out, source):
            if piece.start <= start and end <= piece.end:
                return _elements(out, node, piece.part, start - piece.start)
    return _elements(out, node, whole, start)


def _elements(out: Rewriter, node: Node, source: int, start: int) -> int:
    """Return elements of a value in the shape of a node: all of it, a constant or a slice."""
    found, value = out.nodes[source].type, out.constant_of(source)
    if found.shape == node.type.shape:
        return source
    if value is not None:
        return out.const(node, value)
    return out.derived(node, "slice", (source,), node.type, start=start, shape=node.type.shape)


# What to try, in order, with ops that are not scalar.
RULES: dict[str, tuple[Callable[[Rewriter, Node], int | None], ...]] = {
    "concat": (_one_part, _equal_constants, _all_slices),
    "slice": (_slice,),
    "spread": (lambda out, node: _as(out, node, node.inputs[0]),),
    "to_edges": (_equal_constants,),
    "repeat": (_equal_constants,),
    # nothing to add
    "param_grad": (lambda out, node: node.inputs[0] if out.is_zero(node.inputs[0]) else None,),
}
