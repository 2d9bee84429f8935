"""Groups of parameters, and clipping by value: against PyTorch, NumPy, and between backends."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import EVERYWHERE
from tests.backend.test_open_training import batch, copied
from tests.declared import Declared
from tests.runs import Way, assert_bits
from vertexrt.api.optimizer import Optimizer
from vertexrt.errors import NumericError


class Steep(Declared, arity=2, state={"h": 3}, w=(3,), b=(3,)):
    """The gradient of `w` is 100, that of `b` infinite where it is 0; the loss is finite."""

    def forward(self) -> None:
        self.scatter(h=self.w * 1.0)
        self.push("loss", vrt.sum(self.w * 100.0 + vrt.sqrt(self.b)))


REFUSED: list[tuple[float, Optimizer]] = [
    (0.0, vrt.SGD(0.1, clip_value=1.0)),
    (1.0, vrt.SGD(1e307, groups={"w": {"lr": 0.1}})),
    (1.0, vrt.SGD(0.1, groups={"w": {"lr": 1e307}})),
]


@pytest.mark.parametrize("way", EVERYWHERE)
def test_what_is_not_finite_is_refused(way: Way) -> None:
    """Clipping by value would make a number of an infinite gradient; a group may overflow alone."""
    net = way.compile(Steep())
    for b, optimizer in REFUSED:
        optimizer = copy.copy(optimizer)
        net.parameters["b"] = np.full(3, b)
        net.parameters["w"] = np.full(3, -1e307)
        before = copied(net)

        def step(optimizer: Optimizer = optimizer) -> None:
            net.step(batch(*range(8)), optimizer)
            net.sync()

        with pytest.raises(NumericError):
            step()
        assert_bits(before, net.parameters)
        assert optimizer.steps == 0


def test_describe_has_what_was_chosen() -> None:
    optimizer = vrt.SGD(0.1, clip_value=2.0, groups={"w": {"frozen": True}})
    assert optimizer.describe()["clip_value"] == 2.0
    assert optimizer.describe()["groups"] == {"w": {"frozen": True}}
