"""Collect the graphs of a file: a reader adds one after another, with values as plain lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vertexrt.data.columns import Column, Examples, Numbering, ReadOptions, read_options
from vertexrt.data.dataset import Vocabulary
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch, InputGraph, PullValue


@dataclass(slots=True)
class _Table:
    """The columns of all vertices of a file, or of all edges.

    Attributes:
        file, unit: for messages, as of `Collector`.
        what: a column is called: a pull, or an edge pull.
        count: vertices, or edges, so far.
    """

    file: str
    unit: str
    what: str
    count: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    _names: dict[str, tuple[int, Collection[str]]] = field(default_factory=dict)  # by owner

    def add(self, line: int, first: int, size: int, values: Mapping[str, Sequence[Any]]) -> None:
        """Add the values of some that stand side by side."""
        for name, given in values.items():
            if len(given) != size:
                got = f"the {self.what} '{name}' has {len(given)} values"
                expected = f"expected one for each of {size}"
                raise DataError.at(self.place(line), got, expected, "correct it")
            column = self.columns.setdefault(name, Column(self.file, self.unit, self.what, name))
            column.add(line, first, given)

    def require_same(self, line: int, owner: str, names: Collection[str]) -> None:
        """Refuse other names than graphs before gave for the same owner."""
        before, known = self._names.setdefault(owner, (line, set(names)))
        if set(known) != set(names):
            name = sorted(set(known) ^ set(names))[0]
            got = f"{'no' if name in known else 'a'} {self.what} '{name}'{owner}"
            expected = f"{self.unit} {before} has {'it' if name in known else 'none'}"
            action = f"give all graphs the same {self.what}s, with no value where there is none"
            raise DataError.at(self.place(line), got, expected, action)

    def place(self, line: int) -> str:
        """Return what messages call a graph's line."""
        return f"{self.file}, {self.unit} {line}"

    def arrays(
        self, numbering: Numbering, vocabularies: dict[str, Vocabulary]
    ) -> dict[str, PullValue]:
        """Return the columns as arrays; what numbers words is added to the vocabularies."""
        found: dict[str, PullValue] = {}
        for name, column in self.columns.items():
            form = column.form()
            if form == "whole numbers" and name in numbering.reals:
                form = "real numbers"
            if form == "words":
                vocabularies[name] = column.words(numbering)
                numbers = column.numbers(vocabularies[name])
                found[name] = column.whole(numbers, self.count)
            elif form == "whole numbers":
                found[name] = column.whole(column.values, self.count)
            else:
                found[name] = column.reals(numbering.dtype, self.count)
        return found


class Collector:
    """Collect the graphs of a file and the values of their vertices and edges.

    Args:
        file: name for error messages.
        options: of the reader.
        unit: what a graph stands in, which messages number.
    Raises: UsageError, when an option is unknown or has no such value.
    """

    def __init__(self, file: str, options: ReadOptions, unit: str = "line") -> None:
        self._numbering = read_options(options)
        self._graphs: list[InputGraph] = []
        self._vertices = _Table(file, unit, "pull")
        self._edges = _Table(file, unit, "edge pull")

    def add(
        self,
        line: int,
        graph: InputGraph,
        pulls: Mapping[str, Sequence[Any]],
        edge_pulls: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Add a graph whose vertices have no types.

        Args:
            pulls: a value for each vertex; edge_pulls: for each edge, in the order of `child`.
        Raises: DataError, when values do not fit the graph, or the graphs before it.
        """
        self._vertices.require_same(line, "", pulls)
        if graph.num_edges:
            self._edges.require_same(line, "", edge_pulls or {})
        self._vertices.add(line, self._vertices.count, graph.num_vertices, pulls)
        self._end(line, graph, edge_pulls or {})

    def add_typed(
        self,
        line: int,
        graph: InputGraph,
        sizes: Mapping[str, int],
        pulls: Mapping[str, Mapping[str, Sequence[Any]]],
        edge_pulls: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Add a graph of `InputGraph.from_types`, the pulls of each type, and of edges as `add`.

        Raises: DataError, as `add` does.
        """
        first = self._vertices.count
        for name, size in sizes.items():
            if size or name in pulls:
                given = pulls.get(name, {})
                self._vertices.require_same(line, f" of the type '{name}'", given)
                self._vertices.add(line, first, size, given)
            first += size
        self._end(line, graph, edge_pulls or {})

    def require_same_edges(self, line: int, key: Sequence[str], names: Collection[str]) -> None:
        """Refuse other pulls of the edges of a relation than graphs before gave.

        Args:
            key: child type, relation and parent type.
        """
        self._edges.require_same(line, f" of {tuple(key)}", names)

    def _end(self, line: int, graph: InputGraph, edge_pulls: Mapping[str, Sequence[Any]]) -> None:
        if self._graphs and (graph.types is None) != (self._graphs[0].types is None):
            got = f"{'no vertex' if graph.types is None else 'vertex'} types"
            expected = f"the {self._vertices.unit}s before differ"
            action = "give all graphs vertex types, or none"
            raise DataError.at(self.place(line), got, expected, action)
        self._edges.add(line, self._edges.count, graph.num_edges, edge_pulls)
        self._graphs.append(graph)
        self._vertices.count += graph.num_vertices
        self._edges.count += graph.num_edges

    def place(self, line: int) -> str:
        """Return what messages call a graph's line."""
        return self._vertices.place(line)

    def is_numbered(self, name: str) -> bool:
        """Tell whether a vocabulary was given for a pull, whose values are then words."""
        given = self._numbering.vocabularies
        return given is not None and given.get(name) is not None

    def examples(self) -> Examples:
        """Return the batch of all graphs with their pulls, and the vocabularies.

        Raises: DataError, when there is no graph, or values do not fit each other.
        """
        file = self._vertices.file
        if not self._graphs:
            raise DataError.at(file, "no graph", "expected at least one", "add examples")
        for name in self._edges.columns.keys() & self._vertices.columns.keys():
            got = f"'{name}' is a pull and an edge pull"
            raise DataError.at(file, got, "a name for each", "rename one")
        batch = GraphBatch.from_graphs(self._graphs)
        given = self._numbering.vocabularies or {}
        vocabularies = {name: vocabulary for name, vocabulary in given.items() if vocabulary}
        pulls = self._vertices.arrays(self._numbering, vocabularies)
        of_edges = self._edges.arrays(self._numbering, vocabularies)
        structure = batch.graph_ptr, batch.child_ptr, batch.child
        return Examples(GraphBatch(*structure, pulls, batch.types, of_edges), vocabularies)
