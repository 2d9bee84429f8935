"""Write an expression again from one vector: a tree is read upwards, another is made downwards.

The vector of the root is all that the decoder gets. It makes a tree from the top, a child at a
time: `vrt.Decoder` feeds each vertex the state and the symbol of its parent.

Run: python examples/tree_decoder.py
Source: decoders of trees, Dong and Lapata 2016; a tree in one vector, Socher et al. 2011.
"""

from __future__ import annotations

import numpy as np

import vertexrt as vrt
from vertexrt import nn

SYMBOLS = ("+", "*", "-", "x", "y", "z", "1")
CHILDREN = np.array([2, 2, 1, 0, 0, 0, 0])
HIDDEN, TRAIN = 96, 5_000
TOP = len(SYMBOLS)  # the symbol over the root

Tree = list[tuple[int, int, int]]  # of each vertex, from the top: symbol, parent, which child


class Up(vrt.VertexFunction):
    """Read a vertex after its children."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": HIDDEN})
        self.symbol = nn.Embedding(len(SYMBOLS), HIDDEN)
        self.cell = nn.Linear(3 * HIDDEN, HIDDEN)

    def forward(self) -> None:
        below = self.gather(0).h, self.gather(1).h
        h = vrt.tanh(self.cell(vrt.concat(self.symbol(self.pull("symbol")), *below)))
        self.scatter(h=self.push("code", h))


class Down(vrt.VertexFunction):
    """Make a vertex after its parent, whose symbol is `word`; `slot` says which child it is.

    In training the state of the parent is gathered. In generation it is `h`, which it has pushed.
    """

    def __init__(self, up: Up) -> None:
        super().__init__(state={"h": HIDDEN}, inputs={"code": up})
        self.word, self.slot = nn.Embedding(TOP + 1, HIDDEN), nn.Embedding(2, HIDDEN)
        self.cell, self.out = nn.GRUCell(HIDDEN, HIDDEN), nn.Linear(HIDDEN, len(SYMBOLS))

    def forward(self) -> None:
        before = self.gather("parent").h + self.gather("code").h + self.pull("h", shape=(HIDDEN,))
        place = self.word(self.pull("word")) + self.slot(self.pull("slot"))
        h = self.push("h", self.cell(place, before))
        self.scatter(h=h)
        logits = self.push("logits", self.out(h))
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Writer(vrt.Model):
    """Both directions."""

    def __init__(self) -> None:
        self.up = Up()
        self.down = Down(self.up)


def tree(rng: np.random.Generator, most: int = 9) -> Tree:
    """Draw an expression of 2 to `most` vertices."""
    while True:
        found: Tree = []
        todo = [(-1, 0)]
        while todo and len(found) <= most:
            parent, slot = todo.pop()
            symbol = int(rng.integers(len(SYMBOLS)))
            todo += [(len(found), child) for child in reversed(range(CHILDREN[symbol]))]
            found.append((symbol, parent, slot))
        if 1 < len(found) <= most:
            return found


def graph(vertices: Tree) -> vrt.InputGraph:
    """Return a tree to read, and the same tree to make."""
    count = len(vertices)
    symbol, parent, slot = np.array(vertices).T
    edges = {
        ("up", str(k), "up"): [(v, parent[v]) for v in range(1, count) if slot[v] == k]
        for k in range(2)
    }
    edges["up", "code", "down"] = [(0, 0)]
    edges["down", "parent", "down"] = [(parent[v], v) for v in range(1, count)]
    pulls = {"word": np.where(parent < 0, TOP, symbol[parent]), "slot": slot, "label": symbol}
    pulls["h"] = vrt.Rows(np.zeros((1, HIDDEN)), np.full(count, -1))  # the parent hands it over
    types = {"up": count, "down": count}
    return vrt.InputGraph.from_types(types, edges, {"up": {"symbol": symbol}, "down": pulls})


def written(symbols: tuple[int, ...]) -> str:
    """Return a tree from the top as text."""
    return " ".join(SYMBOLS[symbol] for symbol in symbols)


def main(epochs: int = 40) -> float:
    """Train on 5,000 expressions; return which share of 200 others is written again exactly."""
    rng = np.random.default_rng(0)
    different: dict[tuple[int, ...], Tree] = {}  # so that what is judged was never trained on
    while len(different) < TRAIN + 200:
        drawn = tree(rng)
        different[tuple(symbol for symbol, _, _ in drawn)] = drawn
    trees = list(different.values())
    rng.shuffle(trees)  # most short ones were drawn first
    batch = vrt.GraphBatch.from_graphs([graph(each) for each in trees])
    net = vrt.compile(Writer(), seed=0)
    steps = epochs * TRAIN // 100
    optimizer = vrt.Adam(lr=vrt.schedules.cosine(5e-3, steps=steps))
    for _ in range(steps):
        loss = net.step(batch.take(rng.choice(TRAIN, 100, replace=False)), optimizer)
    others = batch[TRAIN:]
    codes = net(others, outputs=["code"])["code"][others.of_type("up")]
    sizes = [len(each) for each in trees[TRAIN:]]
    roots = np.cumsum([0, *sizes[:-1]])  # the first of each tree
    relations = [("up", "0", "up"), ("up", "1", "up"), ("up", "code", "down")]
    first = vrt.InputGraph.from_types(
        {"up": 0, "down": 1},
        {relation: [] for relation in [*relations, ("down", "parent", "down")]},
        {"down": {"word": [TOP], "slot": [0]}},
    )
    start = vrt.GraphBatch.from_graphs([first] * len(others))
    start = start.with_pulls({"h": codes[roots], "symbol": np.full(len(others), -1)})
    made = [best for (best,) in vrt.Decoder(net, start)(max_length=20, children=CHILDREN)]
    wanted = [tuple(symbol for symbol, _, _ in each) for each in trees[TRAIN:]]
    right = np.mean([one.words == other for one, other in zip(made, wanted, strict=True)])
    print(f"loss {loss:.3f}; read: {written(wanted[0])}; written: {written(made[0].words)}")
    print(f"{100 * right:.1f} % of 200 new expressions are written again exactly")
    return float(right)


if __name__ == "__main__":
    main()
