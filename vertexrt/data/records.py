"""Graphs as records, which every reader makes: dicts and lists as a line of JSON has them.

docs/guide/data.md has the schema in full. A record says how its graph is given (children, a chain,
edges, or types with relations) and has values for each vertex and edge. All records of a file
become one batch: words are numbered, numbers become arrays. What a column of values holds (words,
whole numbers, real numbers or vectors) is known when all of it has been read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple, NoReturn, TypedDict

import numpy as np
import numpy.typing as npt

from vertexrt.checks import is_whole
from vertexrt.data.dataset import Vocabulary
from vertexrt.data.files import unknown
from vertexrt.errors import DataError, UsageError, VertexrtError, nearest
from vertexrt.graph import GraphBatch, InputGraph, PullValue, Rows
from vertexrt.graph.pulls import ordered_pulls

LARGEST = 2**31 - 2  # of whole numbers
_MOST_VERTICES = 1 << 24  # of a line: a slip in a number must not take all memory

# The field that says how a record gives its structure -> fields that may come with it.
_STRUCTURES = {
    "children": ("edge_pulls", "pulls"),
    "chain": ("edge_pulls", "pulls"),
    "vertices": ("edges", "edge_pulls", "pulls"),
    "types": ("relations", "pulls"),
}
_RELATION = ("child", "relation", "parent", "pairs")
Key = tuple[str, str, str]  # of a relation: child type, relation, parent type

# What a column holds, by the types of its values.
_FORMS = {
    frozenset[type](): "whole numbers",
    frozenset({int}): "whole numbers",
    frozenset({float}): "real numbers",
    frozenset({int, float}): "real numbers",
    frozenset({str}): "words",
    frozenset({list}): "vectors",
}


class Examples(NamedTuple):
    """What a reader returns.

    Attributes:
        batch: all graphs of the file, in its order.
        vocabularies: by pull, what numbers its words; pass them on to read other files.
        ids: what the data call each graph; None where they do not.
    """

    batch: GraphBatch
    vocabularies: dict[str, Vocabulary]
    ids: tuple[Any, ...]


def real_pulls(batch: GraphBatch) -> list[str]:
    """Return the pulls of vertices and edges that are real: `reals` of `ReadOptions`."""
    tables = {
        name: pull.table if isinstance(pull, Rows) else pull
        for pulls in (batch.pulls, batch.edge_pulls)
        for name, pull in pulls.items()
    }
    return [name for name, table in tables.items() if table.dtype.kind == "f"]


class ReadOptions(TypedDict, total=False):
    """How words become numbers, the same for every reader.

    Attributes:
        vocabularies: by pull, what numbers its words: those of the training file, to read others.
            None builds one for each pull whose values are words; None for a pull builds that one.
        labels: pulls whose vocabulary is built without `<unk>`: all their words are known.
        reals: pulls that are real numbers even where a file has whole ones only, or none.
        min_count: when a vocabulary is built, words that are rarer count as `<unk>` (1).
        dtype: of real numbers and vectors, float32 (the default) or float64.
        names: by a name of the data the one that its pull gets, "" to leave it out. A pull that
            has such a name in the data already is left out, too.
    """

    vocabularies: Mapping[str, Vocabulary | None] | None
    labels: Sequence[str]
    reals: Sequence[str]
    min_count: int
    dtype: npt.DTypeLike
    names: Mapping[str, str]


_DEFAULTS: ReadOptions = {
    "vocabularies": None,
    "labels": (),
    "reals": (),
    "min_count": 1,
    "dtype": np.float32,
    "names": {},
}


def _checked(options: ReadOptions) -> ReadOptions:
    """Return all options. Raises: UsageError, when one is unknown or no such value."""
    for name in options:
        if name not in _DEFAULTS:
            raise unknown("read", "option", name, _DEFAULTS)
    given: ReadOptions = {**_DEFAULTS, **options}
    real = str(getattr(given["dtype"], "__name__", given["dtype"]))  # a name, a type or a dtype
    known = given["vocabularies"]
    for name, fits, expected in (
        ("vocabularies", isinstance(known, Mapping | None), "a dict of pulls to Vocabulary"),
        ("labels", _are_names(given["labels"]), "a list of names of pulls"),
        ("reals", _are_names(given["reals"]), "a list of names of pulls"),
        ("min_count", is_whole(given["min_count"]), "a whole number"),
        ("dtype", real in ("float32", "float64"), "float32 or float64"),
        ("names", isinstance(given["names"], Mapping), "a dict of names to names"),
    ):
        if not fits:
            raise UsageError.at(
                "read", f"{name}={options.get(name)!r:.60}", f"expected {expected}", "correct it"
            )
    return {**given, "dtype": np.dtype(real)}


def _are_names(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, str)


def collect(
    file: str,
    records: Iterable[tuple[int, Any]],
    options: ReadOptions,
    unit: str = "line",
    make: Callable[[Any], object] | None = None,
) -> Examples:
    """Make one batch of the graphs of all records of a file.

    Args:
        file: name for error messages.
        records: each with the number of its line, or its own.
        options: of the reader.
        unit: what a graph stands in, which messages number.
        make: makes a record of what was given instead; its errors are moved to the line.
    Raises: UsageError, when an option is unknown or has no such value; DataError, GraphError or
        PullError, when a record is not as the schema says, does not fit those before it, or there
        is none.
    """
    options = _checked(options)
    vertices = _Columns(file, unit, "pull", "vertices", options["names"])
    edges = _Columns(file, unit, "edge pull", "edges")
    graphs: list[InputGraph] = []
    ids: list[Any] = []
    for number, given in records:
        try:
            record: Any = given if make is None else make(given)
            graph = _add(record, number, vertices, edges)
            ids.append(record.get("id"))
            typed = graph.types is not None
            if graphs and typed == (graphs[0].types is None):
                raise _wrong(
                    f"{'' if typed else 'no '}vertex types",
                    f"the {unit}s before differ",
                    "give all graphs vertex types, or none",
                )
        except VertexrtError as error:
            raise error.moved(f"{file}, {unit} {number}") from error
        graphs.append(graph)
    if not graphs:
        raise DataError.at(file, "no graph", "expected at least one", "add examples")
    read = sorted({name for _, names in vertices.owners.values() for name in names})
    for name, ours in options["names"].items():
        if ours not in ("", name) and name not in read:
            raise DataError.at(
                file,
                f"no pull '{name}'",
                f"the data have {', '.join(read) or 'no pulls'}",
                f"name one of these as the {ours}.{nearest(name, read)}",
            )
    for name in edges.by_name.keys() & vertices.by_name.keys():
        raise DataError.at(
            file, f"'{name}' is a pull and an edge pull", "a name for each", "rename one"
        )
    batch = GraphBatch.from_graphs(graphs)
    numbered = options["vocabularies"] or {}
    vocabularies = {name: vocabulary for name, vocabulary in numbered.items() if vocabulary}
    found, given = (
        {name: columns.array(name, options, vocabularies) for name in columns.by_name}
        for columns in (vertices, edges)
    )
    order = np.concatenate(edges.order)
    of_edges = ordered_pulls(given, order)
    arrays = batch.graph_ptr, batch.child_ptr, batch.child
    return Examples(GraphBatch(*arrays, found, batch.types, of_edges), vocabularies, tuple(ids))


def _wrong(got: str, expected: str, action: str) -> DataError:
    """Return an error whose place `collect` says."""
    return DataError.at("", got, expected, action)


def _add(record: object, number: int, vertices: _Columns, edges: _Columns) -> InputGraph:
    """Return the graph of a record; the values of its vertices and edges are added to others."""
    if not isinstance(record, dict):
        raise _wrong(
            f"a {type(record).__name__}", "expected an object", "write {...} for each graph"
        )
    structures = [name for name in _STRUCTURES if name in record]
    if len(structures) != 1:
        raise _wrong(
            f"the fields {', '.join(record) or '(none)'}",
            f"expected one of {', '.join(_STRUCTURES)}",
            "say how the graph is given, a sequence of 3 by 'chain': 3",
        )
    structure = structures[0]
    _check_fields(record, (structure, "id", *_STRUCTURES[structure]))
    given = record[structure]
    for count in given.values() if isinstance(given, dict) else [given]:
        if isinstance(count, int) and count > _MOST_VERTICES:
            raise _wrong(
                f"{count} vertices",
                f"expected at most {_MOST_VERTICES} in a graph",
                "correct the number",
            )
    typed, one = structure == "types", ("", "", "")
    relations: dict[Key, Any] = {one: record}
    pairs: dict[Key, Any] = {}
    if typed:
        relations = _relations(record.get("relations", []))
        pairs = {key: relation["pairs"] for key, relation in relations.items()}
    elif structure == "vertices":
        pairs = {one: record.get("edges", [])}
    elif structure == "children":
        graph = InputGraph.from_children(given)
    else:
        graph = InputGraph.chain(given)
    first = edges.count
    for key, relation in relations.items():
        values = relation.get("edge_pulls", {})
        _check_lists(values, "edge_pulls")
        listed = pairs[key] if pairs else range(graph.num_edges)
        size = len(listed) if isinstance(listed, list | range) else 0
        edges.add(number, size, values)
        if size:
            edges.require_same(number, f" of {key}" if typed else "", values)
    sizes = given if typed else {"": given}
    if typed:
        graph = InputGraph.from_types(given, pairs)
    elif pairs:
        graph = InputGraph.from_edges(given, pairs[one])
    else:
        sizes = {"": graph.num_vertices}
    order = np.arange(graph.num_edges)
    if pairs and edges.by_name:  # a batch has edges by their parents
        start = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
        parents = [start[key[2]] + parent for key, each in pairs.items() for _, parent in each]
        order = np.argsort(parents, kind="stable")
    edges.order.append(first + order)
    pulls = record.get("pulls", {})
    if typed:
        _check_named(pulls, "pulls")
    else:
        pulls = {"": pulls}
    for name, values in pulls.items():
        if name not in sizes:
            raise _wrong(
                f"pulls of the type '{name}'",
                f"the types are {', '.join(sizes)}",
                "name one of these." + nearest(name, sizes),
            )
        _check_lists(values, f"pulls of '{name}'" if typed else "pulls")
    for name, size in sizes.items():
        values = pulls.get(name, {})
        if size or name in pulls:
            vertices.require_same(number, f" of the type '{name}'" if typed else "", values)
        vertices.add(number, size, values)
    return graph


def _relations(listed: object) -> dict[Key, dict[str, Any]]:
    """Return the objects with the fields of a relation, by what they are of."""
    if not isinstance(listed, list):
        raise _wrong(f"relations is {listed!r:.60}", "expected a list of objects", "write [{...}]")
    found: dict[Key, dict[str, Any]] = {}
    for number, relation in enumerate(listed):
        what = f"relation {number}"
        _check_named(relation, what)
        _check_fields(relation, (*_RELATION, "edge_pulls"))
        missing = [name for name in _RELATION if name not in relation]
        if missing:
            raise _wrong(
                f"{what} has no '{missing[0]}'", f"expected {', '.join(_RELATION)}", "add it"
            )
        child, name, parent = key = tuple(relation[each] for each in _RELATION[:3])
        if not all(isinstance(each, str) for each in key):
            raise _wrong(f"{what} has the names {key!r:.80}", "expected words", "correct them")
        if key in found:
            raise _wrong(f"{what} is {key} again", "expected each once", "join their pairs")
        found[child, name, parent] = relation
    return found


def _check_fields(record: dict[str, Any], known: Collection[str]) -> None:
    for name in record:
        if name not in known:
            raise _wrong(
                f"the field '{name}'",
                f"the fields are {', '.join(sorted(known))}",
                "correct it." + nearest(name, known),
            )


def _check_named(given: object, what: str) -> None:
    if not isinstance(given, dict):
        raise _wrong(
            f"{what} is {given!r:.60}", "expected an object of names", 'write {"name": ...}'
        )


def _check_lists(given: Any, what: str) -> None:
    _check_named(given, what)
    for name, values in given.items():
        if not isinstance(values, list):
            raise _wrong(
                f"{what} gives {values!r:.60} as '{name}'",
                "expected a list of values",
                "write [...]",
            )


@dataclass(slots=True)
class _Columns:
    """The pulls of all vertices of a file, or of all edges.

    Attributes:
        file, unit: for messages, as of `collect`.
        what, of: what a column is called, and what has its values.
        names: as of `ReadOptions`.
        count: vertices, or edges, so far.
        by_name: their values, None where there is none; it may be shorter than `count`.
        firsts, lines: of those that were added together, the first one and the line.
        order: of edges, in which a batch has those of each graph; they come in that of a record.
        owners: by type of vertices or by relation, the names of the first graph, and its line.
    """

    file: str
    unit: str
    what: str
    of: str
    names: Mapping[str, str] = field(default_factory=dict)
    count: int = 0
    by_name: dict[str, list[Any]] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    order: list[npt.NDArray[np.intp]] = field(default_factory=list)
    owners: dict[str, tuple[int, set[str]]] = field(default_factory=dict)

    def add(self, line: int, size: int, values: Mapping[str, Sequence[Any]]) -> None:
        """Add the values of so many vertices or edges."""
        for name, given in values.items():
            if len(given) != size:
                raise _wrong(
                    f"the {self.what} '{name}' has {len(given)} values",
                    f"expected one for each of {size} {self.of}",
                    "correct it",
                )
            taken = name not in self.names and name in self.names.values()
            ours = "" if taken else self.names.get(name, name)
            if not ours:
                continue
            column = self.by_name.setdefault(ours, [])
            column += [None] * (self.count - len(column))
            column += given
        self.firsts.append(self.count)
        self.lines.append(line)
        self.count += size

    def require_same(self, line: int, owner: str, names: Iterable[str]) -> None:
        """Refuse other names than graphs before gave for the same owner."""
        before, known = self.owners.setdefault(owner, (line, set(names)))
        if known != set(names):
            name = sorted(known ^ set(names))[0]
            raise _wrong(
                f"{'no' if name in known else 'a'} {self.what} '{name}'{owner}",
                f"{self.unit} {before} has {'it' if name in known else 'none'}",
                f"give all graphs the same {self.what}s, with no value where there is none",
            )

    def array(
        self, name: str, options: ReadOptions, vocabularies: dict[str, Vocabulary]
    ) -> PullValue:
        """Return a column as an array; what numbers its words is added to the vocabularies.

        Raises: DataError, when values are of several sorts, or of none that can be pulled, or
            words that no vocabulary was given for, or that a vocabulary of labels does not have.
        """
        values = self.by_name[name]
        values += [None] * (self.count - len(values))
        present = [at for at, value in enumerate(values) if value is not None]

        def refuse(at: int, expected: str) -> NoReturn:
            span = bisect_right(self.firsts, at) - 1
            what = f"value {at - self.firsts[span]} of the {self.what} '{name}'"
            raise DataError.at(
                f"{self.file}, {self.unit} {self.lines[span]}",
                f"{what} is {values[at]!r:.60}",
                expected,
                "correct it",
            )

        kinds = frozenset(map(type, values)) - {NoneType}
        if kinds not in _FORMS:
            before: frozenset[type] = frozenset()
            for at in present:
                kinds = before | {type(values[at])}
                if kinds not in _FORMS:
                    wanted = f"{_FORMS[before]} as before" if before else "a word or a number"
                    refuse(at, f"expected {wanted}")
                before = kinds
        form = _FORMS[kinds]
        if form == "words":
            given = options["vocabularies"]
            if given is not None and name not in given:
                raise DataError.at(
                    self.file,
                    f"the {self.what} '{name}' has words",
                    f"vocabularies were given for {', '.join(given) or 'nothing'}",
                    f"read it with those of the training file, or with '{name}': None",
                )
            if name not in vocabularies:
                counts = Counter(values[at] for at in present)
                vocabularies[name] = (
                    Vocabulary.of_labels(counts)
                    if name in options["labels"]
                    else Vocabulary.build(counts, min_count=options["min_count"])
                )
            known = {word: vocabularies[name].find(word) for word in {*values} - {None}}
            if None in known.values():
                at = next(at for at in present if known[values[at]] is None)
                refuse(at, f"the labels are {', '.join(vocabularies[name].words):.200}")
            return np.array([known.get(word, -1) for word in values], np.int32)
        if form == "whole numbers" and name not in options["reals"]:
            for at in present:
                if not -1 <= values[at] <= LARGEST:
                    refuse(
                        at, f"expected 0..{LARGEST}, or no value, or real numbers (option reals)"
                    )
            return np.array([-1 if value is None else value for value in values], np.int32)
        # A row for each, or a table with an index map.
        dtype = options["dtype"]
        table = _of_one_shape([values[at] for at in present], dtype)
        expected = "expected numbers"
        for at in present if table is None else ():
            both = _of_one_shape([values[present[0]], values[at]], dtype)
            if both is None:
                refuse(at, expected)
            expected = f"expected numbers of shape {list(both.shape[1:])} as before"
        assert table is not None, name
        finite = np.isfinite(table).all(axis=tuple(range(1, table.ndim)))
        if not finite.all():
            refuse(present[int(np.argmin(finite))], f"expected finite numbers of {table.dtype}")
        if len(present) == len(values):
            return table
        index = np.full(len(values), -1, np.int32)
        index[present] = np.arange(len(present))
        return Rows(table, index)


def _of_one_shape(values: list[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
    """Return numbers of one shape; None, where they are not."""
    try:
        array = np.array(values)
    except ValueError:  # rows of unequal length
        return None
    if array.dtype.kind not in "iuf":
        return None
    with np.errstate(over="ignore"):
        return array.astype(dtype)
