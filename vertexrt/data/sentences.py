"""Read sentences with columns: CoNLL, CoNLL-U with its heads, and `word|tag` as WikiNER has it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Unpack

from vertexrt.data.files import WORD, read_file
from vertexrt.data.records import Examples, ReadOptions, collect
from vertexrt.errors import DataError, UsageError

# Columns of CoNLL-U (universaldependencies.org/format.html); HEAD becomes the edges.
_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

_PULLED = tuple(name for name in _CONLLU if name not in ("id", "head"))
_NO_WORD = re.compile(r"[0-9]+[-.][0-9]+")  # the id of a range of words, or of an empty node

Words = dict[str, list[str | None]]  # of a sentence: by column, the value of each word
Record = Callable[[Words], dict[str, Any]]
_Row = tuple[int, list[str]]  # number of a line, and its columns


def _chain(words: Words) -> dict[str, Any]:
    return {"chain": len(next(iter(words.values()))), "pulls": words}


def read_conll(
    path: str | os.PathLike[str],
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
        expected = "expected names of pulls and numbers of columns"
        raise UsageError.at("read_conll", f"columns={columns!r:.60}", expected, 'write {"word": 0}')
    for name, text in (("separator", separator), ("comment", comment)):
        if text is not None and (not isinstance(text, str) or not text or "\n" in text):
            expected = "expected text of a line, or None"
            raise UsageError.at("read_conll", f"{name}={text!r:.60}", expected, "correct it")
    file, text = read_file(path)
    sentences = _conll(file, _rows(text, separator, comment), columns)
    return collect(file, sentences, options, make=record)


def read_tagged(
    path: str | os.PathLike[str],
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
        got = f"fields={fields!r:.60} and separator={separator!r:.60}"
        raise UsageError.at("read_tagged", got, "names of pulls, and text", "give both")
    file, text = read_file(path)
    return collect(file, tagged_sentences(file, text, fields, separator), options, make=record)


def read_conllu(
    path: str | os.PathLike[str],
    pulls: Sequence[str] = ("form", "upos", "deprel"),
    **options: Unpack[ReadOptions],
) -> Examples:
    """Read dependency trees: a word's children are the words that depend on it, left to right.

    Args:
        path: of a file in CoNLL-U; a name in .gz is decompressed. Ranges of words (`3-4`) and empty
            nodes (`8.1`) are left out.
        pulls: columns to pull: form, lemma, upos, xpos, feats, deprel, deps, misc. `_` is no value,
            but in `form`.
        options: how words become numbers, see `ReadOptions`.
    Returns: a graph for each sentence, words in their order.
    Raises: DataError or GraphError, with file and line, when a line has not ten columns, the words
        of a sentence are not numbered 1, 2, ..., a head is none of them, or heads form a cycle.
    """
    if not isinstance(pulls, list | tuple) or not set(map(str, pulls)) <= set(_PULLED):
        expected = f"expected a list of {', '.join(_PULLED)}"
        raise UsageError.at("read_conllu", f"pulls={pulls!r:.60}", expected, "correct it")
    file, text = read_file(path)
    numbers = {name: number for number, name in enumerate(_CONLLU)}
    sentences = _conll(file, _numbered(file, _rows(text, "\t", "#")), numbers)
    return collect(file, sentences, options, make=partial(_dependencies, pulls))


def _dependencies(pulls: Sequence[str], words: Words) -> dict[str, Any]:
    """Return the record of a dependency tree: edges go from a word to its head."""
    at = {name: word for word, name in enumerate(words["id"])}
    edges = []
    for word, (name, head) in enumerate(zip(words["id"], words["head"], strict=True)):
        if head in at:
            edges.append((word, at[head]))
        elif head != "0":
            got = f"word {name} has the head '{head}'"
            expected = f"expected 0 or a word of the sentence, 1..{len(at)}"
            raise DataError.at("", got, expected, "correct the column HEAD")
    given = {
        name: [None if x == "_" and name != "form" else x for x in words[name]] for name in pulls
    }
    return {"vertices": len(at), "edges": edges, "pulls": given}


def _are_all(kind: type, given: object) -> bool:
    """Tell whether it is a list of one thing or more of a kind."""
    listed = isinstance(given, list | tuple) and bool(given)
    return listed and all(isinstance(each, kind) for each in given)  # type: ignore[attr-defined]


def _rows(text: str, separator: str | None, comment: str | None) -> Iterator[_Row]:
    """Return the number and the columns of each line that is no comment."""
    for number, line in enumerate(text.split("\n"), 1):
        if comment is None or not line.startswith(comment):
            row: list[str] = WORD.findall(line)
            if row[:1] == ["-DOCSTART-"]:
                row = []
            yield number, line.rstrip("\r").split(separator) if row and separator else row


def _numbered(file: str, rows: Iterator[_Row]) -> Iterator[_Row]:
    """Leave out ranges of words and empty nodes of CoNLL-U, and check the numbers of words."""
    words = 0
    for line, row in rows:
        if row and _NO_WORD.fullmatch(row[0]):
            continue
        words = words + 1 if row else 0
        if row and (len(row) != len(_CONLLU) or row[0] != str(words)):
            got = f"{len(row)} columns, the first is '{row[0][:20]}'"
            expected = f"expected {len(_CONLLU)}, and the word's number {words} first"
            action = "correct the line, or put a blank line before each sentence"
            raise DataError.at(f"{file}, line {line}", got, expected, action)
        yield line, row


def _conll(
    file: str, rows: Iterator[_Row], columns: Mapping[str, int]
) -> Iterator[tuple[int, Words]]:
    """Return the sentences of a file, which rows of no columns end, and the first line of each."""
    for full, group in groupby(rows, lambda each: bool(each[1])):
        sentence = list(group) if full else []
        for number, row in sentence:
            for name, column in columns.items():
                if not -len(row) <= column < len(row):
                    got, expected = f"{len(row)} columns", f"'{name}' is in column {column}"
                    raise DataError.at(f"{file}, line {number}", got, expected, "correct the line")
        if full:
            yield (
                sentence[0][0],
                {name: [row[at] or None for _, row in sentence] for name, at in columns.items()},
            )


def tagged_sentences(
    file: str, text: str, fields: Sequence[str], separator: str
) -> Iterator[tuple[int, Words]]:
    """Return the sentences of a file with one on each line, and the number of the line."""
    for number, line in enumerate(text.split("\n"), 1):
        words = [word.rsplit(separator, len(fields) - 1) for word in WORD.findall(line)]
        short = next((word for word in words if len(word) < len(fields) or not all(word)), None)
        if short:
            got = f"'{separator.join(short)[:40]}' with {sum(map(bool, short))} parts"
            expected = f"expected {separator.join(fields)}"
            raise DataError.at(f"{file}, line {number}", got, expected, "correct the word")
        if words:
            columns = zip(*words, strict=True)
            yield number, {n: list(c) for n, c in zip(fields, columns, strict=True)}
