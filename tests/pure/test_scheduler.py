"""Schedules: every policy, rows of equal vertices, levels, shares of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import typed_models as typed
from tests.schedules import make_schedule
from tests.strategies import ChildLists, child_lists
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.graph.compiled import children_first
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.scheduler import POLICIES, Schedule
from vertexrt.scheduler.balance import Share, assign_graphs, divide, graph_costs
from vertexrt.scheduler.compiled import LEVELS, find_levels
from vertexrt.scheduler.merge import PRIME

KINDS = 3
Task = tuple[int, frozenset[int]]  # kind, vertices
# Chains that begin again, in order: their levels are found a shorter way.
CHAINS = st.lists(st.booleans(), min_size=1, max_size=30).map(
    lambda joined: [[v - 1 if v and below else -1] for v, below in enumerate(joined)]
)
SHAPES = child_lists(max_vertices=12, arity=3) | CHAINS


def below(kids: list[int]) -> list[int]:
    """Return children, without empty slots."""
    return [child for child in kids if child >= 0]


# Each policy once more, the slow way.


def ready(lists: ChildLists, done: set[int]) -> list[int]:
    return [v for v, kids in enumerate(lists) if v not in done and done.issuperset(below(kids))]


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
    def far(v: int) -> int:
        return max((far(p) + 1 for p, kids in enumerate(lists) if v in kids), default=0)

    places = [(-far(v), int(kinds[v])) for v in range(len(lists))]
    for place in sorted({*places}):
        yield place[1], frozenset(v for v, own in enumerate(places) if own == place)


def serial(lists: ChildLists, kinds: np.ndarray) -> Iterator[Task]:
    for kind, vertices in frontier(lists, kinds):
        yield from ((kind, frozenset([v])) for v in sorted(vertices))


SLOW: dict[str, Callable[[ChildLists, np.ndarray], Iterator[Task]]] = {
    "frontier": frontier,
    "depth": depth,
    "agenda": agenda,
    "serial": serial,
}


def tasks(s: Schedule) -> list[Task]:
    bounds = zip(s.task_lo[:-1], s.task_lo[1:], strict=True)
    return [
        (int(kind), frozenset(s.order[lo:hi].tolist()))
        for kind, (lo, hi) in zip(s.task_kind, bounds, strict=True)
    ]


@pytest.mark.parametrize("policy", POLICIES)
@given(lists=SHAPES, merged=st.booleans(), distinct=st.booleans(), seed=st.integers(0, 99))
def test_rows_and_tasks_are_those_of_the_policy(
    policy: str, lists: ChildLists, merged: bool, distinct: bool, seed: int
) -> None:
    """Vertices are merged exactly when kind, pulls and the rows of their children agree."""
    rng, count, graph = np.random.default_rng(seed), len(lists), InputGraph.from_children(lists)
    pulls, used = rng.integers(-1, 2, (3, count)).astype(np.int32), np.array([0, 2])
    kinds = pulls[2] + np.int32(1)
    if distinct:  # each vertex reads a row of its own, which is found a shorter way
        pulls[0] = rng.permutation(count)
    children = [child for kids in lists for child in below(kids)]
    options: dict[str, Any] = {"forest": len({*children}) == len(children) and seed % 2 == 0}
    if merged:
        options |= {"pulls": pulls, "used": used, "weight": np.empty(count, np.float32)}
    s = make_schedule(graph.child_ptr, graph.child, kinds, KINDS, policy, **options)
    rows_below = [[int(s.row_of[c]) if c >= 0 else -1 for c in kids] for kids in lists]
    keys: list[Any] = [
        (*pulls[used, v].tolist(), kids) if merged else v for v, kids in enumerate(rows_below)
    ]
    for v, key in enumerate(keys):
        assert all((s.row_of[u] == s.row_of[v]) == (keys[u] == key) for u in range(v))
    assert s.row_of[s.order].tolist() == list(range(len(s.order)))
    assert (s.task_lo[0], s.task_lo[-1]) == (0, len(s.order))
    assert (np.diff(s.task_lo) >= 1).all()
    task_of_row = np.repeat(np.arange(s.num_tasks), np.diff(s.task_lo))
    np.testing.assert_array_equal(kinds[s.order], s.task_kind[task_of_row])
    parents: list[list[int]] = [[] for _ in s.order]
    for row, vertex in enumerate(s.order):
        first, end = s.edge_ptr[row], s.edge_ptr[row + 1]
        assert s.child_row[first:end].tolist() == rows_below[vertex]
        assert (s.edge_row[first:end] == row).all()
        for edge in range(first, end):
            if (child := s.child_row[edge]) >= 0:
                assert task_of_row[child] < task_of_row[row]
                parents[child].append(edge)
    for row, edges in enumerate(parents):  # ascending: sums over parents have a fixed order
        assert s.parent_edge[s.parent_ptr[row] : s.parent_ptr[row + 1]].tolist() == edges
    if merged:
        assert s.weight.tolist() == np.bincount(s.row_of).tolist()
        return
    wanted = list(SLOW[policy](lists, kinds))
    if policy == "serial":  # one frontier's vertices may come in any order
        assert sorted(tasks(s), key=str) == sorted(wanted, key=str)
    else:
        assert tasks(s) == wanted
    for lo, hi in zip(s.task_lo[:-1], s.task_lo[1:], strict=True):
        assert (np.diff(s.order[lo:hi]) > 0).all()


@pytest.mark.parametrize(("inner", "order"), [(True, [0, 3, 1]), (False, [0, 1, 2, 3])])
def test_rows_rise_for_groups_even_where_keys_are_shared_by_chance(
    inner: bool, order: list[int]
) -> None:
    high, low = divmod(pow(int(PRIME), -1, 1 << 64), 1 << 32)  # times PRIME it is 1
    pulls = np.zeros((3, 4), np.int32)
    pulls[:, 1], pulls[:, 3] = np.array([high, low, 1], np.uint32).view(np.int32), 9
    none, weight = np.zeros(5, np.int32), np.empty(4, np.float32)
    used = np.arange(3)
    s = make_schedule(
        none, none[:0], none[:4], 1, pulls=pulls, used=used, weight=weight, inner=inner
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


@given(SHAPES)
def test_levels_are_one_above_those_of_children(lists: ChildLists) -> None:
    def level(v: int) -> int:
        return max((level(child) + 1 for child in below(lists[v])), default=0)

    graph = InputGraph.from_children(lists)
    wanted = [level(v) for v in range(len(lists))]
    assert children_first(graph.child_ptr, graph.child)[1].tolist() == wanted
    found, *_ = find_levels(graph.child_ptr, graph.child)
    assert (found & LEVELS).tolist() == wanted


# Graphs are shared out whole, each once, and evenly.


def test_edges_of_typed_vertices_have_numbers_of_their_own() -> None:
    """Also with a slot for each relation of a function; and they do not depend on shares."""
    batch = typed.sentences()
    vertices, first = Share(batch).numbers()
    assert (np.diff(first) >= MOST_SLOTS).all()
    assert (vertices == np.arange(batch.num_vertices)).all()
    for share in divide(Share(batch), 2):
        mine, numbers = share.numbers()
        assert (numbers == first[mine]).all()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 40))
def test_each_graph_goes_to_the_share_with_the_least_so_far(costs: list[int], parts: int) -> None:
    """Of several the first; graphs in falling order, those of one cost as they come (Graham)."""
    load, expected = [0.0] * parts, [0] * len(costs)
    for g in sorted(range(len(costs)), key=lambda g: -costs[g]):
        expected[g] = load.index(min(load))
        load[expected[g]] += costs[g]
    assert assign_graphs(np.array(costs, np.float64), parts).tolist() == expected


def test_the_cost_of_a_graph_is_its_vertices_and_its_depth() -> None:
    graphs: list[ChildLists] = [[[], [0], [1]], [[], [], [0, 1]], [[]], [[], [0], [0, 1], [2]]]
    batch = GraphBatch.from_graphs([InputGraph.from_children(each) for each in graphs])
    levels, *_ = find_levels(batch.child_ptr, batch.child)
    for level, costs in ((3.0, [12.0, 9.0, 4.0, 16.0]), (0.5, [4.5, 4.0, 1.5, 6.0])):
        assert graph_costs(batch.graph_ptr, levels, level).tolist() == costs
    shares = divide(Share(batch), 2, 0.0)
    assert [share.vertices.tolist() for share in shares] == [[6, 7, 8, 9, 10], [0, 1, 2, 3, 4, 5]]
