"""Read trees in brackets, with labels of any kind, and trees of nltk.

The notation of the Penn Treebank: `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))`, over one or
several lines; a tree may stand in a bracket without a label. The Stanford Sentiment Treebank is
written so too, with whole numbers for labels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Tree:
    """The vertices of a tree, children before their parents."""

    line: int
    children: list[list[int]] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    words: list[str | None] = field(default_factory=list)

    def vertex(self, children: list[int], label: str | None, word: str | None) -> int:
        self.children.append(children)
        self.labels.append(label)
        self.words.append(word)
        return len(self.children) - 1

    def phrase(self, label: str | None, parts: list[int | str]) -> int:
        """Add a vertex over vertices and words; a single word is the word of the vertex itself."""
        if len(parts) == 1 and isinstance(parts[0], str):
            return self.vertex([], label, parts[0])
        vertices = [
            self.vertex([], None, part) if isinstance(part, str) else part for part in parts
        ]
        return self.vertex(vertices, label, None)


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
    return collect(file, _records(_parse(file, text), options), options)


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
    return collect("from_nltk", _records(_read_nltk(trees), options), options, "tree")


def _records(trees: Iterable[_Tree], options: ReadOptions) -> Iterator[tuple[int, object]]:
    read = list(trees)
    labels = {label for tree in read for label in tree.labels if label is not None}
    given = (options.get("vocabularies") or {}).get("label")  # its labels are words
    numbers = given is None and all(map(_WHOLE.fullmatch, labels))
    for tree in read:
        labels_of = [int(x) if x and numbers else x for x in tree.labels]
        pulls = {"label": labels_of, "word": tree.words}
        yield tree.line, {"children": tree.children, "pulls": pulls}


def _parse(file: str, text: str) -> Iterator[_Tree]:
    """Return the trees of a text one after another."""
    tree = _Tree(0)
    opened: list[tuple[str | None, list[int | str]]] = []  # of each bracket its label, and parts
    for number, line in enumerate(text.split("\n"), 1):
        for part in _PART.finditer(line):
            where = f"{file}, line {number}, column {part.start() + 1}"
            done: int | str = part[0]
            if not opened:
                tree = _Tree(number)
            if part.lastindex == _OPEN:
                opened.append((part[_OPEN] or None, []))
                continue
            if part.lastindex == _LEAF:
                done = tree.vertex([], part[1], part[2])
            elif not opened:
                got = f"'{part[0][:20]}' stands outside of a tree"
                raise DataError.at(where, got, "expected '('", "correct the brackets")
            elif part[0] == ")":
                label, parts = opened.pop()
                if not parts:
                    got = f"a bracket with {label or 'nothing'} in it alone"
                    expected = "expected '(label word)' or '(label (...) ...)'"
                    action = "give it a word or children, or remove it"
                    raise DataError.at(where, got, expected, action)
                if label is None and len(parts) == 1 and isinstance(parts[0], int):
                    done = parts[0]
                else:
                    done = tree.phrase(label, parts)
            elif opened[-1] == (None, []):
                opened[-1] = part[0], []
                continue
            if opened:
                opened[-1][1].append(done)
            else:
                yield tree
    if opened:
        got = f"{len(opened)} brackets of the tree that begins here are never closed"
        where = f"{file}, line {tree.line}"
        raise DataError.at(where, got, "expected a ')' for each '('", "close them")


def _read_nltk(trees: Iterable[Any]) -> Iterable[_Tree]:
    for number, root in enumerate(trees):
        tree = _Tree(number)
        done: list[int | str] = []  # vertices and words whose parent is not done, left to right
        opened: list[tuple[Any, int]] = [(root, -1)]  # a subtree; what of `done` is left of it
        while opened:
            node, start = opened.pop()
            if isinstance(node, str) and node is not root:
                done.append(node)
            elif start < 0:
                opened.append((node, len(done)))
                opened += [(child, -1) for child in reversed(_parts_of(node, number))]
            else:
                parts = done[start:]
                label = node.label()
                done[start:] = [tree.phrase(None if label is None else str(label), parts)]
        yield tree


def _is_nltk(node: object) -> bool:
    return isinstance(node, list) and callable(getattr(node, "label", None))


def _parts_of(node: Any, number: int) -> list[Any]:
    if not _is_nltk(node):
        got = f"tree {number} has a {type(node).__name__}"
        expected = "expected trees of nltk, with words at the leaves"
        raise DataError.at("from_nltk", got, expected, "convert it")
    return list(node)
