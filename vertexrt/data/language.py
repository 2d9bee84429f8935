"""Read language-model text: every sentence, or every piece of a stream, is a chain of words."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.data.files import WORD, Texts, has_split, read_splits
from vertexrt.data.typed import chain_pairs, stacked, typed_batch
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch

IntArray = npt.NDArray[np.integer]

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


class ChainForm(NamedTuple):
    """Say how text becomes graphs.

    Attributes:
        pieces: None for one chain a sentence; n to cut the stream of all sentences into chains of n
            words (the last may be shorter).
        streams: text is cut into so many parts of one length first. Chains come in the order piece
            0 of each stream, piece 1 of each, so that minibatches of as many graphs follow each
            other and a state may be carried from one to the next.
        layers: None for vertices of one type; n for the types of a `LanguageModel`.
    """

    pieces: int | None = None
    streams: int = 1
    layers: int | None = None


SENTENCES = ChainForm()


def language_model_dataset(
    source: Texts,
    *,
    name: str,
    form: ChainForm = SENTENCES,
    min_count: int = 1,
    vocabulary: Vocabulary | None = None,
) -> Dataset:
    """Make a data set of chains in which each word is to be foretold from those before it.

    A sentence w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`.

    Args:
        source: one sentence a line, words between spaces; `<eos>` ends one, too, and blank lines
            are skipped.
        name: of the data set.
        form: of the graphs.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        vocabulary: that numbers the words; by default one of the words of train.
    Returns: pulls "word" and "label" at every vertex, int32; `<unk>` is 0 and `<eos>` is 1.
    Raises: DataError, when a split holds no word; UsageError, when a number is under 1, or there
        are streams of sentences.
    """
    _check_form(form)
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
    splits = {split: _chains(vocabulary, words, form) for split, words in tokens.items()}
    numbered = {"word": vocabulary, "label": vocabulary}
    return Dataset(name, "text", splits, numbered, len(vocabulary), source.description)


def _check_form(form: ChainForm) -> None:
    """Raise UsageError for a number under 1, or streams of sentences."""
    for what, number in form._asdict().items():
        if number is not None and number < 1:
            raise UsageError.at("data", f"{what} {number}", "expected 1 or more", "correct it")
    if form.streams > 1 and form.pieces is None:
        raise UsageError.at(
            "data", f"{form.streams} streams of sentences", "expected pieces", "set pieces"
        )


def _tokens(text: str) -> list[str]:
    """Return the words of all sentences in one row, one `<eos>` after each."""
    words = WORD.findall(f"{text}\n".replace("\n", f" {END} "))
    return [word for last, word in pairwise([END, *words]) if (last, word) != (END, END)]


def _chains(vocabulary: Vocabulary, tokens: list[str], form: ChainForm) -> GraphBatch:
    label = vocabulary.encode(tokens)
    end = vocabulary.index(END)
    # Sentences begin after an <eos>, which is also their first input: one shift gives all inputs.
    word = np.concatenate([np.array([end], np.int32), label[:-1]])
    if form.pieces is None:
        sizes = np.diff([*np.flatnonzero(word == end), len(label)])
    else:
        order, sizes = _cut(len(label), form.pieces, form.streams)
        word, label = word[order], label[order]
    if form.layers is not None:
        return layered_chains(sizes, word, label, form.layers)
    graph_ptr = np.concatenate([[0], np.cumsum(sizes)])
    edges = chain_pairs(sizes)
    has_child = np.ones(len(label), np.bool_)
    has_child[graph_ptr[:-1]] = False
    child_ptr = np.concatenate([[0], np.cumsum(has_child)])
    return GraphBatch(graph_ptr, child_ptr, edges[:, 0], {"word": word, "label": label})


def _cut(length: int, pieces: int, streams: int) -> tuple[IntArray, IntArray]:
    """Return the words of a text in the order of its pieces, and the length of each piece."""
    streams = min(streams, length)
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(length), streams)])
    starts = np.concatenate([[0], ends[:-1]])
    rounds = np.arange(0, int((ends - starts).max()), pieces)
    first = (starts + rounds[:, None]).ravel()
    last = np.minimum(first + pieces, np.tile(ends, len(rounds)))
    kept = first < last
    order = [np.arange(a, b) for a, b in zip(first[kept], last[kept], strict=True)]
    return np.concatenate(order), (last - first)[kept]


def layered_chains(sizes: IntArray, word: IntArray, label: IntArray, layers: int) -> GraphBatch:
    """Build chains for a `LanguageModel` of so many layers.

    Args:
        sizes: int [K], words of each chain; word, label: int [words], of all chains.
    """
    pulls = {"layers.0": {"word": word}, "next": {"label": label}}
    parts = stacked(sizes, chain_pairs(sizes), layers, ("", "next"))
    return typed_batch(parts.joined({}, {}, pulls))
