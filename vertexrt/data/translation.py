"""Pairs of sentences: a source and its translation, for a decoder that attends over an encoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from vertexrt.data.dataset import END, UNKNOWN, Vocabulary
from vertexrt.data.files import WORD
from vertexrt.data.typed import chain_pairs, pairs, typed_batch
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

SPLITS = {"train": 800, "dev": 100, "test": 100}
LETTERS, LONGEST = "abcdefgh", 8

SentencePair = tuple[list[str], list[str]]


def generate_pairs(seed: int) -> dict[str, str]:
    """Make pairs: letters, and the same in upper case from the last to the first."""
    texts = {}
    for split, count in SPLITS.items():
        draw = Random(f"{seed} {split}")
        lines = [draw.choices(LETTERS, k=draw.randint(2, LONGEST)) for _ in range(count)]
        texts[split] = "".join(
            f"{' '.join(line)}\t{' '.join(line[::-1]).upper()}\n" for line in lines
        )
    return texts


@dataclass(frozen=True, slots=True)
class Pairs:
    """`source<TAB>target` a line, words between spaces, for a `Seq2Seq`.

    A target w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`; the line
    may end with `<eos>`, too. Pulls "word" (source), "said" and "label" (target).

    Attributes:
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
    """

    min_count: int = 1

    def parse(self, text: str, file: str) -> list[SentencePair]:
        """Read the pairs of a split.

        Raises: DataError with file and line, when a line is no pair; without a pair.
        """
        found = []
        for number, line in enumerate(text.split("\n"), 1):
            sides = [WORD.findall(side) for side in line.split("\t")]
            if sides[-1][-1:] == [END]:
                sides[-1].pop()
            if len(sides) == 2 and all(sides):
                found.append((sides[0], sides[1]))
            elif any(sides):
                got = f"{len(sides)} sentences, or one without words"
                raise DataError.at(f"{file}, line {number}", got, "source<TAB>target", "correct it")
        if not found:
            raise DataError.at(file, "no pair", "expected at least one", "add pairs")
        return found

    def vocabularies(
        self, given: Mapping[str, Vocabulary] | None, parsed: Mapping[str, list[SentencePair]]
    ) -> Mapping[str, Vocabulary]:
        """Return what numbers "word", "said" and "label": what was given, or the words of train."""
        if given:
            return given
        source, target = (
            Counter(word for pair in parsed["train"] for word in pair[side]) for side in (0, 1)
        )
        said = Vocabulary.build(target, min_count=self.min_count, first=(UNKNOWN, END))
        word = Vocabulary.build(source, min_count=self.min_count)
        return {"word": word, "said": said, "label": said}

    def graphs(self, given: list[SentencePair], known: Mapping[str, Vocabulary]) -> GraphBatch:
        """Return a graph for each pair."""
        word = known["word"].encode(word for source, _ in given for word in source)
        label = known["label"].encode(word for _, target in given for word in (*target, END))
        said = np.concatenate([[known["said"].index(END)], label[:-1]])  # each ends with <eos>
        sizes = np.array([len(source) for source, _ in given])
        lengths = np.array([len(target) + 1 for _, target in given])
        ends, starts = np.cumsum(sizes), np.cumsum(lengths) - lengths
        heard = np.concatenate(
            [
                np.tile(np.arange(end - n, end), m)
                for n, m, end in zip(sizes, lengths, ends, strict=True)
            ]
        )
        said_by = np.repeat(np.arange(len(label)), np.repeat(sizes, lengths))
        return typed_batch(
            {"encoder": sizes, "decoder": lengths},
            {
                ("encoder", "before", "encoder"): chain_pairs(sizes),
                ("decoder", "before", "decoder"): chain_pairs(lengths),
                ("encoder", "start", "decoder"): pairs(ends - 1, starts),
                ("encoder", "source", "decoder"): pairs(heard, said_by),
            },
            {"encoder": {"word": word}, "decoder": {"said": said, "label": label}},
        )
