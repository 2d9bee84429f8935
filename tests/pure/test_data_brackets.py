"""The bracket reader: what it keeps, and the file, line and column of every mistake."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertexrt.errors import DataError
from vertexrt.graph import parse_brackets

Tree = tuple[int, str | list["Tree"]]  # label, and a word or children

# Anything but what separates: no-break space, tabs and other line ends belong to a word.
words = st.text(st.characters(codec="utf-8", exclude_characters=" ()\n\r"), min_size=1)
bracket_trees: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(st.integers(0, 4), words),
    lambda inner: st.tuples(st.integers(0, 4), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


def written(tree: Tree) -> str:
    label, inside = tree
    if isinstance(inside, str):
        return f"({label} {inside})"
    return f"({label} {' '.join(written(child) for child in inside)})"


def post_order(tree: Tree) -> list[Tree]:
    inside = tree[1]
    below = [] if isinstance(inside, str) else [v for child in inside for v in post_order(child)]
    return [*below, tree]


@given(st.lists(bracket_trees, max_size=4))
def test_every_vertex_comes_back_in_post_order(trees: list[Tree]) -> None:
    forest = parse_brackets("".join(written(tree) + "\n" for tree in trees), labels=5)
    assert len(forest.graph_ptr) == len(trees) + 1
    for number, tree in enumerate(trees):
        first, end = forest.graph_ptr[number : number + 2].tolist()
        expected = post_order(tree)
        assert end - first == len(expected)
        for vertex, (label, inside) in enumerate(expected, start=first):
            slots = forest.child[forest.child_ptr[vertex] : forest.child_ptr[vertex + 1]]
            assert forest.label[vertex] == label
            if isinstance(inside, str):
                assert forest.words[forest.word[vertex]] == inside
                assert not slots.size
            else:
                assert forest.word[vertex] == -1
                assert [expected[c - first] for c in slots.tolist()] == inside
    assert len(set(forest.words)) == len(forest.words)


def test_blank_lines_spaces_and_carriage_returns() -> None:
    forest = parse_brackets("\n  (1  a )  \r\n \r\n(2 (3 b)(4  c) )\n\n")
    assert forest.graph_ptr.tolist() == [0, 1, 4]
    assert forest.words == ("a", "b", "c")
    assert forest.label.tolist() == [1, 3, 4, 2]
    assert all(
        array.dtype == np.int32
        for array in (forest.graph_ptr, forest.child_ptr, forest.child, forest.label, forest.word)
    )


def test_a_deep_tree_needs_no_recursion() -> None:
    depth = 5000
    text = "(2 (1 a) " * depth + "(1 b)" + ")" * depth
    assert len(parse_brackets(text).label) == 2 * depth + 1
    with pytest.raises(DataError, match=r"ends while 5000 brackets are open"):
        parse_brackets(text[:-depth])


@pytest.mark.parametrize(
    ("text", "column", "rest"),
    [
        (
            "(3 (2 a) (2 b)",
            15,
            "the line ends while a bracket is open; expected one whole tree on a line; close the"
            " bracket of column 1.",
        ),
        ("(3 (2 a) (2 b)))", 16, "')' closes nothing; expected as many ')' as '('; remove it."),
        (
            "(3 (2 a) b)",
            10,
            "'b' stands outside of a leaf; expected '(label word)'; give the word its own bracket.",
        ),
        (
            "(3 a b)",
            6,
            "a second word 'b' in the leaf 'a'; expected one word in a leaf; join the words or give"
            " each its own leaf.",
        ),
        (
            "(3 )",
            1,
            "a bracket with the label 3 and nothing else; expected a word or children after the"
            " label; add them or remove the bracket.",
        ),
        (
            "(good)",
            2,
            "no label after '(' but 'good'; expected a whole number and a space; write"
            " '(label word)'.",
        ),
        (
            "(",
            2,
            "no label after '(' but the end of the line; expected a whole number and a space;",
        ),
        ("(3x y)", 2, "no label after '(' but '3x'; expected a whole number and a space;"),
        ("(-1 y)", 2, "no label after '(' but '-1'; expected a whole number and a space;"),
        ("(3 (2 a) ())", 11, "no label after '(' but ')'; expected a whole number and a space;"),
        ("(3 a", 5, "the line ends inside the leaf 'a'; expected ')' after the word; close the"),
        ("(7 a)", 2, "label 7; expected 0..4; correct the label."),
        ("(3 (2 a) (9 b))", 11, "label 9; expected 0..4; correct the label."),
        ("(12345678901 a)", 2, "label 12345678901; expected 0..4; correct the label."),
        (
            "(3 a) (2 b)",
            7,
            "the tree is complete before '('; expected one tree on a line; start a new line or"
            " remove the rest.",
        ),
        ("(3 a) and-so-on-and-so-forth", 7, "the tree is complete before 'and-so-on-and-so-...';"),
        (
            "(3 word (2 x))",
            9,
            "a bracket after the word 'word'; expected one word, or children only; give the word"
            " its own bracket.",
        ),
        ("  hello", 3, "'hello' stands outside of a leaf; expected '(label word)';"),
    ],
)
def test_mistakes_are_placed(text: str, column: int, rest: str) -> None:
    lines = f"(1 a)\n\n{text}\n(1 a)\n"
    with pytest.raises(DataError) as caught:
        parse_brackets(lines, file="folder/train.txt", line=10, labels=5)
    start = f"[folder/train.txt, line 12, column {column}] {rest}"
    assert str(caught.value)[: len(start)] == start


@given(st.text("(3) a\n", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        forest = parse_brackets(text)
    except DataError:
        with pytest.raises(DataError, match=r"^\[brackets, line \d+, column \d+\] .*; .*; .*\.$"):
            parse_brackets(text)
    else:
        assert len(forest.graph_ptr) - 1 == sum(bool(line.strip(" ")) for line in text.split("\n"))
