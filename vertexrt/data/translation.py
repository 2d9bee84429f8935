"""Pairs of sentences: a source and its translation, for a decoder that attends over an encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.data.files import WORD, Texts, read_splits
from vertexrt.data.typed import TypedArrays, chain_pairs, pairs, typed_batch
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

END = "<eos>"
SPLITS = {split: (f"{split}.tsv", f"{split}.tsv.gz") for split in ("train", "dev", "test")}
GENERATED = {"train": 800, "dev": 100, "test": 100}
LETTERS, LONGEST = "abcdefgh", 8


class SentencePair(NamedTuple):
    """Words of a sentence, and of its translation."""

    source: Sequence[str]
    target: Sequence[str]


def read_pairs(path: Path, splits: Sequence[str] = tuple(SPLITS)) -> Texts:
    """Read train.tsv, dev.tsv and test.tsv: `source<TAB>target` a line, words between spaces.

    Raises: DataError, when a file is missing or cannot be read.
    """
    return read_splits(path, SPLITS, splits, "pairs of sentences")


def generate_pairs(seed: int, splits: Sequence[str] = tuple(GENERATED)) -> Texts:
    """Make pairs: letters, and the same in upper case from the last to the first."""
    texts = {}
    for split in splits:
        draw = Random(f"{seed} {split}")
        lines = [draw.choices(LETTERS, k=draw.randint(2, LONGEST)) for _ in range(GENERATED[split])]
        texts[split] = "".join(
            f"{' '.join(line)}\t{' '.join(line[::-1]).upper()}\n" for line in lines
        )
    files = {split: f"generated {split} pairs" for split in splits}
    return Texts(texts, files, f"letters, and their reverse in upper case, seed {seed}")


def translation_dataset(
    source: Texts,
    *,
    name: str,
    min_count: int = 1,
    vocabularies: Mapping[str, Vocabulary] | None = None,
) -> Dataset:
    """Make a data set of pairs for a `Seq2Seq`.

    A target w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`; the line
    may end with `<eos>`, too.

    Args:
        source: pairs of each split.
        name: of the data set.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        vocabularies: what numbers "word", "said" and "label"; by default the words of train.
    Returns: pulls "word" (source), "said" and "label" (target).
    Raises: DataError with file and line, when a line is no pair, or a split is empty.
    """
    found = {split: _pairs(text, source.files[split]) for split, text in source.texts.items()}
    known = vocabularies or _vocabularies(found["train"], min_count)
    splits = {split: _graphs(given, known) for split, given in found.items()}
    return Dataset(name, "pairs", splits, known, len(known["label"]), source.description)


def _pairs(text: str, file: str) -> list[SentencePair]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        sides = [WORD.findall(side) for side in line.split("\t")]
        if sides[-1][-1:] == [END]:
            sides[-1].pop()
        if len(sides) == 2 and all(sides):
            found.append(SentencePair(*sides))
        elif any(sides):
            got = f"{len(sides)} sentences, or one without words"
            raise DataError.at(f"{file}, line {number}", got, "source<TAB>target", "correct it")
    if not found:
        raise DataError.at(file, "no pair", "expected at least one", "add pairs")
    return found


def _vocabularies(given: Sequence[SentencePair], min_count: int) -> dict[str, Vocabulary]:
    source, target = (Counter(word for pair in given for word in pair[side]) for side in (0, 1))
    said = Vocabulary.build(target, min_count=min_count, first=(UNKNOWN, END))
    return {
        "word": Vocabulary.build(source, min_count=min_count),
        "said": said,
        "label": said,
    }


def _graphs(given: Sequence[SentencePair], known: Mapping[str, Vocabulary]) -> GraphBatch:
    word = known["word"].encode(word for pair in given for word in pair.source)
    label = known["label"].encode(word for pair in given for word in (*pair.target, END))
    said = np.concatenate([[known["said"].index(END)], label[:-1]])  # each ends with <eos>
    sizes = np.array([len(pair.source) for pair in given])
    lengths = np.array([len(pair.target) + 1 for pair in given])
    ends, starts = np.cumsum(sizes), np.cumsum(lengths) - lengths
    heard = np.concatenate(
        [
            np.tile(np.arange(end - n, end), m)
            for n, m, end in zip(sizes, lengths, ends, strict=True)
        ]
    )
    return typed_batch(
        TypedArrays(
            {"encoder": sizes, "decoder": lengths},
            {
                ("encoder", "before", "encoder"): chain_pairs(sizes),
                ("decoder", "before", "decoder"): chain_pairs(lengths),
                ("encoder", "start", "decoder"): pairs(ends - 1, starts),
                ("encoder", "source", "decoder"): pairs(
                    heard, np.repeat(np.arange(len(label)), np.repeat(sizes, lengths))
                ),
            },
            {"encoder": {"word": word}, "decoder": {"said": said, "label": label}},
        )
    )
