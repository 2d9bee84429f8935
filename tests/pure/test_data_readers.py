"""Readers of sentiment trees and language-model text, by path and by name."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages import text_of
from vertexrt.data import Vocabulary, catalogue, files, load
from vertexrt.errors import DataError, UsageError, VertexrtError

TREES = {
    "train": "(4 (2 A) (3 (2 8\u00a01) (3 Film)))\n(2 (2 a) (0 bad))\n(1 (2 a) (1 film))\n",
    "dev": "(3 (2 unheard) (3 film))\n(2 (2 a) (2 film))\n",
    "test": "(0 bad)\n",
}
TEXT = {"train": " a b a \n\n c \n", "valid": " b d \n", "test": "a\r\nc c\r\n"}


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    for split, text in TREES.items():
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    for split, lines in TEXT.items():
        (tmp_path / f"ptb.{split}.txt").write_bytes(lines.encode())
    return tmp_path


def test_sentiment_pulls(trees: Path) -> None:
    data = load(trees, format="trees")
    assert data.vocabulary.words == ("<unk>", "a", "film", "8\u00a01", "bad")
    train = data.splits["train"]
    assert train.num_graphs == 3
    assert np.asarray(train.pulls["word"]).tolist() == [1, 3, 2, -1, -1, 1, 4, -1, 1, 2, -1]
    assert np.asarray(train.pulls["label"]).tolist() == [2, 2, 3, 3, 4, 2, 0, 2, 2, 1, 1]
    assert np.asarray(data.splits["dev"].pulls["word"]).tolist() == [0, 2, -1, 1, 2, -1]
    assert (data.classes, data.format) == (5, "trees")


def test_sentiment_options(trees: Path) -> None:
    cased = load(str(trees), format="trees", lower=False)
    assert cased.vocabulary.words == ("<unk>", "a", "A", "8\u00a01", "Film", "bad", "film")
    frequent = load(str(trees), format="trees", min_count=2)
    assert frequent.vocabulary.words == ("<unk>", "a", "film")
    binary = load(str(trees), format="trees", binary=True)
    train = binary.splits["train"]
    assert binary.classes == 2
    assert train.num_graphs == 2  # the tree with a neutral root is left out
    assert np.asarray(train.pulls["label"]).tolist() == [-1, -1, 1, 1, 1, -1, 0, 0]
    assert binary.splits["dev"].num_graphs == 1


def test_a_folder_of_trees_is_found(trees: Path) -> None:
    (trees / "trees").mkdir()
    for split in TREES:
        (trees / f"{split}.txt").rename(trees / "trees" / f"{split}.txt")
    assert load(trees, format="trees").splits["test"].num_vertices == 1


def test_sentences(text: Path) -> None:
    data = load(text, format="text")
    assert data.vocabulary.words == ("<unk>", "<eos>", "a", "b", "c")
    train, dev, test = (data.splits[split] for split in ("train", "dev", "test"))
    assert train.graph_ptr.tolist() == [0, 4, 6]
    assert train.child_ptr.tolist() == [0, 0, 1, 2, 3, 3, 4]
    assert train.child.tolist() == [0, 1, 2, 4]
    assert np.asarray(train.pulls["word"]).tolist() == [1, 2, 3, 2, 1, 4]
    assert np.asarray(train.pulls["label"]).tolist() == [2, 3, 2, 1, 4, 1]
    assert np.asarray(dev.pulls["label"]).tolist() == [3, 0, 1]
    assert np.asarray(test.pulls["label"]).tolist() == [2, 1, 4, 4, 1]
    assert data.classes == len(data.vocabulary)


def test_sentences_that_say_where_they_end(text: Path) -> None:
    plain = load(text, format="text").splits["train"]
    for lines in (" a b a <eos>\n <eos>\n c <eos>\n", "a\tb a <eos> c\r\n"):
        (text / "ptb.train.txt").write_bytes(lines.encode())
        train = load(text, format="text").splits["train"]
        assert train.graph_ptr.tolist() == plain.graph_ptr.tolist()
        for pull in ("word", "label"):
            assert np.array_equal(train.pulls[pull], plain.pulls[pull])  # type: ignore[arg-type]


def test_pieces(text: Path) -> None:
    train = load(text, format="text", pieces=4).splits["train"]
    assert train.graph_ptr.tolist() == [0, 4, 6]
    train = load(text, format="text", pieces=5).splits["train"]
    assert train.graph_ptr.tolist() == [0, 5, 6]
    assert np.asarray(train.pulls["word"]).tolist() == [1, 2, 3, 2, 1, 4]
    assert train.child.tolist() == [0, 1, 2, 3]


def test_compressed_text(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = text / "ptb.train.txt"
    (text / "ptb.train.txt.gz").write_bytes(gzip.compress(train.read_bytes()))
    train.unlink()
    assert load(text, format="text").splits["train"].num_vertices == 6
    with monkeypatch.context() as patch:  # a small file may unpack to any size
        patch.setattr(files, "LARGEST_TEXT", 5)
        with pytest.raises(DataError, match=r"train\.txt\.gz\] cannot be read: more than 0 MiB"):
            load(text, format="text")
    (text / "ptb.train.txt.gz").write_bytes(b"\x1f\x8b\x08 cut")
    with pytest.raises(DataError, match=r"ptb\.train\.txt\.gz\] cannot be read: .*check the file"):
        load(text, format="text")


# Files of the folder, None for one that is not there; then what is loaded, and what is said.
MISTAKES: list[tuple[dict[str, bytes | None], str, dict[str, Any], str]] = [
    (
        {"dev.txt": b"(3 (2 a) (2 b))\n(3 (2 a) (5 b))\n"},
        "trees",
        {},
        "[FOLDER/dev.txt, line 2, column 11] label 5; expected 0..4; correct the label.",
    ),
    (
        {"dev.txt": b"(2 (3 a) (2 b))\n"},
        "trees",
        {"binary": True},
        "[FOLDER/dev.txt] neutral trees only; expected at least one",
    ),
    (
        {"dev.txt": b"\n \n"},
        "trees",
        {},
        "[FOLDER/dev.txt] no tree; expected at least one tree to learn",
    ),
    (
        {"dev.txt": b"\n \n"},
        "text",
        {},
        "[FOLDER/dev.txt] no word; expected at least one sentence; add",
    ),
    (
        {"train.txt": None},
        "trees",
        {},
        "[FOLDER] no file for the split 'train' (the folder holds dev.txt, test.txt); expected"
        " *train.txt, or .gz; add it or give another folder.",
    ),
    (
        {"test.txt": b"(1 a)\n(1 caf\xe9)\n"},
        "trees",
        {},
        "[FOLDER/test.txt, line 2, byte 7] the byte 0xe9; expected UTF",
    ),
    ({}, "text", {"pieces": 0}, "[data] pieces 0; expected 1 or more;"),
]


@pytest.mark.parametrize(("changed", "format", "options", "text"), MISTAKES)
def test_mistakes_name_the_place(
    changed: dict[str, bytes | None], format: str, options: Any, text: str, trees: Path
) -> None:
    for name, content in changed.items():
        (trees / name).write_bytes(content or b"")
        if content is None:
            (trees / name).unlink()
    found = text_of(VertexrtError, lambda: load(trees, format=format, **options))
    assert found.startswith(text.replace("FOLDER", str(trees)))


SPLITS = "some of train, dev, test; name these"
WRONG: list[tuple[Any, str, dict[str, Any], str]] = [
    (
        "generatd",
        "trees",
        {},
        "'generatd' is neither a data set nor a folder; for trees there is"
        " generated, sst; give one of them or the path of a folder. Nearest: 'generated'.",
    ),
    (
        "sst",
        "text",
        {},
        "'sst' is data of the format trees; for text there is generated,"
        " ptb; give that or the path of a folder.",
    ),
    ("trees", "tree-fc", {}, "'trees'; for tree-fc there is generated; give that."),
    (
        "generated",
        "tree",
        {},
        "no format 'tree'; the formats are trees, text, tagged, pairs, logic, circuits, tree-fc,"
        " json-lines, conllu, conll, table, brackets, node-link; give one of them. Nearest: ",
    ),
    ("no/none", "trees", {}, "there is no no/none; expected a folder or a file w"),
    (Path("no/none"), "trees", {}, "there is no no/none; expected a folder or a file w"),
    (
        Path("sst"),
        "trees",
        {},
        "there is no sst; expected a folder or a file with",
    ),  # a path is no name
    (
        "no.jsonl",  # a format without data sets that have names
        "json-lines",
        {},
        "there is no no.jsonl; expected a folder or a file with the data; check the path.",
    ),
    ("/dev/null", "trees", {}, "/dev/null is neither; expected a folder or a file with the data"),
    ("generated", "trees", {"dev": "0.1"}, "dev for generated data; the splits that they have;"),
    ("generated", "trees", {"splits": ("dev", "valid")}, f"the splits dev, valid; {SPLITS}"),
    ("generated", "trees", {"splits": ("all",)}, f"the splits all; {SPLITS}"),
    ("generated", "json-lines", {"splits": ("all", "dev")}, f"the splits all, dev; {SPLITS}"),
    (
        "generated",
        "text",
        {"splits": ("dev",)},
        "the splits dev without vocabularies; train among them, whose words",
    ),
    (
        "generated",
        "text",
        {"binary": True},
        "'binary' for the format text; it belongs to the format trees; leave it out.",
    ),
    ("generated", "trees", {"pieces": 64}, "'pieces' for the format trees"),
    ("generated", "trees", {"leaves": 64}, "'leaves' for the format trees"),
]


@pytest.mark.parametrize(("data", "format", "options", "text"), WRONG)
def test_wrong_names_paths_and_options(data: Any, format: str, options: Any, text: str) -> None:
    found = text_of(UsageError, lambda: load(data, format=format, **options))
    assert found.startswith(f"[data] {text}")


def test_vocabulary() -> None:
    words = Vocabulary.build({"b": 1, "a": 2, "<unk>": 9, "c": 2}, first=("<unk>", "<eos>"))
    assert words.words == ("<unk>", "<eos>", "a", "c", "b")
    assert words.encode(["c", "d", "<eos>"]).tolist() == [3, 0, 1]
    assert words.encode([]).dtype == np.int32
    assert (words.index("b"), words.index("d"), len(words)) == (4, 0, 5)


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (("<unk>", "a", "a"), "3 words, 2 of them different, '<unk>' first; expected different"),
        (("a",), "1 words, 1 of them different, 'a' first; expected different words, '<unk>'"),
        ((), "0 words, 0 of them different, nothing first"),
    ],
)
def test_vocabulary_refusals(words: tuple[str, ...], got: str) -> None:
    with pytest.raises(DataError, match=rf"^\[vocabulary\] {got}"):
        Vocabulary(words)


CACHED = {entry.name for entry in catalogue() if entry.source and entry.cached}


@pytest.mark.skipif("sst" not in CACHED, reason="sst was not downloaded (vertexrt data fetch sst)")
def test_stanford_treebank_has_its_published_size() -> None:
    data = load("sst", format="trees")
    assert {name: split.num_graphs for name, split in data.splits.items()} == {
        "train": 8544,
        "dev": 1101,
        "test": 2210,
    }
    assert data.splits["train"].num_vertices == 318_582
    assert len(data.vocabulary) == 16_581 + 1
    binary = load("sst", format="trees", binary=True)
    assert [split.num_graphs for split in binary.splits.values()] == [6920, 872, 1821]


@pytest.mark.skipif("ptb" not in CACHED, reason="ptb was not downloaded (vertexrt data fetch ptb)")
def test_penn_treebank_text_has_its_published_size() -> None:
    data = load("ptb", format="text")
    assert [split.num_vertices for split in data.splits.values()] == [929_589, 73_760, 82_430]
    assert [split.num_graphs for split in data.splits.values()] == [42_068, 3_370, 3_761]
    assert len(data.vocabulary) == 10_000


def test_a_vocabulary_of_labels_knows_all_its_words() -> None:
    labels = Vocabulary.of_labels(["b", "a", "b"])
    assert (labels.words, labels.unknown) == (("a", "b"), None)
    assert labels.encode(["b", "a"]).tolist() == [1, 0]
    assert labels.decode(np.array([1, -1, 0])) == ["b", None, "a"]
    assert (labels.find("c"), Vocabulary(("<unk>", "a")).find("c")) == (None, 0)
    with pytest.raises(DataError, match=r"\[vocabulary\] no word 'c'; the words are a, b; "):
        labels.encode(["a", "c"])
    with pytest.raises(DataError, match=r"no number 2; the numbers are 0\.\.1, and -1 for none"):
        labels.decode([2])


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes("\ufeff(0 a)".encode())
    assert files.read_text(path) == "(0 a)"
