"""Training in the open: gradients that add up, `optimizer.step`, and several forward passes."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import shim
from tests.optimizers import OPTIMIZERS, Make
from tests.runs import Way, assert_close
from tests.strategies import pulls_for
from vertexrt.engine.variant import Passes
from vertexrt.errors import NumericError, PullError, UnknownParameterError, UsageError

LISTS = [[], [], [0, 1], [2, -1], [1]]
SHIM = pytest.param("shim", marks=shim)
DEVICES = ["reference", "cpu", SHIM]


class Tree(vrt.VertexFunction):
    """A tree over words."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": 5})
        self.table = vrt.Parameter((7, 3))
        self.w, self.u = vrt.Parameter((5, 3)), vrt.Parameter((5, 5))

    def forward(self) -> None:
        x = self.w @ vrt.embed(self.table, self.pull("word"))
        h = vrt.tanh(x + self.u @ (self.gather(0).h + self.gather(1).h))
        self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(self.push("h", h), 0.3))


def graph(seed: int) -> vrt.InputGraph:
    return vrt.InputGraph.from_children(LISTS, pulls_for(5, seed))


def batch(*seeds: int) -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs([graph(seed) for seed in seeds])


def network(way: Way | None = None) -> vrt.Network:
    return (way or Way()).compile(Tree())


def copied(net: vrt.Network) -> dict[str, np.ndarray]:
    return dict(net.parameters)


def back(net: vrt.Network, of: vrt.GraphBatch, scale: float = 1.0) -> vrt.types.Gradients:
    run = net.record(of)
    return run.backward(scale=scale)


def test_gradients_of_passes_add_up_and_each_is_returned_alone() -> None:
    net = network()
    first = back(net, batch(1)).parameters
    second = back(net, batch(2)).parameters
    again = back(net, batch(1), scale=0.5).parameters
    for name, total in net.gradients.items():
        np.testing.assert_array_equal(again[name], 0.5 * first[name], err_msg=name)
        expected = 1.5 * first[name] + second[name]
        np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-15, err_msg=name)
    assert list(net.gradients) == list(net.parameters)
    assert repr(net.gradients).endswith("; 3 backward passes)")
    net.step(batch(3), vrt.SGD(0.1))  # neither reads nor changes them
    np.testing.assert_allclose(net.gradients["w"], 1.5 * first["w"] + second["w"], rtol=1e-12)
    net.zero_grad()
    assert all(not gradient.any() for gradient in net.gradients.values())


@pytest.mark.parametrize("device", DEVICES)
def test_small_batches_add_up_to_a_large_one(device: str) -> None:
    """Clipping, decay and rows of the table that only some of the batches look up, too."""
    parts, whole = network(Way(device)), network(Way(device))
    optimizers = [vrt.Adam(0.02, weight_decay=0.1, clip_norm=0.05) for _ in range(2)]
    for step in range(3):
        seeds = range(4 * step, 4 * step + 4)
        for seed in seeds:
            back(parts, batch(seed), scale=1 / 4)
        optimizers[0].step(parts)
        parts.zero_grad()
        whole.step(batch(*seeds), optimizers[1])
    for name, value in whole.parameters.items():
        assert_close(parts.parameters[name], value, 1e-11, name)
    assert optimizers[0].steps == optimizers[1].steps == 3


@pytest.mark.parametrize(
    ("made", "device"),
    [
        *((made, "cpu") for made in OPTIMIZERS),
        ("adam", "reference"),
        pytest.param("adam", "shim", marks=shim),
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
    for name, value in ends[1].items():
        np.testing.assert_array_equal(ends[0][name], value, err_msg=name)


def test_gradients_are_live_and_may_be_changed_before_the_update() -> None:
    net = network()
    before = copied(net)
    found = back(net, batch(1)).parameters
    net.gradients["w"] *= 0.5
    net.gradients["u"][...] = 0.0
    vrt.SGD(0.1).step(net)
    np.testing.assert_allclose(net.parameters["w"], before["w"] - 0.05 * found["w"], rtol=1e-12)
    np.testing.assert_array_equal(net.parameters["u"], before["u"])
    np.testing.assert_array_equal(net.gradients["w"], 0.5 * found["w"])  # they stay
    with pytest.raises(UnknownParameterError, match=r"no gradient of a parameter 'ww'"):
        net.gradients["ww"]


class ByHand(vrt.Optimizer):
    """An optimizer with an update of its own."""

    def __init__(self, bad: bool = False) -> None:
        super().__init__(1.0)
        self.bad = bad

    def update(self, store) -> None:  # type: ignore[no-untyped-def]
        store.value("w")[...] -= np.nan if self.bad else store.gradient("w")


@pytest.mark.parametrize("device", DEVICES)
def test_optimizers_of_ones_own_step_too(device: str) -> None:
    net = network(Way(device))
    before = net.parameters["w"]
    found = back(net, batch(1)).parameters
    ByHand().step(net)
    np.testing.assert_array_equal(net.parameters["w"], before - found["w"])
    with pytest.raises(NumericError, match="it made 'w'"):
        ByHand(bad=True).step(net)


@pytest.mark.parametrize(
    "make", [lambda: vrt.SGD(0.1), lambda: vrt.Adam(0.1, clip_norm=1.0), ByHand]
)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("device", ["cpu", SHIM])
def test_what_is_not_finite_reaches_no_parameter(make: Make, wrong: float, device: str) -> None:
    net = network(Way(device, "float32"))
    net.step(batch(1), vrt.SGD(0.0))
    before, optimizer = copied(net), make()
    out = net.record(batch(1))
    out.backward({"loss": np.full(out.outputs["loss"].shape, wrong)})
    with pytest.raises(NumericError, match=r"the gradient of '\w+' is"):
        optimizer.step(net)
    for name, value in net.parameters.items():
        np.testing.assert_array_equal(value, before[name])
    assert optimizer.steps == 0
    net.zero_grad()
    back(net, batch(1))
    optimizer.step(net)
    assert all(np.isfinite(value).all() for value in net.parameters.values())


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


@pytest.mark.parametrize(
    "way",
    [
        Way("reference"),
        Way("cpu", threads=2),
        Way("cpu", engine="persistent", processors=2),
        pytest.param(Way("shim"), marks=shim),
        pytest.param(Way("shim", engine="persistent", processors=2), marks=shim),
    ],
    ids=lambda way: f"{way.device}-{way.engine}",
)
def test_passes_are_gone_back_through_in_any_order(way: Way) -> None:
    """Batches of several sizes, the same batch twice, and evaluations and passes between."""
    net = way.compile(Tree())
    batches = [batch(1), batch(2, 3, 4), batch(1), batch(5, 6)]
    alone = [back(net, each).parameters for each in batches]
    kept = [net.record(each) for each in batches]
    net(batch(*range(9)))
    for k in (2, 0, 3, 1):
        assert kept[k].outputs.keys() == net(batches[k]).keys()
        if k == 0:
            back(net, batch(9))
        found = kept[k].backward().parameters
        for name, gradient in alone[k].items():
            np.testing.assert_array_equal(found[name], gradient, err_msg=name)
        with pytest.raises(UsageError, match=r"a record that was gone back through"):
            kept[k].backward()


def test_dropout_of_a_pass_stays_its_own() -> None:
    net = Way().compile(Dropped())
    kept = [net.record(batch(1)) for _ in range(3)]
    assert not np.array_equal(kept[0].outputs["h"], kept[1].outputs["h"])
    for run in reversed(kept):
        h = run.outputs["h"]
        found = run.backward({"h": np.ones_like(h)}).parameters["b"]
        np.testing.assert_allclose(found, (h != 0).sum(0) * 2.0)


class Dropped(vrt.VertexFunction):
    """A bias, half of whose elements are dropped: its gradient counts those that are left."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": 64})
        self.b = vrt.Parameter((64,), init=vrt.init.constant(1.0))

    def forward(self) -> None:
        self.scatter(h=self.push("h", vrt.random.dropout(self.b * 1.0, 0.5)))


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


def test_an_update_without_gradients_leaves_a_pass_alive() -> None:
    """It is refused and changes nothing; the parameters counted as changed."""
    net, want = network(), network()
    run = net.record(batch(1))
    with pytest.raises(UsageError, match="no gradients"):
        vrt.SGD(0.1).step(net)
    found = run.backward().parameters
    for name, gradient in want.record(batch(1)).backward().parameters.items():
        np.testing.assert_array_equal(found[name], gradient)


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


class Weighted(vrt.VertexFunction):
    """A chain, of which one push reads a pull that the others do not."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 4})
        self.w = vrt.Parameter((4, 4))

    def forward(self) -> None:
        h = vrt.tanh(self.w @ self.gather(0).h + self.pull("x", (4,)))
        self.scatter(h=h)
        self.push("h", h)
        self.push("weighted", h * self.pull("weight", (4,)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_pull_that_no_wanted_push_reads_may_be_missing(device: str) -> None:
    net, x = Way(device=device).compile(Weighted()), np.ones((3, 4), np.float32)
    seed = {"h": np.ones((3, 4), np.float32)}
    without, both = (
        vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3, pulls)])
        for pulls in ({"x": x}, {"x": x, "weight": x})
    )
    found = [net.record(b, outputs=["h"]).backward(seed) for b in (without, both)]
    assert [{*each.pulled} for each in found] == [{"x"}, {"x", "weight"}]
    assert_close(found[0].pulled["x"], found[1].pulled["x"], 0, "x")
    assert not found[1].pulled["weight"].any()
    with pytest.raises(PullError, match=r"\[record\] the batch has no pull weight; "):
        net.record(without, outputs=["h"], pulls=["x", "weight"])


@pytest.mark.parametrize("device", DEVICES)
def test_zero_grad_clears_what_was_written_and_passes_add_to_it(device: str) -> None:
    """Issue 52: rows of tables that no pass had looked up kept what was written by hand."""
    net = network(Way(device))
    found = back(net, batch(1)).parameters
    for name in net.gradients:
        net.gradients[name] += 100.0  # of all rows
    net.zero_grad()
    assert not any(value.any() for value in net.gradients.values())
    for name in net.gradients:
        net.gradients[name] += 100.0  # noise, before the first pass
    back(net, batch(1))
    for name, value in net.gradients.items():
        np.testing.assert_allclose(value, found[name] + 100.0, rtol=1e-12)
