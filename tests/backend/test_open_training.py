"""Training in the open: gradients that add up, `optimizer.step`, and several forward passes."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import EVERYWHERE
from tests.backend.test_frozen import batch
from tests.declared import Declared
from tests.optimizers import OPTIMIZERS, Make
from tests.runs import Way, assert_bits, assert_close
from tests.strategies import one_chain
from vertexrt.engine.variant import Passes
from vertexrt.errors import PullError, UsageError


class Tree(Declared, arity=2, state={"h": 5}, table=(7, 3), w=(5, 3), u=(5, 5)):
    """A tree over words."""

    def forward(self) -> None:
        x = self.w @ vrt.embed(self.table, self.pull("word"))
        h = vrt.tanh(x + self.u @ (self.gather(0).h + self.gather(1).h))
        self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(self.push("h", h), 0.3))


def network(way: Way | None = None) -> vrt.Network:
    return (way or Way()).compile(Tree())


def copied(net: vrt.Network) -> dict[str, np.ndarray]:
    return dict(net.parameters)


def back(net: vrt.Network, of: vrt.GraphBatch) -> vrt.types.Gradients:
    return net.record(of).backward()


@pytest.mark.parametrize(
    ("made", "device"),
    [
        *((made, "cpu") for made in OPTIMIZERS),
        ("adam", "reference"),
        ("adam", "shim"),
    ],
)
def test_one_pass_ends_as_a_step_does(made: str, device: str) -> None:
    """To the last bit, where the same numbers are added up: no vertex stands for several."""
    make: Make = OPTIMIZERS[made]
    ends = []
    for opened in (True, False):
        net = network(Way(device, "float32", passes=Passes(merge=False)))
        optimizer = make(weight_decay=0.01, clip_norm=0.5)
        for seed in (1, 2):
            if opened:
                back(net, batch(seed))
                optimizer.step(net)
                net.zero_grad()
            else:
                net.step(batch(seed), optimizer)
        net.sync()
        ends.append({**copied(net), **{k: v.copy() for k, v in optimizer.state().items()}})
    assert_bits(ends[0], ends[1])


def test_a_step_needs_a_network_and_gradients() -> None:
    net = network()
    with pytest.raises(UsageError, match=r"^\[optimizer.step\] no gradients"):
        vrt.SGD(0.1).step(net)
    with pytest.raises(UsageError, match=r"^\[SGD.step\] a int; a network"):
        vrt.SGD(0.1).step(3)  # type: ignore[arg-type]
    run = net.record(batch(1))
    with pytest.raises(UsageError, match=r"^\[backward\] scale=nan"):
        run.backward(scale=float("nan"))
    run.backward()  # what was wrong has not used the pass up


# Several forward passes.


@pytest.mark.parametrize("change", ["step", "optimizer", "set"])
def test_a_pass_of_other_parameters_is_refused(change: str) -> None:
    net = network()
    run = net.record(batch(1))
    if change == "step":
        net.step(batch(1), vrt.SGD(0.1))
    elif change == "optimizer":
        back(net, batch(2))
        vrt.SGD(0.1).step(net)
    else:
        net.parameters["w"] = net.parameters["w"] + 1.0
    with pytest.raises(UsageError, match=r"the parameters have changed since that forward pass"):
        run.backward()
    again = net.record(batch(1))
    again.backward()
    with pytest.raises(UsageError, match=r"a record that was gone back through"):
        again.backward()


def test_memory_of_a_pass_is_freed_with_its_outputs() -> None:
    net, large = network(Way("cpu")), batch(*range(40))
    back(net, large)
    kept = [net.record(large)]
    tracemalloc.start()
    try:
        kept += [net.record(large) for _ in range(4)]
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        kept = kept[-1:]
        gc.collect()
        left = tracemalloc.get_traced_memory()[0]
        for _ in range(4):
            net.record(large)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < left + (held - left) / 2
    finally:
        tracemalloc.stop()
    assert left < held / 2


def test_outputs_are_a_dict_for_copies() -> None:
    outputs = network().record(batch(1)).outputs
    for copied_ in (copy.deepcopy(outputs), pickle.loads(pickle.dumps(outputs))):
        assert type(copied_) is dict
        np.testing.assert_array_equal(copied_["loss"], outputs["loss"])


class Weighted(Declared, arity=1, state={"h": 4}, w=(4, 4)):
    """A chain, of which one push reads a pull that the others do not."""

    def forward(self) -> None:
        h = vrt.tanh(self.w @ self.gather(0).h + self.pull("x", (4,)))
        self.scatter(h=h)
        self.push("h", h)
        self.push("weighted", h * self.pull("weight", (4,)))


@pytest.mark.parametrize("way", EVERYWHERE)
def test_a_pull_that_no_wanted_push_reads_may_be_missing(way: Way) -> None:
    net, x = way.compile(Weighted()), np.ones((3, 4), np.float32)
    seed = {"h": np.ones((3, 4), np.float32)}
    without, both = (one_chain(3, pulls) for pulls in ({"x": x}, {"x": x, "weight": x}))
    found = [net.record(b, outputs=["h"]).backward(seed) for b in (without, both)]
    assert [{*each.pulled} for each in found] == [{"x"}, {"x", "weight"}]
    assert_close(found[0].pulled["x"], found[1].pulled["x"], 0, "x")
    assert not found[1].pulled["weight"].any()
    with pytest.raises(PullError, match=r"\[record\] the batch has no pull weight; "):
        net.record(without, outputs=["h"], pulls=["x", "weight"])
