"""Scripts: their texts; those that are assembled are right, and broken ones are caught."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broken import Array, Check, accepted, refused
from tests.schedules import make_schedule
from tests.strategies import graph_batches
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import Split
from vertexrt.ir.program import Stage
from vertexrt.scheduler import POLICIES
from vertexrt.script import isa
from vertexrt.script.assemble import Batch, Scripts, assemble
from vertexrt.script.isa import (
    FIELDS,
    FIRST,
    NONE,
    PROGRAM,
    WAIT,
    WORDS,
    Instruction,
    c_struct,
    decode,
    disassemble,
    encode,
    segment_names,
)
from vertexrt.script.shape import Shape
from vertexrt.script.verify import verify_scripts

SCRIPT = [
    Instruction(0, 0, 4, 0, 0, 0, 0, NONE),
    Instruction(2, 1, 2, 4, 0, 3, 5, 0),
    Instruction(3, 2, 3, NONE, 7, 0, 0, 1),
    Instruction(4, 2, 0, 6, 0, 0, 0, NONE, 32),
]

GOLDEN = """\
    0 eager.0 rows 0..3
    1 path.1 rows 4..5 edges 5..7 wait 0
    2 op 3 3 listed rows wait 1
    3 op 4 no rows temporary 32"""

STRUCT = """\
struct alignas(16) Instruction {
    int op, program, rows, first, listed, edges, first_edge, wait, temporary;
};"""


def test_disassembly() -> None:
    names = segment_names(["eager", "path"], [0, 1, 3])
    assert names == ["eager.0", "path.0", "path.1"]
    assert disassemble(encode(SCRIPT), names) == GOLDEN


def test_columns_and_the_struct_are_the_fields() -> None:
    assert [getattr(isa, name.upper()) for name in FIELDS] == list(range(WORDS))
    assert c_struct("Instruction", FIELDS, 16) == STRUCT


def shape_of(
    stages: list[Stage], segments: list[list[Split]], gathers: list[bool], scratch: list[list[int]]
) -> Shape:
    """Describe task programs by their stages, and how processors share their segments."""
    return Shape(
        stage=np.array(stages, np.int64),
        phase=np.array([Phase.of(stage).place for stage in stages]),
        segment_ptr=np.cumsum([0, *map(len, segments)]),
        split=np.array([split for each in segments for split in each], np.int64),
        gathers=np.array(gathers),
        tiled=np.array([stage in (Stage.PATH, Stage.PATH_BACKWARD) for stage in stages]),
        scratch=np.array(scratch, np.int64),
    )


# Programs: 0 eager by rows, 1 path by units in three segments, 2 lazy by rows and sums over a list,
# 3 backward in two segments, 4 lazy beside 2, by rows alone.
SHAPE = shape_of(
    [Stage.EAGER, Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD, Stage.LAZY],
    [[Split.ROWS], [Split.UNITS] * 3, [Split.ROWS, Split.SUMS], [Split.UNITS] * 2, [Split.ROWS]],
    [False, True, False, True, False],
    [[0, 0, 4], [3, 2, 1], [2, 0, 0], [1, 0, 0], [0, 0, 0]],
)


def assembled(
    batch: GraphBatch, policy: str, processors: int, tile: int = 0
) -> tuple[Scripts, Batch, Array]:
    """Assemble scripts for a batch whose vertices are all of one kind."""
    size = batch.num_vertices
    kinds = np.zeros(size, np.int32)
    schedule = make_schedule(batch.child_ptr, batch.child, kinds, 1, policy)
    ptr, lo = schedule.edge_ptr, schedule.task_lo.tolist()
    tasks = list(pairwise(lo))
    rows = np.arange(size, dtype=np.int32)[::2]
    table = [[0, size, 0, 0, ptr[size], 0]]
    table += [[1, b - a, a, 0, ptr[b] - ptr[a], ptr[a]] for a, b in tasks]
    table += [[2, len(rows), NONE, 0, 0, 0], [4, size, 0, 0, ptr[size], 0]]
    table += [[3, b - a, a, 0, ptr[b] - ptr[a], ptr[a]] for a, b in reversed(tasks)]
    scheduled = Batch(np.array(table, np.int64), ptr, ptr, schedule.child_row)
    return assemble(SHAPE, scheduled, processors, tile), scheduled, rows


TILES = st.sampled_from([0, 1, 3, 16])


@given(graph_batches(), st.sampled_from(POLICIES), st.sampled_from([1, 2, 3, 5]), TILES)
def test_assembled_scripts_are_right(
    batch: GraphBatch, policy: str, processors: int, tile: int
) -> None:
    scripts, scheduled, rows = assembled(batch, policy, processors, tile)
    verify_scripts(scripts, SHAPE, scheduled, rows)
    assert np.array_equal(scripts.words, assembled(batch, policy, processors, tile)[0].words)
    for script in scripts.words:  # no wait is implied by an earlier one
        waits = [i.wait for i in decode(script) if i.wait != NONE]
        assert waits == sorted(set(waits))
        assert not waits or processors > 1


# Scripts of one group that are broken. Four leaves in rows 0..3, two inner vertices over them, a
# root; each inner one has two slots. Programs: 0 eager, 1 a leaf on the path, 2 an inner vertex in
# two segments, 3 lazy over a list by rows and then sums.
EDGE_PTR = np.array([0, 0, 0, 0, 0, 2, 4, 6], np.int32)
CHILD_ROW = np.array([0, 1, 2, 3, 4, 5], np.int32)
LIST = np.array([0, 2, 4, 6], np.int32)
PARTS = 2
OF_TREE = shape_of(
    [Stage.EAGER, Stage.PATH, Stage.PATH, Stage.LAZY],
    [[Split.ROWS], [Split.UNITS], [Split.UNITS] * 2, [Split.ROWS, Split.SUMS]],
    [False, False, True, False],
    [[1, 0, 0], [0, 0, 0], [2, 1, 3], [1, 0, 0]],
)
TABLE = np.array(
    [
        [0, 4, 0, 0, 0, 0],
        [1, 4, 0, 0, 0, 0],
        [2, 2, 4, 0, 4, 0],
        [2, 1, 6, 0, 2, 4],
        [3, 4, NONE, 0, 0, 0],
    ],
    np.int64,
)
BATCH = Batch(TABLE, EDGE_PTR, EDGE_PTR, CHILD_ROW)


def of_one_group(tile: int) -> tuple[Array, Check]:
    good = assemble(OF_TREE, BATCH, PARTS, tile)

    def check(words: Array) -> None:
        verify_scripts(good._replace(words=words), OF_TREE, BATCH, LIST)

    return good.words, check


# Instructions: 0 eager; 1 leaves; 2, 3 inner; 4, 5 root; 6, 7 lazy.
EAGER, LEAVES, INNER, EXCHANGED, ROOT, TOP, LAZY, SUMS = range(8)
# What changes of words [processors, instructions, columns], and how the text begins.
OF_TASKS = {
    # Waits that are dropped, too early, in a circle, and for what there is not.
    "words[0, EXCHANGED, WAIT] = NONE": "processor 0, .* 3 .*a wait for the segment before",
    "words[1, ROOT, WAIT] = NONE": "processor 1, instruction 4 .*a wait for the tiles of its child",
    "words[0, LAZY, WAIT] = NONE": "processor 0, instruction 6 .*a wait for the stage before",
    "words[1, SUMS, WAIT] = NONE": "processor 1, instruction 7 .*a wait for the segment before",
    "words[0, [INNER, ROOT], WAIT:] = words[0, [ROOT, INNER], WAIT:]": "processor 0, instruction 2",
    "words[1, ROOT, WAIT] = INNER": (
        "processor 1, instruction 4 .*runs before instruction 3 of processor 0 is done; .*children"
    ),
    "words[0, INNER, WAIT] = TOP": (
        "processor 0, instruction 2 .*waits for ever: processor 0 stops at instruction 2; all "
        "processors to do instruction 5"
    ),
    "words[1, ROOT, WAIT] = 99": "processor 1, .* 4 .*wait for instruction 99; 8 instructions",
    "words[1, ROOT, WAIT] = -2": "processor 1, instruction 4 .*wait for instruction -2",
    # Rows, edges and lists of others, or of nobody.
    "words[0, LEAVES, FIRST] -= 1": "processor 0, instruction 1 .*row 1 is in 0 tiles",
    "words[0, LEAVES, ROWS] -= 1": "processor 0, .* 1 .*row 3 is in 0 tiles; 1 of this segment",
    "words[1, TOP, FIRST] += 1": "processor 1, instruction 5 .*rows up to 7; 7 rows",
    "words[0, LAZY, ROWS] = -1": "processor 0, instruction 6 .*-1 rows; 0 or more",
    "words[0, ROOT, FIRST_EDGE] += 1": "processor 0, instruction 4 .*2 edges from 5; 2 from 4",
    "words[1, INNER, EDGES] -= 1": "processor 1, instruction 2 .*3 edges from 0; 4 from 0",
    "words[1, LAZY, LISTED] += 1": (
        "processor 1, instruction 6 .*first row -1, entries 3..4 of the list; 4 entries"
    ),
    "words[0, EAGER, ROWS] += 1": "processor [01], instruction 0 .*row 2 is in 2 tiles",
    "words[0, ROOT, [FIRST, FIRST_EDGE]] = 5, 2": "processor 0, instruction .*row 5 is in 2 tiles",
    "words[1, INNER, [ROWS, EDGES]] = 1, 2": "processor 1, instruction 2 .*row 5 is in 0 tiles",
    # Segments and programs.
    "words[1, ROOT, OP] = 6": "processor 1, instruction 4 .*op 6; segments 0..5",
    "words[1, ROOT, OP] = -1": "processor 1, instruction 4 .*op -1; segments 0..5",
    "words[1, ROOT, PROGRAM] = 4": (
        "processor 1, instruction 4 .*a segment of task program 2; one of task program 4"
    ),
    "words[0, TOP, OP] = 4": "processor 0, instruction 5 .*a segment of task program 3",
    "words[0, LEAVES, [PROGRAM, OP]] = 0": "processor 0, instruction .*tiles",
    "words[0, [INNER, ROOT], :WAIT] = words[0, [ROOT, INNER], :WAIT]": "processor [01], instr",
    "words[1, [2, 3], :WAIT] = words[1, [3, 2], :WAIT]": "processor [01], instruction",
}
# Tiles of one row. Instructions: 0 eager; 1..4 leaves; 5, 6 inner and 7, 8 after their exchange;
# 9, 10 root; 11, 12 lazy.
FIRST_TILE, SECOND_TILE, FIRST_EXCHANGED, SECOND_EXCHANGED = 5, 6, 7, 8
BOTH = [SECOND_TILE, SECOND_EXCHANGED]
OF_TILES = {
    "words[1, SECOND_EXCHANGED, WAIT] = FIRST_TILE": "processor 1, instruction 8 .*segment before",
    "words[0, SECOND_TILE, WAIT] = 3": "processor 0, .* 6 .*runs before instruction 4 .*children",
    "words[1, FIRST_TILE, WAIT] = 1": "processor 1, instruction 5 .*children",
    "words[0, SECOND_TILE, [FIRST, FIRST_EDGE]] = 4, 0": "processor 0, .*row 4 is in 2 tiles",
    "words[1, 2, ROWS] += 1": "processor 1, instruction .*row 2 is in 2 tiles",
    "words[0, 4, ROWS] = 0": "processor 0, instruction .*row 3 is in 0 tiles",
    "words[0, [6, 7], :WAIT] = words[0, [7, 6], :WAIT]": "processor 0, instruction",
    "words[0, BOTH, TEMPORARY] = 0": "processor 0, .* 6 .*temporaries of the tile at row 4",
    "words[0, BOTH, TEMPORARY] -= 16": "processor 0, .* 6 .*temporaries of the tile at row 4",
    "words[1, SECOND_EXCHANGED, TEMPORARY] = 0": "processor 1, .* 8 .*its temporaries start at 0; ",
    "words[1, FIRST_TILE, TEMPORARY] += 999": "processor 1, .* 5 .*temporaries 999..1049; 115 el",
}


def test_a_list_that_is_wrong_is_caught() -> None:
    wrong = LIST.copy()
    wrong[3] = 7
    with pytest.raises(PlanError, match=r"processor 0, instruction 7 .*listed row out of bounds"):
        verify_scripts(assemble(OF_TREE, BATCH, PARTS, 0), OF_TREE, BATCH, wrong)


def test_a_vertex_in_two_tasks_is_caught() -> None:
    batch = BATCH._replace(table=np.insert(TABLE, 2, [1, 1, 4, 0, 2, 0], axis=0))
    with pytest.raises(PlanError, match=r"row 4 is in 2 tiles of its stage"):
        verify_scripts(assemble(OF_TREE, batch, PARTS, 0), OF_TREE, batch, LIST)


# What is verified: the words and their verifier, task programs, and changes with known texts.
VERIFIED: dict[str, tuple[Callable[[], tuple[Array, Check]], Shape, dict[str, str]]] = {
    "whole tasks": (lambda: of_one_group(0), OF_TREE, OF_TASKS),
    "tiles": (lambda: of_one_group(1), OF_TREE, OF_TILES),
}


@pytest.mark.parametrize("name", VERIFIED)
def test_each_integer_of_a_script_is_verified(name: str) -> None:
    make, shape, _ = VERIFIED[name]

    def may_change(words: Array, column: str, amount: int) -> bool:
        alone = np.diff(shape.segment_ptr)[words[PROGRAM]] == 1 or not shape.tiled[words[PROGRAM]]
        free = {
            "listed": words[FIRST] >= 0,
            "first_edge": words[FIRST] < 0,
            "wait": words[WAIT] == NONE or amount > 0,
            "temporary": amount > 0 and alone,
        }
        return bool(free.get(column, False))

    words, check = make()
    assert not accepted(check, words, FIELDS, may_change)


@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name in VERIFIED for code in VERIFIED[name][2]]
)
def test_each_kind_of_broken_script_is_named(name: str, code: str) -> None:
    make, _, broken = VERIFIED[name]
    words, check = make()
    refused(check, words, code, {**vars(isa), **globals()}, broken[code])
