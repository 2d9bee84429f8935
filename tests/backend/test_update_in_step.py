"""The update of the persistent engine runs inside the call that makes the gradients.

It must be the same update as after the call: for every optimizer, however many groups and
processors share it, and nothing at all where the loss or the norm is not finite or a processor is
missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_persistent import generated
from tests.functions import H
from tests.optimizers import OPTIMIZERS, state_of
from tests.runs import Way, assert_bits
from tests.strategies import WORDS
from tests.watched_backend import Call, WatchedBackend, wait_for_itself, watched
from vertexrt.api.network import Network
from vertexrt.api.optimizer import Optimizer
from vertexrt.engine.parameters import ParameterStore
from vertexrt.errors import DeviceError
from vertexrt.graph import GraphBatch
from vertexrt.models.tree_fc import TreeFC

Array = np.ndarray[Any, Any]

# threads, processors of a group
SHAPES = ((1, 1), (2, 1), (2, 2), (4, 2))
CLIPS = (None, 0.01, 1e3)
STEPS = 3

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_shape = pytest.mark.parametrize(("threads", "parts"), SHAPES)


def network(threads: int = 1, parts: int | None = None, device: str = "cpu") -> Network:
    engine = "batched" if parts is None else "persistent"
    way = Way(device, "float64", threads=threads, engine=engine, processors=parts)
    return way.compile(TreeFC(WORDS, H))


def watched_network(threads: int, parts: int) -> tuple[Network, WatchedBackend]:
    way = Way("cpu", "float64", threads=threads, engine="persistent", processors=parts)
    return watched(way, TreeFC(WORDS, H))


def batches() -> list[GraphBatch]:
    """Draw batches that look up different rows of the table; graphs of one batch differ in size."""
    return [generated("tree", 5, seed) for seed in range(STEPS)]


class Afterwards:
    """An optimizer with an update of its own, which is therefore called after the step."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    def update(self, store: ParameterStore) -> None:
        self.inner.update(store)


def trained(net: Network, optimizer: Any) -> tuple[list[float], dict[str, Array]]:
    losses = [net.step(batch, optimizer) for batch in batches()]
    return losses, dict(net.parameters)


# Whole steps.


@every_shape
@every_optimizer
@pytest.mark.parametrize("clip", CLIPS)
def test_inside_and_after_the_call_are_the_same_bits(
    name: str, clip: float | None, threads: int, parts: int
) -> None:
    inside, after = (OPTIMIZERS[name](clip_norm=clip, weight_decay=0.1) for _ in range(2))
    got = trained(network(threads, parts), inside)
    want = trained(network(threads, parts), Afterwards(after))
    assert got[0] == want[0]
    assert_bits(got[1], want[1])
    assert_bits(state_of(inside), state_of(after))


# Steps that must change nothing.


def test_a_script_that_ends_early_changes_nothing() -> None:
    (net, backend), optimizer = watched_network(4, 2), vrt.Adam(0.01)
    batch, *_ = batches()
    net.step(batch, optimizer)
    start, state = dict(net.parameters), state_of(optimizer)

    def spoil_one_group(call: Call) -> None:
        if call.group == 0:
            wait_for_itself(call)

    backend.counters.clear()
    backend.before, backend.seconds = spoil_one_group, 0.5
    with pytest.raises(DeviceError, match=r"processor \d gave up at instruction"):
        net.step(batch, optimizer)
    assert_bits(net.parameters, start)
    assert_bits(state_of(optimizer), state)
    backend.mend()
    assert np.isfinite(net.step(batch, optimizer))
