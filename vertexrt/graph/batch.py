"""Graphs side by side: a minibatch, or a whole data set from which minibatches are taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError
from vertexrt.graph.checks import check_structure, int32_array
from vertexrt.graph.compiled import count_graphs, numbers_of, starts_of_graphs, take_column
from vertexrt.graph.digest import BatchForm, GraphDigests, digest_graphs, form_with
from vertexrt.graph.graph_numbers import read_ids, read_key, too_large, wrong_graphs
from vertexrt.graph.input_graph import (
    BracketTree,
    InputGraph,
    held_child,
    held_child_ptr,
    held_edge_pulls,
    held_pulls,
)
from vertexrt.graph.owned import INT32, MOST, as_it_is, assembler, hand_out, own, view_of
from vertexrt.graph.pulls import Pulls, PullValue, check_pulls, describe_all, join_pulls
from vertexrt.graph.taken import (
    BatchFields,
    PullColumn,
    Taken,
    TakenParts,
    copy_graphs,
    find_parts,
)
from vertexrt.graph.types import VertexTypes, check_types, join_types, unknown_type

IntArray = npt.NDArray[np.int32]

_WHERE = "graph batch"
_ZERO = np.zeros(1, np.int32)


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class GraphBatch:
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

    graph_ptr: IntArray
    child_ptr: IntArray
    child: IntArray
    pulls: Mapping[str, PullValue] = field(default_factory=dict)
    types: VertexTypes | None = None
    edge_pulls: Mapping[str, PullValue] = field(default_factory=dict)
    _parts: TakenParts | None = field(default=None, init=False)
    _taken: Taken | None = field(default=None, init=False)
    form: BatchForm = field(default_factory=BatchForm, init=False)

    def __post_init__(self) -> None:
        graph_ptr = int32_array(self.graph_ptr, "graph_ptr", _WHERE)
        child_ptr = int32_array(self.child_ptr, "child_ptr", _WHERE)
        child = int32_array(self.child, "child", _WHERE)
        check_structure(graph_ptr, child_ptr, child, _WHERE)
        object.__setattr__(self, "graph_ptr", graph_ptr)
        object.__setattr__(self, "child_ptr", child_ptr)
        object.__setattr__(self, "child", child)
        object.__setattr__(self, "pulls", check_pulls(pulls_of(self), len(child_ptr) - 1, _WHERE))
        types = check_types(self.types, len(child_ptr) - 1, len(child), _WHERE)
        object.__setattr__(self, "types", types)
        of_edges = check_pulls(edge_pulls_of(self), len(child), _WHERE, "edge")
        object.__setattr__(self, "edge_pulls", of_edges)

    def __reduce__(self) -> tuple[Any, ...]:
        given = dict(self.pulls), self.types, dict(self.edge_pulls)
        return GraphBatch, (self.graph_ptr, self.child_ptr, self.child, *given)

    def __setstate__(self, state: Sequence[Any]) -> None:
        GraphBatch.__init__(self, *state)

    def __repr__(self) -> str:
        slots = f"{self.num_edges} slots ({int((self.child >= 0).sum())} children)"
        size = f"{self.num_graphs} graphs, {self.num_vertices} vertices, {slots}"
        of_edges = f"; of edges: {describe_all(self.edge_pulls)}" if self.edge_pulls else ""
        return f"GraphBatch({size}; pulls: {describe_all(self.pulls)}{of_edges})"

    @classmethod
    def from_graphs(cls, graphs: Iterable[InputGraph]) -> GraphBatch:
        """Put graphs side by side, in the order given.

        Raises: GraphError, when there is none, or they are no graphs, or too many for int32;
            PullError, when two differ in their pulls.
        """
        several = _read_graphs(graphs)
        offsets = [held_child_ptr(graph) for graph in several]
        parts = _Beside(
            offsets,
            [held_child(graph) for graph in several],
            [held_pulls(graph) for graph in several],
            [graph.types for graph in several],
            [held_edge_pulls(graph) for graph in several],
        )
        return _side_by_side(parts, [len(each) - 1 for each in offsets], "graph")

    @classmethod
    def concat(cls, batches: Iterable[GraphBatch]) -> GraphBatch:
        """Put the graphs of several batches side by side, in the order given.

        Tables that all batches share stay one, as in `from_graphs`.

        Raises: GraphError, when there is no batch, or they are no batches, or too large for int32;
            PullError, when two differ in their pulls.
        """
        several = _read_batches(batches)
        parts = _Beside(
            [child_ptr_of(batch) for batch in several],
            [child_of(batch) for batch in several],
            [pulls_of(batch) for batch in several],
            [batch.types for batch in several],
            [edge_pulls_of(batch) for batch in several],
        )
        sizes = np.concatenate([batch.sizes() for batch in several])
        return _side_by_side(parts, sizes, "batch")

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
        given = ({} if each is None else each for each in (pulls, edge_pulls))
        of_vertices, of_edges = given
        return cls(graph_ptr, child_ptr, child, of_vertices, types, of_edges)

    @property
    def num_graphs(self) -> int:
        """Return K."""
        return len(graph_ptr_of(self)) - 1 if self._taken is None else len(self._taken.ids)

    @property
    def num_vertices(self) -> int:
        """Return V."""
        return len(child_ptr_of(self)) - 1 if self._taken is None else self._taken.size[0]

    @property
    def num_edges(self) -> int:
        """Return E, the number of slots, empty ones included."""
        return len(child_of(self)) if self._taken is None else self._taken.size[1]

    @property
    def graph_of(self) -> IntArray:
        """Return int32 [V], the graph of each vertex."""
        return np.repeat(np.arange(self.num_graphs, dtype=np.int32), self.sizes())

    @property
    def roots(self) -> IntArray:
        """Return the vertices that have no parent, int32, rising."""
        is_root = np.ones(self.num_vertices, np.bool_)
        is_root[self.child[self.child >= 0]] = False
        return np.flatnonzero(is_root).astype(np.int32)

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
        ids = read_key(graphs, self.num_graphs)
        if ids.ndim:
            return self.take(ids)
        one = self.take(ids.reshape(1))
        return InputGraph(one.child_ptr, one.child, one.pulls, one.types, one.edge_pulls)

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
        return take_unread(self, read_ids(graphs, self.num_graphs))

    def with_pulls(self, pulls: Mapping[str, Any]) -> GraphBatch:
        """Return the same graphs with some pulls added or replaced; the structure is shared.

        Args:
            pulls: by name, in the forms that the class takes.
        Raises: PullError, as the class does.
        """
        held, new = pulls_of(self), check_pulls(pulls, self.num_vertices, _WHERE)
        return with_values(self, held | new, edge_pulls_of(self), form_with(self.form, held, new))

    def of_type(self, name: str) -> IntArray:
        """Return the vertices of a type, int32, rising.

        Raises: GraphError, when the batch has no such type.
        """
        if self.types is None:
            raise unknown_type("the caller", name, ())
        return np.flatnonzero(self.types.of_vertex == self.types.number(name)).astype(np.int32)


def take_unread(batch: GraphBatch, graphs: npt.NDArray[np.int64]) -> GraphBatch:
    """Return the batch of the graphs named, as `take` does; the numbers are nobody else's."""
    source, mine, ids = batch, batch._taken, graphs
    if mine is not None:
        source, ids = mine.source, numbers_of(mine.ids, graphs)
    size = vertices, slots = count_graphs(graph_ptr_of(source), child_ptr_of(source), ids)
    if not vertices:
        raise wrong_graphs(graphs, batch.num_graphs)
    if vertices >= MOST or slots >= MOST:
        raise too_large(vertices, slots, "take")
    found = object.__new__(GraphBatch)
    object.__setattr__(found, "_parts", None)
    object.__setattr__(found, "form", BatchForm())
    object.__setattr__(found, "_taken", Taken(source, ids, size))
    return found


class _Beside(NamedTuple):
    """What lies side by side in a batch: of each graph, or of each batch."""

    offsets: list[IntArray]  # child_ptr
    children: list[IntArray]
    pulls: list[dict[str, PullValue]]
    types: list[VertexTypes | None]
    edge_pulls: list[dict[str, PullValue]]


def _side_by_side(parts: _Beside, graphs: Sequence[int] | IntArray, what: str) -> GraphBatch:
    """Return the batch of parts whose graphs have so many vertices each."""
    sizes = [len(each) - 1 for each in parts.offsets]
    slots = [len(each) for each in parts.children]
    if max(sum(sizes), sum(slots)) >= MOST:
        raise too_large(sum(sizes), sum(slots), _WHERE)
    child_ptr = np.concatenate([_ZERO, *(each[1:] for each in parts.offsets)])
    child_ptr[1:] += np.repeat(np.cumsum([0, *slots[:-1]]).astype(np.int32), sizes)
    child = np.concatenate(parts.children)
    first = np.repeat(np.cumsum([0, *sizes[:-1]]), slots)
    return unchecked_batch(
        own(np.cumsum([0, *graphs]), INT32),
        own(child_ptr, INT32),
        own(np.where(child >= 0, child + first, -1), INT32),
        join_pulls(parts.pulls, sizes, what),
        join_types(parts.types, _WHERE),
        join_pulls(parts.edge_pulls, slots, what),
    )


_assemble = assembler(GraphBatch)


def unchecked_batch(*fields: object, form: BatchForm | None = None) -> GraphBatch:
    """Return a batch that holds what is known to be right; see `BatchFields`."""
    return _assemble(*fields, None, None, form or BatchForm())


_put = [getattr(GraphBatch, name).__set__ for name in BatchFields._fields]


def fill(batch: GraphBatch) -> None:
    """Copy graphs that were taken, and that nothing has looked at yet."""
    taken = batch._taken
    assert taken is not None, "a batch of its own has its arrays"
    fields = copy_graphs(fields_of(taken.source), parts_of(taken.source), taken)
    for put, value in zip(_put, fields, strict=True):
        put(batch, value)


# What a batch holds, for code that changes nothing: no view is made.
graph_ptr_of, child_ptr_of, child_of = hand_out(
    GraphBatch, view_of, "graph_ptr", "child_ptr", "child", fill=fill
)
pulls_of, edge_pulls_of = hand_out(GraphBatch, Pulls, "pulls", "edge_pulls", fill=fill)
(types_of,) = hand_out(GraphBatch, as_it_is, "types", fill=fill)


def fields_of(batch: GraphBatch) -> BatchFields:
    """Return what a batch holds."""
    structure = graph_ptr_of(batch), child_ptr_of(batch), child_of(batch)
    return BatchFields(*structure, pulls_of(batch), types_of(batch), edge_pulls_of(batch))


def parts_of(batch: GraphBatch) -> TakenParts:
    """Return what `take` copies of a batch."""
    if batch._parts is None:
        object.__setattr__(batch, "_parts", find_parts(fields_of(batch)))
    found = batch._parts
    assert found is not None, "it was just found"
    return found


def source_of(batch: GraphBatch) -> tuple[GraphBatch, npt.NDArray[np.int64]]:
    """Return the batch that graphs were taken from, and their numbers there."""
    taken = batch._taken
    return (batch, np.arange(batch.num_graphs)) if taken is None else (taken.source, taken.ids)


def structure_key(batch: GraphBatch) -> bytes:
    """Return the digest of the structure of a batch; see `graph/digest.py`. Nothing is copied."""
    form = batch.form
    if form.structure is None:
        digests, graphs = _digests_of(batch)
        form.structure = digests.key(digests.structure, graphs)
    return form.structure


def numbers_key(batch: GraphBatch) -> bytes:
    """Return the digest of the structure of a batch and of the numbers that it pulls."""
    form = batch.form
    if form.numbers is None:
        digests, graphs = _digests_of(batch)
        form.numbers = digests.key(digests.numbers, graphs)
    return form.numbers


def _digests_of(batch: GraphBatch) -> tuple[GraphDigests, Any]:
    """Return the digests of the batch that graphs were taken from, and their numbers there."""
    taken = batch._taken
    source, graphs = (batch, slice(None)) if taken is None else (taken.source, taken.ids)
    if source.form.graphs is None:
        source.form.graphs = digest_graphs(fields_of(source))
    return source.form.graphs, graphs


def taken_column(batch: GraphBatch, name: str) -> PullColumn | None:
    """Return what each vertex of graphs that were taken has of a pull; the graphs are not copied.

    Returns: None, where nothing was taken, or vertices have rows of real numbers in order.
    """
    taken = batch._taken
    column = None if taken is None else parts_of(taken.source).by_name.get(name)
    if taken is None or column is None:
        return None
    numbers = np.empty(batch.num_vertices, np.int32)
    take_column(numbers, column.numbers, graph_ptr_of(taken.source), taken.ids)
    return PullColumn(column.table, numbers)


def has_same_sizes(batch: GraphBatch) -> bool:
    """Tell whether all graphs of what a batch was taken from have one size.

    Of a batch that was not taken, its own graphs, if there are several.
    """
    taken = batch._taken
    if taken is not None:
        return parts_of(taken.source).same_sizes
    return batch.num_graphs > 1 and parts_of(batch).same_sizes


def is_taken(batch: GraphBatch) -> bool:
    """Tell whether the graphs of a batch were taken from another."""
    return batch._taken is not None


def starts_of(batch: GraphBatch) -> tuple[IntArray, IntArray]:
    """Return the first vertex and the first slot of each graph, int32 [K+1]; nothing is copied."""
    taken = batch._taken
    if taken is None:
        return graph_ptr_of(batch), parts_of(batch).edge_ptr
    return starts_of_graphs(graph_ptr_of(taken.source), parts_of(taken.source).edge_ptr, taken.ids)


def with_values(
    batch: GraphBatch,
    pulls: Mapping[str, PullValue],
    edge_pulls: Mapping[str, PullValue],
    form: BatchForm,
) -> GraphBatch:
    """Return the same graphs with other pulls, which have been checked."""
    parts = graph_ptr_of(batch), child_ptr_of(batch), child_of(batch)
    return unchecked_batch(*parts, pulls, types_of(batch), edge_pulls, form=form)


def _read_graphs(graphs: Iterable[InputGraph]) -> tuple[InputGraph, ...]:
    """Return the graphs of a batch: at least one, and nothing else."""
    bare = isinstance(graphs, np.ndarray) and graphs.ndim == 0
    if bare or not isinstance(graphs, Iterable):
        raise _not_a_graph("", graphs)
    several = tuple(graphs)
    if not several:
        raise GraphError.at(_WHERE, "no graph", "expected at least one", "leave the batch out")
    for number, graph in enumerate(several):
        if not isinstance(graph, InputGraph):
            raise _not_a_graph(f"graph {number} is ", graph)
    return several


def _read_batches(batches: Iterable[GraphBatch]) -> tuple[GraphBatch, ...]:
    """Return batches: at least one, and nothing else."""
    given: object = batches
    several = tuple(given) if isinstance(given, list | tuple | Iterator) else ()
    wrong = [each for each in several if not isinstance(each, GraphBatch)]
    if wrong or not several:
        got = f"a {type(wrong[0] if wrong else given).__name__}" if wrong or given else "no batch"
        raise GraphError.at("concat", got, "expected a list of GraphBatch", "pass [a, b]")
    return several


def _not_a_graph(what: str, given: object) -> GraphError:
    action = "make each an InputGraph, and pass a list of them"
    if isinstance(given, InputGraph):
        action = "pass a list of graphs"
    elif isinstance(given, BracketTree):
        action = "pass the attribute `graph` of the tree"
    elif isinstance(given, GraphBatch):
        action = "pass the batch itself, or join batches by GraphBatch.concat"
    got = f"{what}a {type(given).__name__}"
    return GraphError.at(_WHERE, got, "expected a list of InputGraph", action)
