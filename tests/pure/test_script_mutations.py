"""Broken scripts: each kind is caught by the verifier, which names processor and instruction."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from vertexrt.errors import PlanError
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import Split
from vertexrt.ir.program import Stage
from vertexrt.script.assemble import Batch, Scripts, assemble
from vertexrt.script.isa import (
    EDGES,
    FIRST,
    FIRST_EDGE,
    LISTED,
    NONE,
    OP,
    PROGRAM,
    ROWS,
    TEMPORARY,
    WAIT,
)
from vertexrt.script.shape import Shape
from vertexrt.script.verify import verify_scripts

Array = np.ndarray
PARTS = 2

# Four leaves in rows 0..3, two inner vertices over them, a root; each inner one has two slots.
EDGE_PTR = np.array([0, 0, 0, 0, 0, 2, 4, 6], np.int32)
CHILD_ROW = np.array([0, 1, 2, 3, 4, 5], np.int32)
LIST = np.array([0, 2, 4, 6], np.int32)

# Programs: 0 eager, 1 a leaf on the path, 2 an inner vertex in two segments, 3 lazy over a list by
# rows and then sums.
SHAPE = Shape(
    stage=np.array([Stage.EAGER, Stage.PATH, Stage.PATH, Stage.LAZY], np.int64),
    phase=np.array([Phase.of(s).place for s in (Stage.EAGER, Stage.PATH, Stage.PATH, Stage.LAZY)]),
    segment_ptr=np.array([0, 1, 2, 4, 6], np.int64),
    split=np.array(
        [Split.ROWS, Split.UNITS, Split.UNITS, Split.UNITS, Split.ROWS, Split.SUMS], np.int64
    ),
    gathers=np.array([False, False, True, False]),
    tiled=np.array([False, True, True, False]),
    scratch=np.array([[1, 0, 0], [0, 0, 0], [2, 1, 3], [1, 0, 0]], np.int64),
)
TABLE = np.array(
    [
        [0, 4, 0, 0, 0, 0],
        [1, 4, 0, 0, 0, 0],
        [2, 2, 4, 0, 4, 0],
        [2, 1, 6, 0, 2, 4],
        [3, 4, -1, 0, 0, 0],
    ],
    np.int64,
)
BATCH = Batch(TABLE, EDGE_PTR, EDGE_PTR, CHILD_ROW)
# Instructions: 0 eager; 1 leaves; 2, 3 inner; 4, 5 root; 6, 7 lazy.
EAGER, LEAVES, INNER, EXCHANGED, ROOT, TOP, LAZY, SUMS = range(8)


def scripts() -> Scripts:
    return assemble(SHAPE, BATCH, PARTS, 0)


def check(broken: Scripts) -> None:
    verify_scripts(broken, SHAPE, BATCH, LIST)


def test_the_script_is_right_before_it_is_broken() -> None:
    check(scripts())


Change = Callable[[Array], None]


def put(part: int, at: int, field: int, value: int) -> Change:
    def change(words: Array) -> None:
        words[part, at, field] = value

    return change


def add(part: int, at: int, field: int, by: int) -> Change:
    def change(words: Array) -> None:
        words[part, at, field] += by

    return change


def both(*changes: Change) -> Change:
    def change(words: Array) -> None:
        for one in changes:
            one(words)

    return change


def drop_wait(part: int, at: int) -> Change:
    return put(part, at, WAIT, NONE)


def swap(part: int, a: int, b: int, fields: slice) -> Change:
    def change(words: Array) -> None:
        words[part, [a, b], fields] = words[part, [b, a], fields]

    return change


# name -> (change, processor and instruction that the message names, a part of the text)
MUTATIONS: dict[str, tuple[Change, str, str]] = {
    "dropped wait for an exchange": (drop_wait(0, EXCHANGED), "0, instruction 3", "segment before"),
    "dropped wait for children": (drop_wait(1, ROOT), "1, instruction 4", "children"),
    "dropped wait for a stage": (drop_wait(0, LAZY), "0, instruction 6", "stage before"),
    "dropped wait for rows of others": (drop_wait(1, SUMS), "1, instruction 7", "segment before"),
    "swapped waits": (swap(0, INNER, ROOT, slice(WAIT, TEMPORARY)), "0, instruction 2", ""),
    "wait for too early a counter": (put(1, ROOT, WAIT, INNER), "1, instruction 4", "children"),
    "first row off by one": (add(0, LEAVES, FIRST, -1), "0, instruction 1", ""),
    "row count off by one": (add(0, LEAVES, ROWS, -1), "0, instruction 1", "row 3 is in 0 tiles"),
    "rows out of bounds": (add(1, TOP, FIRST, 1), "1, instruction 5", "rows up to 7"),
    "first edge off by one": (add(0, ROOT, FIRST_EDGE, 1), "0, instruction 4", "edges from 5"),
    "edge count off by one": (add(1, INNER, EDGES, -1), "1, instruction 2", "3 edges"),
    "overlapping tiles by rows": (add(0, EAGER, ROWS, 1), "[01], instruction 0", "2 tiles"),
    "overlapping tiles by units": (
        both(put(0, ROOT, FIRST, 5), put(0, ROOT, FIRST_EDGE, 2)),
        "0, instruction",
        "row 5 is in 2 tiles",
    ),
    "missing vertex": (
        both(put(1, INNER, ROWS, 1), put(1, INNER, EDGES, 2)),
        "1, instruction 2",
        "row 5 is in 0 tiles",
    ),
    "unknown segment": (put(1, ROOT, OP, 6), "1, instruction 4", "op 6; segments 0..5"),
    "segment below none": (put(1, ROOT, OP, -1), "1, instruction 4", "op -1"),
    "unknown program": (put(1, ROOT, PROGRAM, 4), "1, instruction 4", "one of task program 4"),
    "segment of another program": (put(0, TOP, OP, 4), "0, instruction 5", "of task program 3"),
    "tile before its children": (swap(0, INNER, ROOT, slice(0, WAIT)), "[01], instruction", ""),
    "waits in a circle": (put(0, INNER, WAIT, TOP), "[01], instruction", "waits for ever"),
    "list out of bounds": (add(1, LAZY, LISTED, 1), "1, instruction 6", "4 entries"),
    "negative rows": (put(0, LAZY, ROWS, -1), "0, instruction 6", "-1 rows"),
    "wait for no instruction": (put(1, ROOT, WAIT, 99), "1, instruction 4", "instruction 99"),
    "wait before all": (put(1, ROOT, WAIT, -2), "1, instruction 4", "instruction -2"),
    "segments in the wrong order": (
        swap(1, INNER, EXCHANGED, slice(0, WAIT)),
        "[01], instruction",
        "",
    ),
    "wrong program for a row": (
        both(put(0, LEAVES, PROGRAM, 0), put(0, LEAVES, OP, 0)),
        "0, instruction",
        "tiles",
    ),
}


# Tiles of one row. Instructions: 0 eager; 1..4 leaves; 5, 6 inner and 7, 8 after their exchange;
# 9, 10 root; 11, 12 lazy.
FIRST_TILE, SECOND_TILE, FIRST_EXCHANGED, SECOND_EXCHANGED = 5, 6, 7, 8

TILE_MUTATIONS: dict[str, tuple[Change, str, str]] = {
    "wait for the exchange of another tile": (
        put(1, SECOND_EXCHANGED, WAIT, FIRST_TILE),
        "1, instruction 8",
        "segment before",
    ),
    "wait for a tile without its children": (put(0, SECOND_TILE, WAIT, 3), "0, in.* 6", "children"),
    "wait for a tile too early": (put(1, FIRST_TILE, WAIT, 1), "1, instruction 5", "children"),
    "dropped wait of one tile": (drop_wait(0, FIRST_EXCHANGED), "0, in.* 7", "segment before"),
    "overlapping tiles": (
        both(put(0, SECOND_TILE, FIRST, 4), put(0, SECOND_TILE, FIRST_EDGE, 0)),
        "0, instruction",
        "row 4 is in 2 tiles",
    ),
    "tiles that overlap by a row": (add(1, 2, ROWS, 1), "1, instruction", "row 2 is in 2 tiles"),
    "missing tile": (put(0, 4, ROWS, 0), "0, instruction", "row 3 is in 0 tiles"),
    "segments of two tiles exchanged": (
        swap(0, SECOND_TILE, FIRST_EXCHANGED, slice(0, WAIT)),
        "0, instruction",
        "",
    ),
    "temporaries of a tile under way": (
        both(put(0, SECOND_TILE, TEMPORARY, 0), put(0, SECOND_EXCHANGED, TEMPORARY, 0)),
        "0, instruction 6",
        "temporaries of the tile at row 4",
    ),
    "temporaries that overlap": (
        both(add(0, SECOND_TILE, TEMPORARY, -16), add(0, SECOND_EXCHANGED, TEMPORARY, -16)),
        "0, instruction 6",
        "temporaries of the tile at row 4",
    ),
    "temporaries left elsewhere": (put(1, SECOND_EXCHANGED, TEMPORARY, 0), "1, in.* 8", "start at"),
    "temporaries out of bounds": (add(1, FIRST_TILE, TEMPORARY, 999), "1, in.* 5", "elements"),
}


@pytest.mark.parametrize("name", TILE_MUTATIONS)
def test_each_kind_of_wrong_tile_is_caught(name: str) -> None:
    change, where, text = TILE_MUTATIONS[name]
    good = assemble(SHAPE, BATCH, PARTS, 1)
    check(good)
    words = good.words.copy()
    change(words)
    with pytest.raises(PlanError) as caught:
        check(good._replace(words=words))
    said = str(caught.value)
    assert re.match(rf"\[script\] processor {where}", said), said
    assert text in said


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_kind_of_broken_script_is_caught(name: str) -> None:
    change, where, text = MUTATIONS[name]
    good = scripts()
    words = good.words.copy()
    change(words)
    with pytest.raises(PlanError) as caught:
        check(good._replace(words=words))
    said = str(caught.value)
    assert re.match(rf"\[script\] processor {where}", said), said
    assert text in said


def test_a_listed_row_out_of_bounds_is_caught() -> None:
    wrong = LIST.copy()
    wrong[3] = 7
    with pytest.raises(PlanError, match=r"processor 0, instruction 7 .*listed row out of bounds"):
        verify_scripts(scripts(), SHAPE, BATCH, wrong)


def test_a_vertex_in_two_tasks_is_caught() -> None:
    table = np.insert(TABLE, 2, [1, 1, 4, 0, 2, 0], axis=0)
    batch = BATCH._replace(table=table)
    broken = assemble(SHAPE, batch, PARTS, 0)
    with pytest.raises(PlanError, match=r"row 4 is in 2 tiles of its stage"):
        verify_scripts(broken, SHAPE, batch, LIST)
