"""Products that read rows of children, and write rows of edges, where these lie."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.devices import on_gpus
from tests.functions import LSTMChain
from tests.runs import PLAIN, TOLERANCE, Way, assert_same, evaluate, train
from tests.strategies import WORDS, ChildLists, with_pulls
from vertexrt.bench.measure import count
from vertexrt.engine.variant import Passes
from vertexrt.models import TreeFC

HIDDEN = 8
LEAVES = [[]] * 4
COMPLETE: ChildLists = [*LEAVES, [0, 1], [2, 3], [4, 5]]
TURNED: ChildLists = [*LEAVES, [1, 0], [2, 3], [4, 5]]
CROSSED: ChildLists = [*LEAVES, [0, 2], [1, 3], [4, 5]]
SHARED: ChildLists = [*LEAVES, [0, 1], [1, 2], [4, 5]]
LEANING: ChildLists = [[], [], [0, 1], [], [2, 3]]
HALF: ChildLists = [*LEAVES, [0, 1], [2, -1], [4, 5]]
SHAPES = (COMPLETE, TURNED, CROSSED, SHARED, LEANING, HALF)
CHAIN: ChildLists = [[], [0], [1], [2], [3]]


class Kept(Declared, arity=2, state={"h": HIDDEN}, w=(HIDDEN, 2 * HIDDEN)):
    """Also reads elsewhere what it multiplies; and pushes it."""

    def forward(self) -> None:
        both = vrt.concat(self.gather(0).h, self.gather(1).h)
        h = vrt.tanh(self.w @ both + both[HIDDEN // 2 : HIDDEN // 2 + HIDDEN] + 0.1)
        self.scatter(h=h)
        self.push("both", both)
        self.push("loss", vrt.sum(h * h))


class Swapped(
    Declared, arity=2, state={"h": HIDDEN}, w=(HIDDEN, 2 * HIDDEN), u=(HIDDEN, 2 * HIDDEN)
):
    """Its products are of the right child before the left one, and of one child twice."""

    def forward(self) -> None:
        left, right = self.gather(0).h, self.gather(1).h
        turned = self.w @ vrt.concat(right, left)
        h = vrt.tanh(turned + self.u @ vrt.concat(left, left) + 0.1)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class Twice(
    Declared,
    arity=2,
    state={"c": HIDDEN, "h": HIDDEN},
    w=(HIDDEN, 2 * HIDDEN),
    u=(2 * HIDDEN, HIDDEN),
):
    """Two products of the same children, one state of two; a gate of each child."""

    def forward(self) -> None:
        left, right = self.gather(0), self.gather(1)
        x = self.w @ vrt.concat(left.h, right.h)
        a, b = vrt.split(self.u @ vrt.tanh(x + 0.1), 2)
        y = self.w @ vrt.concat(left.c, right.c)
        c = vrt.sigmoid(a) * left.c + vrt.sigmoid(b) * right.c + y
        self.scatter(c=c, h=vrt.tanh(c + 0.2))
        self.push("loss", vrt.sum(c * c))


FORMS = {
    "tree-fc": lambda: TreeFC(WORDS, HIDDEN),
    "kept": Kept,
    "swapped": Swapped,
    "twice": Twice,
}


def trees_of(shape: ChildLists, count_of: int) -> vrt.GraphBatch:
    """Return graphs with a word at each leaf, and a target of the root."""
    rng, size = np.random.default_rng(3), len(shape)
    inner = np.array([bool(children) for children in shape])
    graphs = []
    for _ in range(count_of):
        word = np.where(inner, -1, rng.integers(WORDS, size=size)).astype(np.int32)
        at_root = np.where(np.arange(size) == size - 1, 0, -1).astype(np.int32)
        target = vrt.Rows(rng.standard_normal((1, 1)).astype(np.float32), at_root)
        graphs.append(vrt.InputGraph.from_children(shape, {"word": word, "target": target}))
    return vrt.GraphBatch.from_graphs(graphs)


def nets_of(device: str, function: vrt.VertexFunction, dtype: str = "float32") -> list[vrt.Network]:
    """Compile with rows in place, and with copies of them."""
    ways = (Passes(in_place=way) for way in (True, False))
    return [Way(device, dtype=dtype, passes=passes).compile(function) for passes in ways]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@on_gpus
def test_results_are_those_of_copies(device: str, dtype: str, name: str) -> None:
    """Whatever the graphs: in order or not, with children that several share, or absent ones."""
    nets, judge = nets_of(device, FORMS[name](), dtype), PLAIN.compile(FORMS[name]())
    for shape, count_of in product(SHAPES, (1, 9)):
        batch = trees_of(shape, count_of) if name == "tree-fc" else with_pulls([shape] * count_of)
        for run in (evaluate, train):
            found = [run(net, batch) for net in nets]
            assert_same(found[0], found[1], 0.0)
            if dtype == "float64":  # of float32 some losses are small differences
                assert_same(found[0], run(judge, batch), TOLERANCE[dtype])


@on_gpus
@pytest.mark.parametrize("many", [1, 70])  # products of few rows, and of many
def test_complete_trees_have_no_copies(device: str, many: int) -> None:
    nets = nets_of(device, TreeFC(WORDS, HIDDEN))
    ordered, not_ordered = (trees_of(shape, many) for shape in (COMPLETE, CROSSED))
    levels = 2
    fewer = [count(net, ordered)["kernels"] for net in nets]
    assert fewer[1] - fewer[0] == 2 * levels  # the way forward, and the way back
    same = [count(net, not_ordered)["kernels"] for net in nets]
    assert same[0] == same[1] == fewer[1]


@on_gpus
def test_chains_of_one_length_have_none_either(device: str) -> None:
    nets = nets_of(device, LSTMChain(WORDS, HIDDEN, HIDDEN))
    judge = PLAIN.compile(LSTMChain(WORDS, HIDDEN, HIDDEN))
    for shapes in ([CHAIN] * 150, [CHAIN, CHAIN[:2]] * 75, [CHAIN] * 3):
        batch = with_pulls(shapes)
        found = [train(net, batch) for net in nets]
        assert_same(found[0], found[1], 0.0)
        assert_same(found[0], train(judge, batch), TOLERANCE["float32"])
