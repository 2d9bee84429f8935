"""Launches of a step on several streams: what is given passes the verifier, less does not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS, StackedAndAlone
from tests.paper_device import on_paper
from tests.shim_device import put_in_place
from tests.strategies import pulls_for
from vertexrt.engine.variant import Passes
from vertexrt.errors import PlanError, UsageError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda import device_streams
from vertexrt.kernels.cuda.driver import END_WAIT, FIRST_WAIT, OF_STREAM, RECORDED, REGION
from vertexrt.kernels.cuda.streams import Order
from vertexrt.kernels.cuda.verify_streams import verify_streams
from vertexrt.scheduler import POLICIES

TREES = [[[], [], [0, 1], [], [2, 3], [], [4, 5]], [[], [], [0, 1]], [[], [0], [], [1, 2]]]
CHAINS = [[[], [0], [1], [2]], [[], [0]]]


def batch_of(arity: int) -> GraphBatch:
    return GraphBatch.from_graphs(
        [
            InputGraph.from_children(lists, pulls_for(len(lists), k))
            for k, lists in enumerate(CHAINS if arity == 1 else TREES)
        ]
    )


def trained(
    function: vrt.VertexFunction, arity: int, policy: str, passes: Passes
) -> list[tuple[Any, ...]]:
    """Return what the verifier was given for a step, and for forward and backward by themselves."""
    found: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            device_streams,
            "order_launches",
            lambda *given: found.append((given[0], ordered(*given))) or found[-1][1],
        )
        net = on_paper(function, 1, policy=policy, passes=passes, engine="batched")
        batch = batch_of(arity)
        net.step(batch, vrt.SGD(0.1))
        net.backward(net.forward(batch, train=True))
        net.submit(batch).result()
    return found


ordered = device_streams.order_launches

CASES = [
    *((name, "frontier", Passes(streams=3)) for name in FUNCTIONS),
    *(("tree-lstm", policy, Passes(streams=2)) for policy in POLICIES[1:]),
    ("attention", "serial", Passes(streams=8)),
    ("gru", "agenda", Passes(streams=4, lazy=False, stack=False, fuse=False)),
    ("tree-lstm", "depth", Passes(streams=4, specialise=False, eager=False)),
]


@pytest.mark.parametrize(("name", "policy", "passes"), CASES)
def test_what_is_shared_out_passes(name: str, policy: str, passes: Passes) -> None:
    make, arity = FUNCTIONS[name]
    for table, order in trained(make(), arity, policy, passes):
        assert len(order.steps) >= len(table)
        assert order.steps[:, OF_STREAM].max(initial=0) < passes.streams
        recorded = order.steps[:, RECORDED]
        assert set(order.waits.tolist()) == set(recorded[recorded >= 0].tolist())


def captured(name: str, passes: Passes, policy: str = "frontier") -> list[tuple[Any, ...]]:
    """Return what the verifier is given, for each launch of a table."""
    found: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_streams, "verify_streams", lambda *given: found.append(given))
        make, arity = FUNCTIONS[name]
        net = on_paper(make(), 1, policy=policy, passes=passes, engine="batched")
        net.step(batch_of(arity), vrt.SGD(0.1))
    return found


def without(order: Order, wait: int) -> Order:
    """Return an order that lacks one wait."""
    steps = order.steps.copy()
    for column in (FIRST_WAIT, END_WAIT):
        steps[:, column] -= steps[:, column] > wait
    return replace(order, steps=steps, waits=np.delete(order.waits, wait))


class SecondSlot(vrt.VertexFunction):
    """One slot of two is read: a lazy launch fills the gradient of the other one with zeros."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": 5})
        self.w = vrt.Parameter((5, 1))
        self.b = vrt.Parameter((1,))
        self.q = vrt.Parameter(())

    def forward(self) -> None:
        self.scatter(h=vrt.minimum(self.w @ self.b, self.gather(1).h))
        self.push("loss", self.q)


def test_launches_that_write_other_slots_of_an_edge_need_not_wait_for_what_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VERTEXRT_CHECK", "1")
    net = on_paper(SecondSlot(), 1, passes=Passes(streams=2), engine="batched")
    batch = GraphBatch.from_graphs([InputGraph.from_children([[], [0, 2], []])])
    net.step(batch, vrt.SGD(0.1))  # the verifier takes its streams


@pytest.mark.parametrize(
    ("name", "policy", "passes"),
    [
        ("tree-lstm", "frontier", Passes(streams=2)),
        ("tree-lstm", "serial", Passes(streams=3)),
        ("gru", "frontier", Passes(streams=4)),
        ("attention", "frontier", Passes(streams=2)),
        ("marks", "frontier", Passes(streams=3)),
    ],
)
def test_every_wait_is_needed(name: str, policy: str, passes: Passes) -> None:
    ((run, table, order),) = captured(name, passes, policy)
    verify_streams(run, table, order)
    assert len(order.waits) > 0
    for wait in range(len(order.waits)):
        with pytest.raises(PlanError, match=r"\[streams\] launch .* does not wait for step"):
            verify_streams(run, table, without(order, wait))


def with_column(order: Order, column: int, values: Any) -> Order:
    steps = order.steps.copy()
    steps[:, column] = values
    return replace(order, steps=steps)


def test_what_else_is_wrong_is_found() -> None:
    ((run, table, order),) = captured("tree-lstm", Passes(streams=3), "serial")
    steps, streams = order.steps, order.steps[:, OF_STREAM]
    for wrong, text in (
        (replace(order, steps=steps[:-1]), "no stream for step"),
        (replace(order, steps=np.append(steps, steps[:1], 0)), f"for {len(steps) + 1} steps"),
        (replace(order, waits=order.waits + 1000), "a wait for event"),
        (with_column(order, REGION, 0), "the temporaries of stream 0"),
        (with_column(order, REGION, np.arange(len(steps))), "temporaries of several streams"),
        (with_column(order, OF_STREAM, streams[::-1]), "does not wait"),
    ):
        with pytest.raises(PlanError, match=text):
            verify_streams(run, table, wrong)


def test_a_stack_and_a_part_of_it_take_turns() -> None:
    assert trained(StackedAndAlone(), 2, "frontier", Passes(streams=4))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"passes": Passes(streams=2)}, "Passes(streams=2) with device='cpu'"),
        ({"passes": Passes(streams=0)}, "Passes(streams=0); 1 to 8"),
        ({"passes": Passes(streams=9)}, "Passes(streams=9); 1 to 8"),
        ({"passes": Passes(streams="2")}, "Passes(streams='2'); 1 to 8"),  # type: ignore[arg-type]
    ],
)
def test_streams_that_cannot_be_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        vrt.compile(FUNCTIONS["tree-lstm"][0](), device="cpu", **given)
    assert str(raised.value).startswith("[compile] " + text)


def test_one_kernel_has_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    with pytest.raises(UsageError, match=r"Passes\(streams=2\) with engine='persistent'"):
        vrt.compile(
            FUNCTIONS["tree-lstm"][0](),
            device="cuda",
            engine="persistent",
            passes=Passes(streams=2),
        )


def test_explain_says_what_each_stream_has() -> None:
    nets = [
        on_paper(FUNCTIONS["gru"][0](), 1, passes=Passes(streams=n), engine="batched")
        for n in (1, 3)
    ]
    one, three = (net.explain_batch(batch_of(2)) for net in nets)
    assert "streams" not in one
    assert re.search(
        r"  streams: 3; calls of each: \d+, \d+(, \d+)?; waits for another: \d+", three
    )
