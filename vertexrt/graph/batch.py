"""Graphs side by side: a minibatch, or a whole data set from which minibatches are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, message
from vertexrt.graph.checks import check_structure, int32_array
from vertexrt.graph.input_graph import InputGraph
from vertexrt.graph.pulls import Pulled, PullValue, check_pulls, join_pulls

IntArray = npt.NDArray[np.int32]

_WHERE = "graph batch"
_NO_COLUMNS = (np.zeros(0, np.int32),)


@dataclass(frozen=True, slots=True, eq=False)
class GraphBatch:
    """Hold K graphs as one set of CSR arrays; a graph's vertices lie side by side.

    The class itself checks nothing, so that `take` costs little: build batches with `from_graphs`
    or `from_arrays`, which do.

    Attributes:
        graph_ptr: int32 [K+1], first vertex of each graph.
        child_ptr: int32 [V+1], first slot of each vertex in `child`.
        child: int32 [E], vertices of the batch, -1 in an empty slot.
        pulls: by name, int32 [V] (-1: absent), floats [V, *shape], or `Pulled`.
    """

    graph_ptr: IntArray
    child_ptr: IntArray
    child: IntArray
    pulls: dict[str, PullValue]

    @classmethod
    def from_graphs(cls, graphs: Sequence[InputGraph]) -> GraphBatch:
        """Put graphs side by side, in the order given.

        Raises: GraphError, when there is none; PullError, when two differ in their pulls.
        """
        if not graphs:
            raise GraphError(
                message(_WHERE, "no graph", "expected at least one", "leave the batch out")
            )
        sizes = [graph.num_vertices for graph in graphs]
        graph_ptr = np.cumsum([0, *sizes])
        slots = np.cumsum([0, *(graph.num_edges for graph in graphs)])
        child_ptr = [graph.child_ptr[1:] + at for graph, at in zip(graphs, slots, strict=False)]
        child = [
            np.where(graph.child >= 0, graph.child + first, -1)
            for graph, first in zip(graphs, graph_ptr, strict=False)
        ]
        return cls(
            int32_array(graph_ptr, "graph_ptr", _WHERE),
            int32_array(np.concatenate([[0], *child_ptr]), "child_ptr", _WHERE),
            np.concatenate(child).astype(np.int32),
            join_pulls([graph.pulls for graph in graphs], sizes),
        )

    @classmethod
    def from_arrays(
        cls, graph_ptr: Any, child_ptr: Any, child: Any, pulls: Mapping[str, Any] | None = None
    ) -> GraphBatch:
        """Build a batch from CSR arrays and check it whole, as `InputGraph` checks one graph.

        Raises: GraphError, on structure that cannot be evaluated; PullError, on a pulled array
            that does not fit.
        """
        graph_ptr = int32_array(graph_ptr, "graph_ptr", _WHERE)
        child_ptr = int32_array(child_ptr, "child_ptr", _WHERE)
        child = int32_array(child, "child", _WHERE)
        check_structure(graph_ptr, child_ptr, child, _WHERE)
        return cls(
            graph_ptr, child_ptr, child, check_pulls(pulls or {}, len(child_ptr) - 1, _WHERE)
        )

    @property
    def num_graphs(self) -> int:
        """Return K."""
        return len(self.graph_ptr) - 1

    @property
    def num_vertices(self) -> int:
        """Return V."""
        return len(self.child_ptr) - 1

    @property
    def num_edges(self) -> int:
        """Return E, the number of slots, empty ones included."""
        return len(self.child)

    @property
    def graph_of(self) -> IntArray:
        """Return int32 [V], the graph of each vertex."""
        return np.repeat(np.arange(self.num_graphs, dtype=np.int32), self.sizes())

    @property
    def roots(self) -> IntArray:
        """Return the vertices that are nobody's child, int32, rising."""
        is_root = np.ones(self.num_vertices, np.bool_)
        is_root[self.child[self.child >= 0]] = False
        return np.flatnonzero(is_root).astype(np.int32)

    def sizes(self) -> IntArray:
        """Return int32 [K], the number of vertices of each graph."""
        return np.diff(self.graph_ptr)

    def take(self, graphs: npt.ArrayLike) -> GraphBatch:
        """Return the batch of the graphs named, in that order; one may come twice.

        Compiled; one copy of the structure and of each pull. Tables behind an index map are
        shared, not copied: only the map is taken.

        Args:
            graphs: whole numbers [n] in 0..K-1.
        Raises: GraphError, when there is none or one is out of range.
        """
        loops = _loops()
        given = np.asarray(graphs)
        if not given.size or given.ndim != 1 or given.dtype.kind not in "iu":
            raise _wrong_graphs(given, self.num_graphs)
        ids = np.ascontiguousarray(given, np.int64)
        columns: dict[str, IntArray] = {}
        for name, pull in self.pulls.items():
            column = pull.index if isinstance(pull, Pulled) else pull
            if column is not None and column.dtype == np.int32:
                columns[name] = column
        graph_ptr, child_ptr, child, taken = loops.take_graphs(
            self.graph_ptr,
            self.child_ptr,
            self.child,
            tuple(columns.values()) or _NO_COLUMNS,
            ids,
        )
        if not graph_ptr.size:
            raise _wrong_graphs(given, self.num_graphs)
        pulls: dict[str, PullValue] = {}
        of_name = dict(zip(columns, taken, strict=False))
        for name, pull in self.pulls.items():
            column = of_name.get(name)
            if column is None:
                values = pull.values if isinstance(pull, Pulled) else pull
                shape = values.shape[1:]
                flat, width = values.reshape(-1), math.prod(shape)
                found = loops.take_rows(flat, width, self.graph_ptr, ids, graph_ptr)
                rows = found.reshape(child_ptr.size - 1, *shape)
                pulls[name] = Pulled(rows) if isinstance(pull, Pulled) else rows
            else:
                pulls[name] = Pulled(pull.values, column) if isinstance(pull, Pulled) else column
        return GraphBatch(graph_ptr, child_ptr, child, pulls)


@cache
def _loops() -> ModuleType:
    """Import the compiled loops when one is needed: numba loads slowly."""
    from vertexrt.graph import compiled

    return compiled


def _wrong_graphs(ids: npt.NDArray[Any], num_graphs: int) -> GraphError:
    if not ids.size:
        got = "no graph"
    elif ids.ndim != 1:
        got = f"graph numbers with {ids.ndim} axes"
    elif ids.dtype.kind not in "iu":
        got = f"graph numbers of dtype {ids.dtype}"
    else:
        got = f"graph {ids[(ids < 0) | (ids >= num_graphs)][0]}"
    expected = f"the batch has the graphs 0..{num_graphs - 1}"
    return GraphError(message("take", got, expected, "give a row of their numbers"))
