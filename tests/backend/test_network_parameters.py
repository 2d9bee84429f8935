"""`net.parameters`: what is read is live, what is set is copied into the network, on every device.

Setting did nothing once: the property made a new dict, and pretrained embeddings were lost.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.runs import Way, assert_bits
from tests.strategies import one_graph
from vertexrt.errors import CheckpointError, UnknownParameterError, UsageError

ROWS, H = 5, 3

SINGLE = Way(dtype="float32")


class Embedded(Declared, arity=1, state={"h": H}, embedding=(ROWS, H), b=(H,)):
    def forward(self) -> None:
        x = vrt.embed(self.embedding, self.pull("word")) + self.b
        self.scatter(h=x)
        self.push("x", x)
        self.push("loss", vrt.sum(x * x + self.gather(0).h))


@pytest.fixture(params=[SINGLE, replace(SINGLE, device="cpu"), Way("shim")])
def way(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def net(way: Way) -> vrt.Network:
    return way.compile(Embedded())


def batch() -> vrt.GraphBatch:
    words = {"word": np.array([1, 4])}
    return one_graph([[], [0]], words)


def test_pretrained_embeddings_are_taken(net: vrt.Network) -> None:
    table = np.arange(ROWS * H, dtype=np.float64).reshape(ROWS, H)
    net.step(batch(), vrt.SGD(0.0))  # on a GPU the network's own are on the device now
    net.parameters["embedding"] = table
    net.parameters.update(b=np.zeros(H, int))
    np.testing.assert_array_equal(net(batch())["x"], table[[1, 4]])
    table[:] = 0.0  # it was copied
    assert net.parameters["embedding"][4, 2] == 14.0


def test_arrays_are_as_of_now_and_read_only(net: vrt.Network) -> None:
    before = net.parameters["embedding"]
    held = before.copy()
    net.step(batch(), vrt.SGD(1.0))
    np.testing.assert_array_equal(before, held)
    with pytest.raises(ValueError, match="read-only"):
        net.parameters["embedding"][...] = 2.0
    net.parameters["embedding"] = np.full((ROWS, H), 2.0)
    net.parameters["b"] = net.parameters["b"] - net.parameters["b"]
    np.testing.assert_array_equal(net(batch())["x"], np.full((2, H), 2.0))


def test_what_does_not_fit_changes_nothing(net: vrt.Network) -> None:
    before = dict(net.parameters)
    bad: list[tuple[Any, str]] = [
        (np.ones((ROWS, H + 1)), "'embedding' has shape [5, 4]; real numbers of shape [5, 3];"),
        (np.full((ROWS, H), np.nan), "'embedding' has numbers that are not finite in float"),
        (0.0, "'embedding' has shape []"),
        ("many", "'embedding' has shape []"),
        ([[1.0], [1.0, 2.0]], "'embedding' is "),
        (np.ones((ROWS, H), complex), "'embedding' has dtype complex128; real numbers"),
        (np.full((ROWS, H), "x"), "'embedding' has dtype <U1"),
    ]
    for value, text in bad:
        with pytest.raises(CheckpointError) as error:
            net.parameters["embedding"] = value
        assert text in str(error.value)
        with pytest.raises(CheckpointError):
            net.parameters.update({"b": np.ones(H), "embedding": value})
    with pytest.raises(CheckpointError, match="is to be deleted"):
        del net.parameters["b"]
    assert_bits(before, net.parameters)


def test_it_is_like_a_dict(net: vrt.Network) -> None:
    parameters = net.parameters
    assert list({**parameters}) == ["embedding", "b"]
    assert len(parameters) == 2
    assert parameters.get("c") is None
    for made in (copy.deepcopy(parameters), pickle.loads(pickle.dumps(parameters))):
        assert type(made) is dict
        assert made["b"] is not parameters["b"]
        np.testing.assert_array_equal(made["b"], parameters["b"])


def test_a_name_that_is_not_there() -> None:
    net = SINGLE.compile(Embedded())
    with pytest.raises(UnknownParameterError) as error:
        net.parameters["embeding"] = np.ones((ROWS, H))
    assert str(error.value) == (
        "[parameters] no parameter is called 'embeding'; the parameters are embedding, b; correct "
        "the name. Nearest: 'embedding'."
    )
    assert isinstance(error.value, (UsageError, KeyError))


def test_what_fits_is_set_and_the_rest_is_named(net: vrt.Network) -> None:
    before = net.parameters["embedding"]
    found = net.load_state({"parameters": {"b": np.ones(H), "w": np.ones(2)}}, strict=False)
    assert found == (("embedding",), ("w",))
    assert (found.missing, found.unexpected) == found
    np.testing.assert_array_equal(net.parameters["b"], np.ones(H))
    np.testing.assert_array_equal(net.parameters["embedding"], before)
    with pytest.raises(CheckpointError, match=r"'b' has shape \[2\]"):
        net.load_state({"parameters": {"b": np.ones(2)}}, strict=False)
    with pytest.raises(CheckpointError, match=r"missing \['embedding'\], unknown \['w'\]"):
        net.load_state({"parameters": {"b": np.zeros(H), "w": np.ones(2)}})
    with pytest.raises(UnknownParameterError, match="no parameter is called 'w'"):
        net.parameters.update({"b": np.zeros(H), "w": np.ones(2)})
    assert net.parameters["b"].all()
    assert net.load_state(net.state()) == ((), ())


def test_a_state_is_loaded_whole_or_not_at_all(net: vrt.Network) -> None:
    state = net.state()
    net.step(batch(), vrt.SGD(1.0))
    moved = net.state()
    random = {"seed": 7, "draws": 3}
    bad: list[Any] = [
        {},
        {"parameter": {}},
        {"random": {"seed": 7}},
        {"random": {"seed": -1, "draws": 3}},
        {"parameters": {"b": np.ones(H)}, "random": random},
        {"parameters": state["parameters"], "random": {**random, "more": 1}},
    ]
    for wrong in bad:
        with pytest.raises(CheckpointError):
            net.load_state(wrong)
    assert net.state()["random"] == moved["random"]
    np.testing.assert_equal(net.state()["parameters"], moved["parameters"])
    net.load_state({"random": {"seed": 7, "step": 3}})  # as earlier versions wrote it
    assert net.state()["random"] == random
    net.load_state(state)
    np.testing.assert_equal(net.state(), state)
