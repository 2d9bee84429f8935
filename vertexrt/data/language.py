"""Read language-model text: every sentence, or every piece of a stream, is a chain of words."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.data.files import Texts, has_split, read_splits
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch

END = "<eos>"

_STEMS = {"train": ("train",), "dev": ("valid", "dev"), "test": ("test",)}
SPLITS = {
    split: tuple(
        f"{prefix}{stem}.txt{packed}"
        for prefix in ("ptb.", "")
        for stem in stems
        for packed in ("", ".gz")
    )
    for split, stems in _STEMS.items()
}


def is_text(path: Path) -> bool:
    """Tell whether a folder has sentences to learn from."""
    return has_split(path, SPLITS["train"])


def read_sentences(path: Path, splits: Sequence[str] = tuple(SPLITS)) -> Texts:
    """Read ptb.train.txt, ptb.valid.txt and ptb.test.txt (or without `ptb.`; .gz is read too).

    Raises: DataError, when a file is missing or cannot be read.
    """
    return read_splits(path, SPLITS, splits, "text")


def language_model_dataset(
    source: Texts,
    *,
    name: str,
    pieces: int | None = None,
    min_count: int = 1,
    vocabulary: Vocabulary | None = None,
) -> Dataset:
    """Make a data set of chains in which each word is to be foretold from those before it.

    A sentence w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`.

    Args:
        source: one sentence a line, words between spaces; blank lines are skipped.
        name: of the data set.
        pieces: None for one chain a sentence; n to cut the stream of all sentences into chains
            of n words (the last may be shorter).
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        vocabulary: that numbers the words; by default one of the words of train.
    Returns: pulls "word" and "label" at every vertex, int32; `<unk>` is 0 and `<eos>` is 1.
    Raises: DataError, when a split holds no word; UsageError, when `pieces` is under 1.
    """
    if pieces is not None and pieces < 1:
        raise UsageError.at("data", f"pieces of {pieces} words", "expected 1 or more", "correct it")
    tokens = {split: _tokens(text) for split, text in source.texts.items()}
    for split, words in tokens.items():
        if not words:
            raise DataError.at(
                source.files[split],
                "no word",
                "expected at least one sentence",
                "add text or give another folder",
            )
    if vocabulary is None:
        counts = Counter(tokens["train"])
        vocabulary = Vocabulary.build(counts, min_count=min_count, first=(UNKNOWN, END))
    splits = {split: _chains(vocabulary, words, pieces) for split, words in tokens.items()}
    numbered = {"word": vocabulary, "label": vocabulary}
    return Dataset(name, "text", splits, numbered, len(vocabulary), source.description)


def _tokens(text: str) -> list[str]:
    """Return the words of all lines in one row, `<eos>` after each line."""
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip(" ")]
    return [word for word in f" {END} ".join([*lines, ""]).split(" ") if word]


def _chains(vocabulary: Vocabulary, tokens: list[str], pieces: int | None) -> GraphBatch:
    label = vocabulary.encode(tokens)
    end = vocabulary.index(END)
    # Sentences begin after an <eos>, which is also their first input: one shift gives all inputs.
    word = np.concatenate([np.array([end], np.int32), label[:-1]])
    starts = np.flatnonzero(word == end) if pieces is None else np.arange(0, len(label), pieces)
    vertices = np.arange(len(label), dtype=np.int32)
    has_child = np.ones(len(label), np.bool_)
    has_child[starts] = False
    return GraphBatch.from_arrays(
        graph_ptr=np.concatenate([starts, [len(label)]]),
        child_ptr=np.concatenate([[0], np.cumsum(has_child)]),
        child=vertices[has_child] - 1,
        pulls={"word": word, "label": label},
    )
