"""Input graphs: constructors, what each keeps, and the text of every refusal."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from tests.strategies import ChildLists, chains, child_lists, dags, forests, input_graphs, trees
from vertexrt.errors import DataError, GraphError, PullError
from vertexrt.graph import InputGraph, Rows

ROOT = Path(__file__).resolve().parents[2]


def lists_of(graph: InputGraph) -> ChildLists:
    return [graph.children(v) for v in range(graph.num_vertices)]


@given(child_lists())
def test_child_lists_come_back(lists: ChildLists) -> None:
    graph = InputGraph.from_children(lists)
    assert lists_of(graph) == lists
    assert graph.num_vertices == len(lists)
    assert graph.num_edges == sum(map(len, lists))
    assert graph.child.dtype == graph.child_ptr.dtype == np.int32


@given(trees(ordered=True))
def test_trees_have_one_root(lists: ChildLists) -> None:
    children = [c for slots in lists for c in slots if c >= 0]
    assert sorted(children) == list(range(len(lists) - 1))


@given(forests(ordered=True))
def test_forests_have_at_most_one_parent(lists: ChildLists) -> None:
    children = [c for slots in lists for c in slots if c >= 0]
    assert len(children) == len(set(children))


@given(chains(ordered=True))
def test_chain_equals_its_child_lists(lists: ChildLists) -> None:
    assert lists_of(InputGraph.chain(len(lists))) == lists


@given(child_lists())
def test_edges_give_the_same_graph(lists: ChildLists) -> None:
    filled = [[c for c in slots if c >= 0] for slots in lists]
    edges = [(c, parent) for parent, slots in enumerate(filled) for c in slots]
    assert lists_of(InputGraph.from_edges(len(lists), edges)) == filled


@pytest.mark.parametrize(("leaves", "arity"), [(1, 2), (2, 2), (8, 2), (9, 3), (1, 3)])
def test_complete_tree(leaves: int, arity: int) -> None:
    graph = InputGraph.complete_tree(leaves, arity)
    assert graph.num_vertices == (leaves * arity - 1) // (arity - 1)
    below = np.zeros(graph.num_vertices, int)  # leaves under each vertex
    level = np.zeros(graph.num_vertices, int)
    for v in range(graph.num_vertices):
        children = graph.children(v)
        assert len(children) == (0 if v < leaves else arity)
        below[v] = sum(below[c] for c in children) if children else 1
        assert len({level[c] for c in children}) <= 1
        level[v] = level[children[0]] + 1 if children else 0
    assert below[-1] == leaves


def test_complete_tree_of_four() -> None:
    assert lists_of(InputGraph.complete_tree(4)) == [[], [], [], [], [0, 1], [2, 3], [4, 5]]


def test_brackets() -> None:
    tree = InputGraph.from_brackets("(3 (2 a) (4 (4 8\u00a01\\/2) (2 film)))")
    assert lists_of(tree.graph) == [[], [], [], [1, 2], [0, 3]]
    assert tree.words == ("a", "8\u00a01\\/2", "film")
    assert tree.leaves.tolist() == [0, 1, 2]
    assert np.asarray(tree.graph.pulls["label"]).tolist() == [2, 4, 2, 4, 3]


@pytest.mark.parametrize(("text", "count"), [("", 0), ("(1 a)\n(2 b)", 2)])
def test_brackets_must_be_one_tree(text: str, count: int) -> None:
    with pytest.raises(DataError, match=rf"^\[some.txt, line 7\] {count} trees; expected one;"):
        InputGraph.from_brackets(text, file="some.txt", line=7)


@given(input_graphs())
def test_networkx_and_back(graph: InputGraph) -> None:
    network = graph.to_networkx()
    names = [n for n in graph.pulls if any(n in attrs for _, attrs in network.nodes(data=True))]
    again = InputGraph.from_networkx(network, names)
    assert [_trimmed(slots) for slots in lists_of(graph)] == lists_of(again)
    for name in names:
        np.testing.assert_array_equal(np.asarray(graph.pulls[name]), np.asarray(again.pulls[name]))


def _trimmed(slots: list[int]) -> list[int]:
    """Drop trailing empty slots: networkx has no edge to show them."""
    while slots and slots[-1] == -1:
        slots = slots[:-1]
    return slots


def test_networkx_attributes_by_name() -> None:
    dag: Any = nx.DiGraph()
    dag.add_node("a", word=3, x=np.array([1.0, 2.0]))
    dag.add_node("b", x=np.array([3.0, 4.0]), y=0.5)
    dag.add_node("c", y=1.5)
    dag.add_edges_from([("b", "c"), ("a", "c")])
    graph = InputGraph.from_networkx(dag, ["word", "x", "y"])
    assert lists_of(graph) == [[], [], [1, 0]]
    assert np.asarray(graph.pulls["word"]).tolist() == [3, -1, -1]
    x, y = graph.pulls["x"], graph.pulls["y"]
    assert isinstance(x, Rows)
    assert isinstance(y, Rows)
    assert x.index is not None
    assert x.table.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert x.index.tolist() == [0, 1, -1]
    assert y.table.tolist() == [0.5, 1.5]
    assert InputGraph.from_networkx(graph.to_networkx(), ["x"]).pulls["x"] is not None


def test_networkx_refusals() -> None:
    undirected: Any = nx.Graph([(0, 1)])
    with pytest.raises(GraphError, match=r"^\[from_networkx\] a Graph; expected a DiGraph"):
        InputGraph.from_networkx(undirected)
    dag: Any = nx.MultiDiGraph()
    dag.add_edge(0, 2, slot=1)
    dag.add_edge(1, 2, slot=1)
    with pytest.raises(GraphError, match=r"the edge 1 -> 2 has the slot 1; expected whole"):
        InputGraph.from_networkx(dag)
    with pytest.raises(PullError, match=r"^\[from_networkx\] no node has the attribute 'word';"):
        InputGraph.from_networkx(nx.path_graph(3, nx.DiGraph), ["word"])
    with pytest.raises(GraphError, match=r"vertices 0 -> 2 -> 1 -> 0 form a cycle of 3"):
        InputGraph.from_networkx(nx.cycle_graph(3, nx.DiGraph))


@pytest.mark.parametrize(
    ("lists", "text"),
    [
        (
            [[], [2], [3, 0], [1]],
            "[input graph] the vertices 1 -> 2 -> 3 -> 1 form a cycle of 3, each with the next as"
            " its child; children are evaluated before their parents; remove an edge of the cycle,"
            " or unroll it: vrt.data.edges.rounds.",
        ),
        (
            [[1], [1]],
            "[input graph] the vertex 1 is its own child; children are evaluated before their"
            " parents; remove an edge of the cycle, or unroll it: vrt.data.edges.rounds.",
        ),
        (
            [[], [0, 4]],
            "[input graph] vertex 1 has the child 4; its graph has the vertices 0..1, and -1 is an"
            " empty slot; correct the child.",
        ),
        (
            [[], [-2]],
            "[input graph] vertex 1 has the child -2; its graph has the vertices 0..1, and -1 is"
            " an empty slot; correct the child.",
        ),
        ([], "[input graph] no vertices; expected at least one vertex; leave it out."),
    ],
)
def test_structure_is_refused(lists: ChildLists, text: str) -> None:
    with pytest.raises(GraphError) as caught:
        InputGraph.from_children(lists)
    assert str(caught.value) == text


@given(dags(max_vertices=8, ordered=True))
def test_any_cycle_is_found(lists: ChildLists) -> None:
    closed = [*lists, [len(lists) + 1], [len(lists)]]
    names = f"{len(lists)} -> {len(lists) + 1} -> {len(lists)}"
    with pytest.raises(GraphError, match=names):
        InputGraph.from_children(closed)


def test_a_long_cycle_is_shortened() -> None:
    lists = [[(v + 1) % 100] for v in range(100)]
    with pytest.raises(GraphError, match=r"0 -> 1 -> .* -> 7 -> \.\.\. -> 0 form a cycle of 100"):
        InputGraph.from_children(lists)


def test_offsets_and_dtypes_are_refused() -> None:
    child = np.array([0, 0])
    with pytest.raises(GraphError) as caught:
        InputGraph(np.array([0, 2, 1]), child)
    assert str(caught.value) == (
        "[input graph] child_ptr holds 0 ... 1; expected offsets that rise from 0 to the 2 slots;"
        " correct the offsets."
    )
    with pytest.raises(GraphError, match=r"child is float64 \[2\]; expected int32"):
        InputGraph(np.array([0, 0, 2]), np.array([0.0, 0.0]))
    with pytest.raises(GraphError, match="child has a whole number beyond 32 bits"):
        InputGraph(np.array([0, 0, 2]), np.array([0, 2**40]))


def test_edges_and_trees_are_refused() -> None:
    with pytest.raises(GraphError, match=r"edge 1 goes from 0 to the parent 5; the graph has the"):
        InputGraph.from_edges(2, [(0, 1), (0, 5)])
    with pytest.raises(GraphError, match=r"6 leaves and arity 2; .*; take 4 or 8 leaves\.$"):
        InputGraph.complete_tree(6)
    with pytest.raises(GraphError, match=r"no vertices; expected at least one"):
        InputGraph.chain(0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: InputGraph.chain("3"), "length is '3'; expected a whole number in 0..2147483646"),  # type: ignore[arg-type]
        (lambda: InputGraph.chain(-1), "length is -1; expected a whole number in"),
        (lambda: InputGraph.chain(2**40), "length is 1099511627776; expected a whole number in"),
        (lambda: InputGraph.chain(True), "length is True; expected"),
        (lambda: InputGraph.complete_tree(4, 2.0), "arity is 2.0; expected a whole number"),  # type: ignore[arg-type]
        (
            lambda: InputGraph.from_children([0, 1]),
            "the child lists are none (object of type 'int'",
        ),  # type: ignore[list-item]
        (lambda: InputGraph.from_children(None), "the child lists are none ("),  # type: ignore[arg-type]
        (lambda: InputGraph.from_edges(2, 5), "edges is an array []; expected pairs"),  # type: ignore[arg-type]
        (lambda: InputGraph.from_edges(2, [(0, 1, 1)]), "edges is an array [1, 3]; expected pairs"),  # type: ignore[list-item]
        (lambda: InputGraph.from_edges(2, [(0, 1), (0,)]), "edges is rows of unequal length;"),  # type: ignore[list-item]
        (lambda: InputGraph.from_edges(2, [(0, 0.5)]), "edges is float64 [2]; expected int32"),  # type: ignore[list-item]
        (lambda: InputGraph.chain(2).children(2), "vertex is 2; expected a whole number in 0..1"),
        (lambda: InputGraph.chain(2).children(-1), "vertex is -1; expected a whole number in"),
    ],
)
def test_what_is_no_graph_is_refused(make: Any, text: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert str(caught.value).startswith(f"[input graph] {text}")


@pytest.mark.parametrize(
    ("pull", "text"),
    [
        (np.zeros(2, int), "pull 'p' has [2]; expected [3, ...], one row a vertex"),
        (5, "pull 'p' has []; expected [3, ...], one row a vertex"),
        (np.zeros((3, 2), int), "pull 'p' has whole numbers of shape [3, 2]; expected [3]"),
        ([0, -4, 1], "pull 'p' has -4 at vertex 1; expected at least 0, or -1 where the vertex"),
        (
            ["a", "b", "c"],
            "pull 'p' has dtype <U1; expected rows of one shape, of whole numbers of 32",
        ),
        (
            [[1.0], [1.0, 2.0], [3.0]],
            "pull 'p' has rows of unequal length; expected rows of one shape",
        ),
        ([0, 0, 2**33], "pull 'p' has a whole number beyond 32 bits; expected rows of one"),
        (Rows(np.zeros((2, 4))), "a table of shape [2, 4] without an index; expected [3, ...]"),
        (
            Rows(np.zeros((2, 4)), np.array([0, 1], np.int32)),
            "an index int32 [2]; expected whole numbers [3]",
        ),
    ],
)
def test_pulls_are_refused(pull: Any, text: str) -> None:
    with pytest.raises(PullError) as caught:
        InputGraph.chain(3, {"p": pull})
    assert text in str(caught.value)
    assert str(caught.value).startswith("[input graph] ")
    assert str(caught.value).endswith(
        ("; correct the array.", "; number the words: vrt.data.from_records does.")
    )


def test_pulls_are_converted() -> None:
    graph = InputGraph.chain(2, {"a": [1, -1], "b": [[0.5], [1.5]], "c": np.zeros(2, np.float32)})
    assert [np.asarray(graph.pulls[n]).dtype for n in "abc"] == [np.int32, np.float64, np.float32]
    swapped = InputGraph.chain(2, {"d": np.array([0.5, 2.0], ">f4"), "e": np.array([3, 1], ">i8")})
    assert [np.asarray(swapped.pulls[n]).tolist() for n in "de"] == [[0.5, 2.0], [3, 1]]
    assert [np.asarray(swapped.pulls[n]).dtype for n in "de"] == [np.float32, np.int32]


def test_import_is_light() -> None:
    code = (
        "import sys, vertexrt.graph as g\n"
        "g.GraphBatch.from_graphs([g.InputGraph.chain(4)])\n"
        "print(sorted({'llvmlite', 'networkx', 'scipy'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
