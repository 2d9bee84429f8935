"""Data sets: generated ones follow their rules, a seed decides all; vocabularies, what is written.

The trees of the treebank are composed once more, by the words that a reader would see.
"""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.messages import table, text_of
from tests.pure.graphs_as_text import as_text
from vertexrt.data import Vocabulary, files, load
from vertexrt.data.generated import generate_text
from vertexrt.data.load import format_of
from vertexrt.data.treebank import Role, compose, generate_treebank, word
from vertexrt.errors import DataError
from vertexrt.graph import Rows

SAMPLES = Path(__file__).resolve().parents[2] / "datasets" / "samples"
OPERATORS = {Role.NEGATE: "33211", Role.INTENSIFY: "00244", Role.DIMINISH: "11233"}
BUT, ALTHOUGH = word("but", role=Role.CONTRAST), word("although", role=Role.CONCEDE)
NOT, BAD, SUPERB = word("not", role=Role.NEGATE), word("bad", 1), word("superb", 4)
COMPOSED = table(__file__, "COMPOSED")


def test_phrases_are_composed() -> None:
    for role, labels in OPERATORS.items():
        found = [compose(word("op", role=role), word("x", label)).label for label in range(5)]
        assert found == [int(label) for label in labels]
    for code, text in COMPOSED.items():
        assert eval(f"compose({code})").text == text
    with pytest.raises(ValueError, match="no rule for CONTRAST next to CONTRAST"):
        compose(BUT, BUT)


@pytest.mark.parametrize(
    ("name", "generate", "digest"),
    [
        ("trees", generate_treebank, "30b6c68d6d6de688"),
        ("text", generate_text, "6426586c14a5ffd5"),
    ],
)
def test_samples_are_what_the_generators_give(name: str, generate: Any, digest: str) -> None:
    """The same on all machines: runs are compared by numbers that they reach on these data."""
    texts = generate(0)
    sample = (SAMPLES / f"generated-{name}.txt").read_text().splitlines()
    assert sample == texts["dev"].splitlines()[:20]
    whole = "".join(texts[split] for split in ("train", "dev", "test"))
    assert sha256(whole.encode()).hexdigest().startswith(digest)
    assert generate(1)["dev"] != texts["dev"]


DIGESTS = table(__file__, "DIGESTS")


@pytest.mark.parametrize("name", DIGESTS)
def test_generated_graphs_are_the_same_on_all_machines(name: str) -> None:
    text = as_text(load("generated", format=name))
    assert sha256(text.encode()).hexdigest().startswith(DIGESTS[name])


def test_generated_text_knows_its_perplexity() -> None:
    made, data = generate_text(0), load("generated", format="text")
    assert set(made) == set(data.splits) == {"train", "dev", "test"}
    assert f"{made['dev'].perplexity:.2f} on dev" in data.description
    words, labels = (np.asarray(data.splits["dev"].pulls[name]) for name in ("word", "label"))
    pairs = np.zeros((len(data.vocabulary),) * 2)
    np.add.at(pairs, (words, labels), 1.0)
    share = pairs / np.maximum(pairs.sum(axis=1, keepdims=True), 1.0)
    bound = float(np.exp(-np.log(share[words, labels]).mean()))  # of what is fitted to dev itself
    assert bound < made["dev"].perplexity < 2.0 * bound


def test_tree_fc() -> None:
    data, again = (load("generated", format="tree-fc", leaves=8, seed=5) for _ in range(2))
    assert as_text(data) == as_text(again)
    train = data.splits["train"]
    assert data.description.endswith("seed 5, leaves 8")
    assert train.num_graphs == 512
    assert set(train.sizes().tolist()) == {15}
    words, target = np.asarray(train.pulls["word"]), train.pulls["target"]
    assert isinstance(target, Rows)
    np.testing.assert_array_equal(np.flatnonzero(target.index >= 0), train.roots)  # type: ignore[operator]
    leaves = np.diff(train.child_ptr) == 0
    np.testing.assert_array_equal(words >= 0, leaves)
    # The target is a linear function of how often each word occurs.
    table = np.zeros((512, len(data.vocabulary)))
    np.add.at(table, (train.graph_of[leaves], words[leaves]), 1.0)
    fitted = table @ np.linalg.lstsq(table, target.table, rcond=None)[0]
    np.testing.assert_allclose(fitted, target.table, atol=1e-5)


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


def test_a_small_file_that_unpacks_to_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = b"\xef\xbb\xbf(3 (2 a) (3 b))\n"  # a byte order mark
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(marked))
    assert format_of(str(tmp_path)) == "trees"
    monkeypatch.setattr(files, "LARGEST_TEXT", 5)
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


MISTAKES = table(__file__, "MISTAKES")


@pytest.mark.parametrize("code", MISTAKES)
def test_what_is_no_vocabulary(code: str) -> None:
    assert text_of(DataError, lambda: eval(code)).startswith(f"[vocabulary] {MISTAKES[code]}")
