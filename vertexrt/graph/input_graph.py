"""One input graph: which vertices read the state of which, and what they pull from outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DataError, GraphError
from vertexrt.graph.brackets import parse_brackets
from vertexrt.graph.checks import check_structure, count_of, int32_array, pairs_of
from vertexrt.graph.networks import read_networkx, write_networkx
from vertexrt.graph.owned import hand_out, view_of
from vertexrt.graph.pulls import Pulls, PullValue, check_pulls, describe_all, ordered_pulls
from vertexrt.graph.types import VertexTypes, check_types, read_typed

if TYPE_CHECKING:
    import networkx

IntArray = npt.NDArray[np.int32]

_WHERE = "input graph"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InputGraph:
    """Hold one graph as CSR arrays; vertices keep the user's order.

    The state of a child flows to its parents; a vertex may have many parents. A slot is a position
    in a vertex's child list. Construction checks everything and copies arrays to their dtypes, into
    read-only memory: neither the graph nor its pulls change later.

    Attributes:
        child_ptr: int32 [V+1], first slot of each vertex in `child`.
        child: int32 [E], the child in each slot, -1 in an empty one.
        pulls: by name, int32 [V] (-1: absent), floats [V, *shape], or `Rows`.
        types: of vertices and edges, for a network of several functions: see `from_types`.
        edge_pulls: by name, values for each edge, in the order of `child`; forms as of `pulls`.
    Raises: GraphError, on a child out of range, a cycle (its vertices are named), bad offsets, or
        no vertex at all; PullError, on a pulled array that does not fit.
    """

    child_ptr: IntArray
    child: IntArray
    pulls: Mapping[str, PullValue] = field(default_factory=dict)
    types: VertexTypes | None = None
    edge_pulls: Mapping[str, PullValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        child_ptr = int32_array(self.child_ptr, "child_ptr", _WHERE)
        child = int32_array(self.child, "child", _WHERE)
        graph_ptr = np.array([0, max(len(child_ptr) - 1, 0)], np.int32)
        check_structure(graph_ptr, child_ptr, child, _WHERE)
        object.__setattr__(self, "child_ptr", child_ptr)
        object.__setattr__(self, "child", child)
        object.__setattr__(self, "pulls", check_pulls(held_pulls(self), len(child_ptr) - 1, _WHERE))
        types = check_types(self.types, len(child_ptr) - 1, len(child), _WHERE)
        object.__setattr__(self, "types", types)
        of_edges = check_pulls(held_edge_pulls(self), len(child), _WHERE, "edge")
        object.__setattr__(self, "edge_pulls", of_edges)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(self.pulls), self.types, dict(self.edge_pulls)
        return InputGraph, (self.child_ptr, self.child, *fields)

    def __setstate__(self, state: Sequence[Any]) -> None:
        InputGraph.__init__(self, *state)

    def __repr__(self) -> str:
        slots = f"{self.num_edges} slots ({int((self.child >= 0).sum())} children)"
        pulls = describe_all(self.pulls)
        if self.edge_pulls:
            pulls += f"; of edges: {describe_all(self.edge_pulls)}"
        return f"InputGraph({self.num_vertices} vertices, {slots}; pulls: {pulls})"

    @property
    def num_vertices(self) -> int:
        """Return V."""
        return len(self.child_ptr) - 1

    @property
    def num_edges(self) -> int:
        """Return E, the number of slots, empty ones included."""
        return len(self.child)

    def children(self, vertex: int) -> list[int]:
        """Return the child in each slot of a vertex, -1 in an empty slot.

        Raises: GraphError, when the graph has no such vertex.
        """
        at = count_of(vertex, "vertex", _WHERE, self.num_vertices - 1)
        children: list[int] = self.child[self.child_ptr[at] : self.child_ptr[at + 1]].tolist()
        return children

    @classmethod
    def from_children(
        cls,
        lists: Sequence[Sequence[int]],
        pulls: Mapping[str, Any] | None = None,
        edge_pulls: Mapping[str, Any] | None = None,
    ) -> InputGraph:
        """Build a graph from the child list of each vertex, -1 in an empty slot.

        Args:
            edge_pulls: by name, a row for each slot, list after list.

        Raises: GraphError and PullError, as the class does.
        """
        try:
            child_ptr = np.cumsum([0, *map(len, lists)])
            child = [child for slots in lists for child in slots]
        except TypeError as error:
            got = f"the child lists are none ({error})"
            expected = "expected one list of children a vertex"
            raise GraphError.at(_WHERE, got, expected, "write [] for no child") from error
        of_edges = {} if edge_pulls is None else edge_pulls
        array = int32_array(child, "child", _WHERE)
        return cls(child_ptr, array, {} if pulls is None else pulls, None, of_edges)

    @classmethod
    def from_edges(
        cls,
        num_vertices: int,
        edges: Iterable[tuple[int, int]],
        pulls: Mapping[str, Any] | None = None,
        edge_pulls: Mapping[str, Any] | None = None,
    ) -> InputGraph:
        """Build a graph from (child, parent) pairs; a parent's slots fill in the order given.

        Args:
            edge_pulls: by name, a row for each pair.
        Raises: GraphError, also when a parent is out of range; PullError, as the class does.
        """
        count = count_of(num_vertices, "num_vertices", _WHERE)
        listed = isinstance(edges, Iterable) and not isinstance(edges, np.ndarray)
        given = list(edges) if listed else edges
        pairs = pairs_of(given, "edges", "is", "expected pairs (child, parent)", _WHERE)
        child, parent = pairs[:, 0], pairs[:, 1]
        wrong = (parent < 0) | (parent >= count)
        if wrong.any():
            number = int(np.argmax(wrong))
            raise GraphError.at(
                _WHERE,
                f"edge {number} goes from {child[number]} to the parent {parent[number]}",
                f"the graph has the vertices 0..{count - 1}",
                "correct the edge",
            )
        child_ptr = np.cumsum(np.concatenate([[0], np.bincount(parent, minlength=count)]))
        order = np.argsort(parent, kind="stable")
        of_edges = ordered_pulls(edge_pulls, order, _WHERE)
        return cls(child_ptr, child[order], {} if pulls is None else pulls, None, of_edges)

    @classmethod
    def from_types(
        cls,
        sizes: Mapping[str, int],
        edges: Mapping[tuple[str, str, str], Any],
        pulls: Mapping[str, Mapping[str, Any]] | None = None,
        edge_pulls: Mapping[tuple[str, str, str], Mapping[str, Any]] | None = None,
    ) -> InputGraph:
        """Build a graph of vertices of several types, for a network of several functions.

        Vertices are numbered from 0 in each type; in the graph those of the first type come first.

        Args:
            sizes: name of a vertex type -> how many vertices it has.
            edges: (child type, relation, parent type) -> pairs (child, parent), as PyTorch
                Geometric and DGL name the edges of heterogeneous graphs. A parent's children in a
                relation keep the order given.
            pulls: vertex type -> name -> array with a row for each vertex of the type, or `Rows`.
            edge_pulls: (child type, relation, parent type) -> name -> array with a row for each of
                these pairs, or `Rows`; what PyTorch Geometric calls `edge_attr`.
        Raises: GraphError, when a type is unknown, a vertex out of range, or edges form a cycle;
            PullError, when an array does not fit.
        """
        given = {} if pulls is None else pulls, {} if edge_pulls is None else edge_pulls
        return cls(*read_typed(sizes, edges, *given))

    @classmethod
    def chain(cls, length: int, pulls: Mapping[str, Any] | None = None) -> InputGraph:
        """Build a chain: vertex i has the child i-1, vertex 0 has none.

        Raises: GraphError, when `length` is under 1; PullError, as the class does.
        """
        count = count_of(length, "length", _WHERE)
        child_ptr = np.maximum(np.arange(-1, count, dtype=np.int32), 0)
        child = np.arange(count - 1, dtype=np.int32)
        return cls(child_ptr, child, {} if pulls is None else pulls)

    @classmethod
    def complete_tree(
        cls, leaves: int, arity: int = 2, pulls: Mapping[str, Any] | None = None
    ) -> InputGraph:
        """Build a complete tree: leaves first, from left to right, then level on level.

        Args:
            leaves: how many; a power of `arity`.
            arity: children of every inner vertex, at least 2.
            pulls: by name; V = (leaves * arity - 1) / (arity - 1).
        Raises: GraphError, when there is no such tree; PullError, as the class does.
        """
        leaves, arity = count_of(leaves, "leaves", _WHERE), count_of(arity, "arity", _WHERE)
        size = 1
        while arity > 1 and size < leaves:
            size *= arity
        if size != leaves or arity < 2:
            raise GraphError.at(
                _WHERE,
                f"a complete tree of {leaves} leaves and arity {arity}",
                "the leaves are a power of the arity, which is at least 2",
                f"take {size // arity} or {size} leaves" if size > 1 else "correct them",
            )
        inner = (leaves - 1) // (arity - 1)
        slots = np.concatenate([np.zeros(leaves, np.int32), np.full(inner, arity, np.int32)])
        child_ptr = np.concatenate([[0], np.cumsum(slots)])
        child = np.arange(inner * arity, dtype=np.int32)
        return cls(child_ptr, child, {} if pulls is None else pulls)

    @staticmethod
    def from_brackets(text: str, *, file: str = "brackets", line: int = 1) -> BracketTree:
        """Read one tree such as `(3 (2 a) (4 (3 good) (2 film)))`; see `parse_brackets`.

        Args:
            text: one tree on one line.
            file: name for error messages.
            line: number of its line, for error messages.
        Returns: the graph (post-order, pulls "label") and its words.
        Raises: DataError with file, line and column, when the text is not one tree.
        """
        forest = parse_brackets(text, file=file, line=line)
        trees = len(forest.graph_ptr) - 1
        if trees != 1:
            raise DataError.at(
                f"{file}, line {line}",
                f"{trees} trees",
                "expected one",
                "give one tree, or read a whole text with parse_brackets",
            )
        leaves = np.flatnonzero(forest.word >= 0).astype(np.int32)
        graph = InputGraph(forest.child_ptr, forest.child, {"label": forest.label})
        return BracketTree(graph, leaves, tuple(forest.words[i] for i in forest.word[leaves]))

    @classmethod
    def from_networkx(
        cls,
        dag: networkx.DiGraph[Any],
        pulls: Iterable[str] = (),
        edge_pulls: Iterable[str] = (),
    ) -> InputGraph:
        """Build a graph from a networkx graph whose edges go from child to parent.

        Vertices keep the order of `dag.nodes`. An edge may name its slot in the attribute `slot`;
        the others follow in the order in which they were added.

        Args:
            dag: a DiGraph or MultiDiGraph.
            pulls: names of node attributes; a node without one pulls nothing.
            edge_pulls: names of edge attributes, likewise.
        Raises: GraphError, on a graph that is not directed, two edges in one slot, or a cycle;
            PullError, when no node (or edge) has an attribute, or its values do not fit each other.
        """
        return cls(*read_networkx(dag, tuple(pulls), tuple(edge_pulls)))

    def to_networkx(self) -> networkx.MultiDiGraph[int]:
        """Return a MultiDiGraph with edges from child to parent.

        Attributes are pulls, the `slot` of an edge, and, where there are types, the `type` of a
        node and the `relation` of an edge.
        """
        return write_networkx(self.child_ptr, self.child, self.pulls, self.types, self.edge_pulls)


held_child_ptr, held_child = hand_out(InputGraph, view_of, "child_ptr", "child")
held_pulls, held_edge_pulls = hand_out(InputGraph, Pulls, "pulls", "edge_pulls")


@dataclass(frozen=True, slots=True, eq=False)
class BracketTree:
    """Hold a tree that was read from brackets.

    Attributes:
        graph: vertices in post-order, with the pull "label" at each.
        leaves: int32 [L], the leaf vertices from left to right.
        words: the word of each leaf.
    """

    graph: InputGraph
    leaves: IntArray
    words: tuple[str, ...]
