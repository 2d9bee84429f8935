"""Read trees in brackets, with labels of any kind, and trees of nltk.

The notation of the Penn Treebank: `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))`, over one or
several lines; a tree may stand in a bracket without a label. The Stanford Sentiment Treebank is
written so too, with whole numbers for labels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

import numpy as np

from vertexrt.data.files import read_file
from vertexrt.data.records import Examples, ReadOptions, collect
from vertexrt.errors import DataError

# A leaf (groups 1, 2), a bracket that opens, with its label (3), one that closes, or a word. White
# space of other kinds may be part of a word.
_WORD = r"[^ \t\r()]"
_PART = re.compile(rf"\(({_WORD}+)[ \t]+({_WORD}+)[ \t]*\)|\(({_WORD}*)|\)|{_WORD}+")
_LEAF, _OPEN = 2, 3
_WHOLE = re.compile("[0-9]{1,20}")  # longer ones are words


class _Tree(list[Any]):
    """What is used of `nltk.Tree`: a list of subtrees and words with a label."""

    def __init__(self, label: str | None, parts: Iterable[Any] = ()) -> None:
        super().__init__(parts)
        self.name = label

    def label(self) -> str | None:
        return self.name


def read_trees(path: str | os.PathLike[str], **options: Unpack[ReadOptions]) -> Examples:
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
        got = f"a {type(given).__name__}"
        raise DataError.at("from_nltk", got, "expected a list of trees", "pass [tree]")
    records = _records("from_nltk", enumerate(trees), options)
    return collect("from_nltk", records, options, "tree")


def _is_nltk(node: object) -> bool:
    return isinstance(node, list) and callable(getattr(node, "label", None))


def _records(
    where: str, trees: Iterable[tuple[int, Any]], options: ReadOptions
) -> Iterator[tuple[int, dict[str, Any]]]:
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


def _record(where: str, number: int, root: Any) -> dict[str, Any]:
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
        if isinstance(node, str) and node is not root:
            done.append(node)
        elif not _is_nltk(node):
            got = f"tree {number} has a {type(node).__name__}"
            expected = "expected trees of nltk, with words at the leaves"
            raise DataError.at(where, got, expected, "convert it")
        elif start < 0:
            opened.append((node, len(done)))
            opened += [(child, -1) for child in reversed(node)]
        else:
            parts, label = done[start:], node.label()
            word = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else None
            below = [vertex([], None, x) if isinstance(x, str) else x for x in parts if x != word]
            done[start:] = [vertex(below, None if label is None else str(label), word)]
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
                got = f"'{part[0][:20]}' stands outside of a tree"
                raise DataError.at(where, got, "expected '('", "correct the brackets")
            elif part[0] == ")":
                done = opened.pop()
                if not done:
                    got = f"a bracket with {done.name or 'nothing'} in it alone"
                    expected = "expected '(label word)' or '(label (...) ...)'"
                    action = "give it a word or children, or remove it"
                    raise DataError.at(where, got, expected, action)
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
        got = f"{len(opened)} brackets of the tree that begins here are never closed"
        raise DataError.at(
            f"{file}, line {first}", got, "expected a ')' for each '('", "close them"
        )
