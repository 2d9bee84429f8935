"""Readers: each is a function from a file, or from objects in memory, to graphs.

JSON lines have a record a line (see `records`), which may be written, too. Trees in brackets are
those of the Penn Treebank, `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))`, over one or several
lines, in a bracket without a label or not; the Stanford Sentiment Treebank is written so too, with
whole numbers for labels; and those of nltk. Sentences have columns: CoNLL, CoNLL-U with its heads,
and `word|tag` as WikiNER has it. Tables (CSV, TSV) have a text a row.
"""

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Vocabulary
from vertexrt.data.files import WORD, AnyPath, expanded, read_file
from vertexrt.data.records import LARGEST, Examples, ReadOptions, collect
from vertexrt.errors import DataError, UsageError, nearest
from vertexrt.graph import GraphBatch, InputGraph, PullValue, Rows
from vertexrt.graph.networks import values_of
from vertexrt.plain_files import write_atomically

Mask = npt.NDArray[np.bool_]
Fields = dict[str, Any]  # of a record
Values = dict[str, list[Any]]  # by pull: a value for each vertex of the batch, None for none


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
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError.at("", f"the name '{twice}' twice", "expected each name once", "rename one")
    return record


def _read_record(text: str) -> object:
    try:
        record: object = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise DataError.at(
            "",
            f"{error.msg} at column {error.colno}",
            "expected one JSON object",
            "correct the line",
        ) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; deep nesting
        raise DataError.at(
            "", f"no JSON that can be read: {error}", "expected a JSON object", "correct it"
        ) from error
    return record


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
    child_ptr, graph_ptr = batch.child_ptr.tolist(), batch.graph_ptr
    firsts = np.repeat(graph_ptr[:-1], np.diff(batch.child_ptr[graph_ptr]))  # by slot
    local = np.where(batch.child >= 0, batch.child - firsts, -1).tolist()
    for first, end in pairwise(graph_ptr.tolist()):
        edges = slice(child_ptr[first], child_ptr[end])
        children = [local[a:b] for a, b in pairwise(child_ptr[first : end + 1])]
        record = {"children": children, "pulls": {n: v[first:end] for n, v in values.items()}}
        if of_edges:
            record["edge_pulls"] = {name: v[edges] for name, v in of_edges.items()}
        yield record


def _typed(batch: GraphBatch, values: Values, of_edges: Values) -> Iterable[Fields]:
    types = batch.types
    assert types is not None
    of_vertex, names, child_ptr = types.of_vertex, types.names, batch.child_ptr
    parent = np.repeat(np.arange(batch.num_vertices, dtype=np.int32), np.diff(child_ptr))
    # What each slot is of: child type, relation and parent type; -1 if empty.
    keys = np.stack([of_vertex[batch.child], types.of_edge, of_vertex[parent]], axis=1)
    keys[batch.child < 0] = -1
    found = [key for key in np.unique(keys, axis=0).tolist() if key[0] >= 0]
    # A relation without an edge keeps its name, which a network may ask for.
    unused = set(range(len(types.relations))) - {relation for _, relation, _ in found}
    relations = [
        (
            {"child": names[key[0]], "relation": types.relations[key[1]], "parent": names[key[2]]},
            *_members((keys == key).all(axis=1), of_edges),
        )
        for key in [*found, *([0, relation, 0] for relation in sorted(unused))]
    ]
    owners = [(name, *_members(of_vertex == n, values)) for n, name in enumerate(names)]
    number_of = np.empty(batch.num_vertices, np.int32)  # of each vertex: its number in its type
    for first, end in pairwise(batch.graph_ptr.tolist()):
        record: Fields = {"types": {}, "relations": [], "pulls": {}}
        for name, has, pulls in owners:
            vertices = first + np.flatnonzero(has[first:end])
            number_of[vertices] = np.arange(len(vertices))
            record["types"][name] = len(vertices)
            if pulls:
                record["pulls"][name] = _picked(pulls, vertices)
        slots = slice(child_ptr[first], child_ptr[end])
        for fields, has, pulls in relations:
            own = slots.start + np.flatnonzero(has[slots])
            ends = np.stack([number_of[batch.child[own]], number_of[parent[own]]], axis=1)
            relation = {**fields, "pairs": ends.tolist()}
            if pulls:
                relation["edge_pulls"] = _picked(pulls, own)
            record["relations"].append(relation)
        yield record


def _members(has: Mask, values: Values) -> tuple[Mask, Values]:
    """Return which vertices, or edges, are of a type, and the pulls that one of them has."""
    at = np.flatnonzero(has).tolist()
    owned = {n: v for n, v in values.items() if any(v[each] is not None for each in at)}
    return has, owned


def _picked(values: Values, at: npt.NDArray[np.integer]) -> Values:
    return {name: [v[each] for each in at.tolist()] for name, v in values.items()}


# A leaf (groups 1, 2), a bracket that opens, with its label (3), one that closes, or a word. White
# space of other kinds may be part of a word.
_WORD = r"[^ \t\r()]"
_PART = re.compile(rf"\(({_WORD}+)[ \t]+({_WORD}+)[ \t]*\)|\(({_WORD}*)|\)|{_WORD}+")
_LEAF, _OPEN = 2, 3
_WHOLE = re.compile("[0-9]{1,20}")  # longer ones are words
_REAL = re.compile(
    r"\s*[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity)\s*", re.IGNORECASE
)


class _Tree(list[Any]):
    """What is used of `nltk.Tree`: a list of subtrees and words with a label."""

    def __init__(self, label: str | None, parts: Iterable[Any] = ()) -> None:
        super().__init__(parts)
        self.name = label

    def label(self) -> str | None:
        return self.name


def read_trees(path: AnyPath, **options: Unpack[ReadOptions]) -> Examples:
    """Read trees in brackets: the Penn Treebank, the Stanford Sentiment Treebank.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed.
        options: how words become numbers, see `ReadOptions`.
    Returns: a vertex for each bracket, children first, with the pulls "label" and "word" (that of
        a bracket with one word; several words are vertices of their own, without a label). Labels
        are words for a vocabulary, or whole numbers where all of a file are.
    Raises: DataError, with file and line, on brackets that do not fit.
    """
    file, text = read_file(path)
    return collect(file, _records(file, _parse(file, text), options), options)


def from_nltk(trees: Iterable[Any], **options: Unpack[ReadOptions]) -> Examples:
    """Make a batch of trees of nltk: objects with `label()` that list subtrees and words.

    Args:
        trees: each an `nltk.Tree`.
        options: how words become numbers, see `ReadOptions`.
    Returns: as `read_trees`.
    Raises: DataError, when one is no such tree.
    """
    given: object = trees
    listed = isinstance(given, Iterable) and not isinstance(given, str | bytes | np.ndarray)
    if not listed or _is_nltk(given):
        raise DataError.at(
            "from_nltk", f"a {type(given).__name__}", "expected a list of trees", "pass [tree]"
        )
    records = _records("from_nltk", enumerate(trees), options)
    return collect("from_nltk", records, options, "tree")


def _is_nltk(node: object) -> bool:
    return isinstance(node, list) and callable(getattr(node, "label", None))


def _records(
    where: str, trees: Iterable[tuple[int, Any]], options: ReadOptions
) -> Iterator[tuple[int, Fields]]:
    """Return trees as records, children before their parents."""
    records = [(number, _record(where, number, root)) for number, root in trees]
    labels = {label for _, record in records for label in record["pulls"]["label"]} - {None}
    given = (options.get("vocabularies") or {}).get("label")  # its labels are words
    numbers = given is None and all(map(_WHOLE.fullmatch, labels))
    for number, record in records:
        if numbers:
            of_tree = record["pulls"]["label"]
            record["pulls"]["label"] = [int(label) if label else None for label in of_tree]
        yield number, record


def _record(where: str, number: int, root: Any) -> Fields:
    children: list[list[int]] = []
    labels: list[str | None] = []
    words: list[str | None] = []
    done: list[int | str] = []  # vertices and words whose parent is not done, left to right
    opened: list[tuple[Any, int]] = [(root, -1)]  # a subtree; what of `done` is left of it

    def vertex(below: list[int], label: str | None, word: str | None) -> int:
        children.append(below)
        labels.append(label)
        words.append(word)
        return len(children) - 1

    while opened:
        node, start = opened.pop()
        if start >= 0:
            parts, label = done[start:], node.label()
            word = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else None
            below = [vertex([], None, x) if isinstance(x, str) else x for x in parts if x != word]
            done[start:] = [vertex(below, None if label is None else str(label), word)]
        elif isinstance(node, str) and node is not root:
            done.append(node)
        elif _is_nltk(node):
            opened.append((node, len(done)))
            opened += [(child, -1) for child in reversed(node)]
        else:
            raise DataError.at(
                where,
                f"tree {number} has a {type(node).__name__}",
                "expected trees of nltk, with words at the leaves",
                "convert it",
            )
    return {"children": children, "pulls": {"label": labels, "word": words}}


def _parse(file: str, text: str) -> Iterator[tuple[int, _Tree | str]]:
    """Return the trees of a text one after another, with the line that each begins in."""
    first = 0
    opened: list[_Tree] = []
    for number, line in enumerate(text.split("\n"), 1):
        for part in _PART.finditer(line):
            where = f"{file}, line {number}, column {part.start() + 1}"
            done: _Tree | str = part[0]
            if not opened:
                first = number
            if part.lastindex == _OPEN:
                opened.append(_Tree(part[_OPEN] or None))
                continue
            if part.lastindex == _LEAF:
                done = _Tree(part[1], [part[_LEAF]])
            elif not opened:
                raise DataError.at(
                    where,
                    f"'{part[0][:20]}' stands outside of a tree",
                    "expected '('",
                    "correct the brackets",
                )
            elif part[0] == ")":
                done = opened.pop()
                if not done:
                    raise DataError.at(
                        where,
                        f"a bracket with {done.name or 'nothing'} in it alone",
                        "expected '(label word)' or '(label (...) ...)'",
                        "give it a word or children, or remove it",
                    )
                if done.name is None and len(done) == 1 and isinstance(done[0], _Tree):
                    done = done[0]
            elif opened[-1].name is None and not opened[-1]:
                opened[-1].name = part[0]
                continue
            if opened:
                opened[-1].append(done)
            else:
                yield first, done
    if opened:
        raise DataError.at(
            f"{file}, line {first}",
            f"{len(opened)} brackets of the tree that begins here are never closed",
            "expected a ')' for each '('",
            "close them",
        )


# Columns of CoNLL-U (universaldependencies.org/format.html); HEAD becomes the edges.
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

_PULLED = tuple(name for name in _CONLLU if name not in ("id", "head"))
_NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")  # the id of a range of words, or of an empty node
_COLUMN = re.compile("-?[0-9]{1,4}")
_SENT_ID = re.compile(r"# *sent_id *= *(.*?)\s*")

Words = dict[str, list[str | None]]  # of a sentence: by column, the value of each word
Record = Callable[[Words], Fields]


def _chain(words: Words) -> Fields:
    return {"chain": len(next(iter(words.values()))), "pulls": words}


def read_conll(
    path: AnyPath,
    columns: Mapping[str, int],
    record: Record = _chain,
    *,
    separator: str | None = None,
    comment: str | None = None,
    **options: Unpack[ReadOptions],
) -> Examples:
    """Read sentences of one word a line, with columns, and blank lines between sentences.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed. Lines of `-DOCSTART-` are
            skipped.
        columns: name of a pull -> number of its column from 0, from the right if negative:
            `{"word": 0, "tag": -1}`.
        record: makes a record of the JSON-lines schema of a sentence, name -> list with the value
            of each word; a chain with these pulls, unless given.
        separator: between columns, such as a tab: a word may have spaces then, and an empty column
            is no value. By default any spaces and tabs.
        comment: lines that begin so are skipped, such as "# "; by default none are.
        options: how words become numbers, see `ReadOptions`.
    Raises: DataError, with file and line, when a line lacks a column.
    """
    if not isinstance(columns, dict) or not _are_all(int, list(columns.values())):
        raise UsageError.at(
            "read_conll",
            f"columns={columns!r:.60}",
            "expected names of pulls and numbers of columns",
            'write {"word": 0}',
        )
    for name, text in (("separator", separator), ("comment", comment)):
        if text is not None and (not isinstance(text, str) or not text or "\n" in text):
            raise UsageError.at(
                "read_conll",
                f"{name}={text!r:.60}",
                "expected text of a line, or None",
                "correct it",
            )
    file, text = read_file(path)
    sentences = column_sentences(file, text, columns, separator, comment)
    return collect(file, sentences, options, make=record)


def read_tagged(
    path: AnyPath,
    fields: Sequence[str] = ("word", "label"),
    separator: str = "|",
    record: Record = _chain,
    **options: Unpack[ReadOptions],
) -> Examples:
    """Read a sentence a line, its words between spaces with their tags: `Rome|I-LOC is|O far|O`.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed. Blank lines are skipped.
        fields: names of the pulls of a word's parts. What is over belongs to the first.
        separator: between the parts.
        record: as in `read_conll`.
        options: how words become numbers, see `ReadOptions`.
    Raises: DataError, with file and line, when a word has too few parts.
    """
    if not _are_all(str, fields) or not isinstance(separator, str) or not separator:
        raise UsageError.at(
            "read_tagged",
            f"fields={fields!r:.60} and separator={separator!r:.60}",
            "names of pulls, and text",
            "give both",
        )
    file, text = read_file(path)
    return collect(file, tagged_sentences(file, text, fields, separator), options, make=record)


def read_conllu(
    path: AnyPath,
    pulls: Sequence[str] = ("form", "upos", "deprel"),
    **options: Unpack[ReadOptions],
) -> Examples:
    """Read dependency trees: a word's children are the words that depend on it, left to right.

    Args:
        path: of a file in CoNLL-U; a name in .gz is decompressed. Ranges of words (`3-4`) and empty
            nodes (`8.1`) are left out.
        pulls: columns to pull, besides those that `names` names: form, lemma, upos, xpos, feats,
            deprel, deps, misc. `_` is no value, but in `form`.
        options: how words become numbers, see `ReadOptions`.
    Returns: a graph for each sentence, words in their order; its id is `# sent_id = ...`.
    Raises: DataError or GraphError, with file and line, when a line has not ten columns, the words
        of a sentence are not numbered 1, 2, ..., a head is none of them, or heads form a cycle.
    """
    if not isinstance(pulls, list | tuple) or not set(map(str, pulls)) <= set(_PULLED):
        raise UsageError.at(
            "read_conllu",
            f"pulls={pulls!r:.60}",
            f"expected a list of {', '.join(_PULLED)}",
            "correct it",
        )
    named = [name for name, ours in (options.get("names") or {}).items() if ours]
    for name in named:
        if name not in _PULLED:
            raise UsageError.at(
                "read_conllu",
                f"no column '{name}'",
                f"the columns are {', '.join(_PULLED)}",
                f"name one of these.{nearest(name, _PULLED)}",
            )
    pulls = list(dict.fromkeys([*pulls, *named]))
    file, text = read_file(path)
    numbers = {name: number for number, name in enumerate(_CONLLU)}
    sentences = column_sentences(file, text, numbers, "\t", "#", numbered=True)
    return collect(file, sentences, options, make=partial(_dependencies, pulls))


def _dependencies(pulls: Sequence[str], words: Words) -> Fields:
    """Return the record of a dependency tree: edges go from a word to its head."""
    at = {name: word for word, name in enumerate(words["id"])}
    edges = []
    for word, (name, head) in enumerate(zip(words["id"], words["head"], strict=True)):
        if head in at:
            edges.append((word, at[head]))
        elif head != "0":
            raise DataError.at(
                "",
                f"word {name} has the head '{head}'",
                f"expected 0 or a word of the sentence, 1..{len(at)}",
                "correct the column HEAD",
            )
    given = {
        name: [None if x == "_" and name != "form" else x for x in words[name]] for name in pulls
    }
    called = words["sent_id"][0]
    return {"vertices": len(at), "edges": edges, "pulls": given, "id": called}


def _are_all(kind: type, given: object) -> bool:
    """Tell whether it is a list of one thing or more of a kind."""
    listed = isinstance(given, list | tuple) and bool(given)
    return listed and all(isinstance(each, kind) for each in given)  # type: ignore[attr-defined]


def column_sentences(
    file: str,
    text: str,
    columns: Mapping[str, int],
    separator: str | None,
    comment: str | None,
    *,
    numbered: bool = False,
) -> Iterator[tuple[int, Words]]:
    """Return the sentences of a file, which lines without columns end, and the line of each.

    Args:
        numbered: words of CoNLL-U: ranges of them and empty nodes are left out, and the columns and
            numbers of others are checked; "sent_id" has what the sentence is called.
    """
    first, rows = 0, list[list[str]]()
    sent_id: str | None = None
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if comment is not None and line.startswith(comment):
            named = _SENT_ID.fullmatch(line)
            sent_id = named[1] if named else sent_id
            continue
        row: list[str] = WORD.findall(line)
        if row[:1] == ["-DOCSTART-"]:
            row = []
        if row and separator:
            row = line.rstrip("\r").split(separator)
        if row and numbered and _NO_WORD.fullmatch(row[0]):
            continue
        where = f"{file}, line {number}"
        if not row:
            if rows:
                words = {name: [row[k] or None for row in rows] for name, k in columns.items()}
                yield first, {**words, "sent_id": [sent_id]} if numbered else words
                sent_id = None
            rows = []
            continue
        first = first if rows else number
        if numbered and (len(row) != len(columns) or row[0] != str(len(rows) + 1)):
            raise DataError.at(
                where,
                f"{len(row)} columns, the first is '{row[0][:20]}'",
                f"expected {len(columns)}, and the word's number {len(rows) + 1} first",
                "correct the line, or put a blank line before each sentence",
            )
        for name, column in columns.items():
            if not -len(row) <= column < len(row):
                raise DataError.at(
                    where,
                    f"{len(row)} columns",
                    f"'{name}' is in column {column}",
                    "correct the line",
                )
        rows.append(row)


def columns_of(names: Mapping[str, str]) -> dict[str, int]:
    """Return the columns of pulls, by what they are called.

    Args:
        names: by the number of a column, from 0, from the right if negative, a pull; "" for none.
    Raises: UsageError, when one is no number.
    """
    for column, ours in names.items():
        if ours and not _COLUMN.fullmatch(column):
            raise UsageError.at(
                "data",
                f"the column '{column}'",
                "expected its number, from 0, or from the right, -1",
                "correct it",
            )
    return {ours: int(column) for column, ours in names.items() if ours}


def tagged_sentences(
    file: str, text: str, fields: Sequence[str], separator: str
) -> Iterator[tuple[int, Words]]:
    """Return the sentences of a file with one on each line, and the number of the line."""
    for number, line in enumerate(text.split("\n"), 1):
        words = [word.rsplit(separator, len(fields) - 1) for word in WORD.findall(line)]
        short = next((word for word in words if len(word) < len(fields) or not all(word)), None)
        if short:
            raise DataError.at(
                f"{file}, line {number}",
                f"'{separator.join(short)[:40]}' with {sum(map(bool, short))} parts",
                f"expected {separator.join(fields)}",
                "correct the word",
            )
        if words:
            columns = zip(*words, strict=True)
            yield number, {n: list(c) for n, c in zip(fields, columns, strict=True)}


def read_table(
    path: AnyPath, *, separator: str | None = None, **options: Unpack[ReadOptions]
) -> Examples:
    """Read a table whose first row names its columns: CSV, or TSV where the name says so.

    Args:
        path: of a text file in UTF-8; a name in .gz is decompressed.
        separator: between columns.
        options: how words become numbers, see `ReadOptions`.
    Returns: a graph for each row; its id is the column "id". The words of the column that `names`
        calls "word", or "text", stand between spaces and are a chain; values of other columns
        belong to the last word. Without such a column a row is one vertex. A column where all
        values are numbers has numbers; an empty one is no value.
    Raises: DataError, with file and line, when a row has not the columns of the first, or no word.
    """
    file, content = read_file(path)
    delimiter = separator or ("\t" if ".tsv" in Path(file).suffixes else ",")
    table = csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    try:
        names = next(table, [])
        rows = [(table.line_num, row) for row in table if row]
    except csv.Error as error:
        where = f"{file}, line {table.line_num}"
        raise DataError.at(where, str(error), "expected a row of a table", "correct it") from error
    given, ours = options.get("vocabularies") or {}, dict(options.get("names") or {})
    text = next((name for name, pull in ours.items() if pull == "word"), "text")
    if text in names:
        ours[text] = "word"
    kinds = {}
    for at, name in enumerate(names):
        if name not in (text, "id"):
            numbered = given.get(ours.get(name, name)) is not None
            kinds[name] = str if numbered else _kind_of(row[at : at + 1] for _, row in rows)

    def record(row: list[str]) -> Fields:
        if len(row) != len(names):
            raise DataError.at(
                "",
                f"a row of {len(row)} columns",
                f"the first row names {len(names)}: {', '.join(names):.100}",
                "correct it, or name the --separator",
            )
        values = dict(zip(names, row, strict=True))
        words = WORD.findall(values.get(text, "-").replace("\n", " "))
        if not words:
            raise DataError.at("", f"no word in '{text}'", "expected one", "remove the row")
        last = {name: kind(values[name]) if values[name] else None for name, kind in kinds.items()}
        pulls = {name: [*[None] * (len(words) - 1), value] for name, value in last.items()}
        pulls |= {text: words} if text in values else {}
        return {"chain": len(words), "pulls": pulls, "id": values.get("id")}

    return collect(file, rows, {**options, "names": ours}, make=record)


def _kind_of(values: Iterable[list[str]]) -> type:
    """Return what all values of a column are: whole numbers, numbers or words."""
    present = [value for several in values for value in several if value]
    if all(map(_WHOLE.fullmatch, present)):
        return int
    return float if all(map(_REAL.fullmatch, present)) else str
