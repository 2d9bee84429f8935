"""Readers of brackets, of columns and of dependency trees, and what they say of mistakes."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.messages import text_of
from vertexrt.data import load
from vertexrt.data.load import format_of
from vertexrt.data.treebank import generate_treebank
from vertexrt.errors import DataError, VertexrtError
from vertexrt.graph import parse_brackets

PENN = """( (S (NP (DT the) (NN cat))
     (VP (VBZ sleeps))
     (. .)))
(FRAG (X a\u00a0b c (Y d)))
"""


class Tree(list[Any]):
    """What is used of `nltk.Tree`: a list of subtrees and words with a label."""

    def __init__(self, label: str, parts: list[Any]) -> None:
        super().__init__(parts)
        self._label = label

    def label(self) -> str:
        return self._label


def as_text(tree: Any) -> str:
    if isinstance(tree, str):
        return tree
    return f"({tree.label()} {' '.join(map(as_text, tree))})"


def lists(batch: vrt.GraphBatch) -> list[list[int]]:
    """Return the children of each vertex."""
    return [part.tolist() for part in np.split(batch.child, batch.child_ptr[1:-1])]


def words(found: vrt.data.Examples, pull: str) -> list[str | None]:
    """Return the values of a pull as words."""
    return found.vocabularies[pull].decode(found.batch.pulls[pull])  # type: ignore[arg-type]


def test_penn_brackets(tmp_path: Path) -> None:
    path = tmp_path / "wsj.mrg.gz"
    path.write_bytes(gzip.compress(PENN.encode()))
    found = vrt.data.read_trees(path)
    assert found.batch.graph_ptr.tolist() == [0, 7, 12]
    assert lists(found.batch)[:7] == [[], [], [0, 1], [], [3], [], [2, 4, 5]]
    assert words(found, "label")[:7] == ["DT", "NN", "NP", "VBZ", "VP", ".", "S"]
    assert words(found, "word")[:7] == ["the", "cat", None, "sleeps", None, ".", None]
    # Words beside brackets, or beside each other, are vertices without a label.
    assert lists(found.batch)[7:] == [[], [], [], [8, 9, 7], [10]]
    assert words(found, "label")[7:] == ["Y", None, None, "X", "FRAG"]
    assert words(found, "word")[7:] == ["d", "a\u00a0b", "c", None, None]


def test_sentiment_trees_are_those_of_the_other_reader(tmp_path: Path) -> None:
    text = "".join(generate_treebank()["dev"].splitlines(keepends=True)[:40])
    (tmp_path / "dev.txt").write_text(text)
    forest, found = parse_brackets(text), vrt.data.read_trees(tmp_path / "dev.txt")
    assert np.array_equal(found.batch.graph_ptr, forest.graph_ptr)
    assert np.array_equal(found.batch.child, forest.child)
    assert np.array_equal(found.batch.pulls["label"], forest.label)  # type: ignore[arg-type]
    expected = [forest.words[word] if word >= 0 else None for word in forest.word]
    assert words(found, "word") == expected


def test_labels_that_look_like_numbers_are_words_where_training_had_words(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("(S (7 a))\n")
    (tmp_path / "dev").write_text("(7 a)\n")
    train = vrt.data.read_trees(tmp_path / "train", labels=["label"])
    dev = vrt.data.read_trees(tmp_path / "dev", vocabularies=train.vocabularies)
    assert words(dev, "label") == ["7"]
    assert vrt.data.read_trees(tmp_path / "dev").batch.pulls["label"].tolist() == [7]  # type: ignore[union-attr]
    (tmp_path / "dev").write_text(f"({'7' * 5000} a)\n")  # more digits than Python reads
    assert words(vrt.data.read_trees(tmp_path / "dev"), "label") == ["7" * 5000]


WRONG_TREES = {
    "(S (NP a)": "line 1] 1 brackets of the tree that begins here are never closed",
    "(S a)\n b": "line 2, column 2] 'b' stands outside of a tree",
    "(S a))": "line 1, column 6] ')' stands outside",
    "(S (NP))": "line 1, column 7] a bracket with NP in it alone",
    "(S (NP a) ())": "line 1, column 12] a bracket with nothing in it alone",
    "\n": "no graph; expected at least one",
}


@pytest.mark.parametrize("text", WRONG_TREES)
def test_mistakes_in_brackets(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    assert WRONG_TREES[text] in text_of(VertexrtError, lambda: vrt.data.read_trees(tmp_path / "x"))


WORDS = st.text(st.characters(codec="ascii", exclude_characters="()"), min_size=1).filter(
    lambda word: not set(word) & set(" \t\r\n")
)
TREES = st.recursive(
    st.builds(lambda label, word: Tree(label, [word]), WORDS, WORDS),
    lambda trees: st.builds(Tree, WORDS, st.lists(trees, min_size=1, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=3))
@example([Tree("2200000000", ["a"])])  # labels that are numbers alone are classes: too many
def test_trees_of_nltk_are_those_of_their_text(
    tmp_path_factory: pytest.TempPathFactory, trees: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("trees") / "x"
    path.write_bytes("\n".join(map(as_text, trees)).encode())
    try:
        made = vrt.data.from_nltk(trees)
    except DataError as error:
        refused = str(error)[str(error).index("]") :]  # "[where] got; expected", less the place
        assert refused in text_of(DataError, lambda: vrt.data.read_trees(path))
        return
    read = vrt.data.read_trees(path)
    assert lists(made.batch) == lists(read.batch)
    assert made.vocabularies == read.vocabularies
    for name, pull in made.batch.pulls.items():
        assert np.array_equal(pull, read.batch.pulls[name])  # type: ignore[arg-type]


def test_trees_of_nltk_itself() -> None:
    nltk = pytest.importorskip("nltk", reason="nltk is not installed")
    lazy = nltk.collections.LazyMap(nltk.Tree.fromstring, ["(S (NP the cat) (VP (V runs)))"])
    found = vrt.data.from_nltk(lazy)  # as its corpora give them
    assert lists(found.batch) == [[], [], [0, 1], [], [3], [2, 4]]
    assert words(found, "word") == ["the", "cat", None, "runs", None, None]


def test_what_is_no_tree_of_nltk() -> None:
    for tree in ("words", Tree("S", [3]), None):
        text_of(VertexrtError, lambda tree=tree: vrt.data.from_nltk([tree]))  # type: ignore[misc]


CONLL = """-DOCSTART- -X- O

EU NNP I-ORG
rejects VBZ O

Peter NNP I-PER\r
"""


def test_conll(tmp_path: Path) -> None:
    path = tmp_path / "train.conll"
    path.write_text(CONLL, newline="")
    found = vrt.data.read_conll(path, {"word": 0, "tag": -1}, labels=["tag"])
    assert lists(found.batch) == [[], [0], []]
    assert found.batch.graph_ptr.tolist() == [0, 2, 3]
    assert words(found, "word") == ["EU", "rejects", "Peter"]
    assert found.vocabularies["tag"].words == ("I-ORG", "I-PER", "O")
    text = text_of(VertexrtError, lambda: vrt.data.read_conll(path, {"word": 0, "tag": 3}))
    assert text.startswith(f"[{path}, line 3] 3 columns; 'tag' is in column 3; ")


def test_conll_with_comments_and_a_separator(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"# id 7\n#tag\tO\nNew York\tLOC\r\n# id 8\n\tO\nno\xc2\xa0break\t\n\n\t\n")
    found = vrt.data.read_conll(path, {"word": 0, "tag": 1}, separator="\t", comment="# ")
    assert words(found, "word") == ["#tag", "New York", None, "no\u00a0break"]
    assert words(found, "tag") == ["O", "LOC", "O", None]
    assert found.batch.num_graphs == 1
    for wrong in ({"separator": ""}, {"comment": "a\n"}, {"comment": 3}):
        text = text_of(VertexrtError, lambda w=wrong: vrt.data.read_conll(path, {"word": 0}, **w))  # type: ignore[misc]
        assert "; expected text of a line, or None; " in text


def both_ways(sentence: dict[str, list[str | None]]) -> dict[str, Any]:
    """Return the record of a sentence that is read in both directions."""
    n = len(sentence["word"])
    steps = [[i - 1, i] for i in range(1, n)]
    return {
        "types": {"left": n, "right": n},
        "relations": [
            {"child": "left", "relation": "before", "parent": "left", "pairs": steps},
            {
                "child": "right",
                "relation": "before",
                "parent": "right",
                "pairs": [p[::-1] for p in steps],
            },
        ],
        "pulls": {"left": {"word": sentence["word"]}, "right": sentence},
    }


def test_tagged_sentences_as_graphs_of_types(tmp_path: Path) -> None:
    path = tmp_path / "wikiner.txt"
    path.write_text("Rome|I-LOC is|O\n\na|b|O\n")
    found = vrt.data.read_tagged(path, record=both_ways)
    assert lists(found.batch) == [[], [0], [3], [], [], []]
    assert words(found, "word") == ["Rome", "is", "Rome", "is", "a|b", "a|b"]
    assert words(found, "label") == [None, None, "I-LOC", "O", None, "O"]
    path.write_text("Rome|I-LOC\nis\n")
    text = text_of(VertexrtError, lambda: vrt.data.read_tagged(path))
    assert text.startswith(f"[{path}, line 2] 'is' with 1 parts; expected word|label; ")
    path.write_text("|O\n")  # no word: its letters would be those of another
    assert "line 1] '|O' with 1 parts; " in text_of(
        VertexrtError, lambda: vrt.data.read_tagged(path)
    )
    assert "record 0] pulls is 3" in text_of(
        VertexrtError, lambda: vrt.data.from_records([{"chain": 1, "pulls": 3}])
    )


def conllu(*rows: str) -> str:
    """Return lines of ten columns: ID, FORM, UPOS and HEAD are given."""
    lines = []
    for row in rows:
        number, form, upos, head = row.split()
        lines.append("\t".join([number, form, "_", upos, "_", "_", head, "dep", "_", "_"]))
    return "\n".join(lines) + "\n\n"


def test_conllu(tmp_path: Path) -> None:
    path = tmp_path / "en.conllu"
    first = conllu(
        "1-2 It's _ _", "1 It PRON 3", "2 's AUX 3", "3 fine ADJ 0", "3.1 x _ _", "4 _ PUNCT 3"
    )
    path.write_text("# text = It's fine _\n" + first + conllu("1 Go VERB 0"))
    found = vrt.data.read_conllu(path, ["form", "upos", "lemma"])
    assert lists(found.batch) == [[], [], [0, 1, 3], [], []]
    assert words(found, "form") == ["It", "'s", "fine", "_", "Go"]
    assert words(found, "upos") == ["PRON", "AUX", "ADJ", "PUNCT", "VERB"]
    assert found.batch.pulls["lemma"].tolist() == [-1] * 5  # type: ignore[union-attr]


WRONG_CONLLU = {
    conllu("1 a X 2"): "word 1 has the head '2'; expected 0 or a word of the sentence, 1..1",
    conllu("1 a X 2", "2 b X 1"): "form a cycle",
    "1\ta\tb": "3 columns, the first is '1'; expected 10, and the word's number 1 first; correct",
    f"{conllu('1 a X 0')[:-2]}\tx": "11 columns, the first is '1'; expected 10, ",
    conllu("2 a X 0"): "the first is '2'; expected 10, and the word's number 1 first",
    conllu("-1 a X 0"): "the first is '-1'; expected 10, and the word's number 1 first",
}


@pytest.mark.parametrize("text", WRONG_CONLLU)
def test_mistakes_in_conllu(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("\n" + text)
    found = text_of(VertexrtError, lambda: vrt.data.read_conllu(path))
    assert found.startswith(f"[{path}, line 2] ")
    assert WRONG_CONLLU[text] in found


def test_sentences_of_conllu_that_run_together(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for rows in (["1 a X 0", "1 b X 0"], ["1 a X 0", "3 b X 1"]):
        path.write_text(conllu(*rows))
        text = text_of(VertexrtError, lambda: vrt.data.read_conllu(path))
        assert text == (
            f"[{path}, line 2] 10 columns, the first is '{rows[1][0]}'; expected 10, and the "
            "word's number 2 first; correct the line, or put a blank line before each sentence."
        )


def test_pulls_that_conllu_does_not_have(tmp_path: Path) -> None:
    pulls: Any
    for pulls, expected in (
        (["head"], "no column 'head'; the columns are form, lemma"),
        ("form", "pulls='form'; expected a list of form, lemma"),
    ):
        assert expected in text_of(
            VertexrtError, partial(vrt.data.read_conllu, tmp_path / "x", pulls)
        )


def test_no_other_letter_is_an_i_of_inf(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text,y\na,\u0131nf\n", encoding="utf-8")
    data = vrt.data.load(tmp_path / "x.csv", format="table", splits=("all",))
    assert "\u0131nf" in data.vocabularies["y"].words


def test_compressed_sentiment_trees(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt.gz").write_bytes(gzip.compress(b"(3 (2 a) (3 b))\n"))
    assert load(tmp_path, format="trees").splits["dev"].num_vertices == 3
    assert format_of(str(tmp_path)) == "trees"
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbf(3 (2 a) (3 b))\n")  # a byte order mark
    assert format_of(str(tmp_path)) == "trees"
