"""Collect the graphs of a file: a reader adds one after another, with values as plain lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vertexrt.data.columns import Column, Examples, ReadOptions, read_options
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch, InputGraph, PullValue


class Collector:
    """Collect the graphs of a file and the values of their vertices.

    Args:
        file: name for error messages.
        options: of the reader.
        unit: what a graph stands in, which messages number.
    Raises: UsageError, when an option is unknown or has no such value.
    """

    def __init__(self, file: str, options: ReadOptions, unit: str = "line") -> None:
        self.file, self.unit = file, unit
        self._numbering = read_options(options)
        self._graphs: list[InputGraph] = []
        self._vertices = 0
        self._columns: dict[str, Column] = {}
        self._names: dict[str, tuple[int, frozenset[str]]] = {}  # of each type: line, its pulls

    def add(self, line: int, graph: InputGraph, pulls: Mapping[str, Sequence[Any]]) -> None:
        """Add a graph whose vertices have no types; each pull has a value for each vertex.

        Raises: DataError, when pulls do not fit the graph, or the graphs before it.
        """
        self._add_pulls(line, "", (self._vertices, graph.num_vertices), pulls)
        self._end(line, graph)

    def add_typed(
        self,
        line: int,
        graph: InputGraph,
        sizes: Mapping[str, int],
        pulls: Mapping[str, Mapping[str, Sequence[Any]]],
    ) -> None:
        """Add a graph of `InputGraph.from_types`, and the pulls of each type.

        Raises: DataError, as `add` does.
        """
        first = self._vertices
        for name, size in sizes.items():
            if size or name in pulls:
                self._add_pulls(line, name, (first, size), pulls.get(name, {}))
            first += size
        self._end(line, graph)

    def _end(self, line: int, graph: InputGraph) -> None:
        if self._graphs and (graph.types is None) != (self._graphs[0].types is None):
            got = f"{'no vertex' if graph.types is None else 'vertex'} types"
            action = "give all graphs vertex types, or none"
            raise DataError.at(self.place(line), got, f"the {self.unit}s before differ", action)
        self._graphs.append(graph)
        self._vertices += graph.num_vertices

    def place(self, line: int) -> str:
        """Return what messages call a graph's line."""
        return f"{self.file}, {self.unit} {line}"

    def _add_pulls(
        self, line: int, owner: str, vertices: tuple[int, int], pulls: Mapping[str, Sequence[Any]]
    ) -> None:
        first, size = vertices
        of = f" of the type '{owner}'" if owner else ""
        for name, values in pulls.items():
            if len(values) != size:
                got = f"the pull '{name}'{of} has {len(values)} values"
                expected = f"expected one for each of {size} vertices"
                raise DataError.at(self.place(line), got, expected, "correct it")
            column = self._columns.setdefault(name, Column(self.file, self.unit, name))
            column.add(line, first, values)
        before, names = self._names.setdefault(owner, (line, frozenset(pulls)))
        if names != pulls.keys():
            name = sorted(names ^ pulls.keys())[0]
            got = f"{'no' if name in names else 'a'} pull '{name}'{of}"
            expected = f"{self.unit} {before} has {'it' if name in names else 'none'}"
            action = "give all graphs the same pulls, with no value where a vertex has none"
            raise DataError.at(self.place(line), got, expected, action)

    def examples(self) -> Examples:
        """Return the batch of all graphs with their pulls, and the vocabularies.

        Raises: DataError, when there is no graph, or values do not fit each other.
        """
        numbering = self._numbering
        if not self._graphs:
            raise DataError.at(self.file, "no graph", "expected at least one", "add examples")
        batch = GraphBatch.from_graphs(self._graphs)
        vocabularies = {name: v for name, v in (numbering.vocabularies or {}).items() if v}
        pulls: dict[str, PullValue] = {}
        for name, column in self._columns.items():
            form = column.form()
            if form == "words":
                vocabularies[name] = column.words(numbering)
                numbers = column.numbers(vocabularies[name])
                pulls[name] = column.whole(numbers, self._vertices)
            elif form == "whole numbers":
                pulls[name] = column.whole(column.values, self._vertices)
            else:
                pulls[name] = column.reals(numbering.dtype, self._vertices)
        filled = GraphBatch(batch.graph_ptr, batch.child_ptr, batch.child, pulls, batch.types)
        return Examples(filled, vocabularies)
