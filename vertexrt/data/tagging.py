"""Tagged sentences as graphs of vertex types: words read from both ends, and their letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Vocabulary
from vertexrt.data.sentences import tagged_sentences
from vertexrt.data.typed import chain_pairs, pairs, typed_batch
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TaggedText:
    """Sentences of a split: how many words each has, and the words and tags of all."""

    sizes: IntArray
    words: list[str]
    tags: list[str]


@dataclass(frozen=True, slots=True)
class Tagging:
    """One sentence a line whose words are to be tagged: `word|tag` between spaces, as WikiNER.

    Pulls "word", "label" and, for letters, "letter"; a label that is not known counts as none.
    Source of the format: WikiNER (Nothman et al. 2013).

    Attributes:
        crf: make tags a chain, and give the type "scores" between words and tags. A
            `BiLSTMCharTagger` needs both, a `BiLSTMTagger` neither.
        letters: give the types of letters, too. Words are in lower case then: their letters tell
            the case.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
    """

    crf: bool = False
    letters: bool = True
    min_count: int = 1

    def parse(self, text: str, file: str) -> TaggedText:
        """Read the sentences of a split.

        Raises: DataError with file, line and word, when a word has no tag; without a sentence.
        """
        found = [words for _, words in tagged_sentences(file, text, ("word", "label"), "|")]
        if not found:
            raise DataError.at(file, "no sentence", "expected at least one", "add sentences")
        words, tags = ([x or "" for row in found for x in row[name]] for name in ("word", "label"))
        return TaggedText(np.array([len(row["word"]) for row in found]), words, tags)

    def vocabularies(
        self, given: Mapping[str, Vocabulary] | None, parsed: Mapping[str, TaggedText]
    ) -> Mapping[str, Vocabulary]:
        """Return what numbers words, labels and letters: what was given, or those of train."""
        if given:
            return given
        words, tags = parsed["train"].words, parsed["train"].tags
        counts = Counter(word.lower() if self.letters else word for word in words)
        known = {
            "word": Vocabulary.build(counts, min_count=self.min_count),
            "label": Vocabulary.of_labels(tags),
        }
        if self.letters:
            known["letter"] = Vocabulary.build(Counter(chain.from_iterable(dict.fromkeys(words))))
        return known

    def graphs(self, text: TaggedText, known: Mapping[str, Vocabulary]) -> GraphBatch:
        """Return sentences, with the letters of their words where there is a vocabulary of them."""
        sizes, words = text.sizes, text.words
        tags = [known["label"].find(tag) for tag in text.tags]
        label = np.array([-1 if tag is None else tag for tag in tags], np.int32)
        spelt = "letter" in known
        word = known["word"].encode(each.lower() if spelt else each for each in words)
        vertices = np.arange(len(words))
        same = pairs(vertices, vertices)
        onward, backward = chain_pairs(sizes), chain_pairs(sizes, backward=True)
        classifier = "scores" if self.crf else "tag"
        types = dict.fromkeys(("word", "left", "right", "tag"), sizes)
        edges = {
            ("left", "before", "left"): onward,
            ("right", "before", "right"): backward,
            ("word", "word", "left"): same,
            ("word", "word", "right"): same,
            ("left", "left", classifier): same,
            ("right", "right", classifier): same,
        }
        pulls = {"word": {"word": word}, "tag": {"label": label}}
        if self.crf:
            types["scores"] = sizes
            edges["tag", "before", "tag"] = onward
            edges["scores", "after", "scores"] = backward
            edges["scores", "scores", "tag"] = same
        if spelt:  # letters in both directions; each word reads the last of both
            lengths = np.array([len(word) for word in words])
            ends = np.cumsum(lengths)
            types["forth"] = types["back"] = np.diff(ends[np.cumsum(sizes) - 1], prepend=0)
            edges["forth", "before", "forth"] = chain_pairs(lengths)
            edges["back", "before", "back"] = chain_pairs(lengths, backward=True)
            edges["forth", "forth", "word"] = pairs(ends - 1, vertices)
            edges["back", "back", "word"] = pairs(ends - lengths, vertices)
            letter = known["letter"].encode(chain.from_iterable(words))
            pulls["forth"] = pulls["back"] = {"letter": letter}
        return typed_batch(types, edges, pulls)
