"""Batches of one size whose graphs come again, or do not: layouts that are kept, and when not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import ON_GPU, PERSISTENT, by_oracle
from tests.declared import Declared
from tests.runs import Way
from tests.strategies import ChildLists, joined
from vertexrt.engine.variant import Passes
from vertexrt.errors import PullError
from vertexrt.models import TreeFC

WORDS, HIDDEN, LEAVES = 7, 5, 6

WAYS = [Way("cpu"), PERSISTENT, *ON_GPU]


def graph(tree: ChildLists, rng: np.random.Generator, targets: Sequence[int]) -> vrt.InputGraph:
    """Give a tree random words, and targets at some vertices."""
    at = np.full(len(tree), -1, np.int32)
    at[list(targets)] = np.arange(len(targets))
    word = np.full(len(tree), -1, np.int32)
    word[:LEAVES] = rng.integers(WORDS, size=LEAVES)
    values = rng.standard_normal((max(1, len(targets)), 1))
    return vrt.InputGraph.from_children(tree, {"word": word, "target": vrt.Rows(values, at)})


def from_a_pool() -> Iterator[vrt.GraphBatch]:
    """Take graphs, which are known by their digests; only pulls are copied."""
    rng = np.random.default_rng(8)
    trees, root = [joined(rng, LEAVES) for _ in range(3)], [2 * LEAVES - 2]
    targets = [root, root, [0], [0, 3], [], root]
    pool = vrt.GraphBatch.from_graphs([graph(trees[k % 3], rng, targets[k % 6]) for k in range(12)])
    for step in range(24):
        ids = rng.integers(12, size=1 + step % 2)
        if step % 3 == 0:
            ids[:] = 6 * (ids // 6)  # of one kind, so that batches come again
        yield pool.take(ids)


class Chained(Declared, arity=1, state={"h": HIDDEN}, w=(HIDDEN, HIDDEN), u=(HIDDEN, HIDDEN)):
    """A chain that pulls rows, of which equal ones may be one."""

    def forward(self) -> None:
        x = self.pull("x", shape=(HIDDEN,))
        h = vrt.tanh(self.w @ x + self.u @ self.gather(0).h)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


def of_merged_rows() -> Iterator[vrt.GraphBatch]:
    """Which vertices are one depends on the rows that they pull, not on the numbers there."""
    rng = np.random.default_rng(11)
    indices = [[0, 1, 2, 3, 4, 5], [0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 1, 2], [0, 1, 2, 0, 4, 5]]
    chains = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3)] * 2)
    for index in indices + indices[::-1]:
        rows = vrt.Rows(rng.standard_normal((6, HIDDEN)), np.array(index, np.int32))
        yield chains.with_pulls({"x": rows})


def tree_fc() -> vrt.VertexFunction:
    return TreeFC(WORDS, HIDDEN)


@pytest.mark.parametrize(("make", "given"), [(tree_fc, from_a_pool), (Chained, of_merged_rows)])
@pytest.mark.parametrize("way", WAYS)
def test_batches_are_told_apart(
    way: Way,
    make: Callable[[], vrt.VertexFunction],
    given: Callable[[], Iterator[vrt.GraphBatch]],
) -> None:
    net = way.compile(make())
    for batch in given():
        function = make()
        want, _ = by_oracle(function, batch, dict(net.parameters))
        for name, value in net(batch).items():
            np.testing.assert_allclose(value, want.outputs[name], rtol=1e-9, atol=1e-12)
        alone = Way().compile(function)  # it has laid out nothing before
        alone.parameters.update(net.parameters)
        losses = [float(each.step(batch, vrt.SGD(0.1))) for each in (net, alone)]
        net.sync()
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)
        for name, value in alone.parameters.items():
            np.testing.assert_allclose(net.parameters[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_number_out_of_bounds_is_found(way: Way, taken: bool) -> None:
    """In graphs that come again, and in those of a pool."""
    net, rng = way.compile(tree_fc()), np.random.default_rng(9)
    tree = joined(rng, LEAVES)
    graphs = [graph(tree, rng, [0]) for _ in range(6)]
    word = np.array(graphs[5].pulls["word"])
    word[2] = WORDS
    graphs[5] = vrt.InputGraph.from_children(tree, dict(graphs[5].pulls) | {"word": word})
    pool = vrt.GraphBatch.from_graphs(graphs)

    def step(*chosen: int) -> None:
        made = vrt.GraphBatch.from_graphs([graphs[k] for k in chosen])
        net.step(pool.take(chosen) if taken else made, vrt.SGD(0.1))

    for k in range(5):
        step(k % 5, (k + 1) % 5)
    with pytest.raises(PullError, match=f"vertex 2 of graph 1 is {WORDS}"):
        step(1, 5)


def test_graphs_that_come_again_are_not_laid_out_again() -> None:
    net, rng = vrt.compile(TreeFC(WORDS, HIDDEN), device="cpu"), np.random.default_rng(7)
    trees = [joined(rng, LEAVES), joined(rng, LEAVES)]
    while trees[1] == trees[0]:
        trees[1] = joined(rng, LEAVES)

    def layout_of(which: int) -> object:
        net.step(vrt.GraphBatch.from_graphs([graph(trees[which], rng, [0])]), vrt.SGD(0.1))
        ((use, _),) = net.executor.model.variants
        batch = vrt.GraphBatch.from_graphs([graph(trees[which], rng, [0])])
        (run,) = net.executor.model.prepare(use, batch)
        return run.layout

    first = layout_of(0)
    assert layout_of(0) is first
    other = layout_of(1)
    assert other is not first
    assert layout_of(1) is other


class Pulling(Declared, state={"h": 2}, w=(2, 5)):
    """Pulls a real vector."""

    def forward(self) -> None:
        h = vrt.tanh(self.w @ self.pull("x", shape=(5,)))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


class Constant(Declared, state={"h": 2}, b=(2,)):
    """Pulls nothing."""

    def forward(self) -> None:
        self.scatter(h=vrt.tanh(self.b * 1.0))
        self.push("loss", vrt.sum(self.b))


class Both(vrt.Model):
    """Vertices of both types."""

    def __init__(self) -> None:
        self.a, self.b = Pulling(), Constant()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pull_of_nobody_is_none_in_each_batch_of_a_source(threads: int) -> None:
    """Issue 52: from the third on they were refused, with an assertion in several threads."""
    graphs = [vrt.InputGraph.from_types({"a": 0, "b": 2}, {}, {"a": {"x": []}}) for _ in range(4)]
    source = vrt.GraphBatch.from_graphs(graphs)
    net = Way("cpu", threads=threads, passes=Passes(merge=False)).compile(Both())
    losses = [net(source.take([0, 1, 2, 3]))["loss"] for _ in range(8)]
    for each in losses:
        np.testing.assert_array_equal(each, losses[0])
