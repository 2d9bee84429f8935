"""Graphs and batches of them: what is given comes back, stays as it was, and is refused by name."""

import copy
import dataclasses
import gc
import pickle
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from weakref import ref

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vertexrt as vrt
from tests.backend.test_on_device import Lent
from tests.messages import table
from tests.strategies import ChildLists, child_lists, dags, input_graphs
from vertexrt.errors import GraphError, VertexrtError
from vertexrt.graph import GraphBatch, InputGraph, PullValue, Rows
from vertexrt.graph.batch import fill, source_of, starts_of

TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)


def values_of(pull: PullValue) -> list[Any]:
    """Return what each vertex, or edge, pulls, with its dtype, the slow way; None for nothing."""
    if isinstance(pull, Rows):
        rows = range(len(pull.table)) if pull.index is None else pull.index.tolist()
        every = values_of(pull.table)
        return [every[row] if row >= 0 else None for row in rows]
    whole = pull.dtype.kind == "i"
    return [None if whole and value == -1 else (value.dtype.name, value.tolist()) for value in pull]


def pulls_for(count: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return pulls of every form."""
    rows = int(rng.integers(1, 4))
    return {
        "whole": rng.integers(-1, 9, count, np.int32),
        "reals": rng.standard_normal((count, 2, 1)).astype(np.float32),
        "one": rng.standard_normal(count),
        "shared": Rows(TABLE, rng.integers(-1, 3, count)),
        "own": Rows(rng.standard_normal((rows, 2)), rng.integers(-1, rows, count)),
        "by vertex": Rows(rng.standard_normal((count, 1))),
        "empty": np.zeros((count, 0)),
    }


NAMES = [*pulls_for(0, np.random.default_rng(0))]


def rows_of(pulls: Mapping[str, PullValue], count: int) -> list[dict[str, Any]]:
    """Return what each vertex, or edge, pulls by name."""
    columns = {name: values_of(pull) for name, pull in pulls.items()}
    nothing: dict[str, Any] = dict.fromkeys(NAMES if count else ())
    return [nothing | {name: each[k] for name, each in columns.items()} for k in range(count)]


# A graph as a list: the type of each vertex, what it pulls, and of its slots the child, the
# relation and what the edge pulls.
Plain = list[tuple[str, dict[str, Any], list[tuple[int, str, dict[str, Any]]]]]


def plain_graphs(batch: GraphBatch) -> list[Plain]:
    """Read the graphs of a batch from its arrays, the slow way."""
    vertices, edges = batch.num_vertices, batch.num_edges
    types, relations = [""] * vertices, [""] * edges
    if batch.types is not None:
        types = [batch.types.names[number] for number in batch.types.of_vertex]
        relations = [batch.types.relations[number] for number in batch.types.of_edge]
    rows, rows_of_edges = rows_of(batch.pulls, vertices), rows_of(batch.edge_pulls, edges)
    found = []
    for first, end in pairwise(batch.graph_ptr.tolist()):
        graph = []
        for v in range(first, end):
            slots = [
                (max(int(batch.child[e]) - first, -1), relations[e], rows_of_edges[e])
                for e in range(*batch.child_ptr[v : v + 2].tolist())
            ]
            graph.append((types[v], rows[v], slots))
        found.append(graph)
    return found


@st.composite
def graphs_of_lists(draw: Any) -> tuple[Plain, InputGraph]:
    """Draw child lists, with empty slots."""
    lists, rng = draw(child_lists()), np.random.default_rng(draw(st.integers(0, 999)))
    count, slots = len(lists), sum(map(len, lists))
    pulls, edge_pulls = pulls_for(count, rng), pulls_for(slots, rng)
    of_edges = iter(rows_of(edge_pulls, slots))
    plain: Plain = [
        ("", row, [(child, "", next(of_edges)) for child in children])
        for row, children in zip(rows_of(pulls, count), lists, strict=True)
    ]
    return plain, InputGraph.from_children(lists, pulls, edge_pulls)


@st.composite
def graphs_of_types(draw: Any) -> tuple[Plain, InputGraph]:
    """Draw a graph of types, of which one pulls nothing, or its edges, in any order."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    names = draw(st.permutations("abc"))[: draw(st.integers(1, 3))]
    counts = [draw(st.integers(0, 4)) for _ in names]
    counts[-1] += not any(counts)
    ends = np.cumsum([0, *counts]).tolist()
    own = {name: range(*pair) for name, pair in zip(names, pairwise(ends), strict=True)}
    name = st.sampled_from(names)
    key = st.tuples(name, st.sampled_from("xy"), name)
    keys = draw(st.lists(key, min_size=1, max_size=3, unique=True))
    silent = draw(st.sampled_from([None, *names[1:], *keys[1:]]))
    pulls = {of: {} if of == silent else pulls_for(len(own[of]), rng) for of in names}
    plain: Plain = [(of, row, []) for of in names for row in rows_of(pulls[of], len(own[of]))]
    edges, edge_pulls = {}, {}
    for of in keys:
        children, relation, parents = own[of[0]], of[1], own[of[2]]
        pairs = [(child, parent) for child in children for parent in parents if child < parent]
        chosen = draw(st.lists(st.sampled_from(pairs), max_size=5)) if pairs else []
        edges[of] = [(child - children[0], parent - parents[0]) for child, parent in chosen]
        edge_pulls[of] = {} if of == silent else pulls_for(len(chosen), rng)
        rows = rows_of(edge_pulls[of], len(chosen))
        for (child, parent), row in zip(chosen, rows, strict=True):
            plain[parent][2].append((child, relation, row))
    sizes = dict(zip(names, counts, strict=True))
    return plain, InputGraph.from_types(sizes, edges, pulls, edge_pulls)


def filled(batch: GraphBatch) -> GraphBatch:
    fill(batch)
    return batch


# Other ways to have the same graphs.
WAYS = {
    "as they are": "batch",
    "all copied": "filled(batch)",
    "taken": "batch.take(np.arange(len(batch)))",
    "one by one": "GraphBatch.from_graphs(batch)",
    "batches of one": "GraphBatch.concat(batch[[k]] for k in range(len(batch)))",
    "pickled": "pickle.loads(pickle.dumps(batch))",
    "copied": "copy.copy(batch)",
    "copied deep": "copy.deepcopy(batch)",
    "replaced": "dataclasses.replace(batch)",
    "with pulls": 'batch.with_pulls({"one": batch.pulls["one"]})',
    "from arrays": (
        "GraphBatch.from_arrays(*(getattr(batch, f.name) for f in dataclasses.fields(batch)))"
    ),
}


def arrays_of(batch: GraphBatch | InputGraph) -> Iterator[np.ndarray[Any, Any]]:
    yield from (batch.child_ptr, batch.child)
    if isinstance(batch, GraphBatch):
        yield batch.graph_ptr
    if batch.types is not None:
        yield from (batch.types.of_vertex, batch.types.of_edge)
    for pull in (*batch.pulls.values(), *batch.edge_pulls.values()):
        for array in (pull.table, pull.index) if isinstance(pull, Rows) else (pull,):
            if array is not None:
                yield array


def assert_nobody_can_write(batch: GraphBatch | InputGraph) -> None:
    """Read-only is not enough, since owners and bases of arrays can be written to: see `owned`."""
    for array in arrays_of(batch):
        assert array.dtype.kind == "f" or array.dtype == np.int32
        base: Any = array
        while isinstance(base, np.ndarray):
            assert not base.flags.writeable
            base = base.base
        assert type(base) is bytes
    with pytest.raises(TypeError):
        batch.pulls["word"] = np.zeros(9)  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.child = np.zeros(9)  # type: ignore[assignment]


@given(st.sampled_from([graphs_of_lists(), graphs_of_types()]), st.data())
def test_graphs_stay_what_they_are(kind: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """Judged by lists: chosen by indices of every form, again and again, in every other way."""
    drawn = data.draw(st.lists(kind, min_size=1, max_size=4))
    plain, graphs = ([*each] for each in zip(*drawn, strict=True))
    batch = GraphBatch.from_graphs(graphs)
    for way in data.draw(st.lists(st.sampled_from(sorted(WAYS)), max_size=3)):
        count = len(plain)
        numbers = st.integers(-count, count - 1)
        several = st.lists(numbers, min_size=1, max_size=5)
        mask = st.lists(st.booleans(), min_size=count, max_size=count)
        key = data.draw(st.slices(count) | several | mask | several.map(tuple))
        chosen = np.arange(count)[list(key) if isinstance(key, tuple) else key].tolist()
        if not chosen:
            with pytest.raises(GraphError, match=r"^\[take\] no graph;"):
                batch[key]
            continue
        batch, plain = (
            eval(WAYS[way], {**globals(), "copy": copy, "batch": batch[key]}),
            [plain[k] for k in chosen],
        )
        assert plain_graphs(GraphBatch.from_graphs([batch[-1]])) == plain[-1:]
    sizes = [len(each) for each in plain]
    slots = [sum(len(children) for _, _, children in each) for each in plain]
    starts = [np.cumsum([0, *each]).tolist() for each in (sizes, slots)]
    assert plain_graphs(batch) == plain
    assert (batch.num_graphs, batch.sizes().tolist()) == (len(batch), sizes)
    assert (batch.num_vertices, batch.num_edges) == (sum(sizes), sum(slots))
    assert [each.tolist() for each in starts_of(batch)] == starts
    assert [*batch.pulls] == [*batch.edge_pulls] == NAMES
    assert batch.graph_of.tolist() == np.repeat(np.arange(len(plain)), sizes).tolist()
    assert batch.roots.tolist() == sorted({*range(sum(sizes))} - {*batch.child.tolist()})
    for name in batch.types.names if batch.types else ():
        types = [of for each in plain for of, _, _ in each]
        assert batch.of_type(name).tolist() == [v for v, of in enumerate(types) if of == name]
    for each in (batch, batch[0]):
        assert_nobody_can_write(each)


# Graphs by their constructors.


def lists_of(graph: InputGraph) -> ChildLists:
    return [graph.children(v) for v in range(graph.num_vertices)]


def brackets(text: str, **where: Any) -> InputGraph:
    return InputGraph.from_brackets(text, **where).graph


MADE: dict[str, ChildLists] = {
    "InputGraph.chain(3)": [[], [0], [1]],
    "InputGraph.complete_tree(1)": [[]],
    "InputGraph.complete_tree(4)": [[], [], [], [], [0, 1], [2, 3], [4, 5]],
    "InputGraph.complete_tree(3, 3)": [[], [], [], [0, 1, 2]],
    "brackets('(3 (2 a) (4 (4 b) (2 c)))')": [[], [], [], [1, 2], [0, 3]],
    "edges_of_types()": [[], [], [], [], [1, 0]],
}


@pytest.mark.parametrize("code", MADE)
def test_shapes_by_name(code: str) -> None:
    assert lists_of(eval(code)) == MADE[code]


def test_brackets() -> None:
    tree = InputGraph.from_brackets("(3 (2 a) (4 (4 8\u00a01\\/2) (2 film)))")
    assert (tree.words, tree.leaves.tolist()) == (("a", "8\u00a01\\/2", "film"), [0, 1, 2])
    assert np.asarray(tree.graph.pulls["label"]).tolist() == [2, 4, 2, 4, 3]


def trimmed(slots: list[int]) -> list[int]:
    """Drop trailing empty slots: networkx has no edge to show them."""
    while slots and slots[-1] == -1:
        slots = slots[:-1]
    return slots


@given(input_graphs())
def test_networkx_and_back(graph: InputGraph) -> None:
    network = graph.to_networkx()
    names = [n for n in graph.pulls if any(n in attrs for _, attrs in network.nodes(data=True))]
    again = InputGraph.from_networkx(network, names)
    assert [trimmed(slots) for slots in lists_of(graph)] == lists_of(again)
    for name in names:
        np.testing.assert_array_equal(graph.pulls[name], again.pulls[name])


def test_pulls_are_converted() -> None:
    swapped = {"reals": np.array([0.5, 2.0], ">f4"), "whole": np.array([3, 1], ">i8")}
    reals, whole = InputGraph.chain(2, swapped).pulls.values()
    assert (values_of(reals), values_of(whole)) == (
        [("float32", 0.5), ("float32", 2.0)],
        [("int32", 3), ("int32", 1)],
    )


# What is refused.


def made(*pulls: Any) -> GraphBatch:
    """Return a batch of chains of two that pull these."""
    return GraphBatch.from_graphs([InputGraph.chain(2, each) for each in pulls])


def pulled(values: Any) -> InputGraph:
    return InputGraph.chain(3, {"p": values})


def types_of(edges: Any, *pulls: Any, **sizes: Any) -> InputGraph:
    return InputGraph.from_types(sizes or {"word": 2}, edges, *pulls)


def edges_of_types() -> InputGraph:
    """Return vertices of two types, those of the first before those of the second."""
    return types_of({("a", "x", "b"): [(1, 2), (0, 2)], ("b", "y", "a"): []}, a=2, b=3)


def arrays(**changes: Any) -> GraphBatch:
    """Return a batch of two graphs, with some other arrays."""
    fields = {"graph_ptr": [0, 2, 5], "child_ptr": [0, 0, 1, 2, 3, 4], "child": [0, -1, 2, 3]}
    return GraphBatch.from_arrays(**fields | changes)


def network(*edges: tuple[int, int, Any]) -> InputGraph:
    dag: Any = nx.MultiDiGraph()
    dag.add_edges_from((child, parent, {"slot": slot}) for child, parent, slot in edges)
    return InputGraph.from_networkx(dag)


WORD = ("word", "before", "word")
ONE = {"x": [1, 2]}
NOTHING = {"x": Rows(np.zeros(0), [-1, -1])}
TREE = InputGraph.from_brackets("(1 (0 a) (1 b))")
# What is written, and how its error begins.
REFUSED = table(__file__, "REFUSED")


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_no_graph_is_refused(code: str) -> None:
    with pytest.raises(VertexrtError) as caught:
        eval(code, {**vars(vrt.graph), **globals()})
    assert f"{type(caught.value).__name__}: {caught.value}".startswith(REFUSED[code])


@given(dags(max_vertices=8, ordered=True))
def test_any_cycle_is_found(lists: ChildLists) -> None:
    closed = [*lists, [len(lists) + 1], [len(lists)]]
    names = f"{len(lists)} -> {len(lists) + 1} -> {len(lists)}"
    with pytest.raises(GraphError, match=names):
        InputGraph.from_children(closed)


# What has been checked cannot change.


def test_the_base_of_a_view_that_is_written_to_changes_nothing() -> None:
    """Arrays that are given themselves are written to by `tests.attacks`."""
    base = np.array([0, 0, 1], np.int32)
    view = base[:]
    view.flags.writeable = False
    graph = InputGraph(view, [0], {"word": view[1:], "rows": Rows(view, view[1:])})
    base[...] = 77
    assert lists_of(graph) == [[], [0]]
    assert values_of(graph.pulls["word"]) == [("int32", 0), ("int32", 1)]
    assert values_of(graph.pulls["rows"]) == [("int32", 0), ("int32", 0)]


@pytest.mark.filterwarnings("ignore:Setting the")
def test_shape_and_dtype_set_in_place_change_nothing() -> None:
    for source in (pool(), pool().take([0, 1])):
        before = plain_graphs(source)
        for array in arrays_of(source):
            base: Any = array
            while isinstance(base, np.ndarray):
                base.shape = (-1, 1)
                base.dtype = np.uint8  # type: ignore[misc]
                base = base.base
        assert plain_graphs(source) == before


def test_every_way_to_make_a_batch_checks() -> None:
    batch, wrong = made({}, {}), np.array([0, 0])  # the second is of the other graph
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)} | {"child": wrong}
    forged = object.__new__(GraphBatch)
    for make in (
        lambda: GraphBatch(**fields),
        lambda: GraphBatch.from_arrays(**fields),
        lambda: dataclasses.replace(batch, child=wrong),
        lambda: forged.__setstate__(list(fields.values())),  # as an older pickle does
    ):
        with pytest.raises(GraphError, match="vertex 3 has the child 0"):
            make()


def test_graphs_that_are_given_the_same_table_share_a_copy() -> None:
    table = np.array([[np.nan, 1.0], [2.0, 3.0]])
    first, second = Rows(table, [0]), Rows(table, [1])
    assert np.shares_memory(first.table, second.table)
    assert not np.shares_memory(first.table, table)
    assert np.shares_memory(Rows(first.table, [1, 0]).table, first.table)
    table[0, 0] = 5.0
    assert Rows(table, [0]).table[0, 0] == 5.0
    assert np.isnan(first.table[0, 0])
    for number in range(50):  # arrays that die take their place in memory one after another
        table = np.full((4, 3), number, np.float32)
        assert (Rows(table, [0]).table == number).all()
        del table
        gc.collect(0)


def test_a_dtype_that_is_equal_but_not_the_same() -> None:
    other = np.dtype(np.int32, metadata={"from": "elsewhere"})
    numbers = np.array([0, 1], other)
    graph = InputGraph(np.array([0, 0, 1], other), numbers[:1], {"word": Rows(numbers, numbers)})
    batch = GraphBatch.from_graphs([graph] * 2).take(numbers[::-1]).take([1])
    assert [array.dtype.metadata for array in arrays_of(batch)] == [None] * 5
    assert values_of(batch.pulls["word"]) == [("int32", 0), ("int32", 1)]


def test_a_shared_table_is_joined_and_pickled_once() -> None:
    table = np.arange(2000.0).reshape(1000, 2)
    graphs = [InputGraph.chain(2, {"x": Rows(table, [k, -1])}) for k in range(3)]
    batch = GraphBatch.from_graphs(graphs)
    pull, whole = (each.pulls["x"] for each in (batch.take([2, 0]), batch))
    assert isinstance(pull, Rows)
    assert isinstance(whole, Rows)
    assert np.shares_memory(pull.table, whole.table)
    assert pull.index is not None
    assert (pull.table.shape, pull.index.tolist()) == ((1000, 2), [2, -1, 0, -1])
    text = pickle.dumps(graphs)
    assert len(text) < 1.5 * table.nbytes
    again: Any = GraphBatch.from_graphs(pickle.loads(text)).pulls["x"]
    assert again.table.shape == (1000, 2)


def test_one_line_says_what_there_is() -> None:
    pulls = {"word": [1, 2], "mark": Rows(TABLE, [0, -1]), "gain": Rows(np.ones(2))}
    assert repr(made(pulls)) == (
        "GraphBatch(1 graph, 2 vertices, 1 edge; pulls: word int32 [2], "
        "mark float32 [3, 2] with an index [2], gain float64 [2])"
    )
    graph = InputGraph.from_children([[], [0, -1]], None, {"kind": [4, 1]})
    assert repr(graph) == (
        "InputGraph(2 vertices, 1 edge, 1 missing; pulls: none; of edges: kind int32 [2])"
    )
    assert repr(Rows(TABLE)) == "Rows(float32 [3, 2] with rows by vertex)"


# Graphs that were taken are copied when they are looked at, and not before.


def pool() -> GraphBatch:
    chains = [InputGraph.chain(n, {"word": np.arange(n, dtype=np.int32)}) for n in (3, 1, 2, 5)]
    return GraphBatch.from_graphs(chains)


def copied(batch: GraphBatch) -> bool:
    """Tell whether a batch holds arrays; to ask for one would make it copy them."""
    return batch._fields is not None and len(batch._fields.child_ptr) > 0


def test_sizes_and_graphs_of_graphs_are_known_without_a_copy() -> None:
    batch = pool().take([3, 0, 2])
    assert (batch.num_graphs, batch.num_vertices, batch.num_edges, len(batch)) == (3, 10, 7, 3)
    assert [each.tolist() for each in starts_of(batch)] == [[0, 5, 8, 10], [0, 4, 6, 7]]
    inner = batch.take([2, 0])
    assert not copied(batch)
    assert not copied(inner)
    assert plain_graphs(inner) == plain_graphs(pool().take([2, 3]))
    assert copied(inner)
    assert not copied(batch)
    source, ids = source_of(inner)
    assert source is source_of(batch)[0]
    assert ids.tolist() == [2, 3]
    fill(batch)
    assert source_of(batch.take([1, 2]))[0] is source, "copied or not"


def test_a_batch_lives_as_long_as_what_was_taken_from_it() -> None:
    whole = pool()
    taken, dead = whole.take([0]), ref(whole)
    del whole
    fill(taken)
    gc.collect()
    assert dead() is source_of(taken)[0]
    del taken
    gc.collect()
    assert dead() is None


def test_graphs_of_a_pool_do_not_bring_it_along() -> None:
    """To another process, as one graph or as a batch of it."""
    before = {("a", "before", "a"): [(0, 1), (1, 2)]}
    pool = GraphBatch.from_graphs([InputGraph.from_types({"a": 3}, before)] * 500)
    taken = pool.take([7]).take([0])
    assert source_of(taken)[0] is pool
    found = pickle.loads(pickle.dumps(taken))
    assert source_of(found)[0] is found
    assert len(pickle.dumps(taken)) < 3000
    assert len(pickle.dumps(pool[7])) < 3000


def test_pulls_keep_their_order_whichever_is_looked_at_first() -> None:
    taken = pool().with_pulls({"x": np.ones(11)}).take([1, 3])
    assert np.asarray(taken.pulls["x"]).shape == (6,)
    assert [*taken.with_pulls({}).pulls] == ["word", "x"]


def test_threads_may_look_at_once() -> None:
    rng = np.random.default_rng(0)
    whole = GraphBatch.from_graphs([InputGraph.chain(int(n)) for n in rng.integers(1, 60, 300)])
    for _ in range(20):
        taken = whole.take(rng.integers(0, 300, 200))
        with ThreadPoolExecutor(4) as threads:
            looks = threads.map(lambda _, b=taken: b.child.sum() + b.child_ptr.sum(), range(8))
        assert len({*looks}) == 1


def test_rows_on_a_gpu_are_taken_by_their_numbers() -> None:
    rows = Lent(np.arange(22, dtype=np.float32).reshape(11, 2))
    pulled: Any = pool().with_pulls({"x": Rows(rows)}).take([1, 3]).pulls["x"]
    assert pulled.index.tolist() == [3, 6, 7, 8, 9, 10]
    assert len(pulled.table) == 11


# Types.


class Pulling(vrt.VertexFunction):
    """Pull a number, whole or real, under a name."""

    def __init__(self, name: str, dtype: str) -> None:
        super().__init__(state={})
        self.name, self.dtype = name, dtype

    def forward(self) -> None:
        whole = self.dtype == "int"
        x = self.pull_index(self.name) if whole else self.pull(self.name, shape=())
        self.push(f"own_{self.dtype}_{self.name}", x * 1.0)


class PullingBoth(vrt.Model):
    """Two types that pull under one name or two."""

    def __init__(self, name: str, dtype: str) -> None:
        self.a, self.b = Pulling("w", "int"), Pulling(name, dtype)


@pytest.mark.parametrize(("name", "dtype"), [("w", "int"), ("v", "int"), ("v", "float")])
@pytest.mark.parametrize(
    "nothing", [[], np.zeros(0, int), np.zeros((0, 3)), Rows(np.ones(4), np.zeros(0, int))]
)
def test_what_no_vertex_pulls_has_no_dtype(name: str, dtype: str, nothing: Any) -> None:
    """Of a type that a graph has no vertices of; before and after others, and alone (issue 52)."""

    def graph(count: int, given: Any) -> InputGraph:
        return types_of({}, {"a": {"w": [1, 2]}, "b": {name: given}}, a=2, b=count)

    net = vrt.compile(PullingBoth(name, dtype), device="reference")
    full, none = graph(1, np.array([3], dtype)), graph(0, nothing)
    for graphs in ([full, none], [none, full], [none], [none, none]):
        found = sum(value.sum() for value in net(GraphBatch.from_graphs(graphs)).values())
        assert found == sum(3.0 + 3.0 * (each is full) for each in graphs)
