"""Schedules: every policy, rows of equal vertices, kinds, shares of graphs, children by slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import typed_models as typed
from tests.schedules import make_schedule
from tests.strategies import ChildLists, child_lists, graph_batches
from vertexrt.engine.graph_facts import LookedUp, new_marks, rows_looked_up, rows_of_graphs
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.graph.compiled import children_first
from vertexrt.ir.passes.specialise import MOST_SLOTS
from vertexrt.kernels.cuda import pack
from vertexrt.scheduler import POLICIES, Schedule, policy_of, rows
from vertexrt.scheduler.arrange import (
    ALL,
    ARRANGED,
    NOT_READ,
    OF_OTHER_TYPE,
    SECOND_CHILD,
    arrange,
)
from vertexrt.scheduler.balance import Share, assign_graphs, divide, graph_costs, number_levels
from vertexrt.scheduler.compiled import find_levels
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


def test_every_policy_is_tested() -> None:
    assert tuple(SLOW) == POLICIES


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


# Kinds of vertices.


def read(
    graph: InputGraph,
    pulls: np.ndarray,
    path: list[int],
    lazy: list[int],
    *,
    slots: int = 3,
    bounds: tuple[int, ...] = (-1, -1),
    limited: bool = False,
    functions: np.ndarray | None = None,
    layers: tuple[int, ...] = (),
) -> Any:
    """Read vertices of which all bits matter in lazy kinds, and those of slots in path kinds."""
    several = 1 if functions is None else int(functions.max()) + 1
    each = np.ones(several, np.int64)
    facts = (
        np.arange(len(pulls)),
        np.arange(len(pulls)),
        np.array(bounds[: len(pulls)], np.int64)[:, None] * each,
        slots,
        np.zeros(0, np.int64),
        each * (slots if limited else -1),
        each * ((1 << (slots + 1)) - 1),
        each * ((1 << (slots + 3)) - 1),
        np.array(path, np.int64),
        np.array(lazy, np.int64),
        np.array([bits % 2 == 0 for bits in lazy], np.int64),
        np.array(layers, np.int64),
    )
    if functions is None:
        functions = np.zeros(0, np.int32)
    return read_vertices(graph.child_ptr, graph.child, functions, pulls, VertexFacts(*facts))


def read_all(graph: InputGraph, pulls: np.ndarray, **options: Any) -> tuple[Any, ...]:
    """Read vertices until no kind is new; return the kinds and what was read."""
    path: list[int] = []
    lazy: list[int] = []
    while True:
        found, *_ = got = read(graph, pulls, path, lazy, **options)
        if found not in (NEW_PATH_KIND, NEW_LAZY_KIND):
            assert found == FINE
            return path, lazy, *got[3:]
        (path if found == NEW_PATH_KIND else lazy).append(got[2])


@given(SHAPES, st.integers(0, 4), st.integers(0, 99))
def test_kinds_name_slots_and_pulls(lists: ChildLists, slots: int, seed: int) -> None:
    graph = InputGraph.from_children(lists)
    pulls = np.random.default_rng(seed).integers(-1, 3, (2, len(lists))).astype(np.int32)
    path, lazy, path_kinds, lazy_kinds, level, forest, losses = read_all(graph, pulls, slots=slots)
    for v, kids in enumerate(lists):
        has = [slot < len(kids) and kids[slot] >= 0 for slot in range(slots)]
        has += [any(c >= 0 for c in kids), pulls[0, v] >= 0, pulls[1, v] >= 0]
        bits = sum(1 << k for k, there in enumerate(has) if there)
        assert lazy[lazy_kinds[v]] == bits
        assert path[path_kinds[v]] == bits & ((1 << (slots + 1)) - 1)
        assert level[v] == max((level[c] + 1 for c in below(kids)), default=0)
    assert losses == sum(lazy[k] % 2 == 0 for k in lazy_kinds)
    children = [c for kids in lists for c in below(kids)]
    assert forest == (len(set(children)) == len(children))
    np.testing.assert_array_equal(level, children_first(graph.child_ptr, graph.child)[1])
    np.testing.assert_array_equal(level, find_levels(graph.child_ptr, graph.child))
    if all(c < v for v, kids in enumerate(lists) for c in kids):
        np.testing.assert_array_equal(level + 1, number_levels(graph.child_ptr, graph.child))


def test_what_cannot_be_read_is_named() -> None:
    graph = InputGraph.from_children([[], [], [0, 1]])
    pulls = np.array([[0, 1, -1], [5, 4, 6]], np.int32)
    path, lazy = [0b0, 0b111], [0b11000, 0b10111]
    assert read(graph, pulls, path, lazy, slots=2, bounds=(2, 7))[0] == FINE
    assert read(graph, pulls, path, lazy, slots=2, bounds=(2, 6))[:2] == (NOT_BOUNDED, 2)
    assert read(graph, pulls - 2, path, lazy, slots=2, bounds=(2, 7))[:2] == (NOT_BOUNDED, 0)
    got = read(graph, pulls, [0b0, 0b11], [0b1100], slots=1, limited=True)
    assert got[:2] == (TOO_MANY_CHILDREN, 2)


def test_vertices_that_no_function_reads_come_last() -> None:
    """Their rows are next to each other, however far from the leaves they are."""
    graph = InputGraph.from_children([[], [0], [0], [1], [3], [0]])
    functions, pulls = np.array([0, 0, 1, 0, 1, 1], np.int32), np.zeros((0, 6), np.int32)
    *_, level, _, _ = read_all(graph, pulls, functions=functions, layers=(0, 1))
    assert level.tolist() == [0, 1, 3, 2, 3, 3]


# Graphs are shared out whole, each once, and evenly.


@given(graph_batches(), st.integers(1, 6))
def test_every_vertex_is_in_one_share(batch: GraphBatch, parts: int) -> None:
    shares = divide(Share(batch), parts)
    assert len(shares) == min(parts, batch.num_graphs)
    vertices = np.concatenate([share.vertices for share in shares])
    assert sorted(vertices.tolist()) == list(range(batch.num_vertices))
    for share in shares:
        assert share.batch.num_vertices == len(share.vertices)
        for own, v in enumerate(share.vertices):
            slots = share.batch.child[slice(*share.batch.child_ptr[own : own + 2])]
            wanted = batch.child[slice(*batch.child_ptr[v : v + 2])]
            assert [share.vertices[c] if c >= 0 else -1 for c in slots] == wanted.tolist()
        np.testing.assert_array_equal(share.numbers()[1], batch.child_ptr[share.vertices])


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
    levels = number_levels(batch.child_ptr, batch.child)
    for level, costs in ((3.0, [12.0, 9.0, 4.0, 16.0]), (0.5, [4.5, 4.0, 1.5, 6.0])):
        assert graph_costs(batch.graph_ptr, levels, level).tolist() == costs
    shares = divide(Share(batch), 2, 0.0)
    assert [share.vertices.tolist() for share in shares] == [[6, 7, 8, 9, 10], [0, 1, 2, 3, 4, 5]]


# Children by slot and relation.


@given(SHAPES, st.integers(0, 999), st.booleans())
def test_children_are_arranged(lists: ChildLists, seed: int, one_type: bool) -> None:
    """Those of some relations in two slots, then all of others, one relation after the other."""
    rng, graph = np.random.default_rng(seed), InputGraph.from_children(lists)
    forms = [NOT_READ, 0, 1, ALL, ALL + 1]
    slots = np.stack([rng.permutation(forms)[:3] for _ in range(2)])  # of functions, by relation
    begins = np.where((slots >= ALL).any(1), 2, 0)
    functions, relations = rng.integers(0, 2, len(lists)), rng.integers(0, 3, graph.num_edges)
    allowed = np.full((2, 3, 2), True)
    allowed[0, 0, 1] = one_type
    wanted = []
    second: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    edges = iter(range(graph.num_edges))
    for v, kids in enumerate(lists):
        f = functions[v]
        places: list[list[tuple[int, int]]] = [[] for _ in range(4)]  # two slots, and all twice
        for child, e in [(child, next(edges)) for child in kids]:
            relation = int(relations[e])
            if child < 0 or (slot := int(slots[f, relation])) == NOT_READ:
                continue
            if not allowed[f, relation, functions[child]]:
                other = other or (OF_OTHER_TYPE, v, relation)
            if slot < ALL and places[slot]:
                second = second or (SECOND_CHILD, v, relation)
            places[slot if slot < ALL else 2 + slot - ALL].append((child, e))
        filled = max((slot + 1 for slot in (0, 1) if places[slot]), default=0)
        for slot in range(begins[f] or filled):
            places[slot] = places[slot] or [(-1, -1)]
        wanted.append(places)
    found, at, relation, ptr, out, edge_of, first_of = arrange(
        graph.child_ptr,
        graph.child,
        functions.astype(np.int32),
        relations.astype(np.int32),
        (slots, allowed, begins),
        True,
        2,
    )
    assert (found, at, relation) == (other or second or (ARRANGED, -1, -1))
    if found == ARRANGED:
        flat = [[pair for place in places for pair in place] for places in wanted]
        assert np.diff(ptr).tolist() == [len(each) for each in flat]
        every = [pair for each in flat for pair in each]
        assert list(zip(out.tolist(), edge_of.tolist(), strict=True)) == every
        starts = np.cumsum([0, *(len(place) for places in wanted for place in places)])
        reads_all = begins[functions] > 0
        begin, there = starts[:-1].reshape(-1, 4)[:, 2:], first_of[:-1].reshape(-1, 2)
        np.testing.assert_array_equal(there[reads_all], begin[reads_all])
        assert first_of[-1] == len(every)


# Rows of tables that a minibatch looks up come out once, rising, and leave no marks.


@given(
    st.integers(0, 99),
    st.integers(1, 99),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1))),
)
def test_rows_that_are_looked_up(seed: int, vertices: int, lookups: list[tuple[int, int]]) -> None:
    """Each lookup is of a pull, by the vertices of a function."""
    rng, marks = np.random.default_rng(seed), new_marks(50)
    index = rng.integers(-1, 50, (3, vertices)).astype(np.int32)
    functions = rng.integers(0, 2, vertices).astype(np.int32)
    found = rows_looked_up(marks, index, np.array(lookups, np.int64).reshape(-1, 2), functions)
    own = {row for pull, f in lookups for row in index[pull, functions == f].tolist()}
    assert found.tolist() == sorted(own - {-1})
    assert not marks.any()


def test_rows_of_some_graphs() -> None:
    rng, marks = np.random.default_rng(0), new_marks(50)
    lists = [rng.integers(0, 50, count).astype(np.int32) for count in (3, 0, 7, 30)]
    first = np.append(0, np.cumsum([len(each) for each in lists]))
    for graphs in ([], [1], [2, 0], [3, 1, 0, 2]):
        chosen = np.array(graphs, np.int64)
        found = rows_of_graphs(marks, LookedUp(first, np.concatenate(lists)), chosen)
        assert found.tolist() == sorted({row for g in graphs for row in lists[g].tolist()})
        assert not marks.any()
