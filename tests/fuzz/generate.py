"""Draw vertex functions at random: single ops, cells, and what is scattered and pushed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.fuzz.cells import CELLS
from tests.fuzz.function import COMPARISONS, FunctionSpec, Operand, ValueType, prune
from tests.fuzz.operands import fresh, of_edges, some, summary
from tests.fuzz.sketch import SMALL_SIZES, STATE, WIDE_SIZES, Sketch

FUNCTIONS = (
    *("sigmoid", "tanh", "tanh", "relu", "exp", "log", "sqrt", "neg"),
    *("floor", "abs", "softplus", "silu", "gelu", "elu", "leaky_relu", "stop_gradient", "floor"),
)
BINARY = ("add", "add", "sub", "mul", "mul", "maximum", "minimum", "div")
CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0, -1.75)
WIDE = 0.2  # how many functions have large vectors
CELL = 0.18  # how many steps are a cell
RELATED = 0.2  # how many functions read relations by name


MOST_NODES = 45


def draw_function(rng: np.random.Generator, most: int = MOST_NODES) -> FunctionSpec:
    """Draw a vertex function.

    Args:
        most: nodes, about; at least 6. A last cell and the loss come on top.
    """
    s = _declare(rng)
    if s.arity is not None and (not s.reads_all or s.chance(0.9)):
        s.gather()
    for relation in range(max(s.relations, 1) if s.reads_all else 0):
        s.relation = relation
        s.children()
        if s.chance(0.4):
            of_edges(s, None)
    for _ in range(s.pick((1, 2, 2))):
        fresh(s, None, False)
    few = min(most, 16)
    wanted = int(s.rng.integers(5, few) if s.chance(0.6) else s.rng.integers(few, most + 1))
    weights = np.array([weight for _, weight in CELLS])
    while len(s.nodes) < wanted:
        if s.relations:
            s.relation = int(s.rng.integers(s.relations))
        if s.chance(CELL):
            k = int(rng.choice(len(CELLS), p=weights / weights.sum()))
            CELLS[k][0](s)
        else:
            _step(s)
    return _finish(s)


def _declare(rng: np.random.Generator) -> Sketch:
    """Draw sizes, slots and state."""
    pool = WIDE_SIZES if rng.random() < WIDE else SMALL_SIZES
    sizes = [int(n) for n in rng.choice(pool, int(rng.choice([1, 2, 2, 3])))]
    form = rng.random()
    arity = None if form < 0.3 else int(rng.integers(1, 4))
    fields = int(rng.choice([1, 1, 2, 2, 3]))
    state = {f"s{k}": 1 if rng.random() < 0.1 else int(rng.choice(sizes)) for k in range(fields)}
    relations = int(rng.integers(1, 4)) if rng.random() < RELATED else 0
    reads_all = relations > 0 or arity is None or form > 0.75
    return Sketch(rng, sizes, arity, reads_all, state, relations)


# Single steps.


def _binary(s: Sketch, rows: bool) -> None:
    """Combine two values, a value and a number per vertex, or a value and a constant."""
    op = s.pick(BINARY)
    x = some(s, None if s.chance(0.8) else (), rows)
    c = s.rng.random()
    other = rows and s.chance(0.6)  # per child as well
    y: Operand
    if c < 0.15 and op != "div":
        y = s.pick(CONSTANTS)
    else:
        y = some(s, () if c < 0.35 else s.shape(x), other)
    x = s.tame(x)
    if isinstance(y, float):
        first, second = (y, x) if s.chance(0.4) else (x, y)
        s.map(op, first, second)
    elif op == "div":
        s.divide(s.pick((x, x, 1.0)), y)
    else:
        y = s.tame(y)
        s.map(op, *((y, x) if s.chance(0.3) else (x, y)))


def _function(s: Sketch, rows: bool) -> None:
    x = some(s, None if s.chance(0.85) else (), rows)
    c = s.rng.random()
    if c < 0.85:
        s.function(s.pick(FUNCTIONS), x)
    elif c < 0.9:
        s.map("clip", x, -0.4, 0.7)
    elif c < 0.95:
        s.power(x, s.pick((3, 5, -2)))
    else:
        s.map("straight_through", x, some(s, s.shape(x), s.per_child(x)))


def _product(s: Sketch, rows: bool) -> None:
    x = some(s, None, rows)
    if s.chance(0.3):
        x = s.concat([x, some(s, None, rows and s.chance(0.5))])
    if s.chance(0.1):
        s.block_diagonal(x)
        return
    y = s.matmul(x, s.size()) if s.chance(0.8) else s.transposed(x, s.size())
    if s.chance(0.3):
        s.map("add", y, s.parameter(s.shape(y)) if s.chance(0.7) else s.full(s.length(y)))


def _part(s: Sketch, rows: bool) -> None:
    x = some(s, None, rows)
    length = s.length(x)
    counts = [n for n in range(2, length + 1) if length % n == 0]
    if counts and s.chance(0.3):
        s.parts(x, s.pick(counts))
    elif s.chance(0.6):
        start = int(s.rng.integers(length))
        s.slice(x, start, int(s.rng.integers(start + 1, length + 1)))
    elif s.chance(0.5):
        s.named(x)
    elif s.chance(0.3):
        s.argmax(s.tame(x))
    else:
        s.element(x)


def _concat(s: Sketch, rows: bool) -> None:
    if s.chance(0.15):
        s.stack([some(s, (), rows and s.chance(0.7)) for _ in range(s.pick((1, 2, 3)))])
        return
    s.concat([some(s, None, rows and s.chance(0.7)) for _ in range(s.pick((1, 2, 2, 3, 4)))])


def _along(s: Sketch, rows: bool) -> None:
    op = s.pick(("softmax", "log_softmax", "logsumexp"))
    x = s.tame(some(s, () if rows and s.chance(0.3) else None, rows))
    if rows:
        s.along(op, x, "children" if s.shape(x) == () or s.chance(0.6) else "elements")
    else:
        s.along(op, x, s.pick(("", "", "elements")))


def _compare(s: Sketch, rows: bool) -> None:
    op = s.pick(COMPARISONS)
    if s.chance(0.3):
        index = s.pull_index(int(s.rng.integers(2, 6)), rows)
        if not rows and s.chance(0.5):
            s.compare(op, s.arithmetic(index), s.index(4))
            return
        bound = s.pulls[s.nodes[index].extra[0]].bound
        s.compare(op, index, s.pick((float(s.rng.integers(bound)), -1.0)))
        return
    x = some(s, s.pick((None, None, ())), rows)
    y: Operand = s.pick((0.0, 0.25)) if s.chance(0.5) else some(s, s.pick(((), s.shape(x))), rows)
    s.compare(op, *((y, x) if s.chance(0.3) else (x, y)))


def _where(s: Sketch, rows: bool) -> None:
    x = some(s, None, rows)
    shape = s.pick(((), s.shape(x)))
    c = s.rng.random()
    if c < 0.4:
        mask = s.has()
    elif c < 0.7:
        mask = s.function("relu", some(s, shape, rows))
    else:
        mask = s.compare(s.pick(COMPARISONS), some(s, shape, rows), 0.25)
    y: Operand = 0.25 if s.chance(0.2) else some(s, s.shape(x), rows)
    s.map("where", mask, *((y, x) if s.chance(0.3) else (x, y)))


def _error(s: Sketch, rows: bool) -> None:
    x = s.tame(some(s, None, rows))
    if s.chance(0.3):
        s.dot(x, s.tame(some(s, s.shape(x), rows)))
        return
    y: Operand = 0.25 if s.chance(0.4) else s.tame(some(s, s.shape(x), rows))
    s.error(x, y)


def _reduce(s: Sketch, rows: bool) -> None:
    if rows:
        x = some(s, None if s.chance(0.8) else (), True)
        over = s.pick(("", "", "", "children", "elements" if s.shape(x) else ""))
        s.reduce(s.pick(("sum", "sum", "max", "mean")), x, over)
    else:
        summary(s, some(s, None))


def _dropout(s: Sketch, rows: bool) -> None:
    p = s.pick((0.0, 0.0, 0.25, 0.5))  # where it drops, the oracle knows inference only
    if s.chance(0.3):  # as often as not in a loop with others
        length, op = s.size(), s.pick(("uniform", "normal"))
        s.emit("drawn", (), ValueType((length,)), 1.0, (op, length, s.pick((0.25, -0.5))))
        return
    x = some(s, None, rows)
    extra = (p, s.pick(("vertex", "graph")))
    s.emit("dropout", (x,), s.nodes[x].type, s.bound(x), extra)


STEPS: tuple[tuple[Callable[[Sketch, bool], None], float], ...] = (
    (_binary, 30.0),
    (_function, 18.0),
    (_product, 18.0),
    (_part, 9.0),
    (_concat, 5.0),
    (_along, 4.0),
    (_where, 4.0),
    (_compare, 3.0),
    (_error, 3.0),
    (_reduce, 9.0),
    (_dropout, 2.0),
)
_SHARES = np.array([share for _, share in STEPS]) / sum(share for _, share in STEPS)


def _step(s: Sketch) -> None:
    """Draw one op, on values per vertex or per child."""
    rows = s.reads_all and s.chance(0.3)
    k = int(s.rng.choice(len(STEPS), p=_SHARES))
    STEPS[k][0](s, rows)


# What leaves the function.


def _finish(s: Sketch) -> FunctionSpec:
    initial: dict[str, str] = {}
    if s.arity is not None and s.chance(0.12):
        field = s.pick(list(s.state))
        leaf = s.nodes[s.parameter((s.state[field],))]
        initial[field] = leaf.extra[0]
    scatter = {field: s.tame(some(s, (n,)), STATE) for field, n in s.state.items()}
    shapes: tuple[tuple[int, ...] | None, ...] = (None, None, None, ())
    pushes = {f"p{k}": some(s, s.pick(shapes)) for k in range(s.pick((0, 1, 1, 2, 3)))}
    pushes["loss"] = _loss(s, list(scatter.values()))
    freezes = s.chance(0.2)
    frozen = frozenset(name for name in s.parameters if freezes and s.chance(0.5))
    nodes = tuple(s.nodes)
    return prune(
        FunctionSpec(
            s.arity,
            s.state,
            initial,
            s.parameters,
            s.pulls,
            nodes,
            scatter,
            pushes,
            frozen,
            s.relations,
        )
    )


def _loss(s: Sketch, scattered: list[int]) -> int:
    """Add up what nothing reads yet, and some of what is scattered."""
    read = {x for node in s.nodes for x in node.operands}
    leaves = ("pull", "edge", "slot_edge", "embed", "gather", "gather_all")
    leaves += ("parameter", "part", "present", "has")
    loose = [
        k
        for k, node in enumerate(s.nodes)
        if k not in read and node.op not in leaves and not node.type.index
    ]
    pool = scattered if s.chance(0.6) else []
    pool = [*pool, *(k for k in loose if s.chance(0.6))][:6] or [some(s, None)]
    loss = _term(s, pool[0])
    for x in pool[1:]:
        loss = s.map("add", loss, _term(s, x))
    return loss


def _term(s: Sketch, x: int) -> int:
    """Compute a number that every element of a value enters."""
    if s.per_child(x):
        x = s.reduce(s.pick(("sum", "sum", "mean", "max")), s.tame(x))
    x = s.tame(x)
    if s.shape(x) == ():
        return x
    c = s.rng.random()
    if c < 0.3 and len(s.shape(x)) == 1:
        return s.cross_entropy(s.matmul(x, int(s.rng.integers(2, 6))) if s.chance(0.7) else x)
    if c < 0.5:
        return s.error(x, 0.25)
    return s.reduce("sum", x if c < 0.85 else s.map("square", x))
