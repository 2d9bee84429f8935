"""The op table: every operation of the IR is one row here, and nothing about it stands elsewhere.

A row gives the shape rule, the vjp (which emits IR, so that backward is scheduled, fused and
compiled like forward; what has none is made by dF alone) and the code: one scalar expression that
NumPy, LLVM and CUDA render; what has none has a statement or a leaf of the kernel IR.
`role` is what the passes need to know:

- `leaf`: reads an input; free to repeat.
- `scalar`: elementwise, has `scalar`.
- `row`: works along one row (a softmax, a sum over its elements); fuses with elementwise ops.
- `view`: rearranges a row (slice, concat); fuses too.
- `product`: a GEMM over all rows; ends a fused group.
- `segment`: reduces the edges of each vertex; ends a fused group.
- `effect`: writes to the outside of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vertexrt.ir import shapes
from vertexrt.ir.program import Domain, Node, Type, related
from vertexrt.ir.values import Construction, Value

ShapeRule = Callable[[Sequence[Type], dict[str, Any]], Type]
Vjp = Callable[["Site", Value], Sequence[Value | None]]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a vjp rule is applied: the node, its operands and its output as values."""

    b: Construction
    node: Node
    x: tuple[Value, ...]
    out: Value


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table."""

    name: str
    arity: int  # -1: any number
    role: str
    shape: ShapeRule
    scalar: str | None = None
    vjp: Vjp | None = None

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return self.scalar is not None and "draw" in self.scalar


_LOG1P = "(y if 1.0 + y == 1.0 else log(1.0 + y) * y / (1.0 + y - 1.0))"


def piecewise_constant(s: Site, d: Value) -> Sequence[None]:
    """Say of an op that its derivative is zero wherever it has one (a vjp)."""
    return [None for _ in s.x]


def _step(s: Site, d: Value, a: Value, b: Value) -> Value:
    """Return d where a >= b, else 0."""
    return d * s.b.emit("greater_equal", a, b)


def _slice_vjp(s: Site, d: Value) -> Sequence[Value]:
    whole, start = s.x[0].type, s.node["start"]
    after = whole.size - start - d.type.size
    parts = [s.b.const(0.0, (start,)), d, s.b.const(0.0, (after,))]
    return [s.b.emit("concat", *(p for p in parts if p.type.size), shape=whole.shape)]


def _concat_vjp(s: Site, d: Value) -> Sequence[Value]:
    parts, start = [], 0
    for x in s.x:
        parts.append(s.b.emit("slice", d, start=start, shape=x.shape))
        start += x.type.size
    return parts


def _max_vjp(s: Site, d: Value) -> Sequence[Value]:
    hit = s.b.emit("equal", s.x[0], s.out)
    return [hit * (d / s.b.emit("reduce_sum", hit))]  # ties share the gradient


def on_children(b: Construction, x: Value) -> Value:
    """Return x on the edges that hold a child of its relation, 0 elsewhere: these are in no sum.

    What is made of an empty slot may be anything: log(0), and 0 / 0 in its gradient. A value that
    is not per edge, or that is zero there already, is returned as it is.
    """
    node = x.node
    masked = node.op == "where" and b.nodes[node.inputs[0]].op == "has_child"
    if node.type.domain != Domain.EDGE or masked or node.op == "gather_all":
        return x
    return b.emit("where", b.emit("has_child", **related(b.relation_of(x))), x, 0.0)


def _segment_max_vjp(s: Site, d: Value) -> Sequence[Value]:
    hit = on_children(s.b, s.b.emit("equal", s.x[0], s.out))
    total = s.b.emit("segment_sum", hit, **related(s.node.relation))
    ties = s.b.emit("maximum", total, 1.0)  # none without children
    return [hit * (d / ties)]


def _matmul_vjp(s: Site, d: Value) -> Sequence[Value]:
    w, x = s.x
    turned = s.node["transpose"]
    rows = [on_children(s.b, v) for v in ((x, d) if turned else (d, x))]
    d_w = s.b.emit("outer", *rows)
    return [d_w, s.b.emit("matmul", w, d, transpose=not turned)]


def _dropout_vjp(s: Site, d: Value) -> Sequence[Value | None]:
    by = s.x[1:]
    d_x = s.b.emit(s.node.op, d, *by, p=s.node["p"], key=s.node["key"])
    return [d_x, *(None for _ in by)]


def _scalar(
    name: str, arity: int, scalar: str, vjp: Vjp, shape: ShapeRule = shapes.elementwise
) -> Op:
    return Op(name, arity, "scalar", shape, scalar, vjp)


def _comparison(name: str, operator: str) -> Op:
    scalar = f"1.0 if x0 {operator} x1 else 0.0"
    return _scalar(name, 2, scalar, piecewise_constant, shapes.comparison)


def _leaf(name: str, domain: Domain = Domain.VERTEX) -> Op:
    return Op(name, 0, "leaf", shapes.given(domain))


def _effect(name: str) -> Op:
    return Op(name, 1, "effect", shapes.nothing)


ROWS = [
    # Inputs.
    _leaf("const", Domain.PARAM),
    # The numbers 0, 1, ... of its elements.
    _leaf("arange", Domain.PARAM),
    _leaf("param", Domain.PARAM),
    _leaf("pull"),
    _leaf("edge_pull", Domain.EDGE),
    _leaf("gather"),
    _leaf("gather_all", Domain.EDGE),
    _leaf("present"),
    _leaf("has_pull"),
    _leaf("degree"),
    _leaf("has_child", Domain.EDGE),
    _leaf("loss_scale", Domain.PARAM),
    # How many identical vertices of the batch a merged one stands for.
    _leaf("weight"),
    _leaf("seed"),
    _leaf("gather_parents"),
    # The value of `origin`, where another program of the same vertices left it (`passes/store.py`).
    _leaf("stored"),
    # Elementwise arithmetic. An integer is real in it; the elements that it may name are `bound`.
    _scalar("real", 1, "x0 + 0.0", piecewise_constant, shapes.real),
    _scalar("add", 2, "x0 + x1", lambda s, d: [d, d]),
    _scalar("sub", 2, "x0 - x1", lambda s, d: [d, -d]),
    _scalar("mul", 2, "x0 * x1", lambda s, d: [d * s.x[1], d * s.x[0]]),
    _scalar("div", 2, "x0 / x1", lambda s, d: [d / s.x[1], -(d * s.out / s.x[1])]),
    _scalar("neg", 1, "-x0", lambda s, d: [-d]),
    _scalar(
        "maximum",
        2,
        "x0 if x0 >= x1 else x1 if x0 == x0 else x0",  # nan, if one is
        lambda s, d: [_step(s, d, *s.x), d - _step(s, d, *s.x)],
    ),
    _scalar(
        "minimum",
        2,
        "x0 if x1 > x0 else x1 if x0 == x0 else x0",
        lambda s, d: [d - _step(s, d, *s.x), _step(s, d, *s.x)],
    ),
    _comparison("greater_equal", ">="),
    _comparison("equal", "=="),
    _comparison("greater", ">"),
    _comparison("not_equal", "!="),
    # The value of one, the gradient of the other: of 0.0, where there is none (a softmax's shift).
    _scalar("straight_through", 2, "x1", lambda s, d: [d, None]),
    _scalar(
        "where",
        3,
        "x1 if x0 != 0.0 else x2",
        lambda s, d: [None, s.b.emit("where", s.x[0], d, 0.0), s.b.emit("where", s.x[0], 0.0, d)],
    ),
    # Elementwise functions.
    _scalar("sigmoid", 1, "sigmoid(x0)", lambda s, d: [d * (s.out * (1.0 - s.out))]),
    _scalar("tanh", 1, "tanh(x0)", lambda s, d: [d * (1.0 - s.out * s.out)]),
    # nan of nan
    _scalar("relu", 1, "0.0 if 0.0 > x0 else x0", lambda s, d: [s.b.emit("where", s.out, d, 0.0)]),
    _scalar(
        "abs",
        1,
        "x0 if x0 >= 0.0 else -x0",
        lambda s, d: [d * (s.b.emit("greater", s.x[0], 0.0) - s.b.emit("greater", 0.0, s.x[0]))],
    ),
    _scalar("floor", 1, "floor(x0)", piecewise_constant),
    # log(1 + exp(x)) = max(x, 0) + log(1 + y), y = exp(-|x|). Where y is small, log(1 + y) is exact
    # as log(u) y / (u - 1), u = 1 + y (Kahan).
    _scalar(
        "softplus",
        1,
        f"(x0 if x0 > 0.0 else 0.0) + {_LOG1P.replace('y', '(exp(x0 if 0.0 > x0 else -x0))')}",
        lambda s, d: [d * s.b.emit("sigmoid", s.x[0])],
    ),
    _scalar("exp", 1, "exp(x0)", lambda s, d: [d * s.out]),
    _scalar("log", 1, "log(x0)", lambda s, d: [d / s.x[0]]),
    _scalar("sqrt", 1, "sqrt(x0)", lambda s, d: [0.5 * d / s.out]),
    # A mask of ones and zeros over `1 - p`, drawn from (seed, step, key, vertex, element); or by
    # another vertex, which several have in common.
    _scalar("dropout", 1, "x0 * draw", _dropout_vjp),
    _scalar("dropout_by", 2, "x0 * draw", _dropout_vjp, shapes.drawn_by),
    # A number between 0 and 1, drawn in the same way.
    _scalar("uniform", 1, "x0 + draw", piecewise_constant),
    # Rearrangements of a row, which is stored flat.
    Op("slice", 1, "view", shapes.part, vjp=_slice_vjp),
    Op("concat", -1, "view", shapes.concat, vjp=_concat_vjp),
    Op(
        "to_edges",
        1,
        "view",
        shapes.to_edges,
        vjp=lambda s, d: [s.b.emit("segment_sum", d, **related(s.node.relation))],
    ),
    # Along one row.
    Op(
        "reduce_sum",
        1,
        "row",
        shapes.row_scalar,
        vjp=lambda s, d: [s.b.emit("spread", d, shape=s.x[0].shape)],
    ),
    Op("reduce_max", 1, "row", shapes.row_scalar, vjp=_max_vjp),
    Op(
        "spread",
        1,
        "view",
        shapes.spread,
        vjp=lambda s, d: [s.b.emit("reduce_sum", d) if d.shape else d],
    ),
    Op(
        "logsumexp",
        1,
        "row",
        shapes.row_scalar,
        vjp=lambda s, d: [d * s.b.emit("exp", s.x[0] - s.out)],
    ),
    # Negative log-likelihood of logits, label (absent: -1 gives 0) and log of the partition sum.
    Op(
        "nll",
        3,
        "row",
        shapes.nll,
        vjp=lambda s, d: [s.b.emit("nll_grad", *s.x, d), None, None],
    ),
    # d/dlogits through the label and through the partition sum: d (softmax - onehot).
    Op("nll_grad", 4, "row", shapes.like_first),
    # Over the children of a vertex.
    Op(
        "segment_sum",
        1,
        "segment",
        shapes.to_vertex,
        vjp=lambda s, d: [on_children(s.b, s.b.emit("to_edges", d, **related(s.node.relation)))],
    ),
    Op("segment_max", 1, "segment", shapes.to_vertex, vjp=_segment_max_vjp),
    # Lookup and products with parameters; `outer` and `sum_rows` add up over all rows.
    Op(
        "embed",
        2,
        "row",
        shapes.embed,
        vjp=lambda s, d: [
            s.b.emit("embed_grad", s.x[1], on_children(s.b, d), shape=s.x[0].shape),
            None,
        ],
    ),
    Op("embed_grad", 2, "row", shapes.given(Domain.PARAM)),
    Op("matmul", 2, "product", shapes.matmul, vjp=_matmul_vjp),
    Op("outer", 2, "product", shapes.outer),
    Op("sum_rows", 1, "row", shapes.sum_rows),
    # Effects.
    _effect("scatter"),
    _effect("push"),
    _effect("scatter_child"),
    _effect("scatter_children"),
    _effect("param_grad"),
    # The value of `origin` must be in memory for another stage, whatever it was simplified to.
    _effect("keep"),
    _effect("pull_grad"),
]

OPS: dict[str, Op] = {row.name: row for row in ROWS}
SUMS_OF_ROWS = ("sum_rows", "embed_grad")  # add up what fused loops make, row by row
OVER_ROWS = ("outer", *SUMS_OF_ROWS)  # gradients of parameters: sums over all rows
FIRST_OF_GRAPH = "(first of graph)"  # an integer that the engine gives: a vertex of the batch
