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
    COLLECT,
    COLUMNS,
    END,
    FINISH,
    FIRST_OP,
    FOR_ALL,
    FORWARD,
    OF_LAUNCHES,
    OF_TILES,
    PARENTS,
    SQUARES,
    UPDATE,
    header,
)
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.verify_launch import verify_launch
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
    int op, program, rows, first, listed, edges, first_edge, wait, temporary;
    union {
        struct { int parents, first_parent, slot, uses, far, expect, times, step, move, move_2; };
        struct { int start, across, down, before, counter, overlap; };
    };
};
constexpr int INSTRUCTION_WORDS = sizeof(Instruction) / sizeof(int);
enum { END, FORWARD, BACKWARD, COLLECT, SQUARES, FINISH, CHECK, UPDATE, FIRST_OP };  // `op` in \
the script of all processors
enum { NO_WAIT = -1, FOR_ALL, FOR_RING };  // `wait`
enum { HAS_OPERAND = 1, IS_SENT = 2, IS_PUT = 4 };  // `uses`
"""


def test_the_kernels_have_the_columns_of_the_host() -> None:
    assert header().partition("#pragma once\n\n")[2] == HEADER
    for names in (OF_TILES, OF_LAUNCHES):
        columns = [getattr(instruction, name.upper()) for name in names]
        assert columns == list(range(WORDS, WORDS + len(columns)))
        assert columns[-1] < COLUMNS
    assert COLUMNS % 4 == 0, "rows are aligned"


CASES = [
    *((name, "frontier", Passes()) for name in FUNCTIONS),
    *(("tree-lstm", policy, Passes()) for policy in POLICIES[1:]),
    *(("attention", policy, Passes()) for policy in POLICIES[1:]),
    ("tree-lstm", "frontier", Passes(specialise=False)),  # leaves are the groups' then
    *((name, "frontier", Passes(gradients=True)) for name in ("tree-lstm", "both", "tied")),
    ("tree-lstm", "frontier", Passes(specialise=False, gradients=True)),
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
    gradients: bool = False,
    function: vrt.VertexFunction | None = None,
) -> Step:
    """Return a step of a function on two groups of two processors."""
    net = on_paper(function or FUNCTIONS[name][0](), 2, passes=Passes(gradients=gradients))
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
        assert len(launch.written.sections[0]) == 3
    order = [FORWARD, BACKWARD, SQUARES, FINISH, CHECK, UPDATE, END]
    for launch, left_out in ((clipped(), None), (plain(), SQUARES)):
        ops = launch.written.script[: launch.written.common, OP].tolist()
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
    common = launch.written.script[: launch.written.common]
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


def on_path(k: int) -> int:
    return clipped().written.common + k


def with_parents() -> int:
    """Return the first instruction on the way back whose rows have parents."""
    begin = int(clipped().written.sections[1, 0])
    return begin + int(np.flatnonzero(clipped().written.script[begin:, PARENTS])[0])


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
    "words[1, BEFORE] = 5": "blocks before it",
    # The same temporaries for two launches of a stage, and some beyond the room.
    "words[words[:, TEMPORARY] > 0, TEMPORARY] = 0": "that has its temporaries",
    "words[first(), TEMPORARY] = 1 << 20": "elements",
    # The path of the groups.
    "words[on_path(0), OP] = 999": "op 999; segments 0..",
    "words[on_path(0), FIRST] = 14": "group 0",
    "words[on_path(1), EDGES] = 5": "those of its rows",
    "words[with_parents(), FIRST_PARENT] = 99": "parents from 99",
    "words[with_parents(), PARENTS] = 0": "0 parents",
    "words[on_path(2), WAIT] = NONE": "tiles of its children",
}


def exchange(words: Array, one: int, other: int) -> None:
    words[[one, other]] = words[[other, one]]


@pytest.mark.parametrize("code", BROKEN)
def test_each_kind_of_broken_script_is_caught(code: str) -> None:
    clipped().refused(code, BROKEN[code])


def test_sums_of_the_groups_are_collected_once_behind_the_path() -> None:
    launch = written("both", gradients=True)
    launch.check()
    script = launch.written.script[: launch.written.common]
    ops = [op for op in script[:, OP].tolist() if op < FIRST_OP]
    assert ops == [FORWARD, BACKWARD, FINISH, COLLECT, CHECK, UPDATE, END]
    at = int(np.flatnonzero(script[:, OP] == COLLECT)[0])
    launch.refused("words[at, WAIT] = NONE", "a wait for the stage before", at=at)
    launch.refused("words[at, OP] = SQUARES", "0 of collect", at=at)
    end = at + 1 + int(np.flatnonzero(script[at + 1 :, WAIT] != NONE)[1])

    def later(script: Array) -> None:  # in the round in which leaves add to the same gradients
        script[at:end] = np.roll(script[at:end], -1, axis=0)
        script[[at, end - 1], WAIT] = FOR_ALL, NONE

    launch.refused("later(words)", f"in one round with instruction {end - 1}", later=later)


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
        verify_launch(*launch._replace(executable=executable))


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
    code = "words[:common, COUNTER] = 0"
    launch.refused(code, "none that its round has twice", common=launch.written.common)
    with pytest.raises(PlanError, match="counters"):
        launch.check(counters=1)


@pytest.mark.parametrize("field", ["sections", "common"])
def test_wrong_starts_of_the_groups_are_caught(field: str) -> None:
    launch = clipped()
    wrong: Any = launch.written.common + 1
    if field == "sections":
        wrong = launch.written.sections.copy()
        wrong[1, 1] -= 1
    with pytest.raises(PlanError, match=r"scripts of groups at"):
        launch.check(**{field: wrong})


@pytest.mark.parametrize("asked", [False, True])
def test_scripts_are_verified_where_that_is_asked_for(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, batch, optimizer = on_paper(FUNCTIONS["gru"][0](), 2), batch_of("gru", 300), vrt.SGD(0.1)
    executable = launch_of(net, batch, optimizer=optimizer).executable
    executable.tile = executable.tile_beside_ring = 1000  # more than a kernel has indices for
    with monkeypatch.context() as patch:
        patch.setenv("VERTEXRT_CHECK", str(int(asked)))
        config.cache_clear()
        with pytest.raises(PlanError, match="a tile of") if asked else nullcontext():
            net.step(batch, optimizer)
    config.cache_clear()
