"""Launches of a step on several streams: what is given passes the verifier, less does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS, StackedAndAlone
from tests.paper_device import on_paper
from tests.runs import use_of
from tests.strategies import with_pulls
from vertexrt.engine.variant import Passes
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.branches import (
    END_WAIT,
    FIRST_WAIT,
    ON,
    Order,
    verify_branches,
)
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.scheduler import POLICIES

TREES = [[[], [], [0, 1], [], [2, 3], [], [4, 5]], [[], [], [0, 1]], [[], [0], [], [1, 2]]]
KINDS = ("training", "gradients", "inference")
CHAINS = [[[], [0], [1], [2]], [[], [0]]]


def batch_of(arity: int) -> GraphBatch:
    return with_pulls(CHAINS if arity == 1 else TREES)


def captured(
    function: vrt.VertexFunction,
    arity: int,
    policy: str,
    passes: Passes,
    kinds: Sequence[str] = ("training",),
) -> list[tuple[Any, ...]]:
    """Return what the verifier is given for uses of a function, forward and backward each."""
    net = on_paper(function, 1, policy=policy, passes=passes, engine="batched")
    executor, found = net.executor, []
    assert isinstance(executor, CudaExecutor)
    assert executor.branches is not None
    for kind in kinds:
        (run,) = executor.model.prepare(use_of(kind, net.program), batch_of(arity))
        parts = [slice(None)]
        if kind == "gradients":
            parts = [
                slice(0, run.layout.forward_launches),
                slice(run.layout.forward_launches, None),
            ]
        for part in parts:
            table = run.layout.table[part]
            lookups = executor.session.sorted_lookups(run, table)[:2]
            order = executor.branches.order(run, table, lookups)
            found.append((run, table, lookups, order))
    return found


CASES = [
    *(
        (name, "frontier", Passes(streams=3))
        for name in ("tree-lstm", "attention", "pass-on", "both")
    ),
    *(("tree-lstm", policy, Passes(streams=2)) for policy in POLICIES[1:]),
    ("gru", "agenda", Passes(streams=4, lazy=False, stack=False, fuse=False)),
    ("tree-lstm", "depth", Passes(streams=8, specialise=False, eager=False)),
]


@pytest.mark.parametrize(("name", "policy", "passes"), CASES)
def test_what_is_shared_out_passes(name: str, policy: str, passes: Passes) -> None:
    make, arity = FUNCTIONS[name]
    for _, table, _, order in captured(make(), arity, policy, passes, KINDS):
        assert len(order.pieces) >= len(table)
        assert order.pieces[:, ON].max(initial=0) < passes.streams
        last = order.pieces[-1]
        ends = {on: k for k, on in enumerate(order.pieces[:-1, ON].tolist())}
        done = order.waits[last[FIRST_WAIT] : last[END_WAIT]]
        assert set(done.tolist()) <= set(ends.values())


def without(order: Order, wait: int) -> Order:
    """Return an order that lacks one wait."""
    pieces = order.pieces.copy()
    for column in (FIRST_WAIT, END_WAIT):
        pieces[:, column] -= pieces[:, column] > wait
    return Order(pieces, np.delete(order.waits, wait))


def not_waited_for(given: list[Any], order: Order) -> bool:
    """Tell whether the verifier names a step that another does not wait for."""
    try:
        verify_branches(*given, order)
    except PlanError as error:
        return bool(re.match(r"\[streams\] launch .* does not wait for (step|the st)", str(error)))
    return False


class TwoSlots(vrt.VertexFunction):
    """A function of two slots, of which a body reads one."""

    def __init__(self, body: Callable[[Any], None]) -> None:
        super().__init__(arity=2, state={"h": 5})
        self.body = body
        self.w, self.b, self.q = map(vrt.Parameter, ((5, 5), (5,), ()))

    def forward(self) -> None:
        self.body(self)


def leaves_zeros(f: Any) -> None:
    """A lazy launch fills the gradient of the other slot."""
    f.scatter(h=vrt.minimum(f.w @ f.b, f.gather(1).h))
    f.push("loss", f.q)


def reads_its_own_state(f: Any) -> None:
    """After the schedule; the verifier asked for the child in the other slot, too."""
    h = vrt.tanh(f.w @ f.gather(0).h + f.b)
    f.scatter(h=h)
    f.push("loss", vrt.sum(f.w @ h))


@pytest.mark.parametrize(
    ("body", "lists"), [(leaves_zeros, [[], [0, 2], []]), (reads_its_own_state, [[], [-1, 0]])]
)
def test_launches_of_other_slots_need_not_wait(
    body: Callable[[Any], None], lists: list[list[int]]
) -> None:
    net = on_paper(TwoSlots(body), 1, passes=Passes(streams=2), engine="batched")
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists)])
    net(batch)  # the verifier takes its streams
    net.step(batch, vrt.SGD(0.1))


@pytest.mark.parametrize(
    ("name", "policy", "passes", "spare"),
    [
        ("tree-lstm", "frontier", Passes(streams=2), 0),
        ("tree-lstm", "serial", Passes(streams=3), 1),
        ("gru", "frontier", Passes(streams=4), 3),
        ("attention", "frontier", Passes(streams=2), 2),
        ("marks", "frontier", Passes(streams=3), 0),
    ],
)
def test_a_wait_less_is_found(name: str, policy: str, passes: Passes, spare: int) -> None:
    """Some waits are spare, since an order knows launches by rows and programs, not by elements.

    They are for launches that made something of a row which is not read: what a child pushed, or
    temporaries of its own. Or these touch other elements of a buffer than what is written there.
    """
    make, arity = FUNCTIONS[name]
    ((*given, order),) = captured(make(), arity, policy, passes)
    waits = len(order.waits)
    found = sum(not_waited_for(given, without(order, wait)) for wait in range(waits))
    assert found > 0
    assert waits == found + spare


def with_column(order: Order, column: int | list[int], values: Any) -> Order:
    pieces = order.pieces.copy()
    pieces[:, column] = values
    return order._replace(pieces=pieces)


def test_what_else_is_wrong_is_found() -> None:
    make, arity = FUNCTIONS["tree-lstm"]
    ((*given, order),) = captured(make(), arity, "serial", Passes(streams=3))
    pieces = order.pieces
    numbers = np.arange(len(pieces))
    places, ends = [ON, FIRST_WAIT, END_WAIT], numbers.cumsum()
    after_all = with_column(order, places, np.transpose([numbers % 2, ends - numbers, ends]))
    before = np.concatenate([numbers[:k] for k in numbers])
    for wrong, text in (
        (after_all._replace(waits=before), "has other temporaries than step"),
        (order._replace(pieces=pieces[:-2]), "no piece for step"),
        (order._replace(pieces=np.append(pieces, pieces[1:2], 0)), "in two pieces"),
        (order._replace(waits=order.waits + 1000), "a wait for a piece to come"),
        (with_column(order, ON, pieces[::-1, ON]), "does not wait"),
    ):
        with pytest.raises(PlanError, match=text):
            verify_branches(*given, wrong)
    ((*given, order),) = captured(make(), arity, "serial", Passes(streams=3), ("inference",))
    backwards = with_column(order, places, 0).pieces[[0, *range(len(order.pieces) - 2, 0, -1), -1]]
    with pytest.raises(PlanError, match="a wait for the launch that has its temporaries"):
        verify_branches(*given, Order(backwards, before[:0]))


def test_a_stack_and_a_part_of_it_take_turns() -> None:
    assert captured(StackedAndAlone(), 2, "frontier", Passes(streams=4), KINDS)
