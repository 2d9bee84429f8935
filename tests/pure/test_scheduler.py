"""Every policy puts each vertex in one task after its children, rows and edges renumbered right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules import make_schedule
from tests.strategies import ChildLists, child_lists
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.graph.compiled import children_first
from vertexrt.kernels.cuda import pack
from vertexrt.scheduler import POLICIES, Schedule, policy_of, rows
from vertexrt.scheduler.balance import number_levels
from vertexrt.scheduler.kinds import (
    FINE,
    NEW_LAZY_KIND,
    NEW_PATH_KIND,
    NOT_BOUNDED,
    TOO_MANY_CHILDREN,
    VertexFacts,
    read_vertices,
)
from vertexrt.scheduler.merge import PRIME

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
    row_of = s.row_of
    assert row_of[s.order].tolist() == list(range(len(lists)))
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
    row_of = s.row_of
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


@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 9999))
def test_chains_are_as_other_graphs(length: int, often: float, seed: int) -> None:
    """Levels, and rows where each vertex reads a row of its own, come a shorter way."""
    rng = np.random.default_rng(seed)
    child = np.where(rng.random(length) < often, -1, np.arange(length) - 1).astype(np.int32)
    graph = InputGraph(np.arange(length + 1), child)
    order = rng.permutation(length).astype(np.int32)
    kinds = rng.integers(0, 3, length).astype(np.int32)
    level = read(graph, np.zeros((2, length), np.int32), [0, 0b11], [0b1100, 0b1111], slots=1)[5]
    np.testing.assert_array_equal(level, children_first(graph.child_ptr, child)[1])
    np.testing.assert_array_equal(number_levels(graph.child_ptr, child), level + 1)
    plain, quick = (
        make_schedule(
            graph.child_ptr, child, kinds, 3, pulls=order[None], used=np.arange(1),
            weight=np.empty(length, np.float32), forest=forest,
        )
        for forest in (False, True)
    )  # fmt: skip
    for name in (
        "order",
        "row_of",
        "task_lo",
        "child_row",
        "edge_row",
        "parent_ptr",
        "parent_edge",
    ):
        np.testing.assert_array_equal(getattr(plain, name), getattr(quick, name), name)
    assert quick.weight.tolist() == [1.0] * length


def read(
    graph: InputGraph,
    pulls: np.ndarray,
    path: list[int],
    lazy: list[int],
    *,
    slots: int = 3,
    bounds: tuple[int, ...] = (-1, -1),
    limited: bool = False,
) -> Any:
    """Read vertices of which all bits matter in lazy kinds, and those of slots in path kinds."""
    facts = (
        np.arange(len(pulls)),
        np.arange(len(pulls)),
        np.array(bounds, np.int64)[:, None],
        slots,
        np.zeros(0, np.int64),
        np.array([slots if limited else -1]),
        np.array([(1 << (slots + 1)) - 1]),
        np.array([(1 << (slots + 3)) - 1]),
        np.array(path, np.int64),
        np.array(lazy, np.int64),
        np.array([bits % 2 == 0 for bits in lazy], np.int64),
        np.zeros(0, np.int64),
    )
    one = np.zeros(0, np.int32)  # function
    return read_vertices(graph.child_ptr, graph.child, one, pulls, VertexFacts(*facts))


@given(child_lists(max_vertices=12, arity=3), st.integers(0, 4), st.integers(0, 99))
def test_kinds_name_slots_and_pulls(lists: ChildLists, slots: int, seed: int) -> None:
    graph = InputGraph.from_children(lists)
    pulls = np.random.default_rng(seed).integers(-1, 3, (2, len(lists))).astype(np.int32)
    path: list[int] = []
    lazy: list[int] = []
    found, *_ = got = read(graph, pulls, path, lazy, slots=slots)
    while found in (NEW_PATH_KIND, NEW_LAZY_KIND):
        (path if found == NEW_PATH_KIND else lazy).append(got[2])
        found, *_ = got = read(graph, pulls, path, lazy, slots=slots)
    assert found == FINE
    _, _, _, path_kinds, lazy_kinds, level, forest, losses = got
    for v, kids in enumerate(lists):
        has = [slot < len(kids) and kids[slot] >= 0 for slot in range(slots)]
        has += [any(c >= 0 for c in kids), pulls[0, v] >= 0, pulls[1, v] >= 0]
        bits = sum(1 << k for k, there in enumerate(has) if there)
        assert lazy[lazy_kinds[v]] == bits
        assert path[path_kinds[v]] == bits & ((1 << (slots + 1)) - 1)
        assert level[v] == max((level[c] + 1 for c in kids if c >= 0), default=0)
    assert losses == sum(lazy[k] % 2 == 0 for k in lazy_kinds)
    children = [c for kids in lists for c in kids if c >= 0]
    assert forest == (len(set(children)) == len(children))
    np.testing.assert_array_equal(level, children_first(graph.child_ptr, graph.child)[1])


def test_what_cannot_be_read_is_named() -> None:
    graph = InputGraph.from_children([[], [], [0, 1]])
    pulls = np.array([[0, 1, -1], [5, 4, 6]], np.int32)
    path, lazy = [0b0, 0b111], [0b11000, 0b10111]
    assert read(graph, pulls, path, lazy, slots=2, bounds=(2, 7))[0] == FINE
    assert read(graph, pulls, path, lazy, slots=2, bounds=(2, 6))[:2] == (NOT_BOUNDED, 2)
    assert read(graph, pulls - 2, path, lazy, slots=2, bounds=(2, 7))[:2] == (NOT_BOUNDED, 0)
    got = read(graph, pulls, [0b0, 0b11], [0b1100], slots=1, limited=True)
    assert got[:2] == (TOO_MANY_CHILDREN, 2)


@pytest.mark.parametrize("policy", POLICIES)
@given(lists=child_lists(max_vertices=12, arity=3), seed=st.integers(0, 99))
def test_merged_vertices_are_equal_and_the_others_are_not(
    policy: str, lists: ChildLists, seed: int
) -> None:
    """Two vertices share a row exactly when kind, pulls and the rows of their children agree."""
    rng = np.random.default_rng(seed)
    graph = InputGraph.from_children(lists)
    pulls = rng.integers(-1, 2, (3, len(lists))).astype(np.int32)
    used = np.array([0, 2])
    children = [c for kids in lists for c in kids if c >= 0]
    s = make_schedule(
        graph.child_ptr,
        graph.child,
        pulls[2] + np.int32(1),
        3,
        policy,
        pulls=pulls,
        used=used,
        weight=np.empty(len(lists), np.float32),
        forest=len(set(children)) == len(children),
    )
    keys = [
        (*pulls[used, v].tolist(), tuple(int(s.row_of[c]) if c >= 0 else -1 for c in kids))
        for v, kids in enumerate(lists)
    ]
    for v, key in enumerate(keys):
        assert all((s.row_of[u] == s.row_of[v]) == (keys[u] == key) for u in range(v))
    assert s.weight.tolist() == np.bincount(s.row_of).tolist()
    assert s.row_of[s.order].tolist() == list(range(len(s.order)))
    task_of_row = np.repeat(np.arange(s.num_tasks), np.diff(s.task_lo))
    assert (np.diff(s.task_lo) >= 1).all()
    for row, v in enumerate(s.order):
        begin, end = s.edge_ptr[row], s.edge_ptr[row + 1]
        assert tuple(s.child_row[begin:end].tolist()) == keys[v][-1]
        assert s.task_kind[task_of_row[row]] == pulls[2, v] + 1
        assert all(task_of_row[c] < task_of_row[row] for c in s.child_row[begin:end] if c >= 0)


@pytest.mark.parametrize("policy", POLICIES)
@given(problem=problems())
def test_vertices_rise_within_a_task(policy: str, problem: tuple[ChildLists, np.ndarray]) -> None:
    lists, kinds = problem
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists)] * 3)
    s = make_schedule(batch.child_ptr, batch.child, np.tile(kinds, 3), KINDS, policy)
    for t in range(s.num_tasks):
        assert np.all(np.diff(s.order[s.task_lo[t] : s.task_lo[t + 1]]) > 0)


@pytest.mark.parametrize(("inner", "order"), [(True, [0, 3, 1]), (False, [0, 1, 2, 3])])
def test_rows_rise_for_groups_even_where_keys_are_shared_by_chance(
    inner: bool, order: list[int]
) -> None:
    high, low = divmod(pow(int(PRIME), -1, 1 << 64), 1 << 32)  # times PRIME it is 1
    other = np.array([high, low, 1], np.uint32).view(np.int32)
    pulls = np.zeros((3, 4), np.int32)
    pulls[:, 1], pulls[:, 3] = other, 9
    s = make_schedule(
        np.zeros(5, np.int32),
        np.zeros(0, np.int32),
        np.zeros(4, np.int32),
        1,
        pulls=pulls,
        used=np.arange(3),
        weight=np.empty(4, np.float32),
        inner=inner,
    )
    assert s.order.tolist() == order
    assert s.weight.sum() == 4
    assert np.array_equal(pulls[:, s.order[s.row_of]], pulls)


def test_merging_without_pulls() -> None:
    graph = InputGraph.from_children([[], [], [0, 1], [1, 0], []])
    weight = np.empty(5, np.float32)
    s = make_schedule(graph.child_ptr, graph.child, np.zeros(5, np.int32), 1, weight=weight)
    assert s.row_of.tolist() == [0, 0, 1, 1, 0]
    assert s.weight.tolist() == [3, 2]


def test_unknown_policy() -> None:
    with pytest.raises(UsageError) as error:
        policy_of("frontiers")
    assert str(error.value) == (
        "[schedule] policy is 'frontiers'; one of frontier, depth, agenda, serial; "
        "choose one of these. Nearest: 'frontier'."
    )


def test_parts_of_a_schedule_are_numbered_alike_by_who_uploads_them() -> None:
    others = ("weight", "indices", "begins")
    names = [field.name.upper() for field in fields(Schedule) if field.name not in others]
    assert [getattr(rows, name) for name in names] == list(range(rows.PARTS))
    assert rows.PARTS == pack.PARTS
    for name in ("ORDER", "EDGE_PTR", "CHILD_ROW", "EDGE_ROW", "PARENT_PTR", "PARENT_EDGE"):
        assert getattr(pack, name) == getattr(rows, name), name
    uploaded = [name.upper() for name in pack.INDICES[1 : 1 + len(pack.UPLOADED)]]
    assert [getattr(rows, name) for name in uploaded] == list(pack.UPLOADED)


def test_vertices_that_no_function_reads_come_last() -> None:
    """Their rows are next to each other, however far from the leaves they are."""
    graph = InputGraph.from_children([[], [0], [0], [1], [3], [0]])
    functions = np.array([0, 0, 1, 0, 1, 1], np.int32)
    each, bits = np.zeros(2, np.int64), (1 << 4) - 1
    kinds: list[int] = []
    while True:
        known = np.array(kinds, np.int64)
        found, _, new, *_, level, _, _ = read_vertices(
            graph.child_ptr,
            graph.child,
            functions,
            np.zeros((0, 6), np.int32),
            VertexFacts(
                each[:0],
                each[:0],
                np.zeros((0, 2), np.int64),
                3,
                each[:0],
                each - 1,
                each + bits,
                each + bits,
                known,
                known,
                known,
                np.array([0, 1]),
            ),
        )
        if found == FINE:
            break
        kinds.append(new)
    assert level.tolist() == [0, 1, 3, 2, 3, 3]
