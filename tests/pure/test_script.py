"""The instruction set's texts, and scripts assembled for drawn schedules."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules import make_schedule
from tests.strategies import graph_batches
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.layers import Phase
from vertexrt.ir.passes.segment import Split
from vertexrt.ir.program import Stage
from vertexrt.script import isa
from vertexrt.script.assemble import Batch, Scripts, assemble
from vertexrt.script.isa import (
    FIELDS,
    NONE,
    ROWS,
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


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=WORDS, max_size=WORDS)))
def test_decode_undoes_encode(rows: list[list[int]]) -> None:
    script = [Instruction(*row) for row in rows]
    assert decode(encode(script)) == script
    assert encode(script).shape == (len(rows), WORDS)
    of_device = np.concatenate([encode(script), np.ones((len(rows), 2), np.int32)], axis=1)
    assert decode(of_device) == script


# Programs: 0 eager by rows, 1 path by units in three segments, 2 lazy by rows and sums over a list,
# 3 backward in two segments.
SHAPE = Shape(
    stage=np.array([Stage.EAGER, Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD], np.int64),
    phase=np.array(
        [Phase.of(s).place for s in (Stage.EAGER, Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD)]
    ),
    segment_ptr=np.array([0, 1, 4, 6, 8], np.int64),
    split=np.array(
        [Split.ROWS, *[Split.UNITS] * 3, Split.ROWS, Split.SUMS, *[Split.UNITS] * 2], np.int64
    ),
    gathers=np.array([False, True, False, True]),
    tiled=np.array([False, True, False, True]),
    scratch=np.array([[0, 0, 4], [3, 2, 1], [2, 0, 0], [1, 0, 0]], np.int64),
)


def assembled(
    batch: GraphBatch, policy: str, processors: int, tile: int = 0
) -> tuple[Scripts, Batch, np.ndarray]:
    """Assemble scripts for a batch whose vertices are all of one kind."""
    size = batch.num_vertices
    kinds = np.zeros(size, np.int32)
    schedule = make_schedule(batch.child_ptr, batch.child, kinds, 1, policy)
    ptr, lo = schedule.edge_ptr, schedule.task_lo.tolist()
    tasks = list(pairwise(lo))
    rows = np.arange(size, dtype=np.int32)[::2]
    table = [[0, size, 0, 0, ptr[size], 0]]
    table += [[1, b - a, a, 0, ptr[b] - ptr[a], ptr[a]] for a, b in tasks]
    table += [[2, len(rows), NONE, 0, 0, 0]]
    table += [[3, b - a, a, 0, ptr[b] - ptr[a], ptr[a]] for a, b in reversed(tasks)]
    launches = np.array(table, np.int64)
    scheduled = Batch(launches, ptr, ptr, schedule.child_row)
    return assemble(SHAPE, scheduled, processors, tile), scheduled, rows


TILES = st.sampled_from([0, 1, 3, 16])
POLICIES = st.sampled_from(["frontier", "depth", "agenda", "serial"])


@given(graph_batches(), POLICIES, st.sampled_from([1, 2, 3, 5]), TILES)
def test_assembled_scripts_verify(
    batch: GraphBatch, policy: str, processors: int, tile: int
) -> None:
    scripts, scheduled, rows = assembled(batch, policy, processors, tile)
    verify_scripts(scripts, SHAPE, scheduled, rows)


@given(graph_batches(), st.sampled_from([2, 5]), TILES)
def test_no_wait_is_implied_by_an_earlier_one(
    batch: GraphBatch, processors: int, tile: int
) -> None:
    scripts, _, _ = assembled(batch, "frontier", processors, tile)
    for script in scripts.words:
        waits = [i.wait for i in decode(script) if i.wait != NONE]
        assert waits == sorted(set(waits))


@given(graph_batches())
def test_one_processor_waits_for_nobody(batch: GraphBatch) -> None:
    scripts, _, _ = assembled(batch, "frontier", 1)
    assert all(i.wait == NONE for i in decode(scripts.words[0]))


@given(graph_batches(), POLICIES, st.sampled_from([1, 3, 16]))
def test_the_next_tile_runs_before_the_next_segment(
    batch: GraphBatch, policy: str, tile: int
) -> None:
    scripts, (table, *_), _ = assembled(batch, policy, 2, tile)
    script = [i for i in decode(scripts.words[0]) if SHAPE.stage[i.program] == Stage.PATH]
    place = {(i.first, i.op - 1): k for k, i in enumerate(script)}
    for p, n, lo, *_ in table.tolist():
        if p != 1:
            continue
        firsts = list(range(lo, lo + n, tile))
        for s in range(3):
            assert all((first, s) in place for first in firsts)
            for this, following in pairwise(firsts):
                assert s == 2 or place[following, s] < place[this, s + 1]


@pytest.mark.parametrize(
    ("rows", "tile", "expected"),
    [(64, 56, [32, 32]), (34, 32, [24, 10]), (32, 32, [32]), (9, 8, [8, 1]), (5, 2, [2, 2, 1])],
)
def test_tiles_of_a_task_are_about_alike(rows: int, tile: int, expected: list[int]) -> None:
    batch = GraphBatch.from_graphs([InputGraph.from_children([[]], {})] * rows)
    scripts, _, _ = assembled(batch, "frontier", 2, tile)
    script = [i for i in decode(scripts.words[0]) if SHAPE.stage[i.program] == Stage.PATH]
    assert [i.rows for i in script if i.op == 1] == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.sampled_from([2, 3, 5]))
def test_launches_are_split_by_rows(sizes: list[int], processors: int) -> None:
    starts = np.cumsum([0, *sizes])
    pairs = zip(sizes, starts, strict=False)
    launches = np.array([[0, n, lo, 0, 0, 0] for n, lo in pairs], np.int64)
    edge_ptr = np.zeros(starts[-1] + 1, np.int32)
    batch = Batch(launches, edge_ptr, edge_ptr, np.zeros(0, np.int32))
    scripts = assemble(SHAPE, batch, processors, 0)
    rows = scripts.words[:, :, ROWS]
    assert rows.sum(axis=0).tolist() == sizes
    assert (rows.max(axis=0) - rows.min(axis=0) <= 1).all()


@given(graph_batches(), POLICIES)
def test_the_same_batch_gives_the_same_script(batch: GraphBatch, policy: str) -> None:
    one, two = assembled(batch, policy, 3)[0], assembled(batch, policy, 3)[0]
    assert np.array_equal(one.words, two.words)
