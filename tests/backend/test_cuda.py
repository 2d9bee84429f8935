"""The `cuda` backend against `reference`: on a GPU where there is one, and on the CPU.

On the CPU the same kernels are compiled by a C++ compiler and launched by the same driver (see
`tests/shim_device.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, require, shim
from tests.functions import CLASSES, FUNCTIONS, WORDS, LSTMChain
from tests.optimizers import OPTIMIZERS as EVERY_OPTIMIZER
from tests.runs import PLAIN, TOLERANCE, Way, assert_close, assert_same, evaluate, train
from tests.strategies import full_batches, pulls_for
from vertexrt.api.network import Network
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.models import TreeLSTM

ON_SHIM = ("tree-lstm", "attention", "oddments", "marks", "dropout")


@pytest.fixture(params=SHIM_AND_GPU)
def device(request: pytest.FixtureRequest) -> str:
    """Name a device that runs CUDA kernels."""
    require(request.param)
    return str(request.param)


# Vectors longer than a tile of a product. The products of an LSTM read rows of children, and write
# to edges, without copies.
WIDE: dict[str, tuple[Callable[[], vrt.VertexFunction], int]] = {
    "tree-lstm": (lambda: TreeLSTM(WORDS, 36, 44, CLASSES), 2),
    "lstm": (lambda: LSTMChain(WORDS, 36, 44), 1),
}


@functools.cache
def wide(name: str, device: str, dtype: str = "float32") -> Network:
    """Compile a function of `WIDE` once for all batches."""
    return Way(device=device, dtype=dtype).compile(WIDE[name][0]())


@functools.cache
def net(name: str, device: str, dtype: str = "float64") -> Network:
    """Compile once for all batches."""
    way = replace(PLAIN if device == "reference" else Way(device=device), dtype=dtype)
    return way.compile(FUNCTIONS[name][0]())


def assert_agrees(name: str, device: str, dtype: str, batch: GraphBatch) -> None:
    """Compare outputs and gradients with the reference, in float32 beside it where sums cancel."""
    here, there = net(name, device, dtype), net(name, "reference")
    plain = net(name, "reference", dtype) if dtype == "float32" else None
    for run in (evaluate, train):
        rounded = None if plain is None else run(plain, batch)
        assert_same(run(here, batch), run(there, batch), TOLERANCE[dtype], rounded)


@shim
@pytest.mark.parametrize("name", ON_SHIM)
@settings(max_examples=4)
@given(data=st.data())
def test_the_shim_agrees_with_the_reference(name: str, data: st.DataObject) -> None:
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=7, max_graphs=2))
    assert_agrees(name, "shim", "float64", batch)


@shim
@pytest.mark.parametrize("name", WIDE)
@settings(max_examples=4)
@given(data=st.data())
def test_products_of_few_rows_agree_in_float32(name: str, data: st.DataObject) -> None:
    """In float32 a kernel of ours makes the products; sizes that are no multiple of a tile."""
    batch = data.draw(full_batches(WIDE[name][1], max_vertices=24, max_graphs=2))
    here, rounded = wide(name, "shim"), wide(name, "reference")
    want = train(wide(name, "reference", "float64"), batch)
    assert_same(train(here, batch), want, TOLERANCE["float32"], train(rounded, batch))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=10)
@given(data=st.data())
def test_the_gpu_agrees_with_the_reference(name: str, dtype: str, data: st.DataObject) -> None:
    require("cuda")
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=9, max_graphs=3))
    assert_agrees(name, "cuda", dtype, batch)


def tree_lstm() -> TreeLSTM:
    """Return a small Tree-LSTM with a stack of gates and a table."""
    return TreeLSTM(vocab=30, embed=12, hidden=16, classes=5)


def trees(count: int, seed: int = 0) -> GraphBatch:
    """Draw binary trees with a word at each leaf and a label at each vertex."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        lists: list[list[int]] = [[] for _ in range(int(rng.integers(1, 9)))]
        open_ = list(range(len(lists)))
        while len(open_) > 1:
            k = int(rng.integers(len(open_) - 1))
            lists.append([open_[k], open_[k + 1]])
            open_[k : k + 2] = [len(lists) - 1]
        words = np.array([-1 if x else rng.integers(30) for x in lists])
        labels = rng.integers(5, size=len(lists))
        graphs.append(InputGraph.from_children(lists, {"word": words, "label": labels}))
    return GraphBatch.from_graphs(graphs)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    **EVERY_OPTIMIZER,
    "sgd, decay": lambda: vrt.SGD(0.1, weight_decay=0.01),
    "adamw, decay": lambda: vrt.AdamW(0.01, weight_decay=0.1),
    "clipped": lambda: vrt.SGD(0.5, clip_norm=0.05),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_agree_with_the_reference(device: str, name: str) -> None:
    nets = [Way(device=d).compile(tree_lstm()) for d in (device, "reference")]
    optimizers: list[Any] = [OPTIMIZERS[name]() for _ in nets]
    for k in range(4):
        batch = trees(3, seed=k)
        losses = [n.step(batch, o) for n, o in zip(nets, optimizers, strict=True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    for key, value in nets[1].parameters.items():
        assert_close(nets[0].parameters[key], value, 1e-10, key)
    states = [optimizer.state() for optimizer in optimizers]
    assert states[0].keys() == states[1].keys()
    for key, value in states[1].items():
        assert_close(np.asarray(states[0][key]), np.asarray(value), 1e-10, key)


def test_losses_are_those_of_their_steps_whenever_they_are_read(device: str) -> None:
    here, there = (Way(device=d).compile(tree_lstm()) for d in (device, "reference"))
    optimizers = [vrt.SGD(0.1) for _ in range(2)]
    got, want = [], []
    for k in range(4):
        got.append(here.step(trees(2, k), optimizers[0]))
        want.append(there.step(trees(2, k), optimizers[1]))
    assert f"{got[3]:.6f}" == f"{want[3]:.6f}"
    assert [float(loss) for loss in got] == pytest.approx([float(x) for x in want], rel=1e-10)
    assert here.step(trees(2), optimizers[0], outputs=["logits"]) == pytest.approx(
        there.step(trees(2), optimizers[1]), rel=1e-10
    )


def test_parameters_written_on_the_host_are_read_by_the_next_step(device: str) -> None:
    here, there = (Way(device=d).compile(tree_lstm()) for d in (device, "reference"))
    optimizers = [vrt.Adam(0.01) for _ in range(2)]
    for each, optimizer in zip((here, there), optimizers, strict=True):
        each.step(trees(2, 1), optimizer)
        each.parameters["v"] = 2.0 * each.parameters["v"]
        each.step(trees(2, 2), optimizer)
    for key, value in there.parameters.items():
        assert_close(here.parameters[key], value, 1e-10, key)


class ByHand:
    """An optimizer with an update of its own, on the host."""

    def update(self, store: Any) -> None:
        for name in store.names:
            store.value(name)[...] -= 0.1 * store.gradient(name)


def test_an_update_on_the_host_is_read_by_the_next_step(device: str) -> None:
    here, there = (Way(device=d).compile(tree_lstm()) for d in (device, "reference"))
    for k in range(3):
        losses = [each.step(trees(2, k), ByHand()) for each in (here, there)]  # type: ignore[arg-type]
        assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    for key, value in there.parameters.items():
        assert_close(here.parameters[key], value, 1e-10, key)


def test_a_loss_that_is_not_finite_changes_nothing(device: str) -> None:
    each, optimizer = Way(device=device).compile(tree_lstm()), vrt.Adam(0.01)
    each.step(trees(2, 1), optimizer)
    good = each.parameters["embedding"]
    store = each.executor.model.store
    store.value("embedding")[:] = np.nan
    losses = [each.step(trees(2, 2), optimizer)]
    with pytest.raises(NumericError, match=r"'embedding' .* It was found in step 2\.$"):
        each.step(trees(2, 3), optimizer)
    with pytest.raises(NumericError, match=r"'embedding' .* It was found in step 2\.$"):
        float(losses[0])
    assert optimizer.steps == 1
    assert np.isnan(each.parameters["embedding"]).all()
    each.parameters["embedding"] = good
    before = each.parameters["v"]
    assert np.isfinite(float(each.step(trees(2, 4), optimizer)))
    assert not np.array_equal(each.parameters["v"], before)


def test_runs_repeat_bit_for_bit(device: str) -> None:
    found = []
    for _ in range(2):
        each, optimizer = Way(device=device, dtype="float32").compile(tree_lstm()), vrt.Adam(0.01)
        for k in range(3):
            each.step(trees(6, k), optimizer)
        found.append(each.parameters)
    for key, value in found[0].items():
        assert np.array_equal(found[1][key], value), key


def test_a_batch_with_absent_pulls_and_empty_slots(device: str) -> None:
    lists = [[], [], [0, -1], [-1, 2], [1, 3], []]
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls_for(6, 8))])
    for name in ("tree-lstm", "both"):
        assert_agrees(name, device, "float64", batch)
