"""However a function runs, it gives the same outputs and gradients.

The yardstick is the reference backend, one vertex a task, with every pass off. Compiled code takes
seconds for each kind of vertex, so on the cpu each function meets few kinds: on any graph when
kinds are not specialised, on graphs of two kinds when they are.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.runs import ALL, OFF, PLAIN, TOLERANCE, Result, Way, assert_same, evaluate, train
from tests.strategies import full_batches, pulls_for
from vertexrt.api.network import Network
from vertexrt.engine.variant import Passes
from vertexrt.scheduler import POLICIES

SWITCHES = ("specialise", "eager", "lazy", "stack", "fuse", "merge")
UNSPECIALISED = Passes(specialise=False)

# On the reference device everything is cheap: every policy, and every pass off by itself.
WAYS = [
    *(Way(policy=policy) for policy in POLICIES),
    Way(passes=OFF),
    *(Way(passes=replace(ALL, **{switch: False})) for switch in SWITCHES),
]


@functools.cache
def net(name: str, way: Way) -> Network:
    """Compile once for all batches, as training does: kinds appear one after another."""
    return way.compile(FUNCTIONS[name][0]())


def both(name: str, way: Way, batch: vrt.GraphBatch) -> tuple[Result, Result]:
    """Run forward and back from given gradients, and then a step."""
    return evaluate(net(name, way), batch), train(net(name, way), batch)


def assert_agrees(name: str, way: Way, batch: vrt.GraphBatch) -> None:
    """Compare with the yardstick in float64."""
    for got, want in zip(both(name, way, batch), both(name, PLAIN, batch), strict=True):
        assert_same(got, want, TOLERANCE[way.dtype])


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=4)
@given(data=st.data())
def test_every_way_agrees_on_the_reference_device(name: str, data: st.DataObject) -> None:
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=7, max_graphs=2))
    want = both(name, PLAIN, batch)
    for way in WAYS:
        for got, expected in zip(both(name, way, batch), want, strict=True):
            assert_same(got, expected, TOLERANCE["float64"])


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=3)
@given(data=st.data())
def test_float32_agrees(name: str, data: st.DataObject) -> None:
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=7, max_graphs=2))
    ways = Way(dtype="float32"), PLAIN, replace(PLAIN, dtype="float32")
    for got, want, rounded in zip(*(both(name, way, batch) for way in ways), strict=True):
        assert_same(got, want, TOLERANCE["float32"], rounded)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "dropout"])
@settings(max_examples=3)
@given(data=st.data())
def test_threads_share_a_batch(name: str, data: st.DataObject) -> None:
    """(Dropout draws by share, so that there another number of threads is another draw.)"""
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=5, max_graphs=4))
    assert_agrees(name, Way(threads=2), batch)


# The cpu.

# Functions with what the code generator does differently: slots, edges, views, pulls, reductions.
COMPILED = (
    "gru",
    "attention",
    "max-mean",
    "initial",
    "tied",
    "pass-on",
    "marks",
    "oddments",
    "both",
    "elementwise",
)


@pytest.mark.parametrize("name", COMPILED)
@settings(max_examples=12)
@given(data=st.data())
def test_cpu_agrees_on_any_graph(name: str, data: st.DataObject) -> None:
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=9, max_graphs=4))
    way = Way("cpu", passes=UNSPECIALISED, policy=data.draw(st.sampled_from(POLICIES)))
    got = evaluate(net(name, way), batch)
    assert_same(got, evaluate(net(name, PLAIN), batch), TOLERANCE["float64"])


def two_kinds(name: str, size: int) -> vrt.GraphBatch:
    """Return graphs whose leaves pull a word, whose inner vertices fill all slots."""
    arity = FUNCTIONS[name][1]
    slots = 2 if arity > 2 else arity
    rng = np.random.default_rng(size)
    graphs = []
    for leaves in range(1, size):
        lists: list[list[int]] = [[] for _ in range(leaves)]
        for v in range(leaves, leaves + size):
            lists.append([int(c) for c in rng.integers(max(0, v - 5), v, size=slots)])
        pulls = pulls_for(len(lists), size + leaves)
        leaf = np.array([not kids for kids in lists])
        pulls["word"] = np.where(leaf, np.maximum(pulls["word"], 0), -1).astype(np.int32)
        pulls["label"] = np.maximum(pulls["label"], 0)
        for pull in ("mark", "target"):
            pulls[pull] = vrt.Rows(pulls[pull].table, np.maximum(pulls[pull].index, 0))
        graphs.append(vrt.InputGraph.from_children(lists, pulls))
    return vrt.GraphBatch.from_graphs(graphs)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("tree-lstm", "float64"),
        ("tree-lstm", "float32"),
        ("lstm-lm", "float32"),
        ("tree-fc", "float64"),
        ("forget-all", "float64"),
    ],
)
def test_cpu_agrees_with_all_passes_on(name: str, dtype: str) -> None:
    """Every policy runs the same compiled kinds; batches of several sizes reuse the arena."""
    for size in (2, 6, 3):
        batch = two_kinds(name, size)
        want = train(net(name, PLAIN), batch)
        for policy in POLICIES:
            way = Way("cpu", dtype=dtype, policy=policy)
            assert_same(train(net(name, way), batch), want, TOLERANCE[dtype])
