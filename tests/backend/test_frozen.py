"""Frozen parameters and constants: no gradient, no update, nothing computed for them alone."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import EVERYWHERE
from tests.declared import Declared
from tests.runs import Way
from tests.strategies import one_chain, pulls_for
from vertexrt.errors import TraceError, UnknownParameterError, UsageError
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.passes.simplify import simplify

WORDS, E, H = 7, 3, 5
LISTS = [[], [], [0, 1], [2, -1], [1]]


class Cell(
    Declared,
    arity=2,
    state={"h": H},
    table=(WORDS, E),
    w=(H, E),
    w2=(H, E),
    u=(H, H),
    b=(H,),
    gain=(H,),
):
    """A tree over words, any of whose parameters may be frozen; `gain` always is."""

    def __init__(self, *frozen: str) -> None:
        super().__init__("gain", *frozen)

    def forward(self) -> None:
        x = vrt.embed(self.table, self.pull("word"))
        below = self.u @ (self.gather(0).h + self.gather(1).h)
        h = vrt.tanh(self.w @ x + vrt.sigmoid(self.w2 @ x) * below + self.b) * self.gain
        self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(self.push("h", h), 0.3))


def batch(*seeds: int) -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs(
        [vrt.InputGraph.from_children(LISTS, pulls_for(5, seed)) for seed in seeds]
    )


every_way = pytest.mark.parametrize("way", EVERYWHERE)


@every_way
def test_no_update_reaches_them(way: Way) -> None:
    """Neither decay nor momentum, of a step or in the open."""
    net = way.compile(Cell("table", "w", "w2"))
    before = dict(net.parameters)
    optimizer = vrt.AdamW(0.05, weight_decay=0.1, clip_norm=1.0)
    net.step(batch(1, 2), optimizer)
    run = net.record(batch(3))
    run.backward()
    optimizer.step(net)
    moved = {n for n, value in net.parameters.items() if (value != before[n]).any()}
    assert moved == {"u", "b"}
    assert sorted(optimizer.state()) == ["m/b", "m/u", "steps", "v/b", "v/u"]
    assert list(net.gradients) == ["u", "b"]
    with pytest.raises(UnknownParameterError, match="the parameters are u, b"):
        net.gradients["w"]


class Top(Declared, arity=1, state={"h": H}, w=(H,), v=(2, H)):
    """Only what lies after the recurrence is trained."""

    def forward(self) -> None:
        h = vrt.tanh(self.gather(0).h + self.w)
        self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(self.v @ h, 0.3))


def test_what_only_their_gradient_needs_is_not_computed() -> None:
    """With leaves alone trained below, no gradient goes down the tree."""

    def counts(*frozen: str) -> dict[str, int]:
        program = simplify(differentiate(Cell(*frozen).trace(), {"loss"}))
        return {op: len(program.find(op)) for op in ("param_grad", "outer", "embed_grad")}

    assert counts() == {"param_grad": 5, "outer": 3, "embed_grad": 1}
    assert counts("w", "u") == {"param_grad": 3, "outer": 1, "embed_grad": 1}
    top = simplify(differentiate(Top("w").trace(), {"loss"}))
    assert not top.find("gather_parents")
    assert "w[5] (frozen)" in Way().compile(Top("w")).explain()


class Scaled(Declared, arity=2, state={"h": H}, gain=(H,)):
    """A product with a constant."""

    def forward(self) -> None:
        self.scatter(h=self.gain * 1.0)
        self.push("loss", vrt.sum(self.gain * self.pull("x", shape=(H,))))


@every_way
def test_networks_without_trained_parameters_give_gradients_of_pulls(way: Way) -> None:
    """And steps of them update nothing: on a GPU, kernels of no blocks are not launched."""
    net = way.compile(Scaled("gain"))
    given = one_chain(2, {"x": np.ones((2, H))})
    for clip in ({"clip_norm": 1.0}, {"clip_value": 1.0}):
        net.step(given, vrt.Adam(**clip))
    run = net.record(given)
    found = run.backward()
    assert found.parameters == {}
    np.testing.assert_allclose(found.pulled["x"], [net.parameters["gain"]] * 2)


class Wrong(vrt.VertexFunction):
    """A constant of another shape than its array's."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": H})
        self.b = vrt.Parameter((H,), vrt.init.constant([1.0, 2.0]), trainable=False)

    def forward(self) -> None:
        self.scatter(h=self.b + self.gather(0).h)
        self.push("h", self.b)


def test_mistakes() -> None:
    with pytest.raises(TraceError, match=r"^\[Parameter\] trainable is 'no'; True or False"):
        vrt.Parameter((3,), trainable="no")  # type: ignore[arg-type]
    for wrong in (np.nan, "x", [1.0, np.inf], ["x"], None):
        with pytest.raises(UsageError, match=r"^\[constant\] value="):
            vrt.init.constant(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        vrt.compile(Wrong(), device="reference")
