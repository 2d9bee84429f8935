"""Tagged sentences as graphs of vertex types: words read from both ends, and their letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.files import files_of, has_split, read_text
from vertexrt.data.sentences import tagged_sentences
from vertexrt.data.typed import TypedArrays, chain_pairs, pairs, typed_batch
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

IntArray = npt.NDArray[np.int32]


class TaggedSentence(NamedTuple):
    """A sentence with a tag for each word."""

    words: Sequence[str]
    tags: Sequence[str]


class TaggedTexts(NamedTuple):
    """Sentences of each split, and one line on what they are."""

    splits: Mapping[str, Sequence[TaggedSentence]]
    description: str


SPLITS = {split: (f"{split}.txt", f"{split}.txt.gz") for split in ("train", "dev", "test")}


def read_tagged_splits(path: Path, splits: Sequence[str] = tuple(SPLITS)) -> TaggedTexts:
    """Read train.txt, dev.txt and, where there is one, test.txt: `word|tag` between spaces.

    Source of the format: WikiNER (Nothman et al. 2013), one sentence a line.
    Raises: DataError with file, line and word, when a file is missing or a word has no tag.
    """
    tested = splits == ["test"] or has_split(path, SPLITS["test"])
    files = files_of(path, SPLITS, [split for split in splits if tested or split != "test"])
    found = {split: _sentences(file) for split, file in files.items()}
    return TaggedTexts(found, f"tagged sentences from {path}")


def _sentences(path: Path) -> list[TaggedSentence]:
    rows = tagged_sentences(str(path), read_text(path), ("word", "label"), "|")
    found = [TaggedSentence(*([x or "" for x in c] for c in row.words.values())) for row in rows]
    if not found:
        raise DataError.at(str(path), "no sentence", "expected at least one", "add sentences")
    return found


def tagging_dataset(
    source: TaggedTexts,
    *,
    name: str,
    letters: bool = True,
    crf: bool = False,
    min_count: int = 1,
    vocabularies: Mapping[str, Vocabulary] | None = None,
) -> Dataset:
    """Make a data set of sentences whose words are to be tagged.

    Args:
        source: sentences of each split.
        name: of the data set.
        letters: give the types of letters, too. Words are in lower case then: their letters tell
            the case.
        crf: make tags a chain, and give the type "scores" between words and tags. A
            `BiLSTMCharTagger` needs both, a `BiLSTMTagger` neither.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        vocabularies: what numbers words, letters and labels; by default those of train.
    Returns: pulls "word", "label" and, for letters, "letter"; a label that is not known counts as
        none.
    """
    known = vocabularies or _vocabularies(source.splits["train"], min_count, letters)
    splits = {split: _graphs(given, known, crf) for split, given in source.splits.items()}
    return Dataset(name, "tagged", splits, known, len(known["label"]), source.description)


def _vocabularies(
    sentences: Sequence[TaggedSentence], min_count: int, letters: bool
) -> dict[str, Vocabulary]:
    words = [word for sentence in sentences for word in sentence.words]
    looked_up = [word.lower() for word in words] if letters else words
    known = {
        "word": Vocabulary.build(Counter(looked_up), min_count=min_count),
        "label": Vocabulary.of_labels(tag for sentence in sentences for tag in sentence.tags),
    }
    if letters:
        known["letter"] = Vocabulary.build(Counter(chain.from_iterable(dict.fromkeys(words))))
    return known


def _graphs(
    sentences: Sequence[TaggedSentence], vocabularies: Mapping[str, Vocabulary], crf: bool
) -> GraphBatch:
    """Return sentences, with the letters of their words where there is a vocabulary of them."""
    sizes = np.array([len(sentence.words) for sentence in sentences])
    words = [word for sentence in sentences for word in sentence.words]
    label = {"label": _labels(sentences, vocabularies["label"])}
    spelt = "letter" in vocabularies
    looked_up = [word.lower() for word in words] if spelt else words
    word = {"word": vocabularies["word"].encode(looked_up)}
    vertices = np.arange(len(words))
    same = pairs(vertices, vertices)
    onward, backward = chain_pairs(sizes), chain_pairs(sizes, backward=True)
    classifier = "scores" if crf else "tag"
    parts = TypedArrays(
        dict.fromkeys(("word", "left", "right", "tag"), sizes),
        {
            ("left", "before", "left"): onward,
            ("right", "before", "right"): backward,
            ("word", "word", "left"): same,
            ("word", "word", "right"): same,
            ("left", "left", classifier): same,
            ("right", "right", classifier): same,
        },
        {"word": word, "tag": label},
    )
    if crf:
        chained = {("tag", "before", "tag"): onward, ("scores", "after", "scores"): backward}
        parts = parts.joined({"scores": sizes}, {**chained, ("scores", "scores", "tag"): same}, {})
    if spelt:
        parts = parts.joined(*_letters(sizes, words, vocabularies["letter"]))
    return typed_batch(parts)


def _labels(sentences: Sequence[TaggedSentence], tags: Vocabulary) -> IntArray:
    found = [tags.find(tag) for sentence in sentences for tag in sentence.tags]
    return np.array([-1 if tag is None else tag for tag in found], np.int32)


def _letters(sizes: IntArray, words: Sequence[str], alphabet: Vocabulary) -> TypedArrays:
    """Return the letters of all words, in both directions; each word reads the last of both."""
    lengths = np.array([len(word) for word in words])
    ends, vertices = np.cumsum(lengths), np.arange(len(words))
    of_sentence = np.diff(ends[np.cumsum(sizes) - 1], prepend=0)
    letter = {"letter": alphabet.encode(chain.from_iterable(words))}
    return TypedArrays(
        {"forth": of_sentence, "back": of_sentence},
        {
            ("forth", "before", "forth"): chain_pairs(lengths),
            ("back", "before", "back"): chain_pairs(lengths, backward=True),
            ("forth", "forth", "word"): pairs(ends - 1, vertices),
            ("back", "back", "word"): pairs(ends - lengths, vertices),
        },
        {"forth": letter, "back": letter},
    )
