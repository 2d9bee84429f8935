"""Exponential moving averages of parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import EVERYWHERE
from tests.backend.test_frozen import Cell
from tests.backend.test_open_training import batch, copied, network
from tests.runs import Way, assert_bits
from vertexrt.errors import CheckpointError, UsageError


def test_the_networks_own_parameters_come_back_after_an_error() -> None:
    net = network()
    average = vrt.ExponentialMovingAverage(net)
    net.step(batch(1), vrt.SGD(0.5))
    own = copied(net)
    with pytest.raises(ZeroDivisionError), average.in_place():
        raise ZeroDivisionError
    assert_bits(own, net.parameters)
    with average.in_place():
        with pytest.raises(UsageError, match=r"^\[average\] update inside"):
            average.update()
        with pytest.raises(UsageError, match=r"in_place\(\) inside of itself"), average.in_place():
            pass


def test_an_average_is_stored_as_a_network_is(tmp_path: Path) -> None:
    net = network()
    average = vrt.ExponentialMovingAverage(net, 0.5)
    net.step(batch(1), vrt.SGD(0.5))
    average.update()
    vrt.save_checkpoint(tmp_path / "average", average, meta={"decay": average.decay})
    again = vrt.ExponentialMovingAverage(net, 0.5)
    values = vrt.load_checkpoint(tmp_path / "average").parameters
    assert again.load_state(values) == ((), ())
    assert again.load_state(average.state()) == ((), ())
    assert_bits(again.parameters, average.parameters)
    del values["w"]
    with pytest.raises(CheckpointError, match=r"missing \['w'\], unknown \[\]"):
        again.load_state(values)
    assert again.load_state(values, strict=False).missing == ("w",)


@pytest.mark.parametrize("way", EVERYWHERE)
def test_constants_are_those_of_the_network(way: Way) -> None:
    """Issue 52: those that were set after an average was made came back as they had been."""
    net = way.compile(Cell("w"))
    average, old = vrt.ExponentialMovingAverage(net, 0.9), net.parameters["w"]
    net.parameters["w"] = old + 1.0
    average.update()
    with average.in_place():
        np.testing.assert_array_equal(net.parameters["w"], old + 1.0)
    np.testing.assert_array_equal(average.parameters["w"], old + 1.0)
    stored = {name: value.copy() for name, value in average.parameters.items()}
    average.load_state(stored | {"w": old})
    np.testing.assert_array_equal(net.parameters["w"], old)


def test_an_average_of_large_numbers_is_finite() -> None:
    net = network()
    top = np.finfo(np.float64).max
    net.parameters["w"] = np.full(net.parameters["w"].shape, top)
    average = vrt.ExponentialMovingAverage(net, 0.9)
    net.parameters["w"] = -net.parameters["w"]
    average.update()
    assert np.isfinite(average.parameters["w"]).all()
