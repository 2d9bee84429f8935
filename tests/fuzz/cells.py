"""Cells as users write them, drawn at random: gated, attention-like, sharing operands and weights.

Most of what passes rewrite shows in these: products that share an operand or a weight, slices of
their results, gates of several cells over the same vectors, products after products.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.function import Operand
from tests.fuzz.sketch import Sketch


def child_input(s: Sketch) -> int:
    """Read what a cell takes of its children: a reduction over all, some slots, or their concat."""
    if not s.below:
        return s.some()
    if not s.slots or (s.every and s.chance(0.5)):
        return s.reduce(s.pick(("sum", "sum", "mean", "max")), s.children())
    slot = s.pick(s.slots)
    field = s.pick(list(s.below[slot]))
    alike = [other for other in s.slots if s.below[other] == s.below[slot]]
    chosen = sorted({s.pick(alike) for _ in alike}, key=s.slots.index)
    found = [s.gather(each, field) for each in chosen]
    if len(found) > 1 and s.chance(0.3):
        return s.join("concat", found)
    return s.add(found)


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
        gate = s.matmul(x, length, s.parameter((length, s.length(x)), fresh))
        found.append(s.map("add", gate, s.parameter((length,))) if s.chance(0.2) else gate)
    return found


def gru(s: Sketch, h: int, x: int, length: int) -> int:
    """Update a state by three gates."""
    (a, b, c), (u, v, w) = gates(s, s.tame(h), length, 3), gates(s, s.tame(x), length, 3)
    reset = s.map("sigmoid", s.map("add", a, u))
    update = s.map("sigmoid", s.map("add", b, v))
    if s.chance(0.5):
        c, w = w, c
    new = s.map("tanh", s.map("add", c, s.map("mul", reset, w)))
    out = s.map("mul", s.map("sub", 1.0, update), new)
    if s.chance(0.8):
        out = s.map("add", out, s.map("mul", update, s.tame(s.some((length,)))))
    return out


def lstm(s: Sketch, h: int, x: int, length: int) -> int:
    """Update a memory by four gates."""
    pairs = zip(gates(s, s.tame(h), length, 4), gates(s, s.tame(x), length, 4), strict=True)
    i, f, o, u = [s.map("add", a, b) for a, b in pairs]
    cell = s.map("mul", s.map("sigmoid", i), s.map("tanh", u))
    kept = s.map("mul", s.map("sigmoid", f), s.tame(s.some((length,))))
    return s.map("mul", s.map("sigmoid", o), s.map("tanh", s.map("add", cell, kept)))


def gated(s: Sketch) -> int:
    """Draw a gated cell, or two or three that read the same vectors."""
    h, x, length = child_input(s), s.some(), s.size()
    found = [s.pick((gru, lstm))(s, h, x, length) for _ in range(s.pick((1, 1, 1, 2, 3)))]
    out = found[0]
    for y in found[1:]:
        out = s.map(s.pick(("add", "mul")), s.tame(out), s.tame(y))
    return out


def forget_gates(s: Sketch) -> int:
    """Gate each child by the same matrix: a Child-Sum or an N-ary Tree-LSTM's memory."""
    length = s.size()
    x = s.some((length,))

    def gate(child: int, weight: int) -> tuple[int, int]:
        product = s.matmul(child, length, weight)
        return s.map("sigmoid", s.map("add", product, x)), product

    if s.every and (not s.slots or s.chance(0.5)):
        same, child = s.fields(s.relation, (length,)), s.children()
        share, memory = gate(child, s.parameter((length, s.length(child))))
        memory = s.children(s.pick(same)) if same else memory
        return s.reduce("sum", s.map("mul", share, s.tame(memory)))
    terms = []
    for slot in s.slots:
        same, child = s.fields(slot, (length,)), s.gather(slot)
        share, memory = gate(child, s.parameter((length, s.length(child))))
        terms.append(s.map("mul", share, s.gather(slot, s.pick(same)) if same else memory))
    return s.add(terms or [x])


def attention(s: Sketch) -> int:
    """Weigh children by the softmax of a score, over the children."""
    if not s.every:
        return forget_gates(s)
    keys, length = s.children(), s.number(1, 5)
    query = s.tame(s.matmul(s.some(), length))
    products = s.map("mul", s.tame(s.matmul(keys, length)), query)
    if s.chance(0.5):
        score = s.tame(s.reduce("sum", products, "elements"), 3.0)
        share = s.along("softmax", score, "children")
    else:
        score = s.tame(s.add([s.element(products) for _ in range(length)]), 3.0)
        power = s.function("exp", s.map("sub", score, s.reduce("max", score)))
        share = s.map("div", power, s.map("maximum", s.reduce("sum", power), 0.05))
        s.bounds[share] = 1.0
    values = s.tame(s.matmul(keys, s.size())) if s.chance(0.6) else keys
    return s.reduce("sum", s.map("mul", share, values))


def shared_weight(s: Sketch) -> int:
    """Multiply one matrix by several vectors, and one of the vectors by another matrix."""
    n, m = s.size(), s.size()
    weight = s.parameter((m, n))
    xs = [s.some((n,)) for _ in range(s.pick((2, 2, 3)))]
    products = [s.matmul(x, m, weight) for x in xs]
    if s.chance(0.5):
        products.append(s.matmul(xs[0], m))
    if s.chance(0.3):
        products.append(s.matmul(s.join("concat", xs[:2]), m))
    out = products[0]
    for y in products[1:]:
        other = s.function(s.pick(("sigmoid", "tanh", "relu")), y) if s.chance(0.5) else s.tame(y)
        out = s.map(s.pick(("add", "mul", "sub")), s.tame(out), other)
    return out


def layers(s: Sketch) -> int:
    """Multiply by matrices one after another, with little or nothing in between."""
    x = s.some()
    for _ in range(s.pick((2, 2, 3))):
        x = s.matmul(x, s.size())
        if s.chance(0.3):
            x = s.map("add", x, s.parameter(s.shape(x)))
        if s.chance(0.2):
            x = s.map("relu", x)
    return x


def times_product(s: Sketch) -> int:
    """Multiply what was gathered into a product, and by a matrix again."""
    h = s.tame(child_input(s))
    y = s.tame(s.matmul(s.some(), s.length(h)))
    return s.matmul(s.map("mul", y, h), s.size())


def reused_parameter(s: Sketch) -> int:
    """Read one vector of parameters in several places: per child, in a product, per vertex."""
    children = s.children() if s.every else s.some()
    vector = s.parameter(s.shape(children))
    y = s.matmul(vector, s.size())
    if s.chance(0.5):
        y = s.map(s.pick(("add", "mul")), y, s.tame(s.some(s.shape(y))))
    if s.every:
        z = s.reduce(s.pick(("sum", "max")), s.map("add", children, vector))
    else:
        z = s.map(s.pick(("add", "maximum")), children, vector)
    return s.map("add", y, s.tame(s.summary(z)))


def masked(s: Sketch) -> int:
    """Multiply or choose by presence, and add a number to what may be zeros."""
    x = s.tame(s.some())
    mask: Operand = s.has() if s.chance(0.7) else 0.0
    y = s.map("mul", x, mask)
    if s.chance(0.6):
        y = s.map("add", y, s.tame(s.summary(s.some())))
    elif not isinstance(mask, float):
        y = s.map("where", mask, y, s.tame(s.some(s.shape(x))))
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
        y = s.map("mul", s.tame(s.some(())), y)
    return s.tame(s.reduce(s.pick(("sum", "mean")), y))


CELLS: dict[Callable[[Sketch], int], float] = {
    gated: 4.0,
    forget_gates: 1.0,
    attention: 1.0,
    shared_weight: 1.5,
    layers: 1.0,
    times_product: 0.7,
    reused_parameter: 0.7,
    masked: 1.5,
    matrix: 0.6,
}
