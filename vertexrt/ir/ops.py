"""The op table: every operation of the IR is one row here, and nothing about it stands elsewhere.

A row gives the shape rule, the vjp (which emits IR, so that backward is scheduled, fused and
compiled like forward; what has none is made by dF alone) and the code: one scalar expression that
NumPy, LLVM and CUDA render; what has none has a statement or a leaf of the kernel IR.
A shape rule takes the types of operands and attributes, and raises ShapeError saying what it
expected; the builder adds what it got and the user's line. `role` is what the passes need to know:

- `leaf`: reads an input; free to repeat.
- `scalar`: elementwise, has `scalar`.
- `row`: works along one row (a softmax, a sum over its elements); fuses with elementwise ops.
- `view`: rearranges a row (slice, concat); fuses too.
- `product`: a GEMM over all rows; ends a fused group.
- `segment`: reduces the edges of each vertex; ends a fused group.
- `effect`: writes to the outside of the program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vertexrt.ir.builder import Attrs, Builder, Op, ShapeError, ShapeRule, Site, Types, Value, Vjp
from vertexrt.ir.program import Domain, Type, related


def _floats(types: Types) -> None:
    for t in types:
        if t.dtype != "float":
            raise ShapeError("real operands")


def given(domain: Domain) -> ShapeRule:
    """Make the rule of what has its declared shape (one number by default) and element kind."""

    def rule(types: Types, attrs: Attrs) -> Type:
        return Type(tuple(attrs.get("shape", ())), attrs.get("dtype", "float"), domain)

    return rule


def _per_row(shape: Sequence[int], *types: Type) -> Type:
    """Return real numbers per vertex, or per edge, where an operand is."""
    return Type(tuple(shape), "float", max(Domain.VERTEX, *(t.domain for t in types)))


def nothing(types: Types, attrs: Attrs) -> Type:
    """Give an effect no value; it runs in the domain of what it writes."""
    _floats(types)
    return Type((), "none", types[0].domain)


def elementwise(types: Types, attrs: Attrs) -> Type:
    """Take equal shapes, or a scalar against any shape."""
    _floats(types)
    shape: tuple[int, ...] = ()
    for t in types:
        if t.shape and shape and t.shape != shape:
            raise ShapeError("equal shapes, or a scalar with any shape")
        shape = t.shape or shape
    return _per_row(shape, *types)


def real(types: Types, attrs: Attrs) -> Type:
    """Take an integer as a real number."""
    if types[0].dtype != "int":
        raise ShapeError("an integer")
    return _per_row((), *types)


def comparison(types: Types, attrs: Attrs) -> Type:
    """Compare as elementwise ops do, or two integers: 1.0 where it holds, else 0.0."""
    if any(t.dtype != "int" for t in types):
        return elementwise(types, attrs)
    return _per_row((), *types)


def drawn_by(types: Types, attrs: Attrs) -> Type:
    """Draw for each element of a value, by an integer."""
    if types[1].dtype != "int":
        raise ShapeError("an integer to draw by")
    return elementwise(types[:1], attrs)


def part(types: Types, attrs: Attrs) -> Type:
    """Take some elements of a row, counted from `start` as it lies flat."""
    _floats(types)
    shape, start = tuple(attrs["shape"]), attrs["start"]
    size = math.prod(shape)
    if min(shape, default=1) < 1:
        raise ShapeError("at least one element")
    if not 0 <= start <= types[0].size - size:
        raise ShapeError(f"elements {start}..{start + size - 1} inside the operand")
    return _per_row(shape, *types)


def spread(types: Types, attrs: Attrs) -> Type:
    """Repeat a number in every element of a shape."""
    _floats(types)
    if types[0].shape:
        raise ShapeError("a number to repeat")
    return _per_row(attrs["shape"], *types)


def concat(types: Types, attrs: Attrs) -> Type:
    """Join values laid flat: the sizes add up to the declared shape."""
    _floats(types)
    shape = tuple(attrs["shape"])
    if not types or math.prod(shape) != sum(t.size for t in types):
        raise ShapeError("at least one operand, of sizes that add up to the shape")
    return _per_row(shape, *types)


def repeated(types: Types, attrs: Attrs) -> Type:
    """Take element j // each, counted round and round, of a row that lies flat."""
    _floats(types)
    shape = tuple(attrs["shape"])
    if not types[0].shape or math.prod(shape) % (types[0].size * attrs["each"]):
        raise ShapeError("a vector, whose elements times `each` divide the shape")
    return _per_row(shape, *types)


def sum_repeated(types: Types, attrs: Attrs) -> Type:
    """Add up the elements that `repeat` makes of one: all of its own kind, or all side by side."""
    _floats(types)
    whole, size = types[0].size, math.prod(attrs["shape"])
    if not attrs["shape"] or attrs["each"] not in (1, whole // size) or whole % size:
        raise ShapeError("a vector of whole repetitions, each of 1 or of all times an element")
    return _per_row(attrs["shape"], *types)


def to_edges(types: Types, attrs: Attrs) -> Type:
    """Repeat a vertex's value for each of its children."""
    _floats(types)
    if types[0].domain == Domain.EDGE:
        raise ShapeError("a value per vertex")
    return Type(types[0].shape, "float", Domain.EDGE)


def to_vertex(types: Types, attrs: Attrs) -> Type:
    """Reduce a value per child to one per vertex."""
    _floats(types)
    if types[0].domain == Domain.VERTEX:  # a constant may have been a value per child
        raise ShapeError("a value per child, from gather_all")
    return Type(types[0].shape)


def among_children(types: Types, attrs: Attrs) -> Type:
    """Take a value and a key per child, of one shape."""
    _floats(types)
    if types[0].shape != types[1].shape or all(t.domain != Domain.EDGE for t in types):
        raise ShapeError("a value and a key of one shape, per child")
    return Type(types[0].shape, "float", Domain.EDGE)


def row_scalar(types: Types, attrs: Attrs) -> Type:
    """Reduce a vector to a number."""
    _floats(types)
    if not types[0].shape:
        raise ShapeError("a vector")
    return _per_row((), *types)


def like_first(types: Types, attrs: Attrs) -> Type:
    """Give the shape of the first operand, per vertex also where that is a parameter."""
    return _per_row(types[0].shape, types[0])


def nll(types: Types, attrs: Attrs) -> Type:
    """Take logits [C], an integer label and the log of the partition sum: one number."""
    logits, label, total = types
    if len(logits.shape) != 1 or logits.dtype != "float" or total.shape:
        raise ShapeError("logits of shape [C] and one number")
    if label.dtype != "int" or label.shape:
        raise ShapeError("an integer label per vertex")
    if Domain.EDGE in (logits.domain, label.domain):
        raise ShapeError("logits per vertex, as the label is")
    return Type(())


def embed(types: Types, attrs: Attrs) -> Type:
    """Look up a row of a parameter [N, E], or a matrix of several [N, E, F]."""
    table, index = types
    if table.domain != Domain.PARAM or len(table.shape) not in (2, 3):
        raise ShapeError("a parameter of shape [N, E] or [N, E, F] to look up in")
    if index.dtype != "int" or index.shape:
        raise ShapeError("an integer pull as the index")
    return _per_row(table.shape[1:], index)


def matmul(types: Types, attrs: Attrs) -> Type:
    """Multiply a parameter [M, N] and a vector [N], or each of several rows [K, N]: [M]."""
    w, x = types
    if w.domain != Domain.PARAM or len(w.shape) != 2 or x.dtype != "float":
        raise ShapeError("a parameter of shape [M, N] times a vector of shape [N]")
    out, inner = (w.shape[1], w.shape[0]) if attrs["transpose"] else w.shape
    if not x.shape or x.shape[-1] != inner or len(x.shape) > 2:
        raise ShapeError(f"a right operand of shape [{inner}], to fit {list(w.shape)}")
    return _per_row((*x.shape[:-1], out), x)


def outer(types: Types, attrs: Attrs) -> Type:
    """Add up outer products over all rows: [M] and [N] give the parameter [M, N]."""
    _floats(types)
    d, x = (t.shape for t in types)
    if not d or not x or d[:-1] != x[:-1]:
        raise ShapeError("two vectors, or two stacks of as many rows")
    return Type((d[-1], x[-1]), "float", Domain.PARAM)


def sum_rows(types: Types, attrs: Attrs) -> Type:
    """Add up over all rows: the result belongs to the batch."""
    _floats(types)
    return Type(types[0].shape, "float", Domain.PARAM)


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


def _repeat_vjp(s: Site, d: Value) -> Sequence[Value]:
    x, each = s.x[0], s.node["each"]
    times = d.type.size // (x.type.size * each)
    if each > 1 and times > 1:  # of whole rows, and then of each element
        d = s.b.emit("sum_repeated", d, shape=(x.type.size * each,), each=1)
    return [s.b.emit("sum_repeated", d, shape=x.shape, each=each)]


def _max_vjp(s: Site, d: Value) -> Sequence[Value]:
    hit = s.b.emit("equal", s.x[0], s.out)
    return [hit * (d / s.b.emit("reduce_sum", hit))]  # ties share the gradient


def on_children(b: Builder, x: Value) -> Value:
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


def _before_vjp(s: Site, d: Value) -> Sequence[Value | None]:
    given = {"after": not s.node["after"], **related(s.node.relation)}
    return [on_children(s.b, s.b.emit("segment_before", d, s.x[1], **given)), None]


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


def _scalar(name: str, arity: int, scalar: str, vjp: Vjp, shape: ShapeRule = elementwise) -> Op:
    return Op(name, arity, "scalar", shape, scalar, vjp)


def _comparison(name: str, operator: str) -> Op:
    scalar = f"1.0 if x0 {operator} x1 else 0.0"
    return _scalar(name, 2, scalar, piecewise_constant, comparison)


def _leaf(name: str, domain: Domain = Domain.VERTEX) -> Op:
    return Op(name, 0, "leaf", given(domain))


def _effect(name: str) -> Op:
    return Op(name, 1, "effect", nothing)


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
    # 1 where dropout drops, else 0: a constant of what is compiled (`passes/simplify.py`).
    _leaf("training", Domain.PARAM),
    # How many identical vertices of the batch a merged one stands for.
    _leaf("weight"),
    _leaf("seed"),
    _leaf("gather_parents"),
    # The value of `origin`, where another program of the same vertices left it (`passes/store.py`).
    _leaf("stored"),
    # Elementwise arithmetic. An integer is real in it; the elements that it may name are `bound`.
    _scalar("real", 1, "x0 + 0.0", piecewise_constant, real),
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
    _scalar("sin", 1, "sin(x0)", lambda s, d: [d * s.b.emit("cos", s.x[0])]),
    _scalar("cos", 1, "cos(x0)", lambda s, d: [-(d * s.b.emit("sin", s.x[0]))]),
    _scalar(
        "erf",
        1,
        "erf(x0)",
        lambda s, d: [2.0 / math.sqrt(math.pi) * d * s.b.emit("exp", -(s.x[0] * s.x[0]))],
    ),
    _scalar("log", 1, "log(x0)", lambda s, d: [d / s.x[0]]),
    _scalar("sqrt", 1, "sqrt(x0)", lambda s, d: [0.5 * d / s.out]),
    # A mask of ones and zeros over `1 - p`, drawn from (seed, step, key, vertex, element); or by
    # another vertex, which several have in common.
    _scalar("dropout", 1, "x0 * draw", _dropout_vjp),
    _scalar("dropout_by", 2, "x0 * draw", _dropout_vjp, drawn_by),
    # A number between 0 and 1, drawn in the same way.
    _scalar("uniform", 1, "x0 + draw", piecewise_constant),
    # Rearrangements of a row, which is stored flat.
    Op("slice", 1, "view", part, vjp=_slice_vjp),
    Op("concat", -1, "view", concat, vjp=_concat_vjp),
    # Each element `each` times in a row, and the whole as often as the shape holds it.
    Op("repeat", 1, "view", repeated, vjp=_repeat_vjp),
    Op(
        "to_edges",
        1,
        "view",
        to_edges,
        vjp=lambda s, d: [s.b.emit("segment_sum", d, **related(s.node.relation))],
    ),
    # Along one row.
    Op(
        "reduce_sum",
        1,
        "row",
        row_scalar,
        vjp=lambda s, d: [s.b.emit("spread", d, shape=s.x[0].shape)],
    ),
    Op("reduce_max", 1, "row", row_scalar, vjp=_max_vjp),
    Op(
        "sum_repeated",
        1,
        "row",
        sum_repeated,
        vjp=lambda s, d: [s.b.emit("repeat", d, shape=s.x[0].shape, each=s.node["each"])],
    ),
    Op(
        "spread",
        1,
        "view",
        spread,
        vjp=lambda s, d: [s.b.emit("reduce_sum", d) if d.shape else d],
    ),
    Op(
        "logsumexp",
        1,
        "row",
        row_scalar,
        vjp=lambda s, d: [d * s.b.emit("exp", s.x[0] - s.out)],
    ),
    # Negative log-likelihood of logits, label (absent: -1 gives 0) and log of the partition sum.
    Op(
        "nll",
        3,
        "row",
        nll,
        vjp=lambda s, d: [s.b.emit("nll_grad", *s.x, d), None, None],
    ),
    # d/dlogits through the label and through the partition sum: d (softmax - onehot).
    Op("nll_grad", 4, "row", like_first),
    # Over the children of a vertex.
    Op(
        "segment_sum",
        1,
        "segment",
        to_vertex,
        vjp=lambda s, d: [on_children(s.b, s.b.emit("to_edges", d, **related(s.node.relation)))],
    ),
    Op("segment_max", 1, "segment", to_vertex, vjp=_segment_max_vjp),
    # For each child the sum of a value over those before it: of larger keys, or of its key and
    # earlier; `after`: over those after it.
    Op("segment_before", 2, "segment", among_children, vjp=_before_vjp),
    # Lookup and products with parameters; `outer` and `sum_rows` add up over all rows.
    Op(
        "embed",
        2,
        "row",
        embed,
        vjp=lambda s, d: [
            s.b.emit("embed_grad", s.x[1], on_children(s.b, d), shape=s.x[0].shape),
            None,
        ],
    ),
    Op("embed_grad", 2, "row", given(Domain.PARAM)),
    Op("matmul", 2, "product", matmul, vjp=_matmul_vjp),
    Op("outer", 2, "product", outer),
    Op("sum_rows", 1, "row", sum_rows),
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
