"""Scripts of a GPU step are verified as they go up: right ones pass, each kind of wrong one not."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.broken import refused
from tests.functions import FUNCTIONS, StackedAndAlone
from tests.launches import Launch, launch_of
from tests.paper_device import on_paper
from tests.strategies import with_pulls
from vertexrt.config import config
from vertexrt.engine.variant import Passes
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.passes.store import Read
from vertexrt.kernels.cuda import instruction
from vertexrt.kernels.cuda.instruction import (
    BACKWARD,
    CHECK,
    COLUMNS,
    END,
    FINISH,
    FIRST_OP,
    FORWARD,
    OF_LAUNCHES,
    SQUARES,
    UPDATE,
    header,
)
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.verify_cells import verify_launch
from vertexrt.scheduler import POLICIES
from vertexrt.script import isa
from vertexrt.script.isa import FIRST, NONE, OP, WAIT, WORDS

Array = np.ndarray

TREE = [[], [], [0, 1], [], [2, 3], [], [4, 5]]
CHAIN = [[], [0], [1], [2]]


def batch_of(name: str, graphs: int) -> GraphBatch:
    lists = CHAIN if FUNCTIONS[name][1] == 1 else TREE
    return with_pulls([lists] * graphs)


HEADER = """\
struct alignas(16) Instruction {
    int op, program, rows, first, listed, edges, first_edge, wait, temporary, start, across, \
down, before, counter, launch, step;
};
constexpr int INSTRUCTION_WORDS = sizeof(Instruction) / sizeof(int);
enum { END, FORWARD, BACKWARD, SQUARES, FINISH, CHECK, UPDATE, FIRST_OP };  // `op`
enum { NO_WAIT = -1, FOR_ALL };  // `wait`
"""


def test_the_kernels_have_the_columns_of_the_host() -> None:
    assert header().partition("#pragma once\n\n")[2] == HEADER
    columns = [getattr(instruction, name.upper()) for name in OF_LAUNCHES]
    assert columns == list(range(WORDS, WORDS + len(columns)))
    assert columns[-1] < COLUMNS
    assert COLUMNS % 4 == 0, "rows are aligned"


CASES = [
    *((name, "frontier", Passes()) for name in FUNCTIONS),
    *(("tree-lstm", policy, Passes()) for policy in POLICIES[1:]),
    *(("attention", policy, Passes()) for policy in POLICIES[1:]),
    ("tree-lstm", "frontier", Passes(specialise=False)),  # leaves are the groups' then
    *((name, policy, Passes(hold=False)) for name in ("both", "tied") for policy in POLICIES),
    ("tree-lstm", "frontier", Passes(lazy=False, eager=False, hold=False)),
]


@pytest.mark.parametrize(("name", "policy", "passes"), CASES)
def test_all_scripts_that_are_written_pass(name: str, policy: str, passes: Passes) -> None:
    net = on_paper(FUNCTIONS[name][0](), 2, policy=policy, passes=passes)
    batch = batch_of(name, 5)
    net.step(batch, vrt.Adam(0.1, clip_norm=1.0))
    net.step(batch, vrt.SGD(0.1))
    net.record(batch).backward()
    net(batch_of(name, 1))


@dataclass(frozen=True, slots=True)
class Step:
    """What the verifier is given for a step, and its scripts changed."""

    launch: Launch
    params: dict[str, int]

    @property
    def written(self) -> WrittenScripts:
        return self.launch.written

    def check(self, script: Array | None = None, **changed: Any) -> None:
        if script is not None:
            changed["script"] = script
        verify_launch(*self.launch._replace(written=replace(self.written, **changed)))

    def refused(self, code: str, text: str, **names: Any) -> None:
        """Assert that the scripts are refused once they are changed; see `tests/broken.py`."""
        names = {**vars(isa), **vars(instruction), **globals(), **names}
        refused(self.check, self.written.script, code, names, f".*{text}")


def written(
    name: str = "tree-lstm",
    *,
    clips: bool = False,
    hold: bool = True,
    function: vrt.VertexFunction | None = None,
) -> Step:
    """Return a step of a function on two groups of two processors."""
    net = on_paper(function or FUNCTIONS[name][0](), 2, passes=Passes(hold=hold))
    launch = launch_of(net, batch_of(name, 5), clips)
    (variant,) = net.executor.model.variants.values()
    return Step(launch, dict(variant.binding.params))


@cache
def clipped() -> Step:
    return written(clips=True)


@cache
def plain() -> Step:
    return written()


def test_the_scripts_are_right_before_they_are_broken() -> None:
    for launch in (clipped(), plain()):
        launch.check()
        assert launch.launch.written.groups == 2
    order = [FORWARD, BACKWARD, SQUARES, FINISH, CHECK, UPDATE, END]
    for launch, left_out in ((clipped(), None), (plain(), SQUARES)):
        ops = launch.written.script[:, OP].tolist()
        assert [op for op in ops if op < FIRST_OP] == [op for op in order if op != left_out]


def test_a_stack_and_a_part_of_it_are_one_gradient() -> None:
    """The steps that add to `w+u`, and to `u` alone, are never in one round."""
    launch = written(function=StackedAndAlone())
    executable, numbers = launch.launch.executable, launch.params
    words = {f"gradient_{numbers[name]}" for name in ("w+u", "u")}
    ops = {
        executable.writer.op(step): words.intersection(step.words)
        for step in executable.writer.all_steps
    }
    assert set().union(*ops.values()) == words
    common = launch.written.script
    rounds = np.cumsum(common[:, WAIT] != NONE)
    adding = [int(r) for r, op in zip(rounds, common[:, OP].tolist(), strict=True) if ops.get(op)]
    assert len(adding) > 1
    # an outer product and the sum of its splits are steps of their own, in turn
    assert len(set(adding)) == len(adding)


def place(op: int, skip: int = 0) -> int:
    """Return where an op of the clipped step's common script stands, and `skip` rows on."""
    return int(np.flatnonzero(clipped().written.script[:, OP] == op)[0]) + skip


def first() -> int:
    """Return the first instruction whose rows are in order, and not a list."""
    return int(np.flatnonzero(clipped().written.script[:, FIRST] >= 0)[0])


def a_later_wait() -> int:
    """Return the first round but one that waits, of the first stage."""
    return 1 + int(np.flatnonzero(clipped().written.script[1:, WAIT] != NONE)[0])


def two_in_one_round(script: Array) -> None:
    """Let the rows of the table that are looked up first be added to in the round of the others."""
    ops, rounds = script[:, OP], np.cumsum(script[:, WAIT] != NONE)
    pairs = [
        (i, j)
        for i in range(place(BACKWARD), place(SQUARES))
        for j in range(i + 1, place(SQUARES))
        if ops[i] == ops[j] and rounds[i] != rounds[j] and script[i, WAIT] == NONE
    ]
    i, j = pairs[-1]
    script[i : j + 1] = np.roll(script[i : j + 1], -1, axis=0)


# What changes of the words of all scripts, and a part of the text.
BROKEN = {
    # No wait between steps, launches and stages.
    "words[a_later_wait(), WAIT] = NONE": "the steps of its launch before it",
    "words[place(FORWARD), WAIT] = NONE": "the stage before",
    "words[place(FORWARD, 1), WAIT] = NONE": "the stage before",
    "words[place(BACKWARD), WAIT] = NONE": "the stage before",
    "words[place(BACKWARD, 1), WAIT] = NONE": "the stage before",
    "words[place(SQUARES), WAIT] = NONE": "all gradients",
    "words[place(FINISH), WAIT] = NONE": "the loss, and the norm",
    "words[place(CHECK), WAIT] = NONE": "the whole step",
    "words[place(UPDATE), WAIT] = NONE": "the check",
    "two_in_one_round(words)": "what adds to its gradients before it",
    # Stages that are not there, or in another order.
    "words[place(FORWARD), OP] = BACKWARD": "of forward",
    "words[place(UPDATE), OP] = END": "0 of update",
    "words[place(END), OP] = FINISH": "of finish",
    "exchange(words, place(CHECK), place(FINISH))": "the whole step",
    "exchange(words, place(UPDATE), place(CHECK))": "the check",
    "exchange(words, place(SQUARES), place(SQUARES, -1))": "all gradients",
    "exchange(words, place(FORWARD), place(BACKWARD))": "the stage before",
    # Steps that no launch asks for.
    "words[first(), OP] = 999": "no launch asks for it",
    "words[place(SQUARES, -1)] = words[place(SQUARES, -2)]": "no launch asks for it",
    "words[first(), ROWS] = 2": "no launch asks for it",
    "words[first(), FIRST] = 40": "rows up to",
    "words[place(FORWARD, 1), LISTED] = 4000": "listed rows",
    "words[first(), EDGES] = 7": "those of its rows",
    "words[first(), ACROSS] = 2": "no launch asks for it",
    "words[1, BEFORE] = 5": "5 blocks and 0 counters before it",
    "words[first(), LAUNCH] += 1": "no launch asks for it",
    "words[first(), STEP] += 1": "no launch asks for it",
    "words[place(SQUARES, -1), OP] = CHECK": "lacks step",
    # The same temporaries for two launches of a stage, and some beyond the room.
    "words[words[:, TEMPORARY] > 0, TEMPORARY] = 0": "that has its temporaries",
    "words[first(), TEMPORARY] = 1 << 20": "elements",
}


def exchange(words: Array, one: int, other: int) -> None:
    words[[one, other]] = words[[other, one]]


@pytest.mark.parametrize("code", BROKEN)
def test_each_kind_of_broken_script_is_caught(code: str) -> None:
    clipped().refused(code, BROKEN[code])


@pytest.mark.parametrize("name", ["tree-lstm", "attention"])
def test_levels_in_turn_wait_for_each_other(name: str) -> None:
    """Of a path that is no cell each wait is needed: without it, what it waits for is named."""
    step = written(name, hold=False)
    step.check()
    script = step.written.script
    ops = script[:, OP]
    assert not np.isin(ops, (FORWARD, BACKWARD)).any()
    for at in np.flatnonzero((ops >= FIRST_OP) & (script[:, WAIT] != NONE)).tolist():
        with pytest.raises(PlanError, match="wait"):
            step.check(
                np.where(np.arange(len(script))[:, None] == at, without_wait(script), script)
            )


def without_wait(script: Array) -> Array:
    found = script.copy()
    found[:, WAIT] = NONE
    return found


def test_launches_of_a_level_in_turn_are_one_round() -> None:
    """Vertices of two types wait for those below them, and not for each other."""
    step = written("both", hold=False)
    script = step.written.script
    waits = int((script[:, WAIT] != NONE).sum())
    assert waits < int((script[:, OP] >= FIRST_OP).sum())


def gathering(task: Any, state: tuple[str, str]) -> Any:
    """Return a task whose first node gathers a state of children, which a later node reads."""
    first, k = task.members[0], len(task.program.nodes) - 1
    nodes = list(task.program.nodes)
    nodes[first] = replace(nodes[first], op="gather", attrs=(("field", state[1]), ("slot", 0)))
    program = replace(task.program, nodes=nodes)
    return replace(task, program=program, reads={k: Read(state, 0, 1)}, homes={k: state})


def test_what_another_launch_of_a_round_writes_must_not_be_read() -> None:
    """Suppose that vertices read in the lazy stage what their children write there."""
    launch, state = clipped().launch, ("state", "h")
    executable = copy.copy(launch.executable)
    executable.writer = copy.copy(executable.writer)
    executable.writer.tasks = [
        replace(plan, task=gathering(plan.task, state)) for plan in executable.writer.tasks
    ]
    with pytest.raises(PlanError, match="a wait for the launch, which touches what"):
        verify_launch(*launch._replace(written=replace(launch.written, executable=executable)))


class WordTree(vrt.VertexFunction):
    """The gradient of the words is a product for the leaves, and one for the others."""

    def __init__(self) -> None:
        super().__init__(state={"h": 64}, arity=2)
        self.table, self.u = vrt.Parameter((6, 64)), vrt.Parameter((64, 64))
        self.w = vrt.Parameter((128, 64))

    def forward(self) -> None:
        a, b = vrt.split(self.w @ vrt.embed(self.table, self.pull("word")), 2)
        h = vrt.tanh(a * b + self.u @ (self.gather(0).h + self.gather(1).h))
        self.scatter(h=h)
        self.push("loss", vrt.losses.squared_error(h, 0.1))


def test_launches_of_a_round_have_counters_of_their_own() -> None:
    words = np.arange(len(TREE)) % 6
    net, graph = on_paper(WordTree(), 2), InputGraph.from_children(TREE, {"word": words})
    launch = Step(launch_of(net, GraphBatch.from_graphs([graph] * 3), False), {})
    launch.check()
    launch.refused("words[:, COUNTER] = 0", "0 counters before it")
    with pytest.raises(PlanError, match="counters up to"):
        launch.check(counters=1)


@pytest.mark.parametrize("asked", [False, True])
def test_scripts_are_verified_where_that_is_asked_for(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, batch, optimizer = on_paper(FUNCTIONS["gru"][0](), 2), batch_of("gru", 300), vrt.SGD(0.1)
    executable = launch_of(net, batch, optimizer=optimizer).executable
    executable.facts.scratch[:] = -(1 << 20)  # so that temporaries end before they begin
    with monkeypatch.context() as patch:
        patch.setenv("VERTEXRT_CHECK", str(int(asked)))
        config.cache_clear()
        with pytest.raises(PlanError, match="temporaries") if asked else nullcontext():
            net.step(batch, optimizer)
    config.cache_clear()
