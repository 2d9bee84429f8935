"""Input graphs and batches of them: which vertices read the state of which, and what they pull.

A graph is a batch of one: both hold the same fields (`BatchFields`), which are checked when they
are given, put side by side, and taken again. Graphs that are taken from a batch are copied when
they are looked at: the children all together, and each pull by itself. So who is handed a minibatch
and needs a share of it, as a process of a group, copies these graphs alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DataError, GraphError, number_of
from vertexrt.graph.brackets import parse_brackets
from vertexrt.graph.checks import (
    NO_NUMBERS,
    by_parent,
    check_structure,
    count_of,
    int32_array,
    pairs_of,
)
from vertexrt.graph.compiled import start_graphs, take_children
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.graph.digest import BatchFields, BatchForm, digest_graphs
from vertexrt.graph.networks import read_networkx, write_networkx
from vertexrt.graph.owned import INT32, MOST, handed_out, own, read_array, unwritten
from vertexrt.graph.pulls import (
    Pulls,
    PullValue,
    check_pulls,
    describe_all,
    join_pulls,
    ordered_pulls,
    parts_of,
    parts_of_pull,
    rows_unchecked,
    taken_rows,
)
from vertexrt.graph.types import VertexTypes, check_types, join_types, read_typed
from vertexrt.instead import instead

if TYPE_CHECKING:
    import networkx

IntArray = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Graphs = TypeVar("Graphs", bound="_Graphs")

# The batch that graphs were taken from, which was not, their numbers there, vertices and slots.
_Taken: TypeAlias = "tuple[GraphBatch, Int64, int, int]"

_WHERE = "graph batch"
_GRAPH = "input graph"
_ALL = np.zeros(0, np.int64)
_ZERO = np.zeros(1, np.int32)


class _Graphs:
    """Graphs side by side, or one of them."""

    __slots__ = ("__weakref__", "_fields", "_taken", "form")
    _fields: BatchFields  # without children, where nothing has looked at graphs that were taken
    _taken: _Taken | None
    form: BatchForm
    graph_ptr: IntArray = handed_out(lambda graphs: starts_of(graphs)[0])
    child_ptr: IntArray = handed_out(lambda graphs: fields_of(graphs).child_ptr)
    child: IntArray = handed_out(lambda graphs: fields_of(graphs).child)
    pulls: Mapping[str, PullValue] = handed_out(attrgetter("_fields.pulls"))
    types: VertexTypes | None = handed_out(lambda graphs: fields_of(graphs).types)
    edge_pulls: Mapping[str, PullValue] = handed_out(attrgetter("_fields.edge_pulls"))

    if not TYPE_CHECKING:  # type checkers know what there is
        __getattr__ = instead("graph")

    def _check(self, where: str, *given: Any) -> None:
        """Hold what is given, `BatchFields`; of one graph, there is no `graph_ptr`."""
        graph_ptr, child_ptr, child, pulls, types, edge_pulls = given
        child_ptr = int32_array(child_ptr, "child_ptr", where)
        vertices = len(child_ptr) - 1
        if graph_ptr is None:
            graph_ptr = [0, max(vertices, 0)]
        graph_ptr = int32_array(graph_ptr, "graph_ptr", where)
        child = int32_array(child, "child", where)
        check_structure(graph_ptr, child_ptr, child, where)
        self._taken, self.form = None, BatchForm()
        self._fields = BatchFields(
            graph_ptr,
            child_ptr,
            child,
            Pulls(check_pulls(pulls, vertices, where)),
            check_types(types, vertices, len(child), where),
            Pulls(check_pulls(edge_pulls, len(child), where, "edge")),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        record: Any = self
        return type(self), tuple(getattr(self, each.name) for each in dataclasses.fields(record))

    def __setstate__(self, state: Sequence[Any]) -> None:
        type(self).__init__(self, *state)

    def __repr__(self) -> str:
        name = type(self).__name__
        graphs = f"{number_of(self.num_graphs, 'graph')}, " if isinstance(self, GraphBatch) else ""
        edges = int((self.child >= 0).sum())
        absent = f", {self.num_edges - edges} missing" if edges < self.num_edges else ""
        size = f"{number_of(self.num_vertices, 'vertex', 'vertices')}, {number_of(edges, 'edge')}"
        of_edges = f"; of edges: {describe_all(self.edge_pulls)}" if self.edge_pulls else ""
        pulls = f"pulls: {describe_all(self.pulls)}{of_edges}"
        return f"{name}({graphs}{size}{absent}; {pulls})"

    @property
    def num_vertices(self) -> int:
        """Return V."""
        return int(starts_of(self)[0][-1])

    @property
    def num_edges(self) -> int:
        """Return E, the number of slots, empty ones included."""
        return int(starts_of(self)[1][-1])


@dataclass(eq=False, repr=False, init=False)
class InputGraph(_Graphs):
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

    __slots__ = ()
    child_ptr: IntArray
    child: IntArray
    pulls: Mapping[str, PullValue]
    types: VertexTypes | None
    edge_pulls: Mapping[str, PullValue]

    def __init__(
        self,
        child_ptr: Any,
        child: Any,
        pulls: Mapping[str, Any] | None = None,
        types: VertexTypes | None = None,
        edge_pulls: Mapping[str, Any] | None = None,
    ) -> None:
        self._check(_GRAPH, None, child_ptr, child, pulls, types, edge_pulls)

    def children(self, vertex: int) -> list[int]:
        """Return the child in each slot of a vertex, -1 in an empty slot.

        Raises: GraphError, when the graph has no such vertex.
        """
        at = count_of(vertex, "vertex", _GRAPH, self.num_vertices - 1)
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
            raise GraphError.at(_GRAPH, got, expected, "write [] for no child") from error
        return cls(child_ptr, child, pulls, None, edge_pulls)

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
        count = count_of(num_vertices, "num_vertices", _GRAPH)
        listed = isinstance(edges, Iterable) and not isinstance(edges, np.ndarray)
        given = list(edges) if listed else edges
        pairs = pairs_of(given, "edges", "is", "expected pairs (child, parent)", _GRAPH)
        child, parent = pairs[:, 0], pairs[:, 1]
        wrong = (parent < 0) | (parent >= count)
        if wrong.any():
            number = int(np.argmax(wrong))
            raise GraphError.at(
                _GRAPH,
                f"edge {number} goes from {child[number]} to the parent {parent[number]}",
                f"the graph has the vertices 0..{count - 1}",
                "correct the edge",
            )
        child_ptr, order = by_parent(parent, count)
        of_edges = ordered_pulls(check_pulls(edge_pulls, len(child), _GRAPH, "edge"), order)
        return cls(child_ptr, child[order], pulls, None, of_edges)

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
                relation keep the order given. `vrt.data.edges` has those of chains, reversed ones,
                windows, all pairs, layer over layer, trees in both ways and unrolled rounds.
            pulls: vertex type -> name -> array with a row for each vertex of the type, or `Rows`.
            edge_pulls: (child type, relation, parent type) -> name -> array with a row for each of
                these pairs, or `Rows`; what PyTorch Geometric calls `edge_attr`.
        Raises: GraphError, when a type is unknown, a vertex out of range, or edges form a cycle;
            PullError, when an array does not fit.
        """
        return cls(*read_typed(sizes, edges, pulls, edge_pulls))

    @classmethod
    def chain(cls, length: int, pulls: Mapping[str, Any] | None = None) -> InputGraph:
        """Build a chain: vertex i has the child i-1, vertex 0 has none.

        Raises: GraphError, when `length` is under 1; PullError, as the class does.
        """
        count = count_of(length, "length", _GRAPH)
        before = np.arange(-1, count, dtype=INT32)
        return cls(np.maximum(before, 0), before[1:-1], pulls)

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
        leaves, arity = count_of(leaves, "leaves", _GRAPH), count_of(arity, "arity", _GRAPH)
        size = 1
        while arity > 1 and size < leaves:
            size *= arity
        if size != leaves or arity < 2:
            raise GraphError.at(
                _GRAPH,
                f"a complete tree of {leaves} leaves and arity {arity}",
                "the leaves are a power of the arity, which is at least 2",
                f"take {size // arity} or {size} leaves" if size > 1 else "correct them",
            )
        inner = (leaves - 1) // (arity - 1)
        child_ptr = np.maximum(np.arange(-leaves, inner + 1), 0) * arity
        return cls(child_ptr, np.arange(inner * arity), pulls)

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
        given: object = text
        if not isinstance(given, str):
            got, action = f"a {type(text).__name__}", "pass '(3 (2 a) (2 b))', a tree at a time"
            raise DataError.at(file, got, "expected one tree as text", action)
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
        names = [[each] if isinstance(each, str) else list(each) for each in (pulls, edge_pulls)]
        return cls.from_children(*read_networkx(dag, *names))

    def to_networkx(self) -> networkx.MultiDiGraph[int]:
        """Return a MultiDiGraph with edges from child to parent.

        Attributes are pulls, the `slot` of an edge, and, where there are types, the `type` of a
        node and the `relation` of an edge.
        """
        return write_networkx(fields_of(self))


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


@dataclass(eq=False, repr=False, init=False)
class GraphBatch(_Graphs):
    """Hold K graphs as one set of CSR arrays; a graph's vertices lie side by side.

    Construction checks everything, as `InputGraph` does for one graph, and copies arrays into
    read-only memory: what has been checked stays so.

    Attributes:
        graph_ptr: int32 [K+1], first vertex of each graph.
        child_ptr: int32 [V+1], first slot of each vertex in `child`.
        child: int32 [E], vertices of the batch, -1 in an empty slot.
        pulls: by name, int32 [V] (-1: absent), floats [V, *shape], or `Rows`.
        types: of vertices and edges, for a network of several functions: see `from_types` of
            `InputGraph`.
        edge_pulls: by name, values for each edge, in the order of `child`; forms as of `pulls`.
        form: what it has in common with batches made of it by `with_pulls`.
    Raises: GraphError, on structure that cannot be evaluated; PullError, on a pulled array that
        does not fit.
    """

    __slots__ = ()
    graph_ptr: IntArray
    child_ptr: IntArray
    child: IntArray
    pulls: Mapping[str, PullValue]
    types: VertexTypes | None
    edge_pulls: Mapping[str, PullValue]

    def __init__(
        self,
        graph_ptr: Any,
        child_ptr: Any,
        child: Any,
        pulls: Mapping[str, Any] | None = None,
        types: VertexTypes | None = None,
        edge_pulls: Mapping[str, Any] | None = None,
    ) -> None:
        self._check(_WHERE, graph_ptr, child_ptr, child, pulls, types, edge_pulls)

    @classmethod
    def from_graphs(cls, graphs: Iterable[InputGraph]) -> GraphBatch:
        """Put graphs side by side, in the order given.

        Raises: GraphError, when there is none, or they are no graphs, or too many for int32;
            PullError, when two differ in their pulls.
        """
        return _side_by_side(graphs, InputGraph, "graph")

    @classmethod
    def concat(cls, batches: Iterable[GraphBatch]) -> GraphBatch:
        """Put the graphs of several batches side by side, in the order given.

        Tables that all batches share stay one, as in `from_graphs`.

        Raises: GraphError, when there is no batch, or they are no batches, or too large for int32;
            PullError, when two differ in their pulls.
        """
        return _side_by_side(batches, GraphBatch, "batch")

    @classmethod
    def from_arrays(
        cls,
        graph_ptr: Any,
        child_ptr: Any,
        child: Any,
        pulls: Mapping[str, Any] | None = None,
        types: VertexTypes | None = None,
        edge_pulls: Mapping[str, Any] | None = None,
    ) -> GraphBatch:
        """Build a batch from CSR arrays, or lists; the same as the class.

        Raises: GraphError and PullError, as the class does.
        """
        return cls(graph_ptr, child_ptr, child, pulls, types, edge_pulls)

    @property
    def num_graphs(self) -> int:
        """Return K."""
        return len(starts_of(self)[0]) - 1

    @property
    def graph_of(self) -> IntArray:
        """Return int32 [V], the graph of each vertex."""
        return np.repeat(np.arange(self.num_graphs, dtype=np.int32), self.sizes())

    @property
    def roots(self) -> IntArray:
        """Return the vertices that have no parent, int32, rising."""
        parents = np.bincount(self.child + 1, minlength=self.num_vertices + 1)[1:]
        return np.flatnonzero(parents == 0).astype(np.int32)

    def __len__(self) -> int:
        return self.num_graphs

    def __iter__(self) -> Iterator[InputGraph]:
        return (self[number] for number in range(self.num_graphs))

    @overload
    def __getitem__(self, graphs: int) -> InputGraph: ...
    @overload
    def __getitem__(self, graphs: slice | npt.ArrayLike) -> GraphBatch: ...
    def __getitem__(self, graphs: int | slice | npt.ArrayLike) -> InputGraph | GraphBatch:
        """Return one graph, or the batch of some: `batch[0]`, `batch[3:7]`, `batch[[1, -1]]`.

        Args:
            graphs: a number, counted from the end if negative; a slice; numbers [n]; or booleans
                [K].
        Raises: GraphError, when there is no such graph, or none at all.
        """
        key: Any = list(graphs) if isinstance(graphs, tuple) else graphs
        try:
            ids = np.arange(self.num_graphs)[key]
        except (IndexError, TypeError, ValueError) as error:  # numpy's answer
            raise _wrong_graphs(str(error), self.num_graphs) from error
        if ids.ndim:
            return self.take(ids)
        fields = fields_of(self.take([ids]))
        pulls, edge_pulls = Pulls(fields.pulls.held()), Pulls(fields.edge_pulls.held())  # copied
        return _holding(InputGraph, fields._replace(pulls=pulls, edge_pulls=edge_pulls))

    def sizes(self) -> IntArray:
        """Return int32 [K], the number of vertices of each graph."""
        return np.diff(self.graph_ptr)

    def take(self, graphs: npt.ArrayLike) -> GraphBatch:
        """Return the batch of the graphs named, in that order; one may come twice.

        They are copied when they are looked at first: compiled, the structure and each pull once.
        Tables with an index map are shared, not copied: only the map is taken. This batch stays
        in memory as long as what was taken from it.

        Args:
            graphs: whole numbers [n] in 0..K-1.
        Raises: GraphError, when there is none, one is out of range, or they are too many for int32.
        """
        given = read_array(graphs)
        if isinstance(given, str):
            got = given
        elif not given.size:
            got = "no graph"
        elif given.ndim != 1:
            got = f"graph numbers with {given.ndim} axes"
        elif given.dtype.kind not in "iu":
            got = f"graph numbers of dtype {given.dtype}"
        elif given.size > MOST:
            raise _too_large(given.size, 0, "take")
        else:
            return take_unread(self, given.astype(np.int64))
        raise _wrong_graphs(got, self.num_graphs)

    def with_pulls(self, pulls: Mapping[str, Any]) -> GraphBatch:
        """Return the same graphs with some pulls added or replaced; the structure is shared.

        Args:
            pulls: by name, in the forms that the class takes.
        Raises: PullError, as the class does.
        """
        new = check_pulls(pulls, self.num_vertices, _WHERE)
        held = self._fields.pulls.held()
        form = self.form
        for name, value in new.items():  # those in addition are a row for each vertex
            table, places = parts_of_pull(value)
            before, others = parts_of_pull(held.get(name, table))
            if not (table.dtype.kind == before.dtype.kind == "f" and places is others):
                form = BatchForm()
        return with_values(self, {**held, **new}, self._fields.edge_pulls, form)

    def of_type(self, name: str) -> IntArray:
        """Return the vertices of a type, int32, rising.

        Raises: GraphError, when the batch has no such type.
        """
        if self.types is None:
            got, expected = f"of_type({name!r})", "a batch with vertex types"
            raise GraphError.at(_WHERE, got, expected, "build its graphs with from_types")
        return np.flatnonzero(self.types.of_vertex == self.types.number(name)).astype(np.int32)


def _side_by_side(given: Any, cls: type[Graphs], what: str) -> GraphBatch:
    """Return the batch of graphs, or of batches: at least one, and nothing else."""
    bare = not isinstance(given, Iterable) or (isinstance(given, np.ndarray) and not given.ndim)
    several: tuple[Any, ...] = (given,) if bare else tuple(given)
    one = cls is InputGraph
    where = _WHERE if one else "concat"
    if not several:
        raise GraphError.at(where, f"no {what}", "expected at least one", "leave the batch out")
    for number, each in enumerate(several):
        if bare or not isinstance(each, cls):
            action = "pass [a, b]"
            if one:
                action = _INSTEAD.get(
                    type(each), "make each an InputGraph, and pass a list of them"
                )
            got = f"{'' if bare else f'{what} {number} is '}a {type(each).__name__}"
            raise GraphError.at(where, got, f"expected a list of {cls.__name__}", action)
    graph_ptr, child_ptr, children, pulls, types, edge_pulls = zip(
        *map(fields_of, several), strict=True
    )
    sizes = [len(each) - 1 for each in child_ptr]
    slots = [len(each) for each in children]
    if max(sum(sizes), sum(slots)) >= MOST:
        raise _too_large(sum(sizes), sum(slots), _WHERE)
    child = np.concatenate(children)
    first = np.repeat(np.cumsum([0, *sizes[:-1]]), slots)
    graphs = [0, *sizes] if one else np.concatenate([_ZERO, *map(np.diff, graph_ptr)])
    offsets = np.concatenate([_ZERO, *(each[1:] for each in child_ptr)])
    offsets[1:] += np.repeat(np.cumsum([0, *slots[:-1]]).astype(np.int32), sizes)
    fields = BatchFields(
        own(np.cumsum(graphs), INT32),
        own(offsets, INT32),
        own(np.where(child >= 0, child + first, -1), INT32),
        Pulls(join_pulls([each.held() for each in pulls], sizes, what)),
        join_types(types, _WHERE),
        Pulls(join_pulls([each.held() for each in edge_pulls], slots, what)),
    )
    return _holding(GraphBatch, fields)


# What users give in place of a list of graphs, and what they do instead.
_INSTEAD = {
    InputGraph: "pass a list of graphs",
    BracketTree: "pass the attribute `graph` of the tree",
    GraphBatch: "pass the batch itself, or join batches by GraphBatch.concat",
}


def _holding(
    cls: type[Graphs],
    fields: BatchFields,
    taken: _Taken | None = None,
    form: BatchForm | None = None,
) -> Graphs:
    """Return graphs that hold fields that are known to be right."""
    made = object.__new__(cls)
    made._fields, made._taken, made.form = fields, taken, form or BatchForm()
    return made


def unchecked_batch(*fields: Any) -> GraphBatch:
    """Return a batch that holds what is known to be right; see `BatchFields`."""
    return _holding(GraphBatch, BatchFields(*fields))


def take_unread(batch: GraphBatch, graphs: Int64) -> GraphBatch:
    """Return the batch of the graphs named, as `take` does; `source_of` has the numbers."""
    source, known, *_ = batch._taken or (batch, _ALL)
    whole = unwritten(2 * (graphs.size + 1), INT32)
    graph_ptr, edge_ptr = starts_of(source)
    vertices, slots = start_graphs(whole, graph_ptr, edge_ptr, known, graphs)
    if not vertices:
        wrong = graphs[(graphs < 0) | (graphs >= batch.num_graphs)]
        raise _wrong_graphs(f"graph {wrong[0]}", batch.num_graphs)
    if vertices >= MOST or slots >= MOST:
        raise _too_large(vertices, slots, "take")
    form = BatchForm()
    form.starts = starts = whole[: graphs.size + 1], whole[graphs.size + 1 :]
    _, _, _, pulls, types, edge_pulls = source._fields
    pulls = Pulls(pulls.held(), (graph_ptr, graphs, vertices))
    if edge_pulls:
        edge_pulls = Pulls(edge_pulls.held(), (edge_ptr, graphs, slots))
    fields = BatchFields(starts[0], NO_NUMBERS, NO_NUMBERS, pulls, types, edge_pulls)
    return _holding(GraphBatch, fields, (source, graphs, vertices, slots), form)


def fields_of(graphs: _Graphs) -> BatchFields:
    """Return what graphs hold; if they were taken, their children and types are copied first."""
    fields = graphs._fields
    if graphs._taken is None or len(fields.child_ptr):
        return fields
    source, ids, vertices, slots = graphs._taken
    given, (graph_ptr, edge_ptr) = source._fields, starts_of(source)
    whole = unwritten(vertices + 1 + slots, INT32)
    take_children(whole, graph_ptr, given.child_ptr, given.child, ids, vertices)
    types = given.types
    if types is not None:
        of_vertex = taken_rows(types.of_vertex, graph_ptr, ids, vertices)
        of_edge = taken_rows(types.of_edge, edge_ptr, ids, slots)
        types = types._replace(of_vertex=of_vertex, of_edge=of_edge)
    child_ptr, child = whole[: vertices + 1], whole[vertices + 1 :]
    starts, _, _, pulls, _, edge_pulls = fields
    fields = graphs._fields = BatchFields(starts, child_ptr, child, pulls, types, edge_pulls)
    return fields


def fill(batch: GraphBatch) -> None:
    """Copy all of graphs that were taken."""
    fields = fields_of(batch)
    for each in (fields.pulls, fields.edge_pulls):
        each.held()


def source_of(batch: GraphBatch) -> tuple[GraphBatch, Int64]:
    """Return the batch that graphs were taken from, and their numbers there.

    It stays alive: what processes that train together know of graphs must not depend on which of
    them has copied these.
    """
    return batch._taken[:2] if batch._taken else (batch, np.arange(batch.num_graphs))


def starts_of(graphs: _Graphs) -> tuple[IntArray, IntArray]:
    """Return the first vertex and the first slot of each graph, int32 [K+1]; nothing is copied."""
    form = graphs.form
    if form.starts is None:
        fields = fields_of(graphs)
        form.starts = fields.graph_ptr, fields.child_ptr[fields.graph_ptr]
    return form.starts


def key_of(batch: GraphBatch, what: Literal["structure", "numbers"]) -> bytes:
    """Return the digest of a batch; see `graph/digest.py`. Nothing is copied.

    Args:
        what: structure; or numbers, of it and of the numbers that the batch pulls.
    """
    form = batch.form
    found: bytes | None = getattr(form, what)
    if found is None:
        source, graphs, *_ = batch._taken or (batch, slice(None))
        digests = source.form.graphs
        if digests is None:
            digests = source.form.graphs = digest_graphs(source._fields)
        found = digests.key(getattr(digests, what), graphs)
        setattr(form, what, found)
    return found


def with_values(
    batch: GraphBatch,
    pulls: Mapping[str, PullValue],
    edge_pulls: Mapping[str, PullValue],
    form: BatchForm,
) -> GraphBatch:
    """Return the same graphs with other pulls, which have been checked."""
    fields = fields_of(batch)._replace(pulls=Pulls(pulls), edge_pulls=Pulls(edge_pulls))
    return _holding(GraphBatch, fields, form=form)


def with_host_pulls(
    batch: GraphBatch, download: Callable[[np.ndarray[Any, Any], int], None]
) -> GraphBatch:
    """Return the same batch, all of whose pulls are arrays of the host.

    Args:
        download: copies from an address of the device into an array, and waits.
    """

    def on_host(value: PullValue) -> PullValue:
        table, index = parts_of(value)
        if not isinstance(table, DeviceRows):
            return value
        copied = np.empty(table.shape, table.dtype)
        download(copied, table.address)
        return rows_unchecked(own(copied, copied.dtype), index)

    pulls, of_edges = (
        {name: on_host(value) for name, value in each.items()}
        for each in (batch.pulls, batch.edge_pulls)
    )
    return with_values(batch, pulls, of_edges, BatchForm())


def _wrong_graphs(got: str, num_graphs: int) -> GraphError:
    expected = f"the batch has the graphs 0..{num_graphs - 1}"
    return GraphError.at("take", got, expected, "give a row of their numbers")


def _too_large(vertices: int, slots: int, where: str) -> GraphError:
    got = f"{vertices} vertices with {slots} slots"
    return GraphError.at(where, got, f"at most {MOST - 1} of each", "split the batch")
