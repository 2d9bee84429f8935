"""Groups of parameters, and clipping by value: against PyTorch, NumPy, and between backends."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_open_training import Tree, batch, copied, network
from tests.declared import Declared
from tests.devices import shim
from tests.optimizers import OPTIMIZERS, STEPS, make_store, set_gradients
from tests.runs import Way
from vertexrt.api.optimizer import Optimizer
from vertexrt.errors import NumericError


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_group_is_as_if_its_optimizer_were_alone(name: str) -> None:
    """Tables too, for every rule, to the last bit; the frozen one rests and has no state."""
    groups: dict[str, Any] = {
        "table": {"lr": 0.02},
        "w": {"frozen": True},
        "b": {"weight_decay": 0.0},
    }
    stores = [make_store("float32") for _ in range(4)]
    before = stores[0].value("w").copy()
    made = [
        OPTIMIZERS[name](weight_decay=0.05, groups=groups),
        OPTIMIZERS[name](weight_decay=0.05),
        OPTIMIZERS[name](weight_decay=0.05),
        OPTIMIZERS[name](weight_decay=0.0),
    ]
    made[1].lr = 0.02
    for step in range(STEPS):
        for store, optimizer in zip(stores, made, strict=True):
            set_gradients(store, step)
            optimizer.update(store)
    for key, judge in {"table": 1, "u": 2, "other": 2, "b": 3}.items():
        np.testing.assert_array_equal(stores[0].value(key), stores[judge].value(key), err_msg=key)
    np.testing.assert_array_equal(stores[0].value("w"), before)


WAYS = [
    Way("reference"),
    Way("cpu", threads=2),
    pytest.param(Way("shim"), marks=shim),
    pytest.param(Way("shim", engine="persistent", processors=2), marks=shim),
]


def trained(way: Way, optimizer: Optimizer) -> tuple[list[float], dict[str, np.ndarray]]:
    """Train a tree; return losses, parameters and state."""
    net = way.compile(Tree())
    losses = []
    for seeds in ((1, 1), (2, 3), (1, 4)):
        losses.append(float(net.step(batch(*seeds), optimizer)))
    return losses, {**copied(net), **{k: v.copy() for k, v in optimizer.state().items()}}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.device}-{way.engine}")
def test_backends_agree(way: Way) -> None:
    """Equal trees are computed once, and count twice in the loss."""

    def make(**groups: Any) -> Optimizer:
        return vrt.AdamW(0.05, clip_norm=0.5, clip_value=0.05, weight_decay=0.1, groups=groups)

    rest: dict[str, Any] = {"u": {"frozen": True}, "w": {"weight_decay": 0.0}}
    for groups in ({}, {"table": {"lr": 0.5}, **rest}):
        found, expected = (trained(w, make(**groups)) for w in (way, Way("reference")))
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-10)
        for name, value in expected[1].items():
            np.testing.assert_allclose(found[1][name], value, rtol=1e-9, atol=1e-12, err_msg=name)


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


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.device}-{way.engine}")
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
        for name, value in net.parameters.items():
            np.testing.assert_array_equal(value, before[name])
        assert optimizer.steps == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("shim", marks=shim)])
def test_groups_may_change_between_steps(device: str) -> None:
    net = network(Way(device))
    before = copied(net)
    optimizer = vrt.SGD(0.1, clip_norm=1e3, groups={"*": {"frozen": True}})
    net.step(batch(1), optimizer)
    for name, value in net.parameters.items():
        np.testing.assert_array_equal(value, before[name])
    optimizer.groups = {"*": {"frozen": True}, "u": {"frozen": False, "lr": 0.2}}
    optimizer.lr = 0.05
    run = net.record(batch(1))
    gradient = run.backward().parameters["u"]
    optimizer.step(net)
    np.testing.assert_allclose(net.parameters["u"], before["u"] - 0.1 * gradient, rtol=1e-12)
    np.testing.assert_array_equal(net.parameters["w"], before["w"])
    optimizer.groups = {}
    net.step(batch(1), optimizer)
    assert (net.parameters["w"] != before["w"]).any()
    assert "groups" not in optimizer.describe()


def test_describe_has_what_was_chosen() -> None:
    optimizer = vrt.SGD(0.1, clip_value=2.0, groups={"w": {"frozen": True}})
    assert optimizer.describe()["clip_value"] == 2.0
    assert optimizer.describe()["groups"] == {"w": {"frozen": True}}
