"""Instructions that are repeated: what is joined is the same, and wrong ones are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import vertexrt as vrt
from tests.chain_cells import CELLS, HIDDEN, chains
from tests.functions import FUNCTIONS
from tests.launches import Launch, launch_of
from tests.paper_device import on_paper
from tests.runs import use_of
from tests.wide import wide
from vertexrt.api.network import Network
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.instruction import (
    FAR,
    FIRST_PARENT,
    MOVE,
    PARENTS,
    SLOT,
    STEP,
    TIMES,
)
from vertexrt.kernels.cuda.repeated_segments import COPYING_THREADS
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.cuda.segments import ComputedRows, RowsAtATime
from vertexrt.kernels.cuda.verify_launch import verify_launch
from vertexrt.kernels.cuda.verify_repeated_segments import verify_repeated
from vertexrt.kernels.cuda.verify_repeats import expanded
from vertexrt.lower.kernel import Leaf
from vertexrt.lower.threads import PutInRing, StoreElements
from vertexrt.script.isa import EDGES, FIRST, FIRST_EDGE, OP, ROWS, TEMPORARY

Array = np.ndarray
LEVELS = 9


@cache
def launched(cell: str, processors: int, lengths: tuple[int, ...]) -> Launch:
    net = on_paper(CELLS[cell](), processors, of_device=max(processors, 4))
    return launch_of(net, chains(lengths))


def forward(launch: Launch) -> Array:
    """Return the forward instructions of the first group."""
    begin, end = launch.written.sections[0, :2]
    return launch.written.script[begin:end]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("processors", "lengths", "times"),
    [
        (1, (LEVELS,), [1, LEVELS - 1]),  # the first level has no children
        (1, (LEVELS,) * 5, [1, LEVELS - 1]),  # groups of one row, and of two
        (2, (LEVELS,) * 3, [1, LEVELS - 2, 1]),  # the last level sends nothing
        (1, (LEVELS,) * 4 + (5,), [1, 5, LEVELS - 6]),  # a level has fewer rows from then on
        (2, (LEVELS,) * 12, [1] * LEVELS),  # more than clusters take: there is no ring
    ],
)
def test_levels_of_chains_are_one_instruction(
    cell: str, processors: int, lengths: tuple[int, ...], times: list[int]
) -> None:
    launch = launched(cell, processors, lengths)
    assert forward(launch)[:, TIMES].tolist() == times
    verify_launch(*launch)


class Words(vrt.VertexFunction):
    """A simple layer over words, or trees of them."""

    def __init__(self, arity: int) -> None:
        super().__init__(arity=arity, state={"h": HIDDEN})
        self.table = vrt.Parameter((7, HIDDEN))
        self.w, self.u = vrt.Parameter((HIDDEN, HIDDEN)), vrt.Parameter((HIDDEN, HIDDEN))

    def forward(self) -> None:
        x = vrt.embed(self.table, self.pull_index("word"))
        h = self.push("h", vrt.tanh(self.w @ x + self.u @ self.gather(0).h))
        self.scatter(h=h)


def path_kinds(net: Network, batch: GraphBatch) -> int:
    """Return how many kinds the vertices of a batch are of on the path."""
    (run,) = net.executor.model.prepare(use_of("inference", net.executor.model.function), batch)
    return len(run.variant.path_kinds)


@pytest.mark.parametrize(("engine", "kinds"), [("persistent", 1), ("batched", 2)])
def test_first_vertices_of_chains_are_made_on_the_path(engine: str, kinds: int) -> None:
    """A product with zeros takes less time than a step of all processors, and a barrier."""
    batch = chains((LEVELS,) * 3)
    assert path_kinds(on_paper(CELLS["lstm"](), 1, engine=engine), batch) == kinds


@pytest.mark.parametrize(("arity", "kinds", "rows"), [(1, 1, 4), (2, 2, 3)])
def test_words_of_trees_that_are_alike_are_one_row_and_those_of_chains_a_row_each(
    arity: int, kinds: int, rows: int
) -> None:
    graphs = [InputGraph.chain(2, {"word": words}) for words in ([1, 2], [1, 3])]
    net, batch = on_paper(Words(arity), 1), GraphBatch.from_graphs(graphs)
    assert path_kinds(net, batch) == kinds
    (run,) = net.executor.model.prepare(use_of("inference", net.executor.model.function), batch)
    assert len(run.layout.schedule.order) == rows


@pytest.mark.parametrize(("cell", "own"), [("lstm", 1), ("gru", 1), ("slow", 2)])
def test_own_states_are_left_for_the_next_repetition(cell: str, own: int) -> None:
    writer = launched(cell, 2, (LEVELS,) * 3).executable.writer
    ((number, repeated),) = writer.repeated[0].items()
    p = int(np.searchsorted(writer.segment_ptr(), number, "right")) - 1
    (task, (plain,)) = writer.path[p].task, writer.path[p].segments
    assert len(repeated.carried) == own
    verify_repeated(task, repeated)
    with pytest.raises(PlanError, match=r"leaves nothing; carried \d+\[local\]"):
        verify_repeated(task, replace(repeated, parts=(plain,)))
    with pytest.raises(PlanError, match=r"leaves carried .*; nothing, which"):
        verify_repeated(task, replace(repeated, carried=frozenset()))


@pytest.mark.parametrize("processors", [1, 2])
def test_a_state_that_products_and_others_read_is_not_copied_for_products(processors: int) -> None:
    """A copy of all of it would cost each level a barrier."""
    writer = launched("slow", processors, (LEVELS,)).executable.writer
    for repeated in writer.repeated[0].values():
        first, *_ = repeated.parts[0].steps
        assert isinstance(first, RowsAtATime)
        assert {type(x.operand) for x in repeated.parts[0].products} == {ComputedRows}


def test_half_of_the_threads_copy_and_a_row_has_whole_warps_which_send_before_they_store() -> None:
    (repeated,) = launched("lstm", 2, (LEVELS,) * 3).executable.writer.repeated[0].values()
    copies = repeated.parts[0].copies
    assert {x.threads for x in copies} == {COPYING_THREADS}
    assert all(x.turn < x.turns <= COPYING_THREADS // WARP for x in copies)
    *_, last = repeated.parts[0].flat
    assert last.apart == WARP > last.threads
    (loop,) = last.parts
    assert loop.by_warp
    kinds = [type(x) for x in loop.statements]
    assert kinds.index(PutInRing) < kinds.index(StoreElements)


@pytest.mark.parametrize("processors", [1, 2])
def test_inputs_are_copied_ahead(processors: int) -> None:
    """Read where they are used, they would cost a trip to memory a level, or three with indices."""
    writer = launched("lstm", processors, (LEVELS,) * 3).executable.writer
    (repeated,) = writer.repeated[0].values()
    sources = [x.source for x in repeated.parts[0].copies if x not in repeated.carried]
    assert [(x.op, x.size) for x in sources if isinstance(x, Leaf)] == [("pull", 4 * HIDDEN)]


@pytest.mark.parametrize("processors", [1, 2])
def test_parameters_are_copied_ahead_where_processors_wait_for_each_other(processors: int) -> None:
    """Each wait empties the first-level cache, where a processor alone finds them."""
    writer = launched("gru", processors, (LEVELS,) * 3).executable.writer
    (repeated,) = writer.repeated[0].values()
    leaves = [x.source for x in repeated.parts[0].copies if isinstance(x.source, Leaf)]
    params = [x.size for x in leaves if x.op == "param"]
    assert params == ([3 * HIDDEN] if processors > 1 else [])


def test_they_are_explained() -> None:
    text = on_paper(CELLS["lstm"](), 1).explain_batch(chains((LEVELS,) * 3))
    head = text.partition("\nScript of group 0")[2].splitlines()
    assert head[0].endswith("the first 2 of 2 instructions")
    assert head[2].endswith(f", {LEVELS - 1} times, 3 rows further each time")


def test_a_group_meets_once_a_level_on_the_way_back() -> None:
    text = on_paper(CELLS["lstm"](), 20, of_device=20).explain_batch(chains((LEVELS,)))
    (back,) = (x for x in text.splitlines() if x.startswith("  path': instructions of a group"))
    assert f"{LEVELS} tiles, {LEVELS} meetings" in back


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("name", ["tree-lstm", "attention", "gru"])
def test_what_is_no_chain_is_not_repeated(name: str, processors: int) -> None:
    launch = launch_of(on_paper(FUNCTIONS[name][0](), processors), wide(name, 2))
    assert (launch.written.script[launch.written.common :, TIMES] == 1).all()


@pytest.mark.parametrize(("processors", "graphs"), [(1, 1), (1, 6), (2, 3), (20, 2)])
def test_expanded_they_are_what_is_written_without(processors: int, graphs: int) -> None:
    lengths = (200, *(180 for _ in range(graphs - 1)))  # more levels than a ring has rows
    net = on_paper(CELLS["lstm"](), processors, of_device=max(processors, 4))
    joined = launch_of(net, chains(lengths))
    facts = joined.executable.facts
    joined.executable.facts = facts._replace(repeated=np.full_like(facts.repeated, -1))
    plain = launch_of(net, chains(lengths))
    joined.executable.facts = facts
    assert len(forward(joined)) < len(forward(plain)) / 30
    each = expanded(facts.rings, facts.repeated, joined.written)
    assert np.array_equal(each.script, plain.written.script)
    assert np.array_equal(each.sections, plain.written.sections)


def put(column: int, value: int) -> Callable[[Array], None]:
    def change(row: Array) -> None:
        row[column] = value

    return change


def add(column: int, value: int) -> Callable[[Array], None]:
    def change(row: Array) -> None:
        row[column] += value

    return change


# name -> (change of a repeated instruction, a part of the text)
MUTATIONS: dict[str, tuple[Callable[[Array], None], str]] = {
    "never": (put(TIMES, 0), "is executed 0 times"),
    "once more": (add(TIMES, 1), "[script]"),
    "once less": (add(TIMES, -1), "[script]"),
    "in other steps": (add(STEP, 1), "[script]"),
    "a segment that is not": (put(OP, 1), "[script]"),
    "with copies": (put(FAR, 1), "is repeated"),
    "with temporaries of its own": (put(TEMPORARY, 16), "is repeated"),
    "too many rows": (put(ROWS, 5), "repeats 5 rows"),
    "no child": (put(EDGES, 0), "0 edges"),
    "parents": (put(PARENTS, 1), "1 parents"),
    "other rows": (add(FIRST, 1), "[script]"),
    "other children": (add(FIRST_EDGE, 1), "[script]"),
    "another place in the ring": (add(SLOT, 1), "[script]"),
}


def assert_caught(launch: Launch, at: int, change: Callable[[Array], None], text: str) -> None:
    """Change an instruction, and see that it is refused with such a text."""
    written = replace(launch.written, script=launch.written.script.copy())
    assert written.script[at, TIMES] > 1
    change(written.script[at])
    with pytest.raises(PlanError) as caught:
        verify_launch(*launch._replace(written=written))
    assert text in str(caught.value)


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_kind_of_wrong_one_is_caught(name: str, processors: int) -> None:
    launch = launched("lstm", processors, (LEVELS,) * 3)
    assert_caught(launch, launch.written.sections[0, 0] + 1, *MUTATIONS[name])


BACKWARD: dict[str, tuple[Callable[[Array], None], str]] = {
    "once more": (add(TIMES, 1), "[script]"),
    "once less": (add(TIMES, -1), "[script]"),
    "in other steps": (add(STEP, 1), "[script]"),
    "too many rows": (put(ROWS, 5), "repeats 5 rows"),
    "two children": (add(EDGES, 3), "6 edges"),
    "no parents": (put(PARENTS, 0), "0 parents"),
    "half a parent": (add(PARENTS, 1), "4 parents"),
    "another parent": (add(FIRST_PARENT, 1), "has first parents"),
    "parents in other steps": (add(MOVE, 1), "has edges to parents"),
    "other rows": (add(FIRST, 1), "[script]"),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_each_kind_of_wrong_one_is_caught_on_the_way_back(name: str) -> None:
    """Of a level of two parts, between which a group meets."""
    launch = launched("lstm", 20, (LEVELS,) * 3)
    begin, end = launch.written.sections[1, :2]
    (at,) = np.flatnonzero(launch.written.script[begin:end, TIMES] > 1) + begin
    assert launch.written.script[at, [TIMES, ROWS]].tolist() == [LEVELS - 2, 3]
    assert_caught(launch, at, *BACKWARD[name])


def test_children_that_are_elsewhere_are_caught() -> None:
    launch = launched("lstm", 1, (LEVELS,) * 3)
    slots = launch.written.child_slot.copy()
    slots[forward(launch)[1, FIRST_EDGE] + 3] += 1
    written = replace(launch.written, child_slot=slots)
    with pytest.raises(PlanError, match="reads slots"):
        verify_launch(*launch._replace(written=written))
