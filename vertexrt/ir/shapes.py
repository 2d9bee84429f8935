"""Shape rules of the op table: operand types and attributes in, the type of the output out.

Each raises ShapeError saying what it expected; the builder adds what it got and the user's line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from vertexrt.ir.program import Domain, Type

Types = Sequence[Type]
Attrs = dict[str, Any]


class ShapeError(Exception):
    """What a shape rule expected; the builder adds the user's line."""


def _floats(types: Types) -> None:
    for t in types:
        if t.dtype != "float":
            raise ShapeError("real operands")


def given(domain: Domain) -> Callable[[Types, Attrs], Type]:
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
    """Look up a row of a parameter [N, E]: [E]."""
    table, index = types
    if table.domain != Domain.PARAM or len(table.shape) != 2:
        raise ShapeError("a parameter of shape [N, E] to look up in")
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
