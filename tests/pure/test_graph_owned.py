"""What has been checked cannot change: graphs, batches and pulls own memory that is read-only."""

import copy
import dataclasses
import gc
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from vertexrt.errors import GraphError, PullError
from vertexrt.graph import GraphBatch, InputGraph, Rows, parse_brackets

TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)


def given() -> dict[str, Any]:
    """Return foreign arrays of every form of a batch: structure and pulls."""
    return {
        "graph_ptr": np.array([0, 2, 3], np.int32),
        "child_ptr": np.array([0, 0, 1, 1], np.int32),
        "child": np.array([0], np.int32),
        "word": np.array([1, 2, 0], np.int32),
        "gain": np.ones(3, np.float32),
        "table": TABLE.copy(),
        "index": np.array([0, -1, 2], np.int32),
    }


def batch_of(arrays: dict[str, Any]) -> GraphBatch:
    pulls = {
        "word": arrays["word"],
        "gain": arrays["gain"],
        "mark": Rows(arrays["table"], arrays["index"]),
        "rows": Rows(arrays["gain"]),
    }
    return GraphBatch(arrays["graph_ptr"], arrays["child_ptr"], arrays["child"], pulls)


def arrays_of(batch: GraphBatch | InputGraph) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(batch, GraphBatch):
        yield batch.graph_ptr
    yield batch.child_ptr
    yield batch.child
    for pull in batch.pulls.values():
        for array in (pull.table, pull.index) if isinstance(pull, Rows) else (pull,):
            if array is not None:
                yield array


def contents(batch: GraphBatch | InputGraph) -> list[Any]:
    return [array.tolist() for array in arrays_of(batch)]


BATCHES = 10  # not made when tests are collected: their first use compiles


def every_batch() -> list[GraphBatch | InputGraph]:
    batch = batch_of(given())
    pulls = {"word": np.arange(2), "gain": np.ones(2), "mark": Rows(TABLE, np.array([1, -1]))}
    graphs = [InputGraph.chain(2, pulls) for _ in range(2)]
    return [
        batch,
        batch.take([1, 0, 1]),
        graphs[0],
        GraphBatch.from_graphs(graphs),
        GraphBatch.from_graphs(graphs).take(np.array([1])),
        GraphBatch.from_arrays([0, 2], [0, 0, 1], [0], {"word": [1, 2]}),
        pickle.loads(pickle.dumps(batch)),
        copy.copy(batch),
        copy.deepcopy(batch),
        dataclasses.replace(batch, pulls={"word": np.arange(3)}),
    ]


def test_a_buffer_that_is_used_again_changes_nothing() -> None:
    arrays = given()
    batch = batch_of(arrays)
    before = contents(batch)
    for array in arrays.values():
        array[...] = 77
    assert contents(batch) == before


def test_a_read_only_view_of_a_buffer_is_copied() -> None:
    base = np.array([0, 0, 1], np.int32)
    view = base[:]
    view.flags.writeable = False
    graph = InputGraph(view, np.array([0]), {"word": view[1:]})
    base[...] = 77
    assert graph.child_ptr.tolist() == [0, 0, 1]
    assert np.asarray(graph.pulls["word"]).tolist() == [0, 1]


@pytest.mark.parametrize("number", range(BATCHES))
def test_nothing_can_be_made_writable(number: int) -> None:
    batches = every_batch()
    assert len(batches) == BATCHES
    batch = batches[number]
    for array in arrays_of(batch):
        base: Any = array
        while isinstance(base, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                base[...] = 0
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                base.flags.writeable = True
            base = base.base
        assert type(base) is bytes
    with pytest.raises(TypeError):
        batch.pulls["word"] = np.zeros(9)  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.child = np.zeros(9)  # type: ignore[misc,assignment]


@pytest.mark.filterwarnings("ignore:Setting the")
def test_shape_and_dtype_set_in_place_change_nothing() -> None:
    batch = batch_of(given())
    graph = InputGraph.chain(4, {"word": np.arange(4)})
    sources: list[GraphBatch | InputGraph] = [batch, batch.take([0, 1]), graph]
    for source in sources:
        before = contents(source)
        for array in arrays_of(source):
            base: Any = array
            while isinstance(base, np.ndarray):
                base.shape = (-1, 1)
                base.dtype = np.uint8
                base = base.base
        assert contents(source) == before
        assert contents(GraphBatch.from_graphs([source]) if source is graph else source) != []


def test_copies_and_pickles_are_equal() -> None:
    batch = batch_of(given())
    for other in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        assert contents(other) == contents(batch)
        assert list(other.pulls) == list(batch.pulls)
    graph = InputGraph.chain(3, {"word": np.arange(3)})
    assert contents(pickle.loads(pickle.dumps(graph))) == contents(graph)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"child": np.array([900000])}, "vertex 1 has the child 900000"),
        ({"child": np.array([2])}, "vertex 1 has the child 2"),  # of the other graph
        ({"child_ptr": np.array([0, 0, 2, 1])}, "child_ptr holds 0 ... 1"),
        # Every difference of these wraps around to a positive int32; their sum is 2**32 + 1.
        ({"child_ptr": np.array([0, 2**31 - 1, 1000 - 2**31, 1])}, "child_ptr holds 0 ... 1"),
        ({"graph_ptr": np.array([0, 2, 4])}, "graph_ptr holds 0 ... 4"),
        ({"child": np.array([1])}, "vertex 1 is its own child"),
        ({"pulls": {"word": np.arange(2)}}, "pull 'word' has [2]; expected [3"),
        ({"pulls": {"word": np.array([2**32 + 3, 0, 0])}}, "a whole number beyond 32 bits"),
        ({"pulls": {3: np.zeros(3)}}, "a pull is called 3; expected text"),
        ({"pulls": [np.zeros(3)]}, "the pulls are a list; expected arrays by name"),
    ],
)
def test_every_way_to_make_a_batch_checks(changes: dict[str, Any], text: str) -> None:
    batch = batch_of(given())
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch) if f.init} | changes
    forged = object.__new__(GraphBatch)
    makers = [
        lambda: GraphBatch(**fields),
        lambda: GraphBatch.from_arrays(**fields),
        lambda: dataclasses.replace(batch, **changes),
        lambda: forged.__setstate__(list(fields.values())),  # as an older pickle does
    ]
    for make in makers:
        with pytest.raises((GraphError, PullError)) as caught:
            make()
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("values", "index", "text"),
    [
        (TABLE, [0, 3], "[Rows] row 3 at vertex 1; expected rows 0..2, or -1 where"),
        (TABLE, [0.0, 1.0], "[Rows] an index float64 [2]; expected whole numbers [V]"),
        (TABLE, [[0, 1]], "[Rows] an index int32 [1, 2]; expected whole numbers [V]"),
        (TABLE, [-2], "[Rows] row -2 at vertex 0; expected rows 0..2"),
        (np.float64(1.0), [0], "[Rows] a table of shape []; expected [N, ...], one row a value"),
        (np.array([0, -7]), None, "[Rows] -7 at row 1; expected at least 0, or -1 where the row"),
        ("abc", None, "[Rows] dtype <U3; expected rows of one shape, of whole numbers of 32"),
        (np.ma.masked_equal([1.0, 2.0], 2.0), None, "[Rows] a masked array, whose mask would be"),
        (np.zeros(3, [("a", "i4")]), None, "[Rows] dtype [('a', '<i4')]; expected rows of"),
        (np.array([True, False]), None, "[Rows] dtype bool; expected rows of one shape"),
    ],
)
def test_tables_are_checked_when_they_are_given(values: Any, index: Any, text: str) -> None:
    with pytest.raises(PullError) as caught:
        Rows(values, index)
    assert str(caught.value).startswith(text)


def test_graphs_that_are_given_the_same_table_share_a_copy() -> None:
    table = np.array([[np.nan, 1.0], [2.0, 3.0]])
    first, second = Rows(table, [0]), Rows(table, [1])
    assert np.shares_memory(first.table, second.table)
    assert not np.shares_memory(first.table, table)
    assert np.shares_memory(Rows(first.table, [1, 0]).table, first.table)
    table[0, 0] = 5.0
    third = Rows(table, [0])
    assert not np.shares_memory(third.table, first.table)
    assert third.table[0, 0] == 5.0
    assert np.isnan(first.table[0, 0])


def test_a_dtype_that_is_equal_but_not_the_same() -> None:
    other = np.dtype(np.int32, metadata={"from": "elsewhere"})
    assert other == np.int32
    table = np.arange(3, dtype=other)
    pulls = {"word": Rows(table, np.array([2, 0], other)), "label": np.array([1, 0], other)}
    graphs = [InputGraph(np.array([0, 0, 1], other), np.array([0], other), pulls)] * 2
    batch = GraphBatch.from_graphs(graphs).take(np.array([1, 0], other)).take([1])
    assert [array.dtype.metadata for array in arrays_of(batch)] == [None] * 6
    assert contents(batch) == [[0, 2], [0, 0, 1], [0], [0, 1, 2], [2, 0], [1, 0]]


def test_a_shared_table_is_joined_and_pickled_once() -> None:
    table = np.arange(2000.0).reshape(1000, 2)
    graphs = [InputGraph.chain(2, {"x": Rows(table, [k, -1])}) for k in range(3)]
    batch = GraphBatch.from_graphs(graphs)
    pull = batch.take([2, 0]).pulls["x"]
    assert isinstance(pull, Rows)
    assert pull.index is not None
    assert (pull.table.shape, pull.index.tolist()) == ((1000, 2), [2, -1, 0, -1])
    text = pickle.dumps(graphs)
    assert len(text) < 1.5 * table.nbytes
    again = GraphBatch.from_graphs(pickle.loads(text))
    assert contents(again) == contents(batch)


def test_a_table_of_an_address_that_is_used_again() -> None:
    for number in range(50):  # arrays that die take their place in memory one after another
        table = np.full((4, 3), number, np.float32)
        assert (Rows(table, [0]).table == number).all()
        del table
        gc.collect(0)


def test_more_rows_than_int32_can_number() -> None:
    whole = GraphBatch.from_graphs([InputGraph.chain(100_000)])
    with pytest.raises(GraphError, match=r"^\[take\] 2500000000 vertices with 2499975000 slots;"):
        whole.take(np.zeros(25_000, np.int32))
    wide = [InputGraph.chain(1, {"x": Rows(np.zeros((2**30 + k, 0)), [k])}) for k in (0, 1)]
    with pytest.raises(PullError, match=r"the tables of pull 'x' have 2147483649 rows together"):
        GraphBatch.from_graphs(wide)
    huge = np.broadcast_to(np.float32(1.0), (3, 2**48))
    with pytest.raises(PullError, match=r"844424930131968 elements, which memory does not hold"):
        InputGraph.chain(3, {"x": huge})


def test_from_graphs_says_what_it_takes() -> None:
    graph = InputGraph.chain(2)
    tree = InputGraph.from_brackets("(1 (0 a) (1 b))")
    cases: list[tuple[Any, str]] = [
        (graph, "a InputGraph; expected a list of InputGraph; pass a list of graphs."),
        ([graph, tree], "graph 1 is a BracketTree; expected a list of InputGraph; pass the attr"),
        ([parse_brackets("(1 a)")], "graph 0 is a BracketForest; expected a list of InputGraph;"),
        (3, "a int; expected a list of InputGraph; make each an InputGraph, and pass a list"),
        (
            [GraphBatch.from_graphs([graph])],
            "graph 0 is a GraphBatch; expected a list of InputGraph; pass the batch itself",
        ),
    ]
    for graphs, text in cases:
        with pytest.raises(GraphError) as caught:
            GraphBatch.from_graphs(graphs)
        assert str(caught.value).startswith(f"[graph batch] {text}")
    assert GraphBatch.from_graphs(g for g in [graph, tree.graph.__class__.chain(1)]).num_graphs == 2


def test_one_line_says_what_a_batch_holds() -> None:
    batch = batch_of(given())
    assert repr(batch) == (
        "GraphBatch(2 graphs, 3 vertices, 1 edge; pulls: word int32 [3], "
        "gain float32 [3], mark float32 [3, 2] with an index [3], rows float32 [3])"
    )
    graph = InputGraph.from_children([[], [0, -1]])
    assert repr(graph) == "InputGraph(2 vertices, 1 edge, 1 missing; pulls: none)"
    assert repr(Rows(TABLE)) == "Rows(float32 [3, 2] with rows by vertex)"
    assert repr(batch.pulls["mark"]) == "Rows(float32 [3, 2] with an index [3])"
