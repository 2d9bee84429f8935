"""Trees in brackets: all come back, from text and from nltk; any text is read or refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.pure.graphs_as_text import as_text
from vertexrt.errors import DataError
from vertexrt.graph import parse_brackets


class Tree(list[Any]):
    """What is used of `nltk.Tree`: a list of subtrees and words with a label."""

    def __init__(self, label: int, parts: list[Any]) -> None:
        super().__init__(parts)
        self.number = label

    def label(self) -> str:
        return str(self.number)

    def __repr__(self) -> str:
        return f"({self.number} {' '.join(map(str, self))})"


# Anything but what separates: no-break space and other line ends belong to a word.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters=" ()\n\r\t"), min_size=1)
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.builds(lambda label, word: Tree(label, [word]), st.integers(0, 4), WORDS),
    lambda inner: st.builds(Tree, st.integers(0, 4), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


def add(tree: Tree, record: dict[str, Any]) -> int:
    """Add the vertices of a tree to its record, children first; return its own."""
    children = [add(part, record) for part in tree if isinstance(part, Tree)]
    record["children"].append(children)
    record["pulls"]["label"].append(tree.number)
    record["pulls"]["word"].append(None if children else tree[0])
    return len(record["children"]) - 1


@settings(max_examples=40, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=4))
def test_every_vertex_comes_back_in_post_order(
    tmp_path_factory: pytest.TempPathFactory, trees: list[Tree]
) -> None:
    records = [{"children": [], "pulls": {"label": [], "word": []}} for _ in trees]
    for tree, record in zip(trees, records, strict=True):
        add(tree, record)
    text = "".join(f"{tree}\n" for tree in trees)
    path = tmp_path_factory.mktemp("trees") / "x"
    path.write_bytes(text.encode())
    expected = as_text(vrt.data.from_records(records))
    assert as_text(vrt.data.read_trees(path)) == expected
    assert as_text(vrt.data.from_nltk(trees)) == expected
    forest = parse_brackets(text, labels=5)
    starts = pairwise(forest.child_ptr.tolist())
    slots = [forest.child[first:end] for first, end in starts]
    for record, (first, end) in zip(records, pairwise(forest.graph_ptr.tolist()), strict=True):
        words = [forest.words[n] if n >= 0 else None for n in forest.word[first:end]]
        assert [(each - first).tolist() for each in slots[first:end]] == record["children"]
        assert {"label": forest.label[first:end].tolist(), "word": words} == record["pulls"]
    assert len(set(forest.words)) == len(forest.words)


def test_a_deep_tree_needs_no_recursion() -> None:
    depth = 5000
    text = "(2 (1 a) " * depth + "(1 b)" + ")" * depth
    assert len(parse_brackets(text).label) == 2 * depth + 1
    with pytest.raises(DataError, match=r"ends while 5000 brackets are open"):
        parse_brackets(text[:-depth])


@given(st.text("(3) a\n", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        forest = parse_brackets(text)
    except DataError:
        with pytest.raises(DataError, match=r"^\[brackets, line \d+, column \d+\] .*; .*; .*\.$"):
            parse_brackets(text)
    else:
        assert len(forest.graph_ptr) - 1 == sum(bool(line.strip(" ")) for line in text.split("\n"))


def test_trees_of_nltk_itself(tmp_path: Path) -> None:
    nltk = pytest.importorskip("nltk", reason="nltk is not installed")
    text = "(S (NP the cat) (VP (V runs)))"
    (tmp_path / "x").write_text(text)
    lazy = nltk.collections.LazyMap(nltk.Tree.fromstring, [text])  # as its corpora give them
    assert as_text(vrt.data.from_nltk(lazy)) == as_text(vrt.data.read_trees(tmp_path / "x"))
