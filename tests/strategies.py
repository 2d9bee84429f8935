"""Hypothesis strategies for the shapes of input: child lists, input graphs and graph batches.

Child lists are the plain form: `lists[v]` names the child in each slot of vertex v, -1 an empty
slot. Vertices are numbered in any order unless `ordered` asks for children before parents.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from vertexrt.graph import GraphBatch, InputGraph, Rows

ChildLists = list[list[int]]
Draw = Callable[[st.SearchStrategy[Any]], Any]

# A first call may compile, which takes longer than any deadline worth having.
settings.register_profile("vertexrt", deadline=None)
settings.load_profile("vertexrt")

WORDS = 7  # "word" pulls lie in 0..WORDS-1
CLASSES = 3  # "label" pulls lie in 0..CLASSES-1
MARK = 2  # elements of the real pull "mark"


def renumbered(lists: ChildLists, order: Sequence[int]) -> ChildLists:
    """Give vertex v the number order[v]."""
    moved: ChildLists = [[] for _ in lists]
    for vertex, children in enumerate(lists):
        moved[order[vertex]] = [order[child] if child >= 0 else -1 for child in children]
    return moved


def _placed(draw: Draw, lists: ChildLists, ordered: bool = False) -> ChildLists:
    if ordered:
        return lists
    return renumbered(lists, draw(st.permutations(range(len(lists)))))


@st.composite
def chains(draw: Draw, max_vertices: int = 12, ordered: bool = False) -> ChildLists:
    """Draw a chain: every vertex but the first has the one before it as its child."""
    length = draw(st.integers(1, max_vertices))
    return _placed(draw, [[v - 1] if v else [] for v in range(length)], ordered)


@st.composite
def forests(draw: Draw, max_vertices: int, arity: int) -> ChildLists:
    """Draw trees side by side: every vertex has at most one parent, with room left in its slots."""
    size = draw(st.integers(1, max_vertices))
    lists: ChildLists = [[] for _ in range(size)]
    for vertex in range(size - 1):
        room = [p for p in range(vertex + 1, size) if len(lists[p]) < arity]
        parent = draw(st.sampled_from([-1, *room]))
        if parent >= 0:
            lists[parent].append(vertex)
    _leave_slots_empty(draw, lists, arity)
    return _placed(draw, lists)


@st.composite
def trees(draw: Draw, max_vertices: int, arity: int) -> ChildLists:
    """Draw one tree: every vertex but the root has exactly one parent."""
    size = draw(st.integers(1, max_vertices))
    lists: ChildLists = [[] for _ in range(size)]
    for vertex in reversed(range(size - 1)):
        room = [p for p in range(vertex + 1, size) if len(lists[p]) < arity]
        lists[draw(st.sampled_from(room))].append(vertex)
    _leave_slots_empty(draw, lists, arity)
    return _placed(draw, lists)


@st.composite
def dags(draw: Draw, max_vertices: int = 10, arity: int = 3, ordered: bool = False) -> ChildLists:
    """Draw a graph without cycles: many parents, a child twice in one vertex, empty slots."""
    size = draw(st.integers(1, max_vertices))
    lists = [draw(st.lists(st.integers(-1, vertex - 1), max_size=arity)) for vertex in range(size)]
    return _placed(draw, lists, ordered)


def _leave_slots_empty(draw: Draw, lists: ChildLists, arity: int) -> None:
    for children in lists:
        room = arity - len(children)
        if room > 0 and draw(st.booleans()):
            children.insert(draw(st.integers(0, len(children))), -1)


def child_lists(max_vertices: int = 10, arity: int = 3) -> st.SearchStrategy[ChildLists]:
    """Draw a graph of any shape whose vertices have at most `arity` slots."""
    return st.one_of(
        chains(max_vertices),
        forests(max_vertices, arity),
        trees(max_vertices, arity),
        dags(max_vertices, arity),
    )


@st.composite
def input_graphs(draw: Draw) -> InputGraph:
    """Draw a graph that pulls whole numbers, "word" (under WORDS) and "label" (under CLASSES)."""
    lists = draw(child_lists())
    values = {
        name: np.array(
            draw(st.lists(st.integers(-1, bound - 1), min_size=len(lists), max_size=len(lists))),
            np.int32,
        )
        for name, bound in (("word", WORDS), ("label", CLASSES))
    }
    return InputGraph.from_children(lists, values)


@st.composite
def graph_batches(draw: Draw) -> GraphBatch:
    """Draw 1 to 4 input graphs side by side."""
    return GraphBatch.from_graphs(draw(st.lists(input_graphs(), min_size=1, max_size=4)))


def one_graph(
    children: ChildLists, pulls: Mapping[str, Any] | None = None, *edge_pulls: Any, **edges: Any
) -> GraphBatch:
    """Make a batch of one graph, see `InputGraph.from_children`."""
    graph = InputGraph.from_children(children, pulls or {}, *edge_pulls, **edges)
    return GraphBatch.from_graphs([graph])


def one_typed(*given: Any, **more: Any) -> GraphBatch:
    """Make a batch of one graph, see `InputGraph.from_types`."""
    return GraphBatch.from_graphs([InputGraph.from_types(*given, **more)])


def one_chain(length: int, pulls: Mapping[str, Any] | None = None) -> GraphBatch:
    """Make a batch of one chain."""
    return GraphBatch.from_graphs([InputGraph.chain(length, pulls or {})])


def pulls_for(size: int, seed: int) -> dict[str, Any]:
    """Draw every pull that the vertex functions of tests/functions.py know, some of it absent.

    `word` and `label` are whole numbers, `mark` [2] and `target` [1] rows of a table through an
    index map, `gain` one number a vertex.
    """
    rng = np.random.default_rng(seed)

    def some(bound: int) -> np.ndarray:
        return np.where(rng.random(size) < 0.6, rng.integers(bound, size=size), -1).astype(np.int32)

    return {
        "word": some(WORDS),
        "label": some(CLASSES),
        "mark": Rows(rng.standard_normal((4, MARK)), some(4)),
        "target": Rows(rng.standard_normal((3, 1)), some(3)),
        "gain": rng.standard_normal(size),
    }


@st.composite
def full_batches(draw: Draw, arity: int, max_vertices: int = 9, max_graphs: int = 3) -> GraphBatch:
    """Draw graphs whose vertices have at most `arity` slots, with every pull of `pulls_for`."""
    shapes = child_lists(max_vertices, arity) if arity > 1 else chains(max_vertices)
    several = draw(st.lists(shapes, min_size=1, max_size=max_graphs))
    seed = draw(st.integers(0, 999))
    return GraphBatch.from_graphs(
        [
            InputGraph.from_children(lists, pulls_for(len(lists), seed + k))
            for k, lists in enumerate(several)
        ]
    )


def with_pulls(shapes: Iterable[ChildLists], seed: int = 0) -> GraphBatch:
    """Make a graph of each shape, with pulls of its own."""
    return GraphBatch.from_graphs(
        [
            InputGraph.from_children(lists, pulls_for(len(lists), seed + k))
            for k, lists in enumerate(shapes)
        ]
    )


def joined(rng: np.random.Generator, leaves: int) -> ChildLists:
    """Join random neighbours, until one root is left."""
    lists: ChildLists = [[] for _ in range(leaves)]
    roots = list(range(leaves))
    while len(roots) > 1:
        at = int(rng.integers(len(roots) - 1))
        lists.append(roots[at : at + 2])
        roots[at : at + 2] = [len(lists) - 1]
    return lists
