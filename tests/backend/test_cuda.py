"""The `cuda` backend against `reference`: on a GPU where there is one, and on the CPU.

On the CPU the same kernels are compiled by a C++ compiler and launched by the same driver (see
`tests/shim_device.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU
from tests.optimizers import OPTIMIZERS as EVERY_OPTIMIZER
from tests.runs import Way, assert_close
from tests.strategies import joined
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.models import TreeLSTM


@pytest.fixture(params=SHIM_AND_GPU)
def device(request: pytest.FixtureRequest) -> str:
    """Name a device that runs CUDA kernels."""
    return str(request.param)


def tree_lstm() -> TreeLSTM:
    """Return a small Tree-LSTM with a stack of gates and a table."""
    return TreeLSTM(vocab=30, embed=12, hidden=16, classes=5)


def trees(count: int, seed: int = 0) -> GraphBatch:
    """Draw binary trees with a word at each leaf and a label at each vertex."""
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(count):
        lists = joined(rng, int(rng.integers(1, 9)))
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
