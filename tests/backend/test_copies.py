"""Parameters and moments on a GPU and on the host: whoever wrote last is read by all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_open_training import batch, copied, network
from tests.devices import SHIM_AND_GPU
from tests.runs import Way

pytestmark = pytest.mark.parametrize("device", SHIM_AND_GPU)


def shared(device: str) -> tuple[vrt.Network, Any]:
    """Return a network, and its parameters on the device, which others may write to."""
    net = network(Way(device))
    values = net.executor.share_values()  # type: ignore[attr-defined]
    return net, net.executor.model.store.views(values)


def host(array: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = array.get() if hasattr(array, "get") else np.array(array)
    return found


def test_what_the_host_writes_others_have_at_once(device: str) -> None:
    """Issue 52: the next one that read parameters on the host lost what had been written."""
    net, there = shared(device)
    twin = network()
    for n in (net, twin):
        n.parameters["w"] = np.full((5, 3), 0.25)
    np.testing.assert_array_equal(host(there["w"]), np.full((5, 3), 0.25))
    np.testing.assert_array_equal(net.parameters["w"], np.full((5, 3), 0.25))
    optimizers = vrt.Adam(0.1), vrt.Adam(0.1)
    for seed in range(3):
        for n, optimizer in zip((net, twin), optimizers, strict=True):
            n.step(batch(seed), optimizer)
    for name, value in net.parameters.items():
        np.testing.assert_allclose(value, twin.parameters[name], rtol=1e-10)
        np.testing.assert_array_equal(host(there[name]), value)


def test_what_others_write_the_host_has(device: str) -> None:
    net, there = shared(device)
    before = copied(net)
    there["w"] *= 0.5
    np.testing.assert_array_equal(net.parameters["w"], 0.5 * before["w"])
    net.parameters.update(before)
    there["u"] *= 0.5
    np.testing.assert_array_equal(net.parameters["u"], 0.5 * before["u"])
    np.testing.assert_array_equal(net.parameters["w"], before["w"])


class Halving(vrt.Optimizer):
    """An update of one's own."""

    def update(self, store: Any) -> None:
        for name in store.trained:
            store.value(name)[...] *= 0.5


def test_an_update_of_ones_own_is_there_too(device: str) -> None:
    net, there = shared(device)
    before = copied(net)
    net.step(batch(1), Halving(0.1))
    for name, value in before.items():
        np.testing.assert_array_equal(host(there[name]), 0.5 * value)
        np.testing.assert_array_equal(net.parameters[name], 0.5 * value)


@pytest.mark.parametrize("lent", [False, True])
def test_moments_that_are_loaded_are_used(device: str, lent: bool) -> None:
    """Issue 52: a forward pass between loading them and the next step lost them."""
    nets = network(Way(device)), network()
    if lent:
        nets[0].executor.share_values()  # type: ignore[attr-defined]
    found = []
    for net in nets:
        adam = vrt.Adam(0.1)
        for seed in range(3):
            net.step(batch(seed), adam)
        kept = {name: 3.0 * moment for name, moment in adam.state().items() if name != "steps"}
        net.step(batch(4), adam)
        adam.load_state({**kept, "steps": adam.state()["steps"]})
        net(batch(5))
        net.step(batch(6), adam)
        found.append(copied(net))
    for name, value in found[0].items():
        np.testing.assert_allclose(value, found[1][name], rtol=1e-9)
