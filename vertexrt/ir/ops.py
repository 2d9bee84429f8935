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


def _abs_vjp(s: Site, d: Value) -> Sequence[Value]:
    (x,) = s.x
    return [d * (s.b.emit("greater", x, 0.0) - s.b.emit("greater", 0.0, x))]


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


def _embed_vjp(s: Site, d: Value) -> Sequence[Value | None]:
    rows = on_children(s.b, d)
    return [s.b.emit("embed_grad", s.x[1], rows, shape=s.x[0].shape), None]


def _dropout_vjp(s: Site, d: Value) -> Sequence[Value | None]:
    by = s.x[1:]
    d_x = s.b.emit(s.node.op, d, *by, p=s.node["p"], key=s.node["key"])
    return [d_x, *(None for _ in by)]


ROWS = [
    # Inputs.
    Op("const", 0, "leaf", shapes.constant),
    # The numbers 0, 1, ... of its elements.
    Op("arange", 0, "leaf", shapes.constant),
    Op("param", 0, "leaf", shapes.declared_param),
    Op("pull", 0, "leaf", shapes.declared),
    Op("edge_pull", 0, "leaf", shapes.declared_pull_of_edges),
    Op("gather", 0, "leaf", shapes.declared),
    Op("gather_all", 0, "leaf", shapes.declared_edge),
    Op("present", 0, "leaf", shapes.scalar_vertex),
    Op("has_pull", 0, "leaf", shapes.scalar_vertex),
    Op("degree", 0, "leaf", shapes.scalar_vertex),
    Op("has_child", 0, "leaf", shapes.scalar_edge),
    Op("loss_scale", 0, "leaf", shapes.scalar_param),
    # How many identical vertices of the batch a merged one stands for.
    Op("weight", 0, "leaf", shapes.scalar_vertex),
    Op("seed", 0, "leaf", shapes.declared),
    Op("gather_parents", 0, "leaf", shapes.declared),
    # The value of `origin`, where another program of the same vertices left it (`passes/store.py`).
    Op("stored", 0, "leaf", shapes.declared),
    # Elementwise arithmetic. An integer is real in it; the elements that it may name are `bound`.
    Op("real", 1, "scalar", shapes.real, "x0 + 0.0", vjp=piecewise_constant),
    Op("add", 2, "scalar", shapes.elementwise, "x0 + x1", vjp=lambda s, d: [d, d]),
    Op("sub", 2, "scalar", shapes.elementwise, "x0 - x1", vjp=lambda s, d: [d, -d]),
    Op(
        "mul", 2, "scalar", shapes.elementwise, "x0 * x1", vjp=lambda s, d: [d * s.x[1], d * s.x[0]]
    ),
    Op(
        "div",
        2,
        "scalar",
        shapes.elementwise,
        "x0 / x1",
        vjp=lambda s, d: [d / s.x[1], -(d * s.out / s.x[1])],
    ),
    Op("neg", 1, "scalar", shapes.elementwise, "-x0", vjp=lambda s, d: [-d]),
    Op(
        "maximum",
        2,
        "scalar",
        shapes.elementwise,
        "x0 if x0 >= x1 else x1 if x0 == x0 else x0",  # nan, if one is
        vjp=lambda s, d: [_step(s, d, *s.x), d - _step(s, d, *s.x)],
    ),
    Op(
        "minimum",
        2,
        "scalar",
        shapes.elementwise,
        "x0 if x1 > x0 else x1 if x0 == x0 else x0",
        vjp=lambda s, d: [d - _step(s, d, *s.x), _step(s, d, *s.x)],
    ),
    Op(
        "greater_equal",
        2,
        "scalar",
        shapes.comparison,
        "1.0 if x0 >= x1 else 0.0",
        vjp=piecewise_constant,
    ),
    Op("equal", 2, "scalar", shapes.comparison, "1.0 if x0 == x1 else 0.0", vjp=piecewise_constant),
    Op(
        "greater", 2, "scalar", shapes.comparison, "1.0 if x0 > x1 else 0.0", vjp=piecewise_constant
    ),
    Op(
        "not_equal",
        2,
        "scalar",
        shapes.comparison,
        "1.0 if x0 != x1 else 0.0",
        vjp=piecewise_constant,
    ),
    # The value of one, the gradient of the other: of 0.0, where there is none (a softmax's shift).
    Op("straight_through", 2, "scalar", shapes.elementwise, "x1", vjp=lambda s, d: [d, None]),
    Op(
        "where",
        3,
        "scalar",
        shapes.elementwise,
        "x1 if x0 != 0.0 else x2",
        vjp=lambda s, d: [
            None,
            s.b.emit("where", s.x[0], d, 0.0),
            s.b.emit("where", s.x[0], 0.0, d),
        ],
    ),
    # Elementwise functions.
    Op(
        "sigmoid",
        1,
        "scalar",
        shapes.elementwise,
        "sigmoid(x0)",
        vjp=lambda s, d: [d * (s.out * (1.0 - s.out))],
    ),
    Op(
        "tanh",
        1,
        "scalar",
        shapes.elementwise,
        "tanh(x0)",
        vjp=lambda s, d: [d * (1.0 - s.out * s.out)],
    ),
    Op(
        "relu",
        1,
        "scalar",
        shapes.elementwise,
        "0.0 if 0.0 > x0 else x0",  # nan of nan
        vjp=lambda s, d: [s.b.emit("where", s.out, d, 0.0)],
    ),
    Op("abs", 1, "scalar", shapes.elementwise, "x0 if x0 >= 0.0 else -x0", vjp=_abs_vjp),
    Op("floor", 1, "scalar", shapes.elementwise, "floor(x0)", vjp=piecewise_constant),
    # log(1 + exp(x)) = max(x, 0) + log(1 + y), y = exp(-|x|). Where y is small, log(1 + y) is exact
    # as log(u) y / (u - 1), u = 1 + y (Kahan).
    Op(
        "softplus",
        1,
        "scalar",
        shapes.elementwise,
        f"(x0 if x0 > 0.0 else 0.0) + {_LOG1P.replace('y', '(exp(x0 if 0.0 > x0 else -x0))')}",
        vjp=lambda s, d: [d * s.b.emit("sigmoid", s.x[0])],
    ),
    Op("exp", 1, "scalar", shapes.elementwise, "exp(x0)", vjp=lambda s, d: [d * s.out]),
    Op("log", 1, "scalar", shapes.elementwise, "log(x0)", vjp=lambda s, d: [d / s.x[0]]),
    Op("sqrt", 1, "scalar", shapes.elementwise, "sqrt(x0)", vjp=lambda s, d: [0.5 * d / s.out]),
    # A mask of ones and zeros over `1 - p`, drawn from (seed, step, key, vertex, element); or by
    # another vertex, which several have in common.
    Op("dropout", 1, "scalar", shapes.elementwise, "x0 * draw", vjp=_dropout_vjp),
    Op("dropout_by", 2, "scalar", shapes.drawn_by, "x0 * draw", vjp=_dropout_vjp),
    # A number between 0 and 1, drawn in the same way.
    Op("uniform", 1, "scalar", shapes.elementwise, "x0 + draw", vjp=piecewise_constant),
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
        vjp=_embed_vjp,
    ),
    Op("embed_grad", 2, "row", shapes.to_param),
    Op("matmul", 2, "product", shapes.matmul, vjp=_matmul_vjp),
    Op("outer", 2, "product", shapes.outer),
    Op("sum_rows", 1, "row", shapes.sum_rows),
    # Effects.
    Op("scatter", 1, "effect", shapes.nothing),
    Op("push", 1, "effect", shapes.nothing),
    Op("scatter_child", 1, "effect", shapes.nothing),
    Op("scatter_children", 1, "effect", shapes.nothing),
    Op("param_grad", 1, "effect", shapes.nothing),
    # The value of `origin` must be in memory for another stage, whatever it was simplified to.
    Op("keep", 1, "effect", shapes.nothing),
    Op("pull_grad", 1, "effect", shapes.nothing),
]

OPS: dict[str, Op] = {row.name: row for row in ROWS}
SUMS_OF_ROWS = ("sum_rows", "embed_grad")  # add up what fused loops make, row by row
OVER_ROWS = ("outer", *SUMS_OF_ROWS)  # gradients of parameters: sums over all rows
FIRST_OF_GRAPH = "(first of graph)"  # an integer that the engine gives: a vertex of the batch
