"""Plans: a batch that is prepared once and evaluated with other pulls, on every device and engine.

The judge of values is the oracle.
"""

from __future__ import annotations

import gc
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_on_device import SIZE, Lent, Node, assert_near, batch, host, lend
from tests.declared import Declared
from tests.devices import SHIM_AND_GPU, shim
from tests.lstm_chains import (
    ON_CPU,
    ON_GPU,
    ON_SHIM,
    STEPS,
    WAYS,
    WIDTH,
    Lstm,
    chains,
    drawn,
    exact,
)
from tests.planned import other_numbers, tables_of
from tests.runs import Way
from tests.strategies import one_chain
from tests.watched_device import break_counter, mend, watch
from vertexrt.errors import DeviceError, PullError, UsageError


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lengths", [[STEPS], [3, 1, 5, 2]], ids=str)
def test_an_lstm_by_hand(way: Way, lengths: list[int]) -> None:
    net, count = way.compile(Lstm()), sum(lengths)
    graphs = chains(lengths, *drawn(0, count))
    plans = [
        (net.plan(graphs), None),
        (net.plan(graphs, outputs=["h"], vertices=graphs.roots), graphs.roots),
        (net.plan(graphs, arrays="device"), None),
        (
            net.plan(graphs, outputs=("sum", "h"), vertices=[count - 1, 0, 0], arrays="device"),
            [count - 1, 0, 0],
        ),
    ]
    for seed in range(3):
        x, words = drawn(seed, count)
        wanted = exact(net.parameters, lengths, x, words)
        for plan, chosen in plans:
            found = plan({"x": x, "word": words} if seed else None)
            rows = wanted if chosen is None else wanted[np.asarray(chosen)]
            assert tuple(found) == plan.outputs
            assert_near(found["h"], rows, "h")
            if "sum" in found:
                assert_near(found["sum"], rows.sum(axis=1), "sum")
        net.parameters["u"] = 1.5 * net.parameters["u"]
    x, words = drawn(0, count)  # what is left out is as it was planned
    given, _ = drawn(5, count)
    assert_near(plans[0][0]({"x": given})["h"], exact(net.parameters, lengths, given, words))
    assert_near(plans[0][0]()["h"], exact(net.parameters, lengths, x, words))


class Noisy(Declared, arity=1, state={"h": SIZE}, w=(SIZE, SIZE)):
    """Drops and draws."""

    def forward(self) -> None:
        x = vrt.random.dropout(self.pull("x", shape=(SIZE,)), 0.5) + vrt.random.uniform((SIZE,))
        h = vrt.tanh(self.w @ (x + self.gather(0).h))
        self.scatter(h=self.push("h", h))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dropout", [False, True])
def test_seeds(way: Way, dropout: bool) -> None:
    net = way.compile(Noisy())
    x = drawn(3, 8)[0][:, :SIZE]
    graphs = vrt.GraphBatch.from_graphs(
        [vrt.InputGraph.chain(4, {"x": x[k : k + 4]}) for k in (0, 4)]
    )
    plan = net.plan(graphs, dropout=dropout)
    for seed in (5, 6, 5):
        wanted = net(graphs, dropout=dropout, seed=seed)["h"]
        assert_near(plan(seed=seed)["h"], wanted)
    net.load_state({"random": {"seed": 1, "draws": 0}})
    first, second = plan()["h"], plan()["h"]
    assert not np.array_equal(first, second)
    net.load_state({"random": {"seed": 1, "draws": 0}})
    assert_near(net(graphs, dropout=dropout)["h"], first)


@pytest.mark.parametrize("way", [way for way in WAYS if way.device in SHIM_AND_GPU])
def test_arrays_of_a_device(way: Way) -> None:
    net, graphs = way.compile(Lstm()), chains([6, 2], *drawn(0, 8))
    there = lend(way.device, drawn(1, 8)[0])
    words = drawn(0, 8)[1]
    wanted = exact(net.parameters, [6, 2], drawn(1, 8)[0], words)
    lent = graphs.with_pulls({"x": there})
    plans = [net.plan(graphs, arrays="device"), net.plan(lent, arrays="device"), net.plan(lent)]
    for plan in plans:
        for _ in range(2):
            assert_near(plan({"x": there})["h"], wanted)
            zeros = np.zeros((8, WIDTH), np.float32)
            expected = exact(net.parameters, [6, 2], zeros, words)
            assert_near(plan({"x": zeros})["h"], expected)
    assert_near(plans[1]()["h"], wanted)
    made = [plans[0]({"x": drawn(k, 8)[0]})["h"] for k in range(70)]  # none is waited for
    for k in (0, 3, 69):
        assert_near(made[k], exact(net.parameters, [6, 2], drawn(k, 8)[0], words))


@pytest.mark.parametrize("way", [ON_SHIM, ON_GPU])
def test_tables_of_a_device(way: Way) -> None:
    net, graphs = way.compile(Node()), batch()
    judge = Way("reference", "float64").compile(Node())
    judge.parameters.update(net.parameters)
    wanted = judge(graphs)["h"]
    shared = graphs.pulls["shared"]
    lent = vrt.Rows(lend(way.device, shared.table), shared.index)
    given = {name: lend(way.device, tables_of(graphs)[name]) for name in ("x", "shared")}
    for planned in (other_numbers(graphs), graphs.with_pulls({"shared": lent})):
        plan = net.plan(planned, outputs=["h"], arrays="device")
        found = plan({**tables_of(graphs), **given})
        assert_near(found["h"], wanted)
        assert_near(plan(tables_of(graphs))["h"], wanted)


@shim
def test_a_request_that_gave_up_says_so() -> None:
    net = ON_SHIM.compile(Lstm())
    graphs = chains([3, 2], *drawn(0, 5))
    net.executor.persistent_launch.patience = 5_000_000  # type: ignore[attr-defined]
    plan, here = net.plan(graphs), net.plan(graphs, arrays="device")
    before = plan()["h"]
    broken = watch(net)
    break_counter(broken)
    with pytest.raises(DeviceError, match="waited at instruction"):
        plan()
    here()
    mend(broken)
    with pytest.raises(DeviceError, match="waited at instruction"):
        here()
    for each in (plan, here):
        assert host(each()["h"]).tolist() == before.tolist()


@shim
def test_memory_is_freed_with_the_plan() -> None:
    net = ON_SHIM.compile(Lstm())
    graphs = chains([30] * 4, *drawn(0, 120))
    for _ in range(2):  # each has a buffer of its own
        dict(net(graphs))
    gc.collect()
    device = net.executor.session.device  # type: ignore[attr-defined]
    free = device.free_bytes()
    plan = net.plan(graphs, vertices=[5, 1])
    plan()
    assert device.free_bytes() < free
    del plan
    gc.collect()
    for _ in range(3):  # requests that read its uploads may have been under way
        dict(net(graphs))
    assert device.free_bytes() == free


def test_forms_of_what_is_given() -> None:
    net = ON_CPU.compile(Lstm())
    graphs = chains([3, 4], *drawn(0, 7))
    plan = net.plan(graphs)
    assert plan.pulls == {"x": (7, WIDTH), "word": (7,)}
    assert repr(plan) == "Plan(Lstm on cpu; pulls: word [7], x [7, 5]; outputs: h, sum)"
    x, words = drawn(1, 7)
    wanted = exact(net.parameters, [3, 4], x, words)
    forms: list[Any] = [x, x.tolist(), x.astype(np.float64), np.asfortranarray(x)]
    for form in forms:
        for numbers in (words, np.array(words, np.int64), np.array(words, np.uint8)):
            assert_near(plan({"x": form, "word": numbers})["h"], wanted)


@pytest.mark.parametrize(
    ("pulls", "text"),
    [
        ({"y": 1}, "a pull 'y'; the batch was planned with x, word; name one of these"),
        (1, "a int; expected arrays by name"),
        ({"x": np.zeros((6, WIDTH))}, r"pull 'x' has \[6, 5\]; expected \[7, ...\]"),
        ({"x": np.zeros((7, 3))}, r"'x' is float64 \[7, 3\]; an array float32 \[7, 5\], as it was"),
        ({"x": np.zeros(7, int)}, r"'x' is int32 \[7\]; an array float32 \[7, 5\]"),
        ({"x": vrt.Rows(np.zeros((7, 5)), np.arange(7))}, r"'x' is Rows of float64 \[7, 5\]"),
        ({"word": np.zeros(7)}, r"'word' is float64 \[7\]; an array int32 \[7\]"),
        ({"word": [0, 0, 0, 0, 6, 0, -1]}, r"'word' of vertex 1 of graph 1 is 6; 0 to 5, the rows"),
        ({"word": [0, -1, 0, 0, 0, 0, -1]}, "'word' of vertex 1 of graph 0 is absent; present, as"),
        ({"word": [0] * 7}, "'word' of vertex 3 of graph 1 is 0; absent, as it was planned"),
        ({"word": [0, 0, 0, 0, -2, 0, -1]}, "whole numbers|-2 at vertex 4; expected at least 0"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_refused(pulls: Any, text: str, threads: int) -> None:
    net = replace(ON_CPU, threads=threads).compile(Lstm())
    x, words = drawn(0, 7)
    words[-1] = -1
    plan = net.plan(chains([3, 4], x, words))
    before = plan()["h"]
    with pytest.raises(PullError, match=text):
        plan(pulls)
    assert plan()["h"].tolist() == before.tolist()


def test_what_else_is_refused() -> None:
    net, graphs = ON_CPU.compile(Lstm()), chains([3, 4], *drawn(0, 7))
    plan = net.plan(graphs)
    with pytest.raises(PullError, match="a pull lies on a GPU; the host"):
        plan({"x": Lent(np.zeros((7, WIDTH), np.float32))})
    with pytest.raises(PullError, match=r"float64 \[7, 5\]; an array float32"):
        plan({"x": Lent(np.zeros((7, WIDTH)))})
    with pytest.raises(UsageError, match="seed=-1"):
        plan(seed=-1)
    with pytest.raises(UsageError, match="'z'; Lstm pushes h, sum"):
        net.plan(graphs, outputs=["z"])
    for wrong in ("x", 3, [[1]], [0.5], [True]):
        with pytest.raises(UsageError, match="vertices is"):
            net(graphs, vertices=wrong)  # type: ignore[arg-type]
    for given in ([7], [-1]):
        with pytest.raises(UsageError, match="0 to 6, vertices of the batch"):
            net.plan(graphs, vertices=given)
    with pytest.raises(TypeError, match="vertices"):
        net.record(graphs, vertices=[0])  # type: ignore[call-arg]
    with pytest.raises(PullError, match="pulls 'word', which the batch does not give"):
        net.plan(one_chain(2))


# Pushes of chosen vertices, and passes that read arrays of a device: against an LSTM by hand.


@pytest.mark.parametrize("way", WAYS)
def test_results_of_chosen_vertices(way: Way) -> None:
    net, lengths = way.compile(Lstm()), [3, 1, 9, 5]
    graphs = chains(lengths, *drawn(0, 18))
    wanted = exact(net.parameters, lengths, *drawn(0, 18))
    several = [graphs.roots, [17, 0, 5, 5], np.arange(17, -1, -1), [], list(range(0, 18, 2))]
    for vertices in several:
        rows = wanted[np.asarray(vertices, np.int64)]
        found = [
            net(graphs, outputs=["sum", "h"], vertices=vertices),
            net(graphs, vertices=vertices, arrays="device"),
            net(graphs, vertices=vertices),
            net.plan(graphs, vertices=vertices)(),
            net.plan(graphs, vertices=vertices, arrays="device")(),
        ]
        for each in found:
            assert_near(each["h"], rows, "h")
            assert_near(each["sum"], rows.sum(axis=1), "sum")


class LstmToSumUp(Lstm):
    """The LSTM, whose loss is the sum of its state."""

    def forward(self) -> None:
        super().forward()
        self.push("loss", vrt.sum(self.gather(0).h))


@pytest.mark.parametrize("way", WAYS)
def test_a_step_keeps_pushes_of_chosen_vertices(way: Way) -> None:
    net, lengths = way.compile(LstmToSumUp()), [3, 1, 9, 5]
    graphs = chains(lengths, *drawn(0, 18))
    for vertices in (graphs.roots, [17, 0, 5, 5], None, []):
        wanted = exact(net.parameters, lengths, *drawn(0, 18))
        rows = wanted if vertices is None else wanted[np.asarray(vertices, np.int64)]
        loss = net.step(graphs, vrt.SGD(0.1), outputs=["sum", "h"], vertices=vertices)
        assert_near(loss.outputs["h"], rows, "h")
        assert_near(loss.outputs["sum"], rows.sum(axis=1), "sum")
    with pytest.raises(UsageError, match="vertices has 18; 0 to 17, vertices of the batch"):
        net.step(graphs, vrt.SGD(0.1), outputs=["h"], vertices=[18])


class Marked(Declared, state={"h": 3}, w=(2, 3)):
    """A number of an edge, and an array of each vertex."""

    def forward(self) -> None:
        x, marks = self.pull("x", (3,)), vrt.embed(self.w, self.edge("mark"))
        self.scatter(h=x + vrt.sum(self.gather_all().h + marks))
        self.push("y", 1.0 * x)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_numbers_of_no_edges_leave_other_arrays_alone(device: str) -> None:
    """They took the place of the last real pull, which then was read beyond its end."""
    x = np.arange(3.0)[None]
    graph = vrt.InputGraph.from_children([[]], {"x": x}, {"mark": np.zeros(0)})
    given = vrt.GraphBatch.from_graphs([graph])
    plan = vrt.compile(Marked(), device=device, dtype="float64").plan(given)
    assert_near(plan(tables_of(given))["y"], x)
    for kind in (float, int):
        assert_near(plan({"x": 2 * x, "mark": np.zeros(0, kind)})["y"], 2 * x)
    text = "[plan] edge pull 'mark' has [1]; expected [0, ...], one row an edge; correct the array."
    with pytest.raises(PullError, match=re.escape(text)):
        plan({"mark": np.zeros(1, int)})
