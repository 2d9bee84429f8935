"""Graph batches: joining, taking and splitting keep every graph whole."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import ChildLists, graph_batches, input_graphs
from vertexrt.errors import GraphError, PullError
from vertexrt.graph import GraphBatch, InputGraph, PullValue, Rows


def graph_at(batch: GraphBatch, number: int) -> tuple[ChildLists, dict[str, object]]:
    """Return child lists and pulled values of one graph, numbered from 0, the slow way."""
    first, end = batch.graph_ptr[number : number + 2].tolist()
    lists = [
        [int(c) - first if c >= 0 else -1 for c in batch.child[slice(*batch.child_ptr[v : v + 2])]]
        for v in range(first, end)
    ]
    return lists, {name: _rows(pull, first, end) for name, pull in batch.pulls.items()}


def _rows(pull: PullValue, first: int, end: int) -> list[object]:
    if not isinstance(pull, Rows):
        return list(pull[first:end].tolist())
    index = np.arange(first, end) if pull.index is None else pull.index[first:end]
    return [pull.table[row].tolist() if row >= 0 else None for row in index]


def same_type(a: GraphBatch, b: GraphBatch) -> bool:
    arrays = ("graph_ptr", "child_ptr", "child")
    return all(getattr(a, n).dtype == getattr(b, n).dtype == np.int32 for n in arrays)


@given(st.lists(input_graphs(), min_size=1, max_size=4))
def test_from_graphs_keeps_every_graph(graphs: list[InputGraph]) -> None:
    batch = GraphBatch.from_graphs(graphs)
    assert batch.num_graphs == len(graphs)
    for number, graph in enumerate(graphs):
        lists, pulls = graph_at(batch, number)
        assert lists == [graph.children(v) for v in range(graph.num_vertices)]
        assert pulls == {n: np.asarray(p).tolist() for n, p in graph.pulls.items()}
    again = GraphBatch.from_arrays(batch.graph_ptr, batch.child_ptr, batch.child, batch.pulls)
    assert again.num_vertices == batch.num_vertices
    assert again.num_edges == batch.num_edges == len(batch.child)


@given(graph_batches(), st.data())
def test_take_equals_one_graph_at_a_time(batch: GraphBatch, data: st.DataObject) -> None:
    ids = data.draw(
        st.lists(st.integers(0, batch.num_graphs - 1), min_size=1, max_size=2 * batch.num_graphs)
    )
    taken = batch.take(ids)
    assert taken.num_graphs == len(ids)
    assert same_type(taken, batch)
    for to, number in enumerate(ids):
        assert graph_at(taken, to) == graph_at(batch, number)
    GraphBatch.from_arrays(taken.graph_ptr, taken.child_ptr, taken.child, taken.pulls)


@given(graph_batches(), st.data())
def test_an_index_is_that_of_a_list_of_graphs(batch: GraphBatch, data: st.DataObject) -> None:
    """Judged by a list with as many elements, and by the slow way to read one graph."""
    count = len(batch)
    numbers = list(range(count))
    some = st.lists(st.integers(-count, count - 1), min_size=1, max_size=4)
    key = data.draw(st.integers(-count, count - 1) | st.slices(count) | some)
    if isinstance(key, int):
        one = GraphBatch.from_graphs([batch[key]])
        assert graph_at(one, 0) == graph_at(batch, numbers[key])
        return
    chosen = numbers[key] if isinstance(key, slice) else [numbers[k] for k in key]
    if not chosen:
        with pytest.raises(GraphError, match=r"^\[take\] no graph;"):
            batch[key]
        return
    found = batch[key]
    assert [graph_at(found, k) for k in range(len(found))] == [graph_at(batch, k) for k in chosen]
    mask = np.isin(numbers, chosen)
    assert len(batch[mask]) == mask.sum()


@given(st.lists(graph_batches(), min_size=1, max_size=3))
def test_concat_keeps_every_graph(batches: list[GraphBatch]) -> None:
    joined = GraphBatch.concat(batches)
    graphs = [graph for batch in batches for graph in batch]
    assert len(joined) == len(graphs)
    expected = GraphBatch.from_graphs(graphs)
    assert same_type(joined, expected)
    for number in range(len(joined)):
        assert graph_at(joined, number) == graph_at(expected, number)
    GraphBatch.from_arrays(joined.graph_ptr, joined.child_ptr, joined.child, joined.pulls)


def test_edges_keep_their_values() -> None:
    graphs = [
        InputGraph.from_edges(3, [(2, 1), (0, 1)], None, {"w": [k + 0.5, k + 0.25]})
        for k in range(3)
    ]
    batch = GraphBatch.from_graphs(graphs)
    assert np.asarray(batch[2].edge_pulls["w"]).tolist() == [2.5, 2.25]
    joined = GraphBatch.concat([batch[[2]], batch[:1]])
    assert np.asarray(joined.edge_pulls["w"]).tolist() == [2.5, 2.25, 0.5, 0.25]


def test_concat_of_types_and_of_what_differs() -> None:
    letters = InputGraph.from_types({"letter": 2}, {("letter", "before", "letter"): [(0, 1)]})
    words = InputGraph.from_types({"word": 1, "letter": 1}, {("letter", "in", "word"): [(0, 0)]})
    joined = GraphBatch.concat([GraphBatch.from_graphs([letters]), GraphBatch.from_graphs([words])])
    assert joined.types is not None
    assert joined.types.names == ("letter", "word")
    assert joined.of_type("letter").tolist() == [0, 1, 3]
    assert joined.types.relations == ("before", "in")
    assert joined.types.of_edge.tolist() == [0, 1]
    assert [graph.types.names for graph in joined if graph.types] == [("letter", "word")] * 2
    a, b = (GraphBatch.from_graphs([InputGraph.chain(2, p)]) for p in ({"x": [1, 2]}, {}))
    with pytest.raises(PullError, match=r"^\[batch 1\] no pull 'x'; batch 0 has it; give every b"):
        GraphBatch.concat([a, b])
    for wrong in ([], a, [letters], None):
        with pytest.raises(
            GraphError, match=r"^\[concat\] (no batch|(batch 0 is )?a \w+); expected a"
        ):
            GraphBatch.concat(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["x", 1.5, [True], None, slice("a", None), 2, [[0]]])
def test_an_index_that_is_none(key: Any) -> None:
    batch = GraphBatch.from_graphs([InputGraph.chain(2), InputGraph.chain(3)])
    with pytest.raises(GraphError, match=r"^\[take\] .*; the batch has the graphs 0\.\.1; give a"):
        batch[key]


@given(graph_batches())
def test_roots_and_graph_of(batch: GraphBatch) -> None:
    assert batch.roots.tolist() == sorted(
        set(range(batch.num_vertices)) - set(batch.child.tolist())
    )
    for vertex, number in enumerate(batch.graph_of.tolist()):
        assert batch.graph_ptr[number] <= vertex < batch.graph_ptr[number + 1]
    assert batch.sizes().sum() == batch.num_vertices


def test_take_pulls_of_every_form() -> None:
    table = np.arange(6.0).reshape(3, 2)
    graphs = [
        InputGraph.chain(
            n,
            {
                "whole": np.arange(n),
                "vector": np.full((n, 2, 3), n, np.float32),
                "scalar": np.full(n, 0.5 + n),
                "table": Rows(table, np.full(n, n % 3, np.int32)),
                "rows": Rows(np.full((n, 2), n, np.float64)),
                "own": Rows(np.full((1, 1), n, np.float32), np.array([0] + [-1] * (n - 1))),
                "empty": np.zeros((n, 0)),
            },
        )
        for n in (3, 1, 4)
    ]
    batch = GraphBatch.from_graphs(graphs)
    own, shared = batch.pulls["own"], batch.pulls["table"]
    assert isinstance(own, Rows)
    assert isinstance(shared, Rows)
    assert own.index is not None
    assert own.index.tolist() == [0, -1, -1, 1, 2, -1, -1, -1]
    assert own.table.tolist() == [[3.0], [1.0], [4.0]]
    assert shared.table.tolist() == table.tolist()
    taken = batch.take(np.array([2, 0]))
    assert graph_at(taken, 0) == graph_at(batch, 2)
    assert graph_at(taken, 1) == graph_at(batch, 0)
    vector = taken.pulls["vector"]
    assert isinstance(vector, np.ndarray)
    assert vector.shape == (7, 2, 3)
    assert vector.dtype == np.float32
    taken_table = taken.pulls["table"]
    assert isinstance(taken_table, Rows)
    assert np.shares_memory(taken_table.table, shared.table)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], "[take] no graph; the batch has the graphs 0..1; give a row of their numbers."),
        ([0, 2], "[take] graph 2; the batch has the graphs 0..1; give a row of their numbers."),
        ([-1], "[take] graph -1; the batch has the graphs 0..1; give a row of their numbers."),
        ([2**32], "[take] graph 4294967296; the batch has the graphs 0..1; give a row of their"),
        ([0.5], "[take] graph numbers of dtype float64; the batch has the graphs 0..1; give a"),
        ([[0]], "[take] graph numbers with 2 axes; the batch has the graphs 0..1; give a row of"),
    ],
)
def test_take_refuses(ids: Any, text: str) -> None:
    batch = GraphBatch.from_graphs([InputGraph.chain(2), InputGraph.chain(3)])
    with pytest.raises(GraphError) as caught:
        batch.take(ids)
    assert str(caught.value).startswith(text)


def test_from_graphs_refuses() -> None:
    with pytest.raises(GraphError, match=r"^\[graph batch\] no graph; expected at least one;"):
        GraphBatch.from_graphs([])
    a = InputGraph.chain(2, {"word": [0, 1], "label": [1, 1]})
    b = InputGraph.chain(2, {"word": [0, 1]})
    with pytest.raises(PullError) as caught:
        GraphBatch.from_graphs([a, b])
    assert str(caught.value) == (
        "[graph 1] no pull 'label'; graph 0 has it; give every graph the same pulls."
    )
    with pytest.raises(PullError, match=r"^\[graph 1\] a pull 'label'; graph 0 has none;"):
        GraphBatch.from_graphs([b, a])
    c = InputGraph.chain(2, {"word": Rows(np.zeros((1, 3)), np.array([0, -1], np.int32))})
    with pytest.raises(PullError) as caught:
        GraphBatch.from_graphs([b, b, c])
    assert str(caught.value) == (
        "[graph 2] pull 'word' is float64 [N, 3] with an index; in graph 0 it is int32 [V];"
        " give every graph the same form, shape and dtype."
    )


def test_a_graph_of_no_values_is_none_of_an_array_of_reals() -> None:
    """An array has a row for each vertex; whole numbers, and rows by an index, may be absent."""
    nothing = InputGraph.chain(1, {"x": Rows(np.zeros(0), [-1])})
    reals = InputGraph.chain(2, {"x": [0.5, 1.5]})
    for graphs in ([reals, nothing], [nothing, reals]):
        with pytest.raises(
            PullError, match=r"pull 'x' is float64 \[N\] with an index; in graph \d"
        ):
            GraphBatch.from_graphs(graphs)


def test_from_arrays_names_the_graph() -> None:
    graph_ptr, child_ptr = [0, 2, 5], [0, 0, 1, 2, 3, 4]
    GraphBatch.from_arrays(graph_ptr, child_ptr, [0, 4, 2, -1])
    with pytest.raises(GraphError) as caught:
        GraphBatch.from_arrays(graph_ptr, child_ptr, [0, 4, 2, 3])
    assert str(caught.value).startswith("[graph 1] the vertices 2 -> 4 -> 3 -> 2 form a cycle of 3")
    with pytest.raises(GraphError) as caught:
        GraphBatch.from_arrays(graph_ptr, child_ptr, [0, 1, 2, -1])
    assert str(caught.value).startswith(
        "[graph 1] vertex 2 has the child 1; its graph has the vertices 2..4, and -1"
    )
    with pytest.raises(GraphError, match=r"^\[graph batch\] graph 1 is empty; expected at least"):
        GraphBatch.from_arrays([0, 2, 2, 5], child_ptr, [0, -1, 2, 3])
    with pytest.raises(GraphError, match=r"graph_ptr holds 0 \.\.\. 4; expected offsets that rise"):
        GraphBatch.from_arrays([0, 2, 4], child_ptr, [0, -1, 2, 3])
    with pytest.raises(PullError, match=r"^\[graph batch\] pull 'x' has \[4\]; expected \[5, "):
        GraphBatch.from_arrays(graph_ptr, child_ptr, [0, -1, 2, 3], {"x": np.zeros(4)})
