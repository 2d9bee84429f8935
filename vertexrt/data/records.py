"""Graphs as records, which every reader makes: dicts and lists as a line of JSON has them.

docs/guide/data.md has the schema in full. A record says how its graph is given (children, a chain,
edges, or types with relations) and has values for each vertex and edge. All records of a file
become one batch: words are numbered, numbers become arrays. What a column of values holds (words,
whole numbers, real numbers or vectors) is known when all of it has been read. JSON lines have a
record a line, and may be written, too.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from vertexrt.checks import is_whole
from vertexrt.data.dataset import Vocabulary
from vertexrt.data.files import AnyPath, expanded, read_file, unknown
from vertexrt.errors import DataError, UsageError, VertexrtError, nearest
from vertexrt.graph import GraphBatch, InputGraph, PullValue, Rows
from vertexrt.graph.networks import values_of
from vertexrt.graph.pulls import ordered_pulls
from vertexrt.plain_files import write_atomically

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
Fields = dict[str, Any]  # of a record
Values = dict[str, list[Any]]  # by pull: a value for each vertex of the batch, None for none
# Of the edges of each relation, in the order of records: a batch has all by their parents.
Parents = list[npt.NDArray[np.integer]]
Key = tuple[str, str, str]  # of a relation: child type, relation, parent type

# Texts that are numbers where all of a column are; longer whole ones are words.
_NUMBERS: dict[type, re.Pattern[str]] = {
    int: re.compile("[0-9]{1,20}"),
    float: re.compile(
        r"\s*[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity)\s*",
        re.IGNORECASE | re.ASCII,  # no other letter is an i
    ),
}

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
    ids: tuple[Any, ...] = ()


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
    numbers: Mapping[str, Sequence[type]] | None = None,
) -> Examples:
    """Make one batch of the graphs of all records of a file.

    Args:
        file: name for error messages.
        records: each with the number of its line, or its own.
        options: of the reader.
        unit: what a graph stands in, which messages number.
        make: makes a record of what was given instead; its errors are moved to the line.
        numbers: by name of the data, what its texts are where all of them read so: whole numbers
            (int), real ones (float), the first that fits; words where they have a vocabulary.
    Raises: UsageError, when an option is unknown or has no such value; DataError, GraphError or
        PullError, when a record is not as the schema says, does not fit those before it, or there
        is none.
    """
    options = _checked(options)
    names = options["names"]
    of_names = {names.get(name, name): kinds for name, kinds in (numbers or {}).items()}
    vertices = _Columns(file, unit, "pull", "vertices", names, of_names)
    edges = _Columns(file, unit, "edge pull", "edges", {}, {})
    graphs: list[InputGraph] = []
    ids: list[Any] = []
    parents: Parents = []
    for number, given in records:
        try:
            record: Any = given if make is None else make(given)
            graph = _add(record, number, vertices, edges, parents)
            typed = graph.types is not None
            if graphs and typed == (graphs[0].types is None):
                raise wrong(
                    f"{'' if typed else 'no '}vertex types",
                    f"the {unit}s before differ",
                    "give all graphs vertex types, or none",
                )
        except VertexrtError as error:
            raise error.moved(f"{file}, {unit} {number}") from error
        ids.append(record.get("id"))
        graphs.append(graph)
    if not graphs:
        raise DataError.at(file, "no graph", "expected at least one", "add examples")
    read = sorted({name for _, names in vertices.owners.values() for name in names})
    for name, ours in names.items():
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
    pulls, edge_pulls = (
        {name: columns.array(name, options, vocabularies) for name in columns.by_name}
        for columns in (vertices, edges)
    )
    if edge_pulls:  # else there need not be a relation
        edge_pulls = ordered_pulls(edge_pulls, np.argsort(np.concatenate(parents), kind="stable"))
    arrays = batch.graph_ptr, batch.child_ptr, batch.child
    return Examples(GraphBatch(*arrays, pulls, batch.types, edge_pulls), vocabularies, tuple(ids))


wrong = partial(DataError.at, "")  # an error whose place `collect` says


def _add(
    record: object,
    number: int,
    vertices: _Columns,
    edges: _Columns,
    parents: Parents,
) -> InputGraph:
    """Return the graph of a record; what its vertices and edges have is added to the rest."""
    if not isinstance(record, dict):
        raise wrong(
            f"a {type(record).__name__}", "expected an object", "write {...} for each graph"
        )
    structures = [name for name in _STRUCTURES if name in record]
    if len(structures) != 1:
        raise wrong(
            f"the fields {', '.join(record) or '(none)'}",
            f"expected one of {', '.join(_STRUCTURES)}",
            "say how the graph is given, a sequence of 3 by 'chain': 3",
        )
    structure = structures[0]
    _check_fields(record, (structure, "id", *_STRUCTURES[structure]))
    given, pulls, typed = record[structure], record.get("pulls", {}), structure == "types"
    for count in given.values() if isinstance(given, dict) else [given]:
        if isinstance(count, int) and count > _MOST_VERTICES:
            raise wrong(
                f"{count} vertices",
                f"expected at most {_MOST_VERTICES} in a graph",
                "correct the number",
            )
    relations: dict[Key, Any] = {("", "", ""): record}
    pairs: Any = record.get("edges", [])
    if typed:
        relations = _relations(record.get("relations", []))
        graph = InputGraph.from_types(
            given, {key: each["pairs"] for key, each in relations.items()}
        )
        _check_named(pulls, "pulls")
    elif structure == "vertices":
        graph = InputGraph.from_edges(given, pairs)
    else:
        graph = (InputGraph.chain if structure == "chain" else InputGraph.from_children)(given)
        pairs = range(graph.num_edges)  # in the order of their parents
    sizes = given if typed else {"": graph.num_vertices}
    start = dict(zip(sizes, np.cumsum([vertices.count, *sizes.values()]), strict=False))
    # The order of edges in a graph matters where they have values.
    valued = any(each.get("edge_pulls") for each in relations.values())
    ordered = isinstance(pairs, range) or not valued
    for key, relation in relations.items():
        own = relation["pairs"] if typed else pairs
        parent = np.zeros(len(own), np.int64) if ordered else np.reshape(own, (-1, 2))[:, 1]
        parents.append(parent + start[key[2]])
        owner = f" of {key}" if typed else ""
        edges.add(number, owner, len(parent), relation.get("edge_pulls", {}))
    for name in pulls if typed else ():
        if name not in sizes:
            raise wrong(
                f"pulls of the type '{name}'",
                f"the types are {', '.join(sizes)}",
                "name one of these." + nearest(name, sizes),
            )
    for name, size in sizes.items():
        owner = f" of the type '{name}'" if typed else ""
        vertices.add(number, owner, size, pulls.get(name, {}) if typed else pulls)
    return graph


def _relations(listed: object) -> dict[Key, Fields]:
    """Return the objects with the fields of a relation, by what they are of."""
    if not isinstance(listed, list):
        raise wrong(f"relations is {listed!r:.60}", "expected a list of objects", "write [{...}]")
    found: dict[Key, Fields] = {}
    for number, relation in enumerate(listed):
        what = f"relation {number}"
        _check_named(relation, what)
        _check_fields(relation, (*_RELATION, "edge_pulls"))
        missing = [name for name in _RELATION if name not in relation]
        if missing:
            raise wrong(
                f"{what} has no '{missing[0]}'", f"expected {', '.join(_RELATION)}", "add it"
            )
        child, name, parent = key = tuple(relation[each] for each in _RELATION[:3])
        if not all(isinstance(each, str) for each in key):
            raise wrong(f"{what} has the names {key!r:.80}", "expected words", "correct them")
        if key in found:
            raise wrong(f"{what} is {key} again", "expected each once", "join their pairs")
        found[child, name, parent] = relation
    return found


def _check_fields(record: dict[str, Any], known: Collection[str]) -> None:
    for name in record:
        if name not in known:
            raise wrong(
                f"the field '{name}'",
                f"the fields are {', '.join(sorted(known))}",
                "correct it." + nearest(name, known),
            )


def _check_named(given: object, what: str) -> None:
    if not isinstance(given, dict):
        raise wrong(
            f"{what} is {given!r:.60}", "expected an object of names", 'write {"name": ...}'
        )


@dataclass(slots=True)
class _Columns:
    """The pulls of all vertices of a file, or of all edges.

    Attributes:
        file, unit: for messages, as of `collect`.
        what, of: what a column is called, and what has its values.
        names: as of `ReadOptions`; numbers: as of `collect`.
        count: vertices, or edges, so far.
        by_name: their values, None where there is none; it may be shorter than `count`.
        firsts, lines: of those that were added together, the first one and the line.
        owners: by type of vertices or by relation, the line and the names of the first graph.
    """

    file: str
    unit: str
    what: str
    of: str
    names: Mapping[str, str]
    numbers: Mapping[str, Sequence[type]]
    count: int = 0
    by_name: dict[str, list[Any]] = field(default_factory=dict)
    firsts: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    owners: dict[str, tuple[int, set[str]]] = field(default_factory=dict)

    def add(self, line: int, owner: str, size: int, values: Any) -> None:
        """Add the values of so many vertices or edges of a type or relation.

        Raises: DataError, when there are not as many lists of as many values, or they have other
            names than graphs before gave for the same owner.
        """
        named = f"{self.what.replace(' ', '_')}s{owner}"
        _check_named(values, named)
        for name, given in values.items():
            if not isinstance(given, list):
                raise wrong(
                    f"{named} gives {given!r:.60} as '{name}'",
                    "expected a list of values",
                    "write [...]",
                )
            if len(given) != size:
                raise wrong(
                    f"the {self.what} '{name}' has {len(given)} values",
                    f"expected one for each of {size} {self.of}",
                    "correct it",
                )
            taken = name not in self.names and name in self.names.values()
            ours = "" if taken else self.names.get(name, name)
            if ours:
                column = self.by_name.setdefault(ours, [])
                column += [None] * (self.count - len(column))
                column += given
        self.firsts.append(self.count)
        self.lines.append(line)
        self.count += size
        before, known = self.owners.setdefault(owner, (line, {*values})) if size else (0, {*values})
        if known != {*values}:
            name = min(known ^ {*values})
            raise wrong(
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
        given = options["vocabularies"] or {}
        for kind in self.numbers.get(name, ()) if given.get(name) is None else ():
            if all(map(_NUMBERS[kind].fullmatch, [values[at] for at in present])):
                values = [None if value is None else kind(value) for value in values]
                break

        def refuse(at: int, expected: str) -> NoReturn:
            span = bisect_right(self.firsts, at) - 1
            what = f"value {at - self.firsts[span]} of the {self.what} '{name}'"
            raise DataError.at(
                f"{self.file}, {self.unit} {self.lines[span]}",
                f"{what} is {values[at]!r:.60}",
                expected,
                "correct it",
            )

        kinds = frozenset[type]()
        for kind in dict.fromkeys(type(values[at]) for at in present):
            wanted = f"{_FORMS[kinds]} as before" if kinds else "a word or a number"
            kinds |= {kind}
            if kinds not in _FORMS:
                at = next(at for at in present if type(values[at]) is kind)
                refuse(at, f"expected {wanted}")
        form = _FORMS[kinds]
        if form == "words":
            if options["vocabularies"] is not None and name not in given:
                raise DataError.at(
                    self.file,
                    f"the {self.what} '{name}' has words",
                    f"vocabularies were given for {', '.join(given) or 'nothing'}",
                    f"read it with those of the training file, or with '{name}': None",
                )
            counts = Counter(values[at] for at in present)
            if name not in vocabularies:
                vocabularies[name] = (
                    Vocabulary.of_labels(counts)
                    if name in options["labels"]
                    else Vocabulary.build(counts, min_count=options["min_count"])
                )
            known = {word: vocabularies[name].find(word) for word in counts}
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


def read_jsonl(path: AnyPath, **options: Unpack[ReadOptions]) -> Examples:
    """Read graphs from JSON lines; a file whose name ends in .gz is decompressed.

    Args:
        path: of the file, in UTF-8. Blank lines are skipped.
        options: how words become numbers: `vocabularies`, `labels`, `min_count`, `dtype`; see
            `ReadOptions`.
    Returns: the batch of all graphs, in the order of the file, and the vocabularies.
    Raises: DataError, GraphError or PullError with file and line, when a line is not as the schema
        says, a graph cannot be evaluated, or values do not fit each other.
    """
    file, text = read_file(path)
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    return collect(file, lines, options, make=_read_record)


def from_records(records: Iterable[Any], **options: Unpack[ReadOptions]) -> Examples:
    """Make a batch of graphs that are given as the lines of `read_jsonl` are, as dicts and lists.

    Args:
        records: each what `json.loads` returns of a line.
        options: as those of `read_jsonl`.
    Raises: as `read_jsonl` does, with the number of the record.
    """
    given: object = records
    if not isinstance(given, list | tuple | Iterator):
        raise UsageError.at(
            "from_records", f"a {type(given).__name__}", "expected a list of dicts", "pass [{...}]"
        )
    return collect("from_records", enumerate(records), options, "record")


def _once(pairs: list[tuple[str, Any]]) -> Fields:
    record = dict(pairs)
    if len(record) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise wrong(f"the name '{twice}' twice", "expected each name once", "rename one")
    return record


def _read_record(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise wrong(
            f"{error.msg} at column {error.colno}",
            "expected one JSON object",
            "correct the line",
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep nesting
        got = f"no JSON that can be read: {error}"
        raise wrong(got, "expected a JSON object", "correct it") from error


def write_jsonl(
    path: AnyPath,
    graphs: GraphBatch | Iterable[InputGraph],
    vocabularies: Mapping[str, Vocabulary] | None = None,
) -> None:
    """Write one graph a line; a file whose name ends in .gz is compressed.

    Args:
        path: of the file, which is replaced in one step.
        graphs: a batch, or graphs.
        vocabularies: by pull; the numbers of these pulls are written as words.
    Raises: DataError, when the file cannot be written, a number stands for no word, or is none that
        `read_jsonl` reads; GraphError and PullError, as `GraphBatch.from_graphs` does.
    """
    batch = graphs if isinstance(graphs, GraphBatch) else GraphBatch.from_graphs(graphs)
    values, of_edges = (_values(x, vocabularies or {}) for x in (batch.pulls, batch.edge_pulls))
    write = _plain if batch.types is None else _typed
    content = "".join(f"{line_of(record)}\n" for record in write(batch, values, of_edges)).encode()
    file = expanded(path)
    try:
        write_atomically(file, gzip.compress(content) if file.suffix == ".gz" else content)
    except OSError as error:
        raise DataError.at(
            str(file),
            f"cannot be written: {error.strerror}",
            "a file that may be written",
            "give another",
        ) from error


def line_of(record: object) -> str:
    """Return a line of JSON; what does not print, such as half of a surrogate pair, is escaped."""
    text = json.dumps(record, ensure_ascii=False, default=np.ndarray.tolist)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def _values(pulls: Mapping[str, PullValue], vocabularies: Mapping[str, Vocabulary]) -> Values:
    found: Values = {}
    for name, pull in pulls.items():
        table = pull.table if isinstance(pull, Rows) else pull
        if not (table <= LARGEST if table.dtype.kind == "i" else np.isfinite(table)).all():
            raise DataError.at(
                "write_jsonl",
                f"the pull '{name}' is not finite, or above {LARGEST}",
                "expected what read_jsonl reads",
                "replace it",
            )
        values = found[name] = values_of(pull)
        if name in vocabularies and table.dtype.kind == "i":
            numbers = (-1 if value is None else value for value in values)
            found[name] = list(vocabularies[name].decode(numbers))
    return found


def _plain(batch: GraphBatch, values: Values, of_edges: Values) -> Iterable[Fields]:
    child, child_ptr = batch.child.tolist(), batch.child_ptr.tolist()
    for first, end in pairwise(batch.graph_ptr.tolist()):
        slots = child_ptr[first : end + 1]
        record = {
            "children": [[max(at - first, -1) for at in child[a:b]] for a, b in pairwise(slots)],
            "pulls": {name: v[first:end] for name, v in values.items()},
        }
        if of_edges:
            record["edge_pulls"] = {n: v[slots[0] : slots[-1]] for n, v in of_edges.items()}
        yield record


def _typed(batch: GraphBatch, values: Values, of_edges: Values) -> Iterable[Fields]:
    types, child, child_ptr = batch.types, batch.child.tolist(), batch.child_ptr.tolist()
    assert types is not None
    kinds = types.of_vertex.tolist()
    parents = np.repeat(np.arange(len(kinds)), np.diff(batch.child_ptr)).tolist()
    # What each edge is of: child type, relation and parent type; None of an empty slot.
    keys = [
        (kinds[at], relation, kinds[parent]) if at >= 0 else None
        for at, relation, parent in zip(child, types.of_edge.tolist(), parents, strict=True)
    ]
    found = sorted(key for key in {*keys} if key)
    # A relation without an edge keeps its name, which a network may ask for.
    unused = {*range(len(types.relations))} - {relation for _, relation, _ in found}
    found += [(0, relation, 0) for relation in sorted(unused)]
    owned = {  # the pulls that a vertex of a type has, or an edge of a relation
        (owner, name)
        for owners, columns in ((kinds, values), (keys, of_edges))
        for name, column in columns.items()
        for owner, value in zip(owners, column, strict=True)
        if value is not None
    }

    def picked(columns: Values, owner: object, at: list[int]) -> Values:
        return {n: [v[k] for k in at] for n, v in columns.items() if (owner, n) in owned}

    for first, end in pairwise(batch.graph_ptr.tolist()):
        members: list[list[int]] = [[] for _ in types.names]
        number = {}  # of each vertex: its number in its type
        for vertex in range(first, end):
            several = members[kinds[vertex]]
            number[vertex] = len(several)
            several.append(vertex)
        record: Fields = {"types": {}, "relations": [], "pulls": {}}
        for owner, (name, several) in enumerate(zip(types.names, members, strict=True)):
            record["types"][name] = len(several)
            if pulls := picked(values, owner, several):
                record["pulls"][name] = pulls
        edges: dict[Any, list[int]] = {key: [] for key in (*found, None)}
        for edge in range(child_ptr[first], child_ptr[end]):
            edges[keys[edge]].append(edge)
        for key in found:
            several = edges[key]
            relation = {
                "child": types.names[key[0]],
                "relation": types.relations[key[1]],
                "parent": types.names[key[2]],
                "pairs": [[number[child[k]], number[parents[k]]] for k in several],
            }
            if pulls := picked(of_edges, key, several):
                relation["edge_pulls"] = pulls
            record["relations"].append(relation)
        yield record
