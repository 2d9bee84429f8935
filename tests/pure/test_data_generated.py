"""Generated data: labels follow the rules, classes are balanced, the seed decides everything."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from vertexrt.data import Loader, load
from vertexrt.data.generated import WORDS, generate_text, with_s
from vertexrt.data.treebank import Phrase, Role, compose, generate_treebank, word
from vertexrt.errors import GraphError, UsageError
from vertexrt.graph import BracketForest, GraphBatch, InputGraph, Rows, parse_brackets

SAMPLES = Path(__file__).resolve().parents[2] / "datasets" / "samples"

# The rules once more, by word: what a reader of the trees would see.
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
    return {
        split: parse_brackets(text, file=split, labels=5)
        for split, text in generate_treebank(0).items()
    }


def test_sizes_and_balance(forests: dict[str, BracketForest]) -> None:
    for seed in range(3):
        if seed:
            forests = {split: parse_brackets(t) for split, t in generate_treebank(seed).items()}
        assert {s: len(f.graph_ptr) - 1 for s, f in forests.items()} == {
            "train": 4000,
            "dev": 500,
            "test": 500,
        }
        for forest in forests.values():
            shares = np.bincount(forest.label[forest.graph_ptr[1:] - 1], minlength=5)
            assert shares.max() < 0.35 * shares.sum()
            assert shares.min() > 0.08 * shares.sum()
        assert 200 <= len(forests["train"].words) <= 400
        assert set(forests["dev"].words) <= set(forests["train"].words)


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


@pytest.mark.parametrize(
    ("role", "labels"),
    [
        (Role.NEGATE, [3, 3, 2, 1, 1]),
        (Role.INTENSIFY, [0, 0, 2, 4, 4]),
        (Role.DIMINISH, [1, 1, 2, 3, 3]),
    ],
)
def test_operators(role: Role, labels: list[int]) -> None:
    operator = word("op", role=role)
    assert [compose(operator, word("x", label)).label for label in range(5)] == labels


def test_contrast_and_concession() -> None:
    but = compose(word("but", role=Role.CONTRAST), word("bad", 1))
    assert compose(word("superb", 4), but) == Phrase(
        1, Role.PLAIN, "(1 (4 superb) (1 (2 but) (1 bad)))"
    )
    although = compose(word("although", role=Role.CONCEDE), word("bad", 1))
    assert compose(although, word("superb", 4)).label == 4
    assert compose(word("a", 4), word("b", 3)).label == 4
    assert compose(word("a", 4), word("b", 1)).label == 3
    does_not = compose(word("does"), word("not", role=Role.NEGATE))
    assert compose(does_not, word("amuse", 3)).label == 1
    with pytest.raises(ValueError, match="no rule for CONTRAST next to CONTRAST"):
        compose(word("but", role=Role.CONTRAST), word("but", role=Role.CONTRAST))


def test_no_sentence_comes_twice() -> None:
    lines = [line for text in generate_treebank(0).values() for line in text.splitlines()]
    sentences = {re.sub(r"\([0-4] |\)", "", line) for line in lines}
    assert len(sentences) == len(lines) == 5000


def test_words_alone_do_not_tell_the_label(forests: dict[str, BracketForest]) -> None:
    """A linear model on counts of words, fitted by least squares, stays under 60 %."""

    def counts(forest: BracketForest, numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
        trees = len(forest.graph_ptr) - 1
        tree = np.repeat(np.arange(trees), np.diff(forest.graph_ptr))
        leaf = forest.word >= 0
        column = np.array([numbers[text] for text in forest.words])[forest.word[leaf]]
        table = np.zeros((trees, len(numbers)))
        np.add.at(table, (tree[leaf], column), 1.0)
        return table, forest.label[forest.graph_ptr[1:] - 1]

    numbers = {text: number for number, text in enumerate(forests["train"].words)}
    train, train_label = counts(forests["train"], numbers)
    dev, dev_label = counts(forests["dev"], numbers)
    weights = np.linalg.lstsq(train, np.eye(5)[train_label], rcond=None)[0]
    assert np.mean(np.argmax(dev @ weights, axis=1) == dev_label) < 0.6


def test_treebank_is_written_and_read(tmp_path: Path) -> None:
    for split, text in generate_treebank(3).items():
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8", newline="\n")
    written = load(tmp_path, format="trees")
    made = load("generated", format="trees", seed=3, splits=("test", "train", "dev"))
    for split, batch in made.splits.items():
        again = written.splits[split]
        for name in ("graph_ptr", "child_ptr", "child"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(again, name))
        for name in ("word", "label"):
            np.testing.assert_array_equal(
                np.asarray(batch.pulls[name]), np.asarray(again.pulls[name])
            )
    assert made.vocabulary == written.vocabulary


def test_samples_are_what_the_generators_give() -> None:
    trees = generate_treebank(0)["dev"].splitlines()
    text = generate_text(0)["dev"].splitlines()
    assert (SAMPLES / "generated-trees.txt").read_text().splitlines() == trees[:20]
    assert (SAMPLES / "generated-text.txt").read_text().splitlines() == text[:20]
    assert generate_treebank(1)["dev"].splitlines() != trees
    assert generate_text(1)["dev"].splitlines() != text


def test_generated_text_agrees_and_knows_its_perplexity() -> None:
    made = generate_text(0)
    data = load("generated", format="text")
    assert set(made) == set(data.splits) == {"train", "dev", "test"}
    assert f"{made['dev'].perplexity:.2f} on dev" in data.description
    label = np.asarray(data.splits["train"].pulls["label"])
    previous = np.asarray(data.splits["train"].pulls["word"])
    size = len(data.vocabulary)
    assert 150 <= size <= 300

    def perplexity(table: np.ndarray) -> float:
        """Perplexity on dev of counts, each with one added."""
        table = table + 1.0
        share = table / table.sum(axis=1, keepdims=True)
        dev = data.splits["dev"].pulls
        rows = np.asarray(dev["word"])
        return float(np.exp(-np.log(share[rows, np.asarray(dev["label"])]).mean()))

    pairs = np.zeros((size, size))
    np.add.at(pairs, (previous, label), 1.0)
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
    assert "carries" in words
    assert "watches" in words


def test_tree_fc() -> None:
    data = load("generated", format="tree-fc", leaves=8, seed=5)
    train = data.splits["train"]
    assert data.description.endswith("seed 5, leaves 8")
    assert train.num_graphs == 512
    assert set(train.sizes().tolist()) == {15}
    word_pull, target = np.asarray(train.pulls["word"]), train.pulls["target"]
    assert isinstance(target, Rows)
    assert target.index is not None
    assert target.table.shape == (512, 1)
    assert target.table.dtype == np.float32
    np.testing.assert_array_equal(np.flatnonzero(target.index >= 0), train.roots)
    leaves = np.diff(train.child_ptr) == 0
    np.testing.assert_array_equal(word_pull >= 0, leaves)
    assert word_pull.max() < len(data.vocabulary)
    # The target is a linear function of how often each word occurs.
    table = np.zeros((512, len(data.vocabulary)))
    np.add.at(table, (train.graph_of[leaves], word_pull[leaves]), 1.0)
    fitted = table @ np.linalg.lstsq(table, target.table, rcond=None)[0]
    np.testing.assert_allclose(fitted, target.table, atol=1e-5)
    again = load("generated", format="tree-fc", leaves=8, seed=5).splits["train"]
    np.testing.assert_array_equal(np.asarray(again.pulls["word"]), word_pull)
    with pytest.raises(GraphError, match="a complete tree of 6 leaves and arity 2"):
        load("generated", format="tree-fc", leaves=6)


def chains(sizes: np.ndarray) -> GraphBatch:
    return GraphBatch.from_graphs([InputGraph.chain(int(n)) for n in sizes])


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("bucket", [1, 3, 100])
@pytest.mark.parametrize(("graphs", "batch_size"), [(10, 3), (9, 3), (1, 4), (50, 1)])
def test_minibatches_cover_every_graph(
    graphs: int, batch_size: int, bucket: int, shuffle: bool
) -> None:
    whole = chains(np.random.default_rng(0).integers(1, 60, graphs))

    def epoch(number: int, seed: int = 7) -> list[list[int]]:
        loader = Loader(whole, batch_size, seed=seed, shuffle=shuffle, bucket=bucket)
        batches = loader.order(number)
        assert all(batch.dtype == np.int32 for batch in batches)
        return [batch.tolist() for batch in batches]

    batches = epoch(0)
    assert sorted(graph for batch in batches for graph in batch) == list(range(graphs))
    assert sorted(map(len, batches))[1:] == [batch_size] * (len(batches) - 1)
    assert batches == epoch(0)
    if graphs == 50:
        assert (epoch(1) != batches) is shuffle
        assert (epoch(0, seed=8) != batches) is shuffle


def test_minibatches_by_size_hold_like_sizes() -> None:
    sizes = np.random.default_rng(1).integers(1, 100, 400)
    whole = chains(sizes)

    def spread(bucket: int) -> float:
        return float(np.mean([np.ptp(sizes[k]) for k in Loader(whole, 20, bucket=bucket).order(0)]))

    assert all(a > 1.5 * b for a, b in pairwise([spread(1), spread(5), spread(20)]))


def test_minibatches_refuse() -> None:
    whole = chains(np.ones(3, np.int32))
    with pytest.raises(UsageError) as caught:
        Loader(whole, 0)
    assert str(caught.value) == (
        "[loader] batch_size=0; expected a whole number, 1 or more; correct it."
    )
    with pytest.raises(UsageError, match="bucket=0"):
        Loader(whole, 1, bucket=0)
