"""Scripts of groups: the assembler's are right under every policy, and broken ones are caught."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules import make_schedule
from tests.strategies import graph_batches
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import Split
from vertexrt.ir.program import Stage
from vertexrt.scheduler import POLICIES, Schedule
from vertexrt.script.assemble import Batch, GroupSize
from vertexrt.script.groups import Groups as Shared
from vertexrt.script.groups import assemble_groups
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    NONE,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
    WORDS,
)
from vertexrt.script.shape import Shape
from vertexrt.script.verify import verify_groups

Array = np.ndarray

# Programs: 0 a leaf, which all processors do; 1 an inner vertex, forward in two segments; 2 the
# same, backward in two.
SHAPE = Shape(
    stage=np.array([Stage.PATH, Stage.PATH, Stage.PATH_BACKWARD], np.int64),
    phase=np.array([Phase.of(s).place for s in (Stage.PATH, Stage.PATH, Stage.PATH_BACKWARD)]),
    segment_ptr=np.array([0, 1, 3, 5], np.int64),
    split=np.array([Split.UNITS] * 5, np.int64),
    gathers=np.array([False, True, True]),
    tiled=np.array([True, True, True]),
    scratch=np.array([[0, 0, 0], [2, 1, 3], [1, 1, 0]], np.int64),
)
SIDE_OF = np.array([-1, 0, 1])
LEAF, INNER, BACK = range(3)
NAMES = ["leaf", "inner", "back"]
COLUMNS = WORDS + 1  # a device has one of its own


def launches(s: Schedule) -> Array:
    """List the tasks of a schedule whose kinds are 0 for leaves and 1 for others."""
    tasks = list(zip(pairwise(s.task_lo.tolist()), s.task_kind.tolist(), strict=True))
    forward = [(LEAF if kind == 0 else INNER, lo, hi) for (lo, hi), kind in tasks]
    back = [(BACK, lo, hi) for (lo, hi), kind in reversed(tasks) if kind]
    ptr = s.edge_ptr
    table = [[p, hi - lo, lo, 0, ptr[hi] - ptr[lo], ptr[lo]] for p, lo, hi in forward + back]
    return np.array(table, np.int64)


def schedule(batch: GraphBatch, policy: str) -> Schedule:
    edge = np.repeat(np.arange(batch.num_vertices), np.diff(batch.child_ptr))
    kinds = np.zeros(batch.num_vertices, np.int32)
    kinds[edge[batch.child >= 0]] = 1
    return make_schedule(batch.child_ptr, batch.child, kinds, 2, policy)


class Groups:
    """The scripts of a batch's groups, and what they are verified against."""

    def __init__(
        self, batch: GraphBatch, policy: str, groups: int, processors: int, tile: int
    ) -> None:
        s = schedule(batch, policy)
        self.batch = Batch(launches(s), s.edge_ptr, s.every_ptr, s.child_row)
        self.groups = Shared(s.order, batch.graph_ptr, min(groups, batch.num_graphs))
        self.processors = processors
        self.scripts = assemble_groups(
            SHAPE, self.batch, SIDE_OF, 2, self.groups, GroupSize(processors, tile), COLUMNS
        )

    def check(self, script: Array | None = None, lengths: Array | None = None) -> None:
        changed = {"script": script, "lengths": lengths}
        scripts = self.scripts._replace(**{k: v for k, v in changed.items() if v is not None})
        verify_groups(scripts, SHAPE, self.batch, SIDE_OF, self.groups, self.processors, NAMES)


@given(
    graph_batches(),
    st.sampled_from(POLICIES),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([0, 1, 3, 16]),
)
def test_assembled_scripts_verify(
    batch: GraphBatch, policy: str, groups: int, processors: int, tile: int
) -> None:
    Groups(batch, policy, groups, processors, tile).check()


# Two graphs of a group each: four leaves, two inner vertices over them, a root. Forward each group
# has the tiles 0, 1 of the inner vertices, 2, 3 after their exchange, 4, 5 the root; then the same
# backward: 6, 7 the root, 8, 9 and 10, 11 the others.
TREE = [[], [], [0, 1], [], [], [3, 4], [2, 5]]
A, B, A_LATER, B_LATER, ROOT, TOP, BACK_ROOT, BACK_TOP, BACK_A, BACK_B = range(10)
FORWARD = 6  # instructions; the second group's come behind the first's
SECOND = FORWARD


def trees() -> Groups:
    batch = GraphBatch.from_graphs([InputGraph.from_children(TREE)] * 2)
    return Groups(batch, "frontier", 2, 2, 1)


def at(group: int, instruction: int) -> int:
    """Return where an instruction of a group lies among all."""
    side, k = divmod(instruction, FORWARD)
    return side * 2 * FORWARD + group * FORWARD + k


def test_the_script_is_as_the_mutations_expect() -> None:
    good = trees()
    good.check()
    assert good.scripts.lengths.tolist() == [[6, 6], [6, 6]]
    assert good.scripts.script[:6, PROGRAM].tolist() == [INNER] * 6
    assert good.scripts.script[12:18, PROGRAM].tolist() == [BACK] * 6
    assert good.scripts.script[at(1, TOP), WAIT] >= 0
    assert good.scripts.script[at(0, A), WAIT] == NONE
    assert not good.scripts.script[:, WORDS:].any()


Change = Callable[[Array], None]


def put(group: int, instruction: int, field: int, value: int) -> Change:
    def change(words: Array) -> None:
        words[at(group, instruction), field] = value

    return change


def add(group: int, instruction: int, field: int, by: int) -> Change:
    def change(words: Array) -> None:
        words[at(group, instruction), field] += by

    return change


def swap(group: int, one: int, other: int, fields: slice = slice(0, WAIT)) -> Change:
    def change(words: Array) -> None:
        pair = [at(group, one), at(group, other)]
        words[pair, fields] = words[pair[::-1], fields]

    return change


def both(*changes: Change) -> Change:
    def change(words: Array) -> None:
        for one in changes:
            one(words)

    return change


def run(group: int, instruction: int, program: int) -> Change:
    """Let an instruction run the first segment of a program."""
    op = int(SHAPE.segment_ptr[program])
    return both(put(group, instruction, PROGRAM, program), put(group, instruction, OP, op))


def of_other_group(instruction: int) -> Change:
    def change(words: Array) -> None:
        words[at(0, instruction)] = words[at(1, instruction)]

    return change


# name -> (change, group and instruction that the message names, a part of the text)
MUTATIONS: dict[str, tuple[Change, str, str]] = {
    "no meeting before an exchange": (put(0, A_LATER, WAIT, NONE), "0, .* 2", "segment before"),
    "no meeting before children": (put(1, ROOT, WAIT, NONE), "1, .* 4", "tiles of its children"),
    "no meeting on the way back": (put(0, BACK_TOP, WAIT, NONE), "0, .* 7", "segment before"),
    "rows of another group": (of_other_group(A), "0, .* 0", "is of group 1"),
    "a row twice": (both(put(0, B, FIRST, 8), put(0, B, FIRST_EDGE, 0)), "0, .*", "in 2 tiles"),
    "a row left out": (both(put(1, A, ROWS, 0), put(1, A, EDGES, 0)), "1, .*", "in 0 tiles"),
    "two tasks in one tile": (
        both(add(1, B_LATER, ROWS, 1), add(1, B_LATER, EDGES, 2)),
        "1, .* 3",
        "is of group 0",
    ),
    "rows out of bounds": (add(1, ROOT, FIRST, 99), "1, .* 4", "14 rows"),
    "edges of other rows": (add(0, B, FIRST_EDGE, 1), "0, .* 1", "those of its rows"),
    "too few edges": (add(0, BACK_A, EDGES, -1), "0, .* 8", "those of its rows"),
    "unknown program": (put(0, A, PROGRAM, 3), "0, .* 0", "task program 3"),
    "unknown segment": (put(0, A, OP, 5), "0, .* 0", "op 5"),
    "a program of all processors": (run(0, A, LEAF), "0, .* 0", "all processors run"),
    "backward on the way forward": (run(1, A, BACK), "1, .* 0", "it is of side 1"),
    "children after parents": (swap(0, A, ROOT), "0, .*", ""),
    "parents after children": (
        both(swap(0, BACK_ROOT, BACK_A), swap(0, BACK_TOP, 10)),
        "0, .* 6",
        "tiles of its parents",
    ),
    "segments exchanged": (swap(0, A, A_LATER), "0, .*", ""),
    "temporaries beyond the room": (add(0, B, TEMPORARY, 9999), "0, .* 1", "elements"),
    "temporaries of a tile under way": (
        both(put(0, B, TEMPORARY, 0), put(0, B_LATER, TEMPORARY, 0)),
        "0, .* 1",
        "writes over temporaries",
    ),
    "temporaries left elsewhere": (put(1, B_LATER, TEMPORARY, 0), "1, .* 3", "start at"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_kind_of_broken_script_is_caught(name: str) -> None:
    change, where, text = MUTATIONS[name]
    good = trees()
    words = good.scripts.script.copy()
    change(words)
    with pytest.raises(PlanError) as caught:
        good.check(words)
    said = str(caught.value)
    group, _, instruction = where.partition(", ")
    pattern = rf"\[script\] group {group}, processor [01], instruction{instruction.lstrip('.*')}"
    assert re.match(pattern, said), said
    assert text in said


@pytest.mark.parametrize("lengths", [[[6, 6], [6, 7]], [[5, 7], [6, 6]], [[12, 0], [6, 6]]])
def test_wrong_lengths_are_caught(lengths: list[list[int]]) -> None:
    with pytest.raises(PlanError, match=r"\[script\] (group \d|scripts of 25 instructions)"):
        trees().check(lengths=np.array(lengths))


def test_children_of_another_group_are_caught() -> None:
    """Vertices that stand for several, on the path: one group would make what others read."""
    good = trees()
    crossed, edge_ptr = good.batch.child_row.copy(), good.batch.edge_ptr
    crossed[edge_ptr[12] : edge_ptr[12] + 2] = [10, 11]  # the root of the first, the second's
    good.batch = good.batch._replace(child_row=crossed)
    with pytest.raises(PlanError, match=r"needs row 10, which group 1 makes; rows of its own"):
        good.check()


def test_vertices_out_of_order_are_caught() -> None:
    good = trees()
    order = good.groups.order.copy()
    order[[8, 10]] = order[[10, 8]]
    good.groups = good.groups._replace(order=order)
    with pytest.raises(PlanError, match=r"\[script\]"):
        good.check()
