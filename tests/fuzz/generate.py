"""Draw networks at random: single ops, cells, and what is scattered and pushed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.cells import CELLS
from tests.fuzz.function import (
    CHILDREN,
    COMPARISONS,
    FunctionSpec,
    NetworkSpec,
    Operand,
    PullForm,
    Shape,
    Slot,
    prune,
)
from tests.fuzz.sketch import MOST_CHILDREN, STATE, Sketch

FUNCTIONS = (
    *("sigmoid", "tanh", "tanh", "relu", "exp", "log", "sqrt", "neg"),
    *(
        "sin",
        "cos",
        "erf",
        "floor",
        "abs",
        "softplus",
        "silu",
        "gelu",
        "elu",
        "leaky_relu",
        "stop_gradient",
        "floor",
    ),
)
BINARY = ("add", "add", "sub", "mul", "mul", "maximum", "minimum", "div")
CONSTANTS = (0.0, 1.0, -1.0, 0.5, 2.0, -1.75)
SMALL_SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
WIDE_SIZES = (4, 8, 12, 16, 20, 24, 32, 48, 64)
# Lengths near the powers of two and the threads of a block: what is counted in blocks, tiles or
# words goes wrong there.
LENGTHS = (31, 33, 63, 65, 127, 129, 255, 257, 511, 513)
LENGTHS += (1023, 1024, 1025, 1200, 2047, 2049)
CARRIED = "memory"  # what a network with carried states pulls and pushes
MOST_NODES = 45
MOST_REPEATED = 12  # elements of a vector that is repeated


@dataclass(frozen=True, slots=True)
class Style:
    """What networks are drawn.

    Attributes:
        types: the share of those of so many types; 0 for a function alone.
        nodes: of a network, about; at least 6 of a function. The loss comes on top.
        wide: how many have large vectors.
        labelled: how many have losses of labels alone.
        dropped: they may drop.
        carried: how many of those with types carry a state.
        long: a vector, or what is counted, has one of `LENGTHS`.
    """

    types: Mapping[int, float]
    nodes: int = MOST_NODES
    wide: float = 0.2
    labelled: float = 0.0
    dropped: bool = False
    carried: float = 0.0
    long: bool = False


WIDE = Style({0: 1.0}, 8, 0.0, 0.3, long=True)
FUNCTION = Style({0: 0.7, 1: 0.15, 2: 0.1, 3: 0.05})
OF_SEVERAL = Style({0: 0.15, 1: 0.1, 2: 0.35, 3: 0.2, 4: 0.1, 5: 0.1}, 24, 0.05, 0.4, False, 0.25)


def draw_network(rng: np.random.Generator, style: Style = FUNCTION) -> NetworkSpec:
    """Draw a network."""

    def drawn(p: float) -> bool:
        return bool(rng.random() < p)

    pool = WIDE_SIZES if drawn(style.wide) else SMALL_SIZES
    sizes = [int(n) for n in rng.choice(pool, int(rng.choice([1, 2, 2, 3])))]
    counts = [2, 3, 4, 5, 6]
    if style.long:
        (sizes if drawn(0.6) else counts)[:2] = [int(rng.choice(LENGTHS))]
    count = int(rng.choice(list(style.types), p=list(style.types.values())))
    kinds = [f"t{k}" for k in range(count)] or [""]
    states: dict[str, dict[str, int]] = {}
    for kind in kinds:
        fields = range(int(rng.choice([1, 1, 2, 2, 3])))
        states[kind] = {f"s{k}": 1 if drawn(0.1) else int(rng.choice(sizes)) for k in fields}
        if drawn(0.5):
            states[kind] = states[kinds[0]]
    labelled = drawn(style.labelled)
    parameters: dict[str, Shape] = {}
    lossy = {kinds[int(rng.integers(len(kinds)))], *(kind for kind in kinds if drawn(0.6))}
    nodes = max(style.nodes // len(kinds), 6)
    carries = count > 0 and drawn(style.carried)
    types = {}
    for kind in kinds:
        declared = _declared(rng, kind, states)
        s = Sketch(rng, sizes, states[kind], *declared[:2], parameters, style.dropped, counts)
        memory = states[kind]["s0"] == states[kinds[0]]["s0"] and (kind == kinds[0] or drawn(0.5))
        loss = ("labels" if labelled else "any") if kind in lossy else ""
        types[kind] = _draw(s, declared[2], nodes, loss, carries and memory)
    freezes = drawn(0.2)
    frozen = frozenset(name for name in parameters if freezes and drawn(0.5))
    reductions = ["mean_graphs", "sum", "mean_vertices"][: 2 + labelled]
    reduction = "mean_graphs" if count == 0 else str(rng.choice(reductions))
    return prune(NetworkSpec(types, parameters, frozen, reduction))


def _declared(
    rng: np.random.Generator, kind: str, states: Mapping[str, Mapping[str, int]]
) -> tuple[dict[Slot, Mapping[str, int]], list[str], dict[str, Any]]:
    """Draw what a type reads: by slot or relation the state, those read whole, and the fields."""
    form, own = rng.random(), states[kind]
    arity = None if form < 0.3 else int(rng.integers(1, 4))
    if not kind:
        every = [CHILDREN] if arity is None or form > 0.75 else []
        return dict.fromkeys((*range(arity or 0), *every), own), every, {"arity": arity}
    arity = arity if form > 0.8 else None
    below: dict[Slot, Mapping[str, int]] = dict.fromkeys(range(arity or 0), own)
    inputs: dict[str, tuple[str, ...]] = {}
    for k in range(int(rng.choice([0, 1, 1, 2, 3]))):
        child = kind if rng.random() < 0.4 else str(rng.choice(list(states)))
        alike = [n for n in states if states[n] == states[child]]
        inputs[f"r{k}"] = tuple(n for n in alike if n == child or rng.random() < 0.3)
        below[f"r{k}"] = states[child]
    every = [relation for relation in inputs if rng.random() < 0.6]
    return below, every, {"arity": arity, "inputs": inputs}


def _draw(s: Sketch, declared: dict[str, Any], most: int, loss: str, carries: bool) -> FunctionSpec:
    """Draw the nodes of a function."""
    if s.slots:
        s.gather(s.pick(s.slots))
    for relation in s.every:
        s.relation = relation
        s.children()
        if s.chance(0.4):
            s.of_edges(None)
    for _ in range(s.pick((1, 2, 2))):
        s.fresh()
    few = min(most, 16)
    wanted = s.number(5, few) if s.chance(0.6) else s.number(few, most + 1)
    while len(s.nodes) < wanted:
        s.relation = s.pick(s.every) if s.every else ""
        if s.chance(0.18):
            _one_of(s, CELLS)(s)
        else:
            _one_of(s, STEPS)(s, bool(s.every) and s.chance(0.3))
    return _finish(s, declared, loss, carries)


def _one_of(s: Sketch, shares: dict[Any, float]) -> Any:
    weights = np.array(list(shares.values()))
    return list(shares)[int(s.rng.choice(len(weights), p=weights / weights.sum()))]


# Single steps.


def _binary(s: Sketch, rows: bool) -> None:
    """Combine two values, a value and a number per vertex, or a value and a constant."""
    op = s.pick(BINARY)
    x = s.some(None if s.chance(0.8) else (), rows)
    c = s.rng.random()
    other = rows and s.chance(0.6)  # per child as well
    if c < 0.15 and op != "div":
        constant, x = s.pick(CONSTANTS), s.tame(x)
        s.map(op, *((constant, x) if s.chance(0.4) else (x, constant)))
        return
    y = s.some(() if c < 0.35 else s.shape(x), other)
    x = s.tame(x)
    if op == "div":
        s.divide(s.pick((x, x, 1.0)), y)
    else:
        y = s.tame(y)
        s.map(op, *((y, x) if s.chance(0.3) else (x, y)))


def _function(s: Sketch, rows: bool) -> None:
    x = s.some(None if s.chance(0.85) else (), rows)
    c = s.rng.random()
    if c < 0.85:
        s.function(s.pick(FUNCTIONS), x)
    elif c < 0.9:
        s.map("clip", x, -0.4, 0.7)
    elif c < 0.95:
        s.power(x, s.pick((3, 5, -2)))
    else:
        s.map("straight_through", x, s.some(s.shape(x), bool(s.rows(x))))


def _product(s: Sketch, rows: bool) -> None:
    x = s.some(None, rows)
    if s.chance(0.3):
        x = s.join("concat", [x, s.some(None, rows and s.chance(0.5))])
    if s.chance(0.1):
        s.block_diagonal(x)
        return
    y = s.matmul(x, s.size()) if s.chance(0.8) else s.transposed(x, s.size())
    if s.chance(0.3):
        s.map("add", y, s.parameter(s.shape(y)) if s.chance(0.7) else s.full(s.length(y)))


def _part(s: Sketch, rows: bool) -> None:
    x = s.some(None, rows)
    length = s.length(x)
    counts = [n for n in range(2, length + 1) if length % n == 0]
    if s.chance(0.1):
        start, step = s.number(0, length), s.number(2, 4)
        s.emit("every", (x,), (len(range(start, length, step)),), s.bound(x), (start, step))
    elif counts and s.chance(0.3):
        s.parts(x, s.pick(counts))
    elif s.chance(0.6):
        start = s.number(0, length)
        s.slice(x, start, s.number(start + 1, length + 1))
    elif s.chance(0.5):
        s.named(x)
    elif s.chance(0.3):
        s.argmax(s.tame(x))
    else:
        s.element(x)


def _join(s: Sketch, rows: bool) -> None:
    op, shape = ("stack", ()) if s.chance(0.15) else ("concat", None)
    s.join(op, [s.some(shape, rows and s.chance(0.7)) for _ in range(s.pick((1, 2, 2, 3, 4)))])


def _repeated(s: Sketch, rows: bool) -> None:
    """Repeat a vector, or multiply all pairs of elements of two short ones."""
    short = [k for k in s.values(None, rows) if s.length(k) <= MOST_REPEATED]
    if not short:
        return
    x, y = (s.tame(s.pick(short)) for _ in range(2))
    n, m, bound = s.length(x), s.length(y), s.bound(x) * s.bound(y)
    op = s.pick(("repeat", "tile", "outer", "outer_left", "outer_right", "cumsum", "sort", "top_k"))
    if op == "cumsum":
        over = s.pick(("children", "elements")) if rows else ""
        s.emit(op, (x,), (n,), s.bound(x) * (MOST_CHILDREN if rows else n), (over,))
    elif op == "top_k" and rows and s.chance(0.6):
        k = s.number(1, 4)
        s.emit("top_children", (x,), (k * n,), s.bound(x), (k, k * n), "")
    elif op == "sort":
        s.emit(op, (x,), (n,), s.bound(x), (s.chance(0.5),))
    elif op == "top_k":
        k = s.number(1, n + 1)
        s.emit(op, (x,), (k,), s.bound(x), (k, "elements"))
    elif op in ("repeat", "tile"):
        times = s.pick((1, 2, 3))
        s.emit(op, (x,), (n * times,), s.bound(x), (times,))
    elif op == "outer":
        s.emit(op, (x, y), (n * m,), bound, (n * m,))
    else:
        z = s.tame(s.some((m if op == "outer_left" else n,), rows))
        shape = (n if op == "outer_left" else m,)
        s.emit(op, (x, y, z), shape, bound * s.bound(z) * s.length(z))


def _along(s: Sketch, rows: bool) -> None:
    op = s.pick(("softmax", "log_softmax", "logsumexp"))
    x = s.tame(s.some(() if rows and s.chance(0.3) else None, rows))
    over = ("children" if s.shape(x) == () else "elements") if rows else s.pick(("", "elements"))
    s.along(op, x, "children" if rows and s.chance(0.6) else over)


def _compare(s: Sketch, rows: bool) -> None:
    op = s.pick(COMPARISONS)
    if s.chance(0.6 if rows else 0.3):
        index = s.pull_index(s.number(2, 6), rows)
        if not rows and s.chance(0.5):
            s.compare(op, s.arithmetic(index), s.index(4))
            return
        bound = s.pulls[s.nodes[index].extra[0]].bound
        s.compare(op, index, s.pick((float(s.number(0, bound)), -1.0)))
        return
    x = s.some(s.pick((None, None, ())), rows)
    y: Operand = s.pick((0.0, 0.25)) if s.chance(0.5) else s.some(s.pick(((), s.shape(x))), rows)
    s.compare(op, *((y, x) if s.chance(0.3) else (x, y)))


def _where(s: Sketch, rows: bool) -> None:
    x = s.some(None, rows)
    shape = s.pick(((), s.shape(x)))
    c = s.rng.random()
    if c < 0.4:
        mask = s.has()
    elif c < 0.7:
        mask = s.function("relu", s.some(shape, rows))
    else:
        mask = s.compare(s.pick(COMPARISONS), s.some(shape, rows), 0.25)
    y: Operand = 0.25 if s.chance(0.2) else s.some(s.shape(x), rows)
    s.map("where", mask, *((y, x) if s.chance(0.3) else (x, y)))


def _error(s: Sketch, rows: bool) -> None:
    x = s.tame(s.some(None, rows))
    if s.chance(0.3):
        s.dot(x, s.tame(s.some(s.shape(x), rows)))
    else:
        s.error(x, 0.25 if s.chance(0.4) else s.tame(s.some(s.shape(x), rows)))


def _reduce(s: Sketch, rows: bool) -> None:
    if rows:
        x = s.some(None if s.chance(0.8) else (), True)
        over = s.pick(("", "", "", "children", "elements" if s.shape(x) else ""))
        op = s.pick(("sum", "sum", "max", "mean", "prod"))
        s.reduce(op, s.tame(x, 1.0) if op == "prod" else x, over)
    else:
        s.summary(s.some())


def _random(s: Sketch, rows: bool) -> None:
    """Drop nothing, unless dropping is asked for; or draw numbers that are clipped to one."""
    if s.chance(0.3):  # as often as not in a loop with others
        length, op = s.size(), s.pick(("uniform", "normal"))
        s.emit("drawn", (), (length,), 1.0, (op, length, s.pick((0.25, -0.5))))
        return
    x = s.some(None, rows)
    extra = (s.pick((0.25, 0.5)) if s.drops else 0.0, s.pick(("vertex", "graph")))
    s.emit("dropout", (x,), s.shape(x), s.bound(x), extra)


STEPS: dict[Callable[[Sketch, bool], None], float] = {
    _binary: 30.0,
    _function: 18.0,
    _product: 18.0,
    _part: 9.0,
    _join: 5.0,
    _repeated: 4.0,
    _along: 4.0,
    _where: 4.0,
    _compare: 4.0,
    _error: 3.0,
    _reduce: 9.0,
    _random: 2.0,
}


# What leaves the function.


def _finish(s: Sketch, declared: dict[str, Any], loss: str, carries: bool) -> FunctionSpec:
    initial = {}
    own = [field for n in s.slots if isinstance(n, int) for field in s.below[n]]
    if own and s.chance(0.15):
        field = s.pick(own)
        initial[field] = s.nodes[s.parameter((s.state[field],))].extra[0]
    memory = None
    if carries:
        shape = (s.state["s0"],)
        s.pulls[CARRIED] = PullForm(shape)
        memory = s.emit("pull", (), shape, STATE, (CARRIED,))
    scatter = {field: s.tame(s.some((n,)), STATE) for field, n in s.state.items()}
    if memory is not None:
        scatter["s0"] = s.map("tanh", s.map("add", scatter["s0"], memory))
    shapes: tuple[Shape | None, ...] = (None, None, None, ())
    pushes = {}
    for _ in range(s.pick((0, 1, 1, 2, 3))):
        x = s.some(s.pick(shapes))
        pushes[f"p{'_'.join(map(str, s.shape(x)))}"] = x  # types that push one have one shape
    if memory is not None:
        pushes[CARRIED] = scatter["s0"]
    if loss:
        terms = _labelled(s) if loss == "labels" else _terms(s, list(scatter.values()))
        pushes["loss"] = s.add(terms)
    return FunctionSpec(
        s.state, tuple(s.nodes), scatter, pushes, s.pulls, initial=initial, every=tuple(s.every),
        **declared,
    )  # fmt: skip


def _labelled(s: Sketch) -> list[int]:
    """Return losses of labels alone: a vertex without any has no loss."""
    found = []
    for _ in range(s.pick((1, 1, 2))):
        logits = s.matmul(s.some(), s.pick(s.counts))
        found.append(s.cross_entropy(logits, s.pull_index(s.length(logits))))
    return found


def _terms(s: Sketch, scattered: list[int]) -> list[int]:
    """Return numbers of what nothing reads yet, and of some of what is scattered."""
    read = {x for node in s.nodes for x in node.operands}
    loose = [
        k
        for k, node in enumerate(s.nodes)
        if k not in read and (node.inputs or node.op == "drawn") and not node.type.index
        if node.op not in ("embed", "has")
    ]
    pool = scattered if s.chance(0.6) else []
    pool = [*pool, *(k for k in loose if s.chance(0.6))][:6] or [s.some()]
    return [_term(s, x) for x in pool]


def _term(s: Sketch, x: int) -> int:
    """Compute a number that every element of a value enters."""
    if s.rows(x):
        x = s.reduce(s.pick(("sum", "sum", "mean", "max")), s.tame(x))
    x = s.tame(x)
    if s.shape(x) == ():
        return x
    c = s.rng.random()
    if c < 0.3 and len(s.shape(x)) == 1:
        return s.cross_entropy(s.matmul(x, s.pick(s.counts)) if s.chance(0.7) else x)
    if c < 0.5:
        return s.error(x, 0.25)
    return s.reduce("sum", x if c < 0.85 else s.map("square", x))
