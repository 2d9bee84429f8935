"""Networks with a subject: long vectors, and gradients that are what is pulled."""

from __future__ import annotations

import numpy as np

from tests.fuzz.batches import BatchSpec, GraphSpec, Pulled, draw_numbers
from tests.fuzz.function import CHILDREN, FunctionSpec, NetworkSpec, PullForm
from tests.fuzz.sketch import Sketch

# Lengths are near the powers of two and the threads of a block: what is counted in blocks, tiles
# or words goes wrong there.
LENGTHS = (1, 31, 33, 63, 65, 127, 129, 255, 257, 511, 513)
LONG = (1023, 1024, 1025, 1200, 2047, 2049)
SMALL = (3, 5, 8, 17)
SLOW = 600  # states whose matrices are square take the oracle long from here on
WIDENED = ("state", "columns", "rows", "classes", "children", "pulled")
CELLS = ("rnn", "times", "times_own", "gated", "plain")


def draw_wide(rng: np.random.Generator) -> tuple[NetworkSpec, BatchSpec]:
    """Draw a cell with one or two long vectors, tables or lists of children, and a batch."""
    n = {name: int(rng.choice(SMALL)) for name in WIDENED}
    wide = rng.choice(WIDENED, 2 if rng.random() < 0.15 else 1, replace=False).tolist()
    for name in wide:
        n[name] = int(rng.choice(LONG if rng.random() < 0.6 else LENGTHS))
    arity = None if "children" in wide else (None, 1, 2)[int(rng.integers(3))]
    every, state = [] if arity else [CHILDREN], {"h": n["state"]}
    s = Sketch(rng, [], state, dict.fromkeys((*range(arity or 0), *every), state), every, {})
    index = s.pull_index(n["rows"])
    x = s.emit("embed", (s.parameter((n["rows"], n["columns"]), True), index), (n["columns"],), 1.0)
    if arity:
        b = s.add([s.gather(slot, "h") for slot in range(arity)])
    else:
        b = s.reduce(s.pick(("sum", "mean", "max")), s.children("h"))
    s.bounds[b] = 2.0
    small = n["state"] < SLOW or s.chance(0.1)
    cell = s.pick(CELLS) if small else "plain"
    y, q = s.matmul(x, n["state"]), s.matmul(s.pull((n["pulled"],)), n["state"])
    g, factor = b, 1.0
    if cell != "plain":
        square = s.parameter((n["state"], n["state"]), True)
        if cell == "gated":
            g = s.map("sigmoid", s.map("add", y, s.matmul(b, n["state"], square)))
        elif cell != "rnn":
            g = q
        inner = b if cell == "rnn" else s.map("mul", g, b)
        product = s.matmul(inner, n["state"], square)
    else:
        product = s.map("mul", b, 0.5)
    terms = {"rnn": [y], "times": [y], "gated": [q]}.get(cell, [y, q])
    h = s.map("tanh", s.add([*terms, product]))
    if cell == "gated":
        h = s.map("add", s.map("mul", g, h), s.map("mul", s.map("sub", factor, g), b))
    z = s.map("add", s.matmul(h, n["classes"]), s.parameter((n["classes"],), True))
    label = s.pull_index(n["classes"], fresh=True)
    loss = s.map("add", s.cross_entropy(z, label), s.error(h, 0.25))
    function = FunctionSpec(
        state, tuple(s.nodes), {"h": h}, {"z": z, "loss": loss}, s.pulls, arity, every=tuple(every)
    )
    network = NetworkSpec({"": function}, s.parameters)
    many = n["children"]
    lists: list[tuple[int, ...]] = [(), (), (0, 1), (), (2, 3), (4, -1)]
    if arity is None:
        lists = [*[()] * many, tuple(range(many)), (many,), (many + 1, 0)]
    elif arity == 1:
        lists = [(), *((v,) for v in range(int(rng.integers(1, 5))))]
    forms = {name: Pulled(form, not form.bound) for name, form in s.pulls.items()}
    graphs = [GraphSpec(tuple(each), {}) for each in (lists, [()])]
    graphs = [
        GraphSpec(
            graph.children,
            {
                name: draw_numbers(rng, network, graph, name, pulled, False, 0.8, False)
                for name, pulled in forms.items()
            },
        )
        for graph in graphs
    ]
    return network, BatchSpec(tuple(graphs), forms, int(rng.integers(1 << 30)))


def draw_linear() -> NetworkSpec:
    """Return a network whose loss is linear, with a table that is not in it and a frozen factor."""
    s = Sketch(np.random.default_rng(0), [], {}, {}, [], {})
    shapes = {"w": (5,), "m": (3, 4), "both": (4, 2), "table": (6, 3), "side": (4, 3), "e": (3,)}

    def read(name: str) -> int:
        s.parameters[name] = shapes[name]
        return s.emit("parameter", (), shapes[name], 1.0, (name,))

    def pulled(name: str, shape: tuple[int, ...], bound: int = 0) -> int:
        s.pulls[name] = PullForm(shape, bound)
        return s.emit("pull", (), shape, 1.0, (name,), "", bound > 0)

    def look_up(name: str, index: int) -> int:
        return s.emit("embed", (read(name), index), shapes[name][1:], 1.0)

    row, other = pulled("row", (), 6), pulled("other", (), 4)
    terms = [
        s.map("mul", read(name), pulled(f"g{name}", shapes[name])) for name in ("w", "m", "both")
    ]
    terms.append(s.map("mul", look_up("both", other), pulled("gother", (2,))))
    terms.append(s.map("mul", look_up("table", row), pulled("grow", (3,))))
    side = s.map("mul", look_up("side", other), read("e"))
    loss = s.add([s.reduce("sum", term) for term in terms])
    function = FunctionSpec({}, tuple(s.nodes), {}, {"side": side, "loss": loss}, s.pulls, every=())
    return NetworkSpec({"": function}, s.parameters, frozenset({"e"}))
