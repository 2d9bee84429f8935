"""Cells as users write them, drawn at random: gated, attention-like, sharing operands and weights.

Most of what passes rewrite shows in these: products that share an operand or a weight, slices of
their results, gates of several cells over the same vectors, products after products.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from tests.fuzz.function import Operand
from tests.fuzz.operands import some, summary
from tests.fuzz.sketch import Sketch


def child_input(s: Sketch, length: int | None = None) -> int:
    """Read what a cell takes of its children: a reduction over all, some slots, or their concat."""
    fields = [field for field, n in s.state.items() if length in (None, n)]
    if not fields:
        return some(s, (length or s.size(),))
    field = s.pick(fields)
    if s.arity is None or (s.reads_all and s.chance(0.5)):
        return s.reduce(s.pick(("sum", "sum", "mean", "max")), s.children(field))
    slots = sorted({int(k) for k in s.rng.integers(0, s.arity, s.arity)})
    found = [s.gather(slot, field) for slot in slots]
    if len(found) > 1 and length is None and s.chance(0.3):
        return s.concat(found)
    return total(s, found)


def total(s: Sketch, xs: list[int]) -> int:
    """Add values up."""
    out = xs[0]
    for x in xs[1:]:
        out = s.map("add", out, x)
    return out


def gates(s: Sketch, x: int, length: int, count: int) -> list[int]:
    """Return gate pre-activations of one vector: one matrix and its parts, or matrices apart."""
    if s.chance(0.5):
        whole = s.matmul(x, count * length)
        if s.chance(0.5):
            whole = s.map("add", whole, s.parameter((count * length,)))
        return s.parts(whole, count)
    fresh = s.chance(0.75)  # else gates may share a matrix
    found = []
    for _ in range(count):
        weight = s.parameter((length, s.length(x)), fresh)
        gate = s.matmul(x, length, weight)
        found.append(s.map("add", gate, s.parameter((length,))) if s.chance(0.2) else gate)
    return found


def gru(s: Sketch, h: int, x: int, length: int) -> int:
    """Update a state by three gates."""
    h, x = s.tame(h), s.tame(x)
    (a, b, c), (u, v, w) = gates(s, h, length, 3), gates(s, x, length, 3)
    reset = s.map("sigmoid", s.map("add", a, u))
    update = s.map("sigmoid", s.map("add", b, v))
    if s.chance(0.5):
        c, w = w, c
    new = s.map("tanh", s.map("add", c, s.map("mul", reset, w)))
    out = s.map("mul", s.map("sub", 1.0, update), new)
    if s.chance(0.8):
        out = s.map("add", out, s.map("mul", update, s.tame(some(s, (length,)))))
    return out


def lstm(s: Sketch, h: int, x: int, length: int) -> int:
    """Update a memory by four gates."""
    h, x = s.tame(h), s.tame(x)
    pairs = zip(gates(s, h, length, 4), gates(s, x, length, 4), strict=True)
    i, f, o, u = [s.map("add", a, b) for a, b in pairs]
    cell = s.map("mul", s.map("sigmoid", i), s.map("tanh", u))
    kept = s.map("mul", s.map("sigmoid", f), s.tame(some(s, (length,))))
    return s.map("mul", s.map("sigmoid", o), s.map("tanh", s.map("add", cell, kept)))


def one_cell(s: Sketch) -> int:
    """Draw a gated cell."""
    cell = s.pick((gru, lstm))
    return cell(s, child_input(s), some(s, None), s.size())


def several_cells(s: Sketch) -> int:
    """Draw two or three cells that read the same vectors."""
    h, x, length = child_input(s), some(s, None), s.size()
    found = [s.pick((gru, lstm))(s, h, x, length) for _ in range(s.pick((2, 2, 3)))]
    out = found[0]
    for y in found[1:]:
        op = s.pick(("add", "mul"))
        out = s.map(op, s.tame(out), s.tame(y))
    return out


def forget_gates(s: Sketch) -> int:
    """Gate each child by the same matrix: a Child-Sum or an N-ary Tree-LSTM's memory."""
    length, field = s.size(), s.pick(list(s.state))
    same = [name for name, n in s.state.items() if n == length]
    x = some(s, (length,))
    weight = s.parameter((length, s.state[field]))
    if s.arity is None or (s.reads_all and s.chance(0.5)):
        product = s.matmul(s.children(field), length, weight)
        gate = s.map("sigmoid", s.map("add", product, x))
        memory = s.children(s.pick(same)) if same else product
        return s.reduce("sum", s.map("mul", gate, s.tame(memory)))
    terms = []
    for slot in range(s.arity):
        product = s.matmul(s.gather(slot, field), length, weight)
        gate = s.map("sigmoid", s.map("add", product, x))
        memory = s.gather(slot, s.pick(same)) if same else product
        terms.append(s.map("mul", gate, memory))
    return total(s, terms)


def attention(s: Sketch) -> int:
    """Weigh children by the softmax of a score, over the children."""
    if not s.reads_all:
        return forget_gates(s)
    keys = s.children()
    length = s.pick((1, 2, 3, 4))
    query = s.tame(s.matmul(some(s, None), length))
    products = s.map("mul", s.tame(s.matmul(keys, length)), query)
    if s.chance(0.5):
        score = s.tame(s.reduce("sum", products, "elements"), 3.0)
        share = s.along("softmax", score, "children")
    else:
        score = s.tame(total(s, [s.element(products) for _ in range(length)]), 3.0)
        power = s.function("exp", s.map("sub", score, s.reduce("max", score)))
        share = s.map("div", power, s.map("maximum", s.reduce("sum", power), 0.05))
        s.bounds[share] = 1.0
    values = s.tame(s.matmul(keys, s.size())) if s.chance(0.6) else keys
    return s.reduce("sum", s.map("mul", share, values))


def shared_weight(s: Sketch) -> int:
    """Multiply one matrix by several vectors, and one of the vectors by another matrix."""
    n, m = s.size(), s.size()
    weight = s.parameter((m, n))
    xs = [some(s, (n,), per_child=False) for _ in range(s.pick((2, 2, 3)))]
    products = [s.matmul(x, m, weight) for x in xs]
    if s.chance(0.5):
        products.append(s.matmul(xs[0], m))
    if s.chance(0.3):
        products.append(s.matmul(s.concat([xs[0], xs[1]]), m))
    out = products[0]
    for y in products[1:]:
        other = s.function(s.pick(("sigmoid", "tanh", "relu")), y) if s.chance(0.5) else s.tame(y)
        out = s.map(s.pick(("add", "mul", "sub")), s.tame(out), other)
    return out


def layers(s: Sketch) -> int:
    """Multiply by matrices one after another, with little or nothing in between."""
    x = some(s, None)
    sizes = [s.size() for _ in range(s.pick((2, 2, 3)))]
    for before, length in pairwise([s.length(x), *sizes]):
        assert before == s.length(x)
        x = s.matmul(x, length)
        if s.chance(0.3):
            x = s.map("add", x, s.parameter((length,)))
        if s.chance(0.2):
            x = s.map("relu", x)
    return x


def reused_parameter(s: Sketch) -> int:
    """Read one vector of parameters in several places: per child, in a product, per vertex."""
    field = s.pick(list(s.state))
    length = s.state[field]
    vector = s.parameter((length,))
    y = s.matmul(vector, s.size())
    if s.chance(0.5):
        y = s.map(s.pick(("add", "mul")), y, s.tame(some(s, s.shape(y))))
    if s.reads_all:
        z = s.reduce(s.pick(("sum", "max")), s.map("add", s.children(field), vector))
    else:
        z = s.map(s.pick(("add", "maximum")), some(s, (length,)), vector)
    return s.map("add", y, s.tame(summary(s, z)))


def masked(s: Sketch) -> int:
    """Multiply or choose by presence, and add a number to what may be zeros."""
    x = s.tame(some(s, None, per_child=False))
    mask: Operand = s.has() if s.chance(0.7) else 0.0
    y = s.map("mul", x, mask)
    if s.chance(0.6):
        y = s.map("add", y, s.tame(summary(s, some(s, None, per_child=False))))
    elif not isinstance(mask, float):
        y = s.map("where", mask, y, s.tame(some(s, s.shape(x), per_child=False)))
    return y


def matrix(s: Sketch) -> int:
    """Compute a number from a matrix: pulled, or a parameter that products may share."""
    shapes = [shape for shape in s.parameters.values() if len(shape) == 2]
    shape = s.pick(shapes) if shapes and s.chance(0.7) else (s.size(), s.size())
    weight = s.parameter(shape)
    y = s.map("mul", s.pull(shape) if s.chance(0.5) else weight, weight)
    if s.chance(0.5):
        y = s.map("tanh", y)
    if s.chance(0.3):
        y = s.map("mul", s.tame(some(s, (), per_child=False)), y)
    return s.tame(s.reduce(s.pick(("sum", "mean")), y))


CELLS: tuple[tuple[Callable[[Sketch], int], float], ...] = (
    (one_cell, 3.0),
    (several_cells, 1.0),
    (forget_gates, 1.0),
    (attention, 1.0),
    (shared_weight, 1.5),
    (layers, 1.0),
    (reused_parameter, 0.7),
    (masked, 1.5),
    (matrix, 0.6),
)
