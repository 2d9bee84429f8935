"""The same seed gives the same bits, whatever ran before."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_agreement import two_kinds
from tests.functions import FUNCTIONS


def batches() -> list[vrt.GraphBatch]:
    """Draw batches whose vertices are of two kinds: each kind takes seconds to compile."""
    return [two_kinds("dropout", size) for size in (2, 4, 3)]


def trained(device: str, threads: int, seed: int = 1) -> tuple[list[float], dict[str, np.ndarray]]:
    net = vrt.compile(FUNCTIONS["dropout"][0](), device=device, threads=threads, seed=seed)
    optimizer = vrt.Adam(lr=0.01)
    losses = [net.step(batch, optimizer) for _ in range(3) for batch in batches()]
    return losses, {name: value.copy() for name, value in net.parameters.items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_two_runs_give_the_same_bits(device: str, threads: int) -> None:
    losses, parameters = trained(device, threads)
    again, others = trained(device, threads)
    assert losses == again
    for name, value in parameters.items():
        np.testing.assert_array_equal(others[name], value)
    assert trained(device, threads, seed=2)[0] != losses


def test_random_state_continues_the_draws(device: str) -> None:
    net = vrt.compile(FUNCTIONS["dropout"][0](), device=device, threads=1, seed=1)
    batch = batches()[0]
    net.forward(batch, train=True)
    state = net.random_state()
    first = net.forward(batch, train=True)["logits"]
    assert (net.forward(batch, train=True)["logits"] != first).any()
    net.set_random_state(state)
    np.testing.assert_array_equal(net.forward(batch, train=True)["logits"], first)
    before = net.random_state()
    net.forward(batch)  # inference draws nothing
    assert net.random_state() == before
