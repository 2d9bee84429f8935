"""Every policy puts each vertex in one task after its children, rows and edges renumbered right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import ChildLists, child_lists
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.scheduler import POLICIES, Schedule, make_schedule
from vertexrt.scheduler.compiled import add_presence, classify, inverse, slot_bits
from vertexrt.scheduler.merge import merge_vertices

KINDS = 3
Task = tuple[int, frozenset[int]]  # kind, vertices


@st.composite
def problems(draw: Any) -> tuple[ChildLists, np.ndarray]:
    """Draw a graph and a kind for each vertex."""
    lists = draw(child_lists(max_vertices=12, arity=3))
    kinds = draw(st.lists(st.integers(0, KINDS - 1), min_size=len(lists), max_size=len(lists)))
    return lists, np.array(kinds, np.int32)


def schedule(lists: ChildLists, kinds: np.ndarray, policy: str) -> Schedule:
    graph = InputGraph.from_children(lists)
    return make_schedule(graph.child_ptr, graph.child, kinds, KINDS, policy)


def tasks(s: Schedule) -> list[Task]:
    bounds = zip(s.task_lo[:-1], s.task_lo[1:], strict=True)
    return [
        (int(kind), frozenset(s.order[lo:hi].tolist()))
        for kind, (lo, hi) in zip(s.task_kind, bounds, strict=True)
    ]


# Each policy once more, the slow way.


def ready(lists: ChildLists, done: set[int]) -> list[int]:
    return [
        v
        for v, kids in enumerate(lists)
        if v not in done and all(c in done for c in kids if c >= 0)
    ]


def frontier(lists: ChildLists, kinds: np.ndarray) -> Iterator[Task]:
    done: set[int] = set()
    while len(done) < len(lists):
        now = ready(lists, done)
        for kind in range(KINDS):
            if mine := frozenset(v for v in now if kinds[v] == kind):
                yield kind, mine
        done.update(now)


def agenda(lists: ChildLists, kinds: np.ndarray) -> Iterator[Task]:
    done: set[int] = set()
    while len(done) < len(lists):
        now = ready(lists, done)
        by_kind = [frozenset(v for v in now if kinds[v] == kind) for kind in range(KINDS)]
        kind = max(range(KINDS), key=lambda k: (len(by_kind[k]), -k))
        yield kind, by_kind[kind]
        done.update(by_kind[kind])


def depth(lists: ChildLists, kinds: np.ndarray) -> Iterator[Task]:
    parents: list[list[int]] = [[] for _ in lists]
    for v, kids in enumerate(lists):
        for c in kids:
            if c >= 0:
                parents[c].append(v)

    def far(v: int) -> int:
        return max((far(p) + 1 for p in parents[v]), default=0)

    places = sorted({(-far(v), int(kinds[v])) for v in range(len(lists))})
    for level, kind in places:
        yield (
            kind,
            frozenset(v for v in range(len(lists)) if (-far(v), kinds[v]) == (level, kind)),
        )


def serial(lists: ChildLists, kinds: np.ndarray) -> Iterator[Task]:
    for kind, vertices in frontier(lists, kinds):
        yield from ((kind, frozenset([v])) for v in sorted(vertices))


SLOW: dict[str, Callable[[ChildLists, np.ndarray], Iterator[Task]]] = {
    "frontier": frontier,
    "depth": depth,
    "agenda": agenda,
    "serial": serial,
}


def test_every_policy_is_tested() -> None:
    assert tuple(SLOW) == POLICIES


@pytest.mark.parametrize("policy", POLICIES)
@given(problem=problems())
def test_tasks_are_those_of_the_policy(policy: str, problem: tuple[ChildLists, np.ndarray]) -> None:
    lists, kinds = problem
    got, want = tasks(schedule(lists, kinds, policy)), list(SLOW[policy](lists, kinds))
    if policy == "serial":  # one frontier's vertices may come in any order
        assert sorted(got, key=str) == sorted(want, key=str)
    else:
        assert got == want


@pytest.mark.parametrize("policy", POLICIES)
@given(problem=problems())
def test_each_vertex_is_in_one_task_after_its_children(
    policy: str, problem: tuple[ChildLists, np.ndarray]
) -> None:
    lists, kinds = problem
    s = schedule(lists, kinds, policy)
    assert sorted(s.order.tolist()) == list(range(len(lists)))
    assert (s.task_lo[0], s.task_lo[-1]) == (0, len(lists))
    assert (np.diff(s.task_lo) >= 1).all()
    task_of_row = np.repeat(np.arange(s.num_tasks), np.diff(s.task_lo))
    np.testing.assert_array_equal(kinds[s.order], s.task_kind[task_of_row])
    row_of = inverse(s.order)
    for vertex, kids in enumerate(lists):
        for child in kids:
            if child >= 0:
                assert task_of_row[row_of[child]] < task_of_row[row_of[vertex]]
    if policy == "serial":
        assert s.num_tasks == len(lists)


@pytest.mark.parametrize("policy", POLICIES)
@given(problem=problems())
def test_edges_are_renumbered_by_row(policy: str, problem: tuple[ChildLists, np.ndarray]) -> None:
    lists, kinds = problem
    s = schedule(lists, kinds, policy)
    row_of = inverse(s.order)
    parents: list[list[int]] = [[] for _ in lists]
    for row, vertex in enumerate(s.order):
        first, end = s.edge_ptr[row], s.edge_ptr[row + 1]
        assert s.child_row[first:end].tolist() == [
            row_of[c] if c >= 0 else -1 for c in lists[vertex]
        ]
        assert (s.edge_row[first:end] == row).all()
        for edge in range(first, end):
            if s.child_row[edge] >= 0:
                parents[s.child_row[edge]].append(edge)
    for row, edges in enumerate(parents):  # ascending: sums over parents have a fixed order
        assert s.parent_edge[s.parent_ptr[row] : s.parent_ptr[row + 1]].tolist() == edges


@given(child_lists(max_vertices=12, arity=3), st.integers(0, 4))
def test_slot_bits_name_the_slots_that_hold_a_child(lists: ChildLists, slots: int) -> None:
    graph = InputGraph.from_children(lists)
    bits = slot_bits(graph.child_ptr, graph.child, slots)
    for kids, found in zip(lists, bits.tolist(), strict=True):
        for slot in range(slots):
            assert bool(found >> slot & 1) == (slot < len(kids) and kids[slot] >= 0)
        assert bool(found >> slots & 1) == any(c >= 0 for c in kids)
        assert found >> slots + 1 == 0


def test_presence_and_kinds() -> None:
    bits = np.array([0, 1, 3], np.int64)
    add_presence(bits, np.array([-1, 0, 5], np.int32), 4)
    assert bits.tolist() == [0, 17, 19]
    out = np.zeros(3, np.int32)
    known, number = np.array([0, 17], np.int64), np.array([7, 8], np.int32)
    assert classify(bits, 0b10001, known, number, out) == -1
    assert out.tolist() == [7, 8, 8]
    assert classify(bits, 0b10011, known, number, out) == 19


@given(child_lists(max_vertices=12, arity=3), st.integers(0, 99))
def test_merged_vertices_are_equal_and_the_others_are_not(lists: ChildLists, seed: int) -> None:
    """Two vertices merge exactly when kind, fields and (merged) children agree."""
    rng = np.random.default_rng(seed)
    graph = InputGraph.from_children(lists)
    bits = rng.integers(0, 2, len(lists)).astype(np.int64)
    fields = tuple(rng.integers(-1, 2, len(lists)).astype(np.int32) for _ in range(2))
    m = merge_vertices(graph.child_ptr, graph.child, bits, fields)
    keys = [
        (
            int(bits[v]),
            *(int(f[v]) for f in fields),
            tuple(int(m.of_vertex[c]) if c >= 0 else -1 for c in kids),
        )
        for v, kids in enumerate(lists)
    ]
    for v, key in enumerate(keys):
        assert all((m.of_vertex[u] == m.of_vertex[v]) == (keys[u] == key) for u in range(v))
    assert m.weight.tolist() == np.bincount(m.of_vertex).tolist()
    assert (m.of_vertex[m.first] == np.arange(len(m.first))).all()
    for d, v in enumerate(m.first):
        assert tuple(m.child[m.child_ptr[d] : m.child_ptr[d + 1]].tolist()) == keys[v][-1]


def test_merging_without_fields() -> None:
    graph = InputGraph.from_children([[], [], [0, 1], [1, 0], []])
    m = merge_vertices(graph.child_ptr, graph.child, np.zeros(5, np.int64), ())
    assert m.of_vertex.tolist() == [0, 0, 1, 1, 0]
    assert m.weight.tolist() == [3, 2]


def test_unknown_policy() -> None:
    graph = InputGraph.chain(2)
    with pytest.raises(UsageError) as error:
        make_schedule(graph.child_ptr, graph.child, np.zeros(2, np.int32), 1, "frontiers")
    assert str(error.value) == (
        "[schedule] policy is 'frontiers'; one of frontier, depth, agenda, serial; "
        "choose one of these. Nearest: 'frontier'."
    )


def test_golden_text_of_a_schedule() -> None:
    tree = InputGraph.complete_tree(4)
    batch = GraphBatch.from_graphs([tree, InputGraph.chain(5)])
    kinds = (np.diff(batch.child_ptr) > 0).astype(np.int32)
    s = make_schedule(batch.child_ptr, batch.child, kinds, 2)
    assert s.describe() == (
        "5 tasks over 12 vertices\n"
        "  V_0: 5 rows of kind 0\n"
        "  V_1: 3 rows of kind 1\n"
        "  V_2: 2 rows of kind 1\n"
        "  V_3: 1 rows of kind 1\n"
        "  V_4: 1 rows of kind 1"
    )
    assert s.describe(limit=2).splitlines()[2:] == [
        "  ... 3 more tasks ...",
        "  V_4: 1 rows of kind 1",
    ]
