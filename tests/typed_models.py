"""Networks of several vertex types, and graphs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import vertexrt as vrt
from tests.declared import Declared
from tests.strategies import one_typed
from vertexrt.graph import GraphBatch, InputGraph

CHARS, WORDS, N, TAGS = 11, 13, 6, 3
Pairs = list[tuple[int, int]]


def gates(own: Any, x: Any, before: Any) -> tuple[Any, Any]:
    """Return the state of an LSTM whose parameters are attributes of `own`."""
    i, f, o, u = vrt.split(own.w @ x + own.u @ before.h + own.b, 4)
    c = vrt.sigmoid(f) * before.c + vrt.sigmoid(i) * vrt.tanh(u)
    return c, vrt.sigmoid(o) * vrt.tanh(c)


class Chain(vrt.VertexFunction):
    """An LSTM over the relation `before`; its words are spelt by another type, or looked up."""

    def __init__(self, spelling: vrt.VertexFunction | None = None) -> None:
        inputs = {} if spelling is None else {"spelling": spelling}
        super().__init__(state={"c": N, "h": N}, inputs=inputs)
        self.w, self.u = vrt.Parameter((4 * N, N)), vrt.Parameter((4 * N, N))
        self.b = vrt.Parameter((4 * N,))
        if spelling is None:
            self.table = vrt.Parameter((CHARS, N))

    def forward(self) -> None:
        spelt = "spelling" in self.inputs
        x = self.gather("spelling").h if spelt else vrt.embed(self.table, self.pull("letter"))
        c, h = gates(self, x, self.gather("before"))
        self.scatter(c=c, h=h)


class Tag(Declared, state={}, v=(TAGS, N), q=(TAGS, N)):
    """Logits of the states of both directions."""

    def forward(self) -> None:
        logits = self.v @ self.gather("left").h + self.q @ self.gather("right").h
        self.push("logits", logits)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class CharTagger(vrt.Model):
    """A BiLSTM tagger over words that an LSTM over characters spells."""

    def __init__(self, tied: bool = False) -> None:
        self.char = Chain()
        self.left, self.right = Chain(self.char), Chain(self.char)
        if tied:
            self.right.w, self.right.u = self.left.w, self.left.u
        self.tag = Tag(inputs={"left": self.left, "right": self.right})


def sentence(lengths: Sequence[int], rng: np.random.Generator) -> InputGraph:
    """Draw letters and labels for words of so many letters."""
    chars, words = sum(lengths), len(lengths)
    last = (np.cumsum(lengths) - 1).tolist()
    each: Pairs = [(i, i) for i in range(words)]
    spelt: Pairs = [(end, i) for i, end in enumerate(last)]
    return InputGraph.from_types(
        {"char": chars, "left": words, "right": words, "tag": words},
        {
            ("char", "before", "char"): [(i, i + 1) for i in range(chars - 1) if i not in last],
            ("left", "before", "left"): [(i, i + 1) for i in range(words - 1)],
            ("right", "before", "right"): [(i + 1, i) for i in range(words - 1)],
            ("char", "spelling", "left"): spelt,
            ("char", "spelling", "right"): spelt,
            ("left", "left", "tag"): each,
            ("right", "right", "tag"): each,
        },
        {
            "char": {"letter": rng.integers(0, CHARS, chars)},
            "tag": {"label": rng.integers(-1, TAGS, words)},
        },
    )


def sentences() -> GraphBatch:
    """Return three sentences."""
    rng = np.random.default_rng(2)
    return GraphBatch.from_graphs([sentence(n, rng) for n in ([2, 3, 1], [4], [1, 1, 2, 3])])


class Leaf(Declared, state={"c": N, "h": N}, table=(WORDS, N), w=(2 * N, N)):
    """A word of a tree; without children, it runs before the schedule."""

    def forward(self) -> None:
        i, u = vrt.split(self.w @ vrt.embed(self.table, self.pull("word")), 2)
        c = vrt.sigmoid(i) * vrt.tanh(u)
        self.scatter(c=c, h=vrt.tanh(c))


class Phrase(vrt.VertexFunction):
    """A phrase of a tree: its two children are words or phrases."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(arity=2, state={"c": N, "h": N})
        self.inputs |= {"0": (leaf, self), "1": (leaf, self)}
        self.u, self.f = vrt.Parameter((2 * N, N)), vrt.Parameter((N, N))

    def forward(self) -> None:
        kids = [self.gather(0), self.gather(1)]
        i, u = vrt.split(self.u @ (kids[0].h + kids[1].h), 2)
        c = vrt.sigmoid(i) * vrt.tanh(u)
        for kid in kids:
            c = c + vrt.sigmoid(self.f @ kid.h) * kid.c
        self.scatter(c=c, h=vrt.tanh(c))


class Down(Declared, state={"d": N}, a=(N, N), z=(N, N)):
    """From the root of a tree down again: each vertex reads what went up, and its parent."""

    def forward(self) -> None:
        d = vrt.tanh(self.a @ self.gather("up").h + self.z @ self.gather("parent").d)
        self.scatter(d=d)
        self.push("d", d)
        self.push("loss", vrt.losses.squared_error(d, 0.3))


class UpDown(vrt.Model):
    """Words and phrases are types of their own; then down the tree after up the tree."""

    def __init__(self) -> None:
        self.leaf = Leaf()
        self.phrase = Phrase(self.leaf)
        self.down = Down(inputs={"up": (self.leaf, self.phrase)})


class Decode(
    Declared,
    state={"c": N, "h": N},
    table=(TAGS, N),
    key=(N, N),
    w=(4 * N, N),
    u=(4 * N, N),
    b=(4 * N,),
    v=(TAGS, N),
):
    """A step of a decoder: the state before it, in a slot, and attention over the whole input."""

    def forward(self) -> None:
        before, states = self.gather("before"), self.gather_all("over")
        score = vrt.sum((self.key @ states.h) * before.h, axis="elements")
        read = vrt.sum(vrt.softmax(score, axis="children") * states.h)
        x = vrt.embed(self.table, self.pull("last")) + read + vrt.mean(states.c)
        c, h = gates(self, x, before)
        self.scatter(c=c, h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Join(Declared, state={"h": N}, a=(N, N), z=(N, N)):
    """A step of a DAG: one decoded state, and any number of steps before, of its own type."""

    def forward(self) -> None:
        args, own = self.gather_all("args"), self.gather("own")
        each = vrt.random.dropout(vrt.tanh(self.z @ args.h + own.c), 0.3)
        h = vrt.tanh(self.a @ own.h + vrt.sum(each) + vrt.max(args.h))
        self.scatter(h=h)
        self.push("joined", h)


class Translator(vrt.Model):
    """Sequence to sequence with attention, and a DAG over what was decoded."""

    def __init__(self) -> None:
        self.encode = Chain()
        self.decode = Decode(inputs={"over": self.encode})
        self.join = Join(inputs={"own": self.decode})


JOINED: list[Pairs] = [[(0, 1), (0, 2), (1, 2)], [], [(1, 0), (2, 1), (2, 0), (0, 3), (1, 3)]]


def translations() -> GraphBatch:
    """Return three inputs with their outputs; one of the outputs reads no input."""
    rng = np.random.default_rng(6)
    graphs = []
    for letters, words, args in zip((4, 1, 0), (3, 1, 4), JOINED, strict=True):
        graphs.append(
            InputGraph.from_types(
                {"encode": letters, "decode": words, "join": words},
                {
                    ("encode", "before", "encode"): [(i, i + 1) for i in range(letters - 1)],
                    ("encode", "over", "decode"): [
                        (i, j) for i in range(letters) for j in range(words)
                    ],
                    ("decode", "before", "decode"): [(i, i + 1) for i in range(words - 1)],
                    ("join", "args", "join"): args,
                    ("decode", "own", "join"): [(i, i) for i in range(words) if i != 1],
                },
                {
                    "encode": {"letter": rng.integers(0, CHARS, letters)},
                    "decode": {
                        "last": rng.integers(-1, TAGS, words),
                        "label": rng.integers(-1, TAGS, words),
                    },
                },
            )
        )
    return GraphBatch.from_graphs(graphs)


class Total(Declared, state={"h": N}, z=(N, N)):
    """The sum of the states of all children."""

    def forward(self) -> None:
        self.scatter(h=vrt.tanh(self.z @ vrt.mean(self.gather_all("over").h)))


class Top(Declared, state={"h": N}, z=(N, N)):
    """What reads a total, in a slot."""

    def forward(self) -> None:
        h = vrt.tanh(self.z @ self.gather("total").h)
        self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(h, 0.2))


class WideSum(vrt.Model):
    """Words under a total, on the path; another function reads it by slot."""

    def __init__(self) -> None:
        self.leaf = Leaf()
        self.total = Total(inputs={"over": self.leaf})
        self.top = Top(inputs={"total": self.total})


def wide_sum(words: int) -> GraphBatch:
    """Return one graph in which two totals have so many words each."""
    rng = np.random.default_rng(9)
    edges = {
        ("leaf", "over", "total"): [(i, j) for j in range(2) for i in range(words)],
        ("total", "total", "top"): [(0, 0), (1, 1)],
    }
    pulls = {"leaf": {"word": rng.integers(0, WORDS, words)}}
    sizes = {"leaf": words, "total": 2, "top": 2}
    return one_typed(sizes, edges, pulls)
