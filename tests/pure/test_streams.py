"""Launches of a step on several streams: their rounds pass the verifier, fewer do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS, StackedAndAlone
from tests.paper_device import on_paper
from tests.runs import use_of
from tests.strategies import with_pulls
from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Passes
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.rounds import Facts, Rounds
from vertexrt.kernels.cuda.streams import facts_of_run, rounds_of
from vertexrt.kernels.cuda.verify_rounds import verify_rounds
from vertexrt.scheduler import POLICIES
from vertexrt.script.isa import NONE, WAIT

TREES = [[[], [], [0, 1], [], [2, 3], [], [4, 5]], [[], [], [0, 1]], [[], [0], [], [1, 2]]]
KINDS = ("training", "gradients", "inference")
CHAINS = [[[], [0], [1], [2]], [[], [0]]]


def batch_of(arity: int) -> GraphBatch:
    return with_pulls(CHAINS if arity == 1 else TREES)


class Captured(NamedTuple):
    """Launches of a minibatch, and their rounds."""

    run: Run
    table: np.ndarray
    lookups: tuple[np.ndarray, ...]
    written: Rounds

    def check(self, **changed: Any) -> None:
        """Verify the rounds, of which something may be changed."""
        run, written = self.run, replace(self.written, **changed)
        verify_rounds(run, self.table, run.variant.tasks, facts_of_run(run), written)


def captured(
    function: vrt.VertexFunction,
    arity: int,
    policy: str,
    passes: Passes,
    kinds: Sequence[str] = ("training",),
) -> list[Captured]:
    """Return the rounds of uses of a function, forward and backward each."""
    net = on_paper(function, 1, policy=policy, passes=passes, engine="batched")
    executor, found = net.executor, []
    assert isinstance(executor, CudaExecutor)
    assert executor.streams is not None
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
            found.append(
                Captured(run, table, lookups, executor.streams.rounds(run, table, lookups))
            )
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
def test_rounds_pass(name: str, policy: str, passes: Passes) -> None:
    make, arity = FUNCTIONS[name]
    for each in captured(make(), arity, policy, passes, KINDS):
        each.check()
        assert len(each.written.apart) == len(each.written.script) - 1 >= len(each.table)


@pytest.mark.parametrize(
    ("name", "policy", "streams", "spare"),
    [
        ("tree-lstm", "frontier", 2, 0),
        ("tree-lstm", "serial", 3, 0),
        ("gru", "frontier", 4, 0),
        ("attention", "frontier", 2, 2),
        ("marks", "frontier", 3, 0),
    ],
)
def test_a_wait_less_is_found(name: str, policy: str, streams: int, spare: int) -> None:
    """Spare are waits of launches for others that made something of a row which is not read."""
    make, arity = FUNCTIONS[name]
    (each,) = captured(make(), arity, policy, Passes(streams=streams))
    waits = np.flatnonzero(each.written.script[:, WAIT] != NONE)
    assert len(waits) > 3
    for at in waits.tolist():
        script = each.written.script.copy()
        script[at, WAIT] = NONE
        with pytest.raises(PlanError) as error:
            each.check(script=script)
        spare -= "wait" not in str(error.value)
    assert spare == 0


def only_adds(facts: Facts) -> Facts:
    return facts._replace(effects=facts.effects._replace(only=facts.effects.only | True))


def adds_nothing(facts: Facts) -> Facts:
    return facts._replace(effects=facts.effects._replace(ptr=facts.effects.ptr * 0))


def shares_nothing(facts: Facts) -> Facts:
    return facts._replace(effects=facts.effects._replace(counters=facts.effects.counters * 0 + 1))


def has_no_levels(facts: Facts) -> Facts:
    return facts._replace(stages=facts.stages * 0 + int(Stage.LAZY))


def has_no_temporaries(facts: Facts) -> Facts:
    return facts._replace(scratch=facts.scratch * 0)


@pytest.mark.parametrize(
    ("thinks", "said"),
    [
        (only_adds, "the steps of its launch before it"),
        (adds_nothing, "what adds to its gradients before it"),
        (shares_nothing, "counters"),
        (has_no_levels, "touches what it writes, or writes it"),
        (has_no_temporaries, "temporaries"),
    ],
)
def test_what_the_scheduler_does_not_know_is_found(
    thinks: Callable[[Facts], Facts], said: str
) -> None:
    make, arity = FUNCTIONS["tree-lstm"]
    (each,) = captured(make(), arity, "serial", Passes(streams=3))
    run, facts = each.run, facts_of_run(each.run)
    wrong = rounds_of(run, each.table, each.lookups, thinks(facts))
    with pytest.raises(PlanError, match=said):
        verify_rounds(run, each.table, run.variant.tasks, facts, wrong)


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


def test_a_stack_and_a_part_of_it_take_turns() -> None:
    assert captured(StackedAndAlone(), 2, "frontier", Passes(streams=4), KINDS)
