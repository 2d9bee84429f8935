"""Choose operands of a drawn function: values that are there, mostly the latest, or new ones."""

from __future__ import annotations

from tests.fuzz.function import Shape
from tests.fuzz.sketch import Sketch

FRESH = 0.12  # how often an operand is new though there is one that fits


def some(s: Sketch, shape: Shape | None, per_child: bool | None = False) -> int:
    """Return a value of a shape (None: any vector), per vertex, per child, or either (None)."""
    found = [k for k in range(len(s.nodes)) if s.fits(k, shape, per_child)]
    if not found or s.chance(FRESH):
        return fresh(s, shape, bool(per_child))
    if s.chance(0.4):
        return found[-1 - min(int(s.rng.geometric(0.45)) - 1, len(found) - 1)]
    return s.pick(found)


def fresh(s: Sketch, shape: Shape | None, per_child: bool) -> int:
    """Make a value of a shape."""
    if per_child:
        return _fresh_per_child(s, shape)
    if shape == ():
        return _fresh_number(s)
    (length,) = shape or (s.size(),)
    c = s.rng.random()
    if s.arity is not None and c < 0.06:
        return s.slot_edge((length,))
    if c < 0.2:
        return s.embedding(length)
    if c < 0.4:
        return s.pull((length,))
    if c < 0.55:
        return s.weight((length,))
    if c < 0.75:
        return s.matmul(some(s, None), length)
    fields = [field for field, n in s.state.items() if n == length]
    if not fields:
        return s.pull((length,))
    if s.arity is not None and not (s.reads_all and s.chance(0.4)):
        return s.gather(None, s.pick(fields))
    return s.reduce(s.pick(("sum", "max", "mean")), s.children(s.pick(fields)))


def _fresh_per_child(s: Sketch, shape: Shape | None) -> int:
    if s.chance(0.25):
        return of_edges(s, shape)
    if shape == ():
        return s.element(s.children())
    fields = [field for field, n in s.state.items() if shape in (None, (n,))]
    if fields:
        return s.children(s.pick(fields))
    assert shape is not None
    return s.matmul(s.children(), shape[0])


def of_edges(s: Sketch, shape: Shape | None) -> int:
    """Read what edges carry, or look it up."""
    length = s.size() if shape is None else next(iter(shape), 0)
    if length and s.chance(0.5):
        return s.embedding(length, edges=True)
    return s.pull((length,) if length else (), edges=True)


def _fresh_number(s: Sketch) -> int:
    c = s.rng.random()
    if s.arity is not None and c < 0.1:
        return s.slot_edge(())
    if c < 0.25:
        return s.has()
    if c < 0.4:
        return s.pull(())
    if c < 0.5:
        return s.parameter(())
    vectors = [k for k in range(len(s.nodes)) if s.fits(k, None, False)]
    return summary(s, s.pick(vectors)) if vectors else s.pull(())


def summary(s: Sketch, x: int) -> int:
    """Compute a number from a vector per vertex."""
    op = s.pick(("element", "element", "sum", "sum", "mean", "max", "logsumexp"))
    if op == "element":
        return s.element(x)
    over = s.pick(("", "", "", "elements"))
    return s.along(op, x, over) if op == "logsumexp" else s.reduce(op, x, over)
