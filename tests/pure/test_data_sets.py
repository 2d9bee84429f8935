"""Data sets: generated ones follow their rules, a seed decides all; vocabularies, what is written.

The trees of the treebank are composed once more, by the words that a reader would see.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.messages import text_of
from tests.pure.graphs_as_text import as_text
from tests.strategies import ChildLists, dags
from vertexrt.data import Vocabulary, catalogue, files, load
from vertexrt.data.generated import WORDS, generate_text, with_s
from vertexrt.data.load import format_of
from vertexrt.data.treebank import Phrase, Role, compose, generate_treebank, word
from vertexrt.errors import DataError, GraphError
from vertexrt.graph import BracketForest, Rows, parse_brackets

SAMPLES = Path(__file__).resolve().parents[2] / "datasets" / "samples"
ROLES = {
    Role.NEGATE: "not n't never hardly lacks avoids misses escapes",
    Role.INTENSIFY: "very really truly extremely deeply incredibly",
    Role.DIMINISH: "slightly somewhat mildly fairly rather",
    Role.CONTRAST: "but yet",
    Role.CONCEDE: "although though while",
}
ROLE_OF = {text: role for role, texts in ROLES.items() for text in texts.split(" ")}


@pytest.fixture(scope="module")
def forests() -> dict[str, BracketForest]:
    texts = generate_treebank(0).items()
    return {split: parse_brackets(text, file=split, labels=5) for split, text in texts}


def test_sizes_and_balance(forests: dict[str, BracketForest]) -> None:
    others = {split: parse_brackets(text) for split, text in generate_treebank(1).items()}
    for each in (forests, others):
        counts = [len(forest.graph_ptr) - 1 for forest in each.values()]
        assert dict(zip(each, counts, strict=True)) == {"train": 4000, "dev": 500, "test": 500}
        for forest in each.values():
            shares = np.bincount(forest.label[forest.graph_ptr[1:] - 1], minlength=5)
            assert shares.max() < 0.35 * shares.sum()
            assert shares.min() > 0.08 * shares.sum()
        assert 200 <= len(each["train"].words) <= 400
        assert set(each["dev"].words) <= set(each["train"].words)


def test_every_label_follows_from_the_children(forests: dict[str, BracketForest]) -> None:
    alone: dict[str, int] = {}
    roles = set()
    for forest in forests.values():
        phrases: list[Phrase] = []
        for vertex, label in enumerate(forest.label.tolist()):
            slots = forest.child[forest.child_ptr[vertex] : forest.child_ptr[vertex + 1]].tolist()
            if slots:
                left, right = slots
                phrases.append(compose(phrases[left], phrases[right]))
                assert phrases[-1].label == label
            else:
                text = forest.words[forest.word[vertex]]
                role = ROLE_OF.get(text, Role.PLAIN)
                assert alone.setdefault(text, label) == label
                assert role is Role.PLAIN or label == 2
                phrases.append(word(text, label, role))
            roles.add(phrases[-1].role)
    assert roles == set(Role)


OPERATORS = {Role.NEGATE: "33211", Role.INTENSIFY: "00244", Role.DIMINISH: "11233"}
BUT, ALTHOUGH = word("but", role=Role.CONTRAST), word("although", role=Role.CONCEDE)
NOT, BAD, SUPERB = word("not", role=Role.NEGATE), word("bad", 1), word("superb", 4)
COMPOSED = {
    "SUPERB, compose(BUT, BAD)": "(1 (4 superb) (1 (2 but) (1 bad)))",
    "compose(ALTHOUGH, BAD), SUPERB": "(4 (1 (2 although) (1 bad)) (4 superb))",
    'SUPERB, word("fair", 3)': "(4 (4 superb) (3 fair))",
    "SUPERB, BAD": "(3 (4 superb) (1 bad))",
    'compose(word("does"), NOT), word("amuse", 3)': "(1 (2 (2 does) (2 not)) (3 amuse))",
}


def test_phrases_are_composed() -> None:
    for role, labels in OPERATORS.items():
        found = [compose(word("op", role=role), word("x", label)).label for label in range(5)]
        assert found == [int(label) for label in labels]
    for code, text in COMPOSED.items():
        assert eval(f"compose({code})").text == text
    with pytest.raises(ValueError, match="no rule for CONTRAST next to CONTRAST"):
        compose(BUT, BUT)


def counts(forest: BracketForest, numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return how often each word occurs in each tree, and the labels of the trees."""
    trees = len(forest.graph_ptr) - 1
    leaf = forest.word >= 0
    tree = np.repeat(np.arange(trees), np.diff(forest.graph_ptr))[leaf]
    column = np.array([numbers[text] for text in forest.words])[forest.word[leaf]]
    table = np.zeros((trees, len(numbers)))
    np.add.at(table, (tree, column), 1.0)
    return table, forest.label[forest.graph_ptr[1:] - 1]


def test_words_alone_do_not_tell_the_label(forests: dict[str, BracketForest]) -> None:
    """A linear model on counts of words, fitted by least squares, stays under 60 %."""
    numbers = {text: number for number, text in enumerate(forests["train"].words)}
    train, train_label = counts(forests["train"], numbers)
    dev, dev_label = counts(forests["dev"], numbers)
    weights = np.linalg.lstsq(train, np.eye(5)[train_label], rcond=None)[0]
    assert np.mean(np.argmax(dev @ weights, axis=1) == dev_label) < 0.6


def test_treebank_is_written_and_read(tmp_path: Path) -> None:
    for split, text in generate_treebank(3).items():
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8", newline="\n")
    made = load("generated", format="trees", seed=3, splits=("test", "train", "dev"))
    texts = [as_text(data).splitlines()[1:] for data in (made, load(tmp_path, format="trees"))]
    assert texts[0] == texts[1]


def test_samples_are_what_the_generators_give() -> None:
    for name, generate in (("trees", generate_treebank), ("text", generate_text)):
        texts = generate(0)
        sample = (SAMPLES / f"generated-{name}.txt").read_text().splitlines()
        assert sample == texts["dev"].splitlines()[:20]
        assert generate(1)["dev"] != texts["dev"]
    lines = [line for text in generate_treebank(0).values() for line in text.splitlines()]
    sentences = {re.sub(r"\([0-4] |\)", "", line) for line in lines}
    assert len(sentences) == len(lines) == 5000


def test_generated_text_agrees_and_knows_its_perplexity() -> None:
    made = generate_text(0)
    data = load("generated", format="text")
    assert set(made) == set(data.splits) == {"train", "dev", "test"}
    assert f"{made['dev'].perplexity:.2f} on dev" in data.description
    train, dev = (
        [np.asarray(data.splits[split].pulls[name]) for name in ("word", "label")]
        for split in ("train", "dev")
    )
    size = len(data.vocabulary)
    assert 150 <= size <= 300
    pairs = np.zeros((size, size))
    np.add.at(pairs, tuple(train), 1.0)

    def perplexity(table: np.ndarray) -> float:
        """Perplexity on dev of counts, each with one added."""
        share = (table + 1.0) / (table + 1.0).sum(axis=1, keepdims=True)
        return float(np.exp(-np.log(share[tuple(dev)]).mean()))

    unigram = perplexity(np.tile(pairs.sum(axis=0), (size, 1)))
    assert made["dev"].perplexity < 0.8 * perplexity(pairs) < 0.4 * unigram


def test_a_sentence_has_one_derivation() -> None:
    """No word plays two parts, but for what either number may have before it."""
    parts = {part: words.split(" ") for part, words in WORDS.items()}
    parts["plural noun"] = [with_s(noun) for noun in parts["noun"]]
    for part in ("verb alone", "verb with object"):
        parts[f"singular {part}"] = [with_s(verb) for verb in parts[part]]
    words = [text for part, texts in parts.items() if "determiner" not in part for text in texts]
    determiners = set(parts["singular determiner"]) | set(parts["plural determiner"])
    assert len(set(words)) == len(words)
    assert not determiners & {*words, "that", ","}
    assert {"carries", "watches"} < set(words)


def test_tree_fc() -> None:
    data, again = (load("generated", format="tree-fc", leaves=8, seed=5) for _ in range(2))
    assert as_text(data) == as_text(again)
    train = data.splits["train"]
    assert data.description.endswith("seed 5, leaves 8")
    assert train.num_graphs == 512
    assert set(train.sizes().tolist()) == {15}
    words, target = np.asarray(train.pulls["word"]), train.pulls["target"]
    assert isinstance(target, Rows)
    assert target.index is not None
    assert target.table.shape == (512, 1)
    assert target.table.dtype == np.float32
    np.testing.assert_array_equal(np.flatnonzero(target.index >= 0), train.roots)
    leaves = np.diff(train.child_ptr) == 0
    np.testing.assert_array_equal(words >= 0, leaves)
    # The target is a linear function of how often each word occurs.
    table = np.zeros((512, len(data.vocabulary)))
    np.add.at(table, (train.graph_of[leaves], words[leaves]), 1.0)
    fitted = table @ np.linalg.lstsq(table, target.table, rcond=None)[0]
    np.testing.assert_allclose(fitted, target.table, atol=1e-5)
    with pytest.raises(GraphError, match="a complete tree of 6 leaves and arity 2"):
        load("generated", format="tree-fc", leaves=6)


GATES = {  # the value of a gate by the sum of its inputs
    "not": (1, 0),
    "and": (0, 0, 1),
    "or": (0, 1, 1),
    "xor": (0, 1, 0),
    "nand": (1, 1, 0),
}


def test_values_of_logic_follow_from_the_gates() -> None:
    data = load("generated", format="logic")
    batch = data.splits["dev"]
    word, value = (np.asarray(batch.pulls[name]) for name in ("word", "label"))
    slots = np.split(batch.child, batch.child_ptr[1:-1])
    for vertex, name in enumerate(data.vocabulary.decode(word)):
        if name in GATES:
            assert value[vertex] == GATES[name][value[slots[vertex]].sum()]
            assert len(slots[vertex]) == len(GATES[name]) - 1
        else:
            assert not slots[vertex].size
            assert value[vertex] == (name == "true")


@settings(max_examples=30, deadline=None)
@given(st.lists(dags(), min_size=1, max_size=4), st.data())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, lists: list[ChildLists], data: st.DataObject
) -> None:
    batch = vrt.GraphBatch.from_graphs(map(vrt.InputGraph.from_children, lists))
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "whole": st.integers(-1, 2**31 - 2),
        "real": st.floats(allow_nan=False, allow_infinity=False, width=32).map(np.float32),
    }
    count = batch.num_vertices
    pulls = {
        name: np.array(data.draw(st.lists(kind, min_size=count, max_size=count)))
        for name, kind in kinds.items()
    }
    written = vrt.GraphBatch(batch.graph_ptr, batch.child_ptr, batch.child, pulls)
    path = tmp_path_factory.mktemp("lines") / "some.jsonl.gz"
    vrt.data.write_jsonl(path, written)
    assert as_text(vrt.data.read_jsonl(path)) == as_text(vrt.data.Examples(written, {}))


def test_what_is_written_prints_and_other_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    record = {"chain": 3, "pulls": {"w": ["a\udcff\0", "\x9b\u202e", "caf\u00e9\n"]}}
    found = vrt.data.from_records([record])
    vrt.data.write_jsonl(path, found.batch, found.vocabularies)
    text = path.read_text("utf-8").removesuffix("\n")
    assert text.isprintable()
    assert "caf\u00e9" in text  # what prints is written as it is
    for value in (np.array([np.nan, 1]), np.array([2**31 - 1, 0])):
        graph = vrt.InputGraph.chain(2, {"x": value})
        text = text_of(DataError, lambda g=graph: vrt.data.write_jsonl(path, [g]))  # type: ignore[misc]
        assert text.startswith("[write_jsonl] the pull 'x' is not finite, or above 2147483646; ")
    text = text_of(DataError, lambda: vrt.data.write_jsonl(tmp_path / "no" / "x", found.batch))
    assert "cannot be written: No such file or directory" in text


def test_a_format_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(b"(3 (2 a) (3 b))\n"))
    assert format_of(str(tmp_path)) == "trees"
    (tmp_path / "train.txt").write_bytes(b"\xef\xbb\xbf(3 (2 a) (3 b))\n")  # a byte order mark
    assert format_of(str(tmp_path)) == "trees"
    (tmp_path / "train.txt").write_bytes(b"a b\n")
    assert format_of(str(tmp_path)) == "text"
    (tmp_path / "train.txt").unlink()
    monkeypatch.setattr(files, "LARGEST_TEXT", 5)  # a small file may unpack to any size
    text = text_of(DataError, lambda: load(tmp_path, format="text"))
    assert text.startswith(f"[{tmp_path}/train.txt.gz] cannot be read: more than 0 MiB")


def test_sizes_of_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"chain": 1, "pulls": {"word": ["b"], "n": [4], "label": ["no"]}}')
    data = load(tmp_path / "x", format="json-lines", splits=("all",))
    sizes = {"vocab": 2, "classes": 1, "num_word": 2, "num_label": 1, "num_n": 5}
    assert data.sizes() == sizes
    assert (data.labels, data.classes, data.vocabulary.words) == (("no",), 1, ("<unk>", "b"))


def test_embeddings_that_there_are_not_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a 1 2\n")
    words, normal = Vocabulary(("<unk>", "a", "b")), vrt.init.normal(1.0)
    found, again, other = (
        vrt.data.read_embeddings(tmp_path / "x", words, normal, seed=seed).matrix
        for seed in (3, 3, 4)
    )
    assert found.dtype == np.float32
    assert np.array_equal(found, again)
    assert np.array_equal(found == other, [[False] * 2, [True] * 2, [False] * 2])


def test_vocabularies() -> None:
    words = Vocabulary.build({"b": 1, "a": 2, "<unk>": 9, "c": 2}, first=("<unk>", "<eos>"))
    assert words.words == ("<unk>", "<eos>", "a", "c", "b")
    assert words.encode(["c", "d", "<eos>"]).tolist() == [3, 0, 1]
    assert words.encode([]).dtype == np.int32
    assert (words.index("b"), words.index("d"), words.find("d"), len(words)) == (4, 0, 0, 5)
    labels = Vocabulary.of_labels(["b", "a", "b"])
    assert (labels.words, labels.unknown, labels.find("c")) == (("a", "b"), None, None)
    assert labels.encode(["b", "a"]).tolist() == [1, 0]
    assert labels.decode(np.array([1, -1, 0])) == ["b", None, "a"]


MISTAKES = {
    'Vocabulary.of_labels("ab").encode(["a", "c"])': "no word 'c'; the words are a, b; ",
    'Vocabulary.of_labels("ab").decode([2])': "no number 2; the numbers are 0..1, and -1 for none",
    'Vocabulary(("<unk>", "a", "a"))': "3 words, 2 of them different, '<unk>' first; expected diff",
    'Vocabulary(("a",))': "1 words, 1 of them different, 'a' first; expected different words, '<un",
    "Vocabulary(())": "0 words, 0 of them different, nothing first; expected different words, '<",
}


@pytest.mark.parametrize("code", MISTAKES)
def test_what_is_no_vocabulary(code: str) -> None:
    assert text_of(DataError, lambda: eval(code)).startswith(f"[vocabulary] {MISTAKES[code]}")


PUBLISHED = {  # graphs of each split, vertices of train, words
    "sst": ([8544, 1101, 2210], 318_582, 16_582),
    "ptb": ([42_068, 3_370, 3_761], 929_589, 10_000),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_downloaded_data_have_their_published_sizes(name: str) -> None:
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    if not entry.cached:
        pytest.skip(f"{name} was not downloaded (vertexrt data fetch {name})")
    data = load(name, format=entry.format)
    graphs = [split.num_graphs for split in data.splits.values()]
    assert (graphs, data.splits["train"].num_vertices, len(data.vocabulary)) == PUBLISHED[name]
    if name == "sst":
        binary = load("sst", format="trees", binary=True)
        assert [split.num_graphs for split in binary.splits.values()] == [6920, 872, 1821]
