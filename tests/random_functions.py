"""Vertex functions drawn at random from the op table, by hypothesis.

A recipe is a list of steps; each step applies an op to values made before, chosen by number modulo
how many there are, so that every recipe is a valid function and shrinks to a small one. Values are
kept near one: what grows passes through tanh or sigmoid, what divides stays away from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import vertexrt as vrt
from tests.functions import vector
from tests.strategies import CLASSES, MARK, WORDS

SIZE = 3  # elements of every vector
Step = tuple[int, int, int, int]  # op, operands
Recipe = tuple[tuple[Step, ...], int]  # steps, and a number that picks the state


class RandomFunction(vrt.VertexFunction):
    """F as a recipe tells it: vectors of SIZE elements and numbers, per vertex and per child.

    Args:
        recipe: the steps; what the last ones do not need is dead.
        everything: push a sum of all values, so that none is dead.
    """

    def __init__(self, recipe: Recipe, everything: bool = False) -> None:
        super().__init__(arity=2, state={"h": SIZE, "g": SIZE})
        self.recipe = recipe
        self.everything = everything
        self.embedding = vrt.Parameter((WORDS, SIZE), init=vrt.init.normal(0.7))
        self.w = vrt.Parameter((SIZE, SIZE))
        self.u = vrt.Parameter((SIZE, SIZE))
        self.wide = vrt.Parameter((SIZE, 2 * SIZE))
        self.v = vrt.Parameter((CLASSES, SIZE))
        self.b = vector(SIZE)

    def forward(self) -> None:
        left, right, kids = self.gather(0), self.gather(1), self.gather_all()
        mark = self.pull("mark", shape=(MARK,))
        self.vectors: list[Any] = [
            left.h,
            right.g,
            vrt.embed(self.embedding, self.pull("word")),
            self.b * 1.0,
            vrt.concat(mark, mark[:1]),
        ]
        self.numbers: list[Any] = [self.present(1), self.pull("gain", dtype="float"), left.g[1]]
        self.each: list[Any] = [kids.h, kids.g]
        steps, last = self.recipe
        for op, *operands in steps:
            OPS[op % len(OPS)](self, *operands)
        if self.everything:
            per_child = vrt.tanh(sum(self.each[1:], self.each[0]))
            vectors = [vrt.tanh(x) for x in self.vectors]
            self.vectors.append(sum(vectors, sum(self.numbers) + vrt.sum(per_child)))
        self.scatter(h=vrt.tanh(self.vector(last)), g=vrt.sigmoid(self.vectors[-1]))
        out = self.push("out", self.vectors[-1])
        number = self.push("number", self.numbers[-1])
        self.push("loss", vrt.sum(out * self.vector(last)) + number)

    def vector(self, k: int) -> Any:
        return self.vectors[k % len(self.vectors)]

    def number(self, k: int) -> Any:
        return self.numbers[k % len(self.numbers)]

    def edge(self, k: int) -> Any:
        return self.each[k % len(self.each)]


Op = Callable[[RandomFunction, int, int, int], None]


def vectors(make: Callable[[RandomFunction, int, int, int], Any]) -> Op:
    return lambda f, a, b, c: f.vectors.append(make(f, a, b, c))


def numbers(make: Callable[[RandomFunction, int, int, int], Any]) -> Op:
    return lambda f, a, b, c: f.numbers.append(make(f, a, b, c))


def edges(make: Callable[[RandomFunction, int, int, int], Any]) -> Op:
    return lambda f, a, b, c: f.each.append(make(f, a, b, c))


OPS: list[Op] = [
    vectors(lambda f, a, b, c: f.vector(a) + f.vector(b)),
    vectors(lambda f, a, b, c: f.vector(a) - f.number(b)),
    vectors(lambda f, a, b, c: vrt.tanh(f.vector(a)) * f.vector(b)),
    vectors(lambda f, a, b, c: f.number(a) * vrt.sigmoid(f.vector(b))),
    vectors(lambda f, a, b, c: -f.vector(a) / (2.0 + vrt.tanh(f.vector(b)))),
    vectors(lambda f, a, b, c: vrt.tanh(f.w @ f.vector(a))),
    vectors(lambda f, a, b, c: vrt.tanh(f.u @ f.vector(a) + f.b)),
    vectors(lambda f, a, b, c: vrt.sigmoid(f.w @ f.vector(a) + f.u @ f.vector(b))),
    vectors(lambda f, a, b, c: vrt.tanh(f.wide @ vrt.concat(f.vector(a), f.vector(b)))),
    vectors(lambda f, a, b, c: vrt.concat(f.vector(a)[1:], f.vector(b)[:1])),
    vectors(lambda f, a, b, c: vrt.maximum(f.vector(a), f.number(b))),
    vectors(lambda f, a, b, c: vrt.minimum(vrt.tanh(f.vector(a)), f.b)),
    vectors(lambda f, a, b, c: vrt.where(f.present(a % 2), f.vector(b), f.vector(c))),
    vectors(lambda f, a, b, c: f.present("mark") * f.vector(a)),
    vectors(lambda f, a, b, c: vrt.relu(f.vector(a))),
    vectors(lambda f, a, b, c: vrt.exp(vrt.tanh(f.vector(a))) - 1.0),
    vectors(lambda f, a, b, c: vrt.log(1.5 + vrt.sigmoid(f.vector(a)))),
    vectors(lambda f, a, b, c: vrt.sqrt(1.0 + vrt.sigmoid(f.vector(a)))),
    vectors(lambda f, a, b, c: vrt.softmax(f.vector(a))),
    vectors(lambda f, a, b, c: vrt.dropout(f.vector(a), 0.25)),
    vectors(lambda f, a, b, c: vrt.sum(f.edge(a))),
    vectors(lambda f, a, b, c: vrt.mean(f.edge(a)) + vrt.sum(f.edge(b))),
    vectors(lambda f, a, b, c: vrt.sum(vrt.tanh(f.edge(a) + f.vector(b)))),
    numbers(lambda f, a, b, c: vrt.tanh(vrt.sum(f.vector(a)))),
    numbers(lambda f, a, b, c: vrt.max(f.vector(a)) * 0.5),
    numbers(lambda f, a, b, c: vrt.tanh(vrt.logsumexp(f.vector(a)))),
    numbers(lambda f, a, b, c: f.vector(a)[b % SIZE]),
    numbers(lambda f, a, b, c: f.number(a) * vrt.tanh(f.number(b))),
    numbers(lambda f, a, b, c: vrt.mean(f.vector(a)) - f.number(b)),
    numbers(lambda f, a, b, c: vrt.tanh(vrt.squared_error(f.vector(a), f.vector(b)))),
    numbers(lambda f, a, b, c: vrt.cross_entropy(f.v @ f.vector(a), f.pull("label")) * 0.3),
    edges(lambda f, a, b, c: vrt.tanh(f.u @ f.edge(a))),
    edges(lambda f, a, b, c: f.edge(a) * vrt.sigmoid(f.vector(b))),
    edges(lambda f, a, b, c: vrt.tanh(f.edge(a) - f.b) * f.number(b)),
    edges(lambda f, a, b, c: vrt.tanh(f.wide @ vrt.concat(f.edge(a), f.vector(b)))),
    edges(lambda f, a, b, c: vrt.softmax(f.edge(a), over="elements")),
    edges(lambda f, a, b, c: vrt.softmax(f.edge(a), over="children")),
    edges(lambda f, a, b, c: vrt.dropout(f.edge(a), 0.25) + f.edge(b)),
]


def recipes(max_steps: int = 9) -> st.SearchStrategy[Recipe]:
    """Draw the recipe of a vertex function."""
    number = st.integers(0, 11)
    step = st.tuples(st.integers(0, len(OPS) - 1), number, number, number)
    steps = st.lists(step, min_size=1, max_size=max_steps).map(tuple)
    return st.tuples(steps, number)
