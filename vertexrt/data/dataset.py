"""What every reader returns: splits of graphs, and the words that their pulls count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

IntArray = npt.NDArray[np.int32]

UNKNOWN, END = "<unk>", "<eos>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Number words; 0 is `<unk>`, which every word that is not known counts as.

    Attributes:
        words: the word of each number; the first is `<unk>`, none stands twice.
        unknown: `<unk>`; None for labels, which are all known: then no word stands for others.
    Raises: DataError, when the words are not so.
    """

    words: tuple[str, ...]
    unknown: str | None = UNKNOWN
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words: object = self.words
        if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
            raise DataError.at(
                "vocabulary", f"{words!r:.60}", "expected a tuple of words", "convert it"
            )
        numbers = {word: number for number, word in enumerate(words)}
        first = () if self.unknown is None else (self.unknown,)
        if not self.words or self.words[: len(first)] != first or len(numbers) != len(self.words):
            begin = repr(self.words[0]) if self.words else "nothing"
            raise DataError.at(
                "vocabulary",
                f"{len(self.words)} words, {len(numbers)} of them different, {begin} first",
                "expected different words" + "".join(f", '{word}' first" for word in first),
                "correct the list",
            )
        object.__setattr__(self, "_numbers", numbers)

    @classmethod
    def build(
        cls, counts: Mapping[str, int], *, min_count: int = 1, first: Sequence[str] = (UNKNOWN,)
    ) -> Vocabulary:
        """Build one of the words that occur often enough, frequent ones first.

        Args:
            counts: how often each word occurs; words that occur equally often keep their order.
            min_count: rarer words are left out.
            first: words to number before all others, whatever their count.
        """
        kept = [word for word, n in counts.items() if n >= min_count and word not in first]
        kept.sort(key=lambda word: -counts[word])
        return cls((*first, *kept))

    @classmethod
    def of_labels(cls, labels: Iterable[str]) -> Vocabulary:
        """Build one of the different labels in alphabetical order, without `<unk>`."""
        return cls(tuple(sorted(set(labels))), unknown=None)

    def __len__(self) -> int:
        return len(self.words)

    def find(self, word: str) -> int | None:
        """Return the number of a word; that of `<unk>`, or None, when it is not known."""
        return self._numbers.get(word, None if self.unknown is None else 0)

    def index(self, word: str) -> int:
        """Return the number of a word, 0 when it is not known.

        Raises: DataError, when it is not known and there is no `<unk>`.
        """
        number = self.find(word)
        if number is None:
            raise DataError.at(
                "vocabulary",
                f"no word {word!r:.60}",
                f"the words are {', '.join(self.words):.200}",
                "correct the word",
            )
        return number

    def encode(self, words: Iterable[str]) -> IntArray:
        """Return the number of each word, int32; raises as `index` does."""
        listed = list(words)
        numbers = {word: self.index(word) for word in dict.fromkeys(listed)}
        return np.array([numbers[word] for word in listed], np.int32)

    def decode(self, numbers: Iterable[int]) -> list[str | None]:
        """Return the word of each number, None for -1.

        Raises: DataError, when there is no such number.
        """
        given = np.asarray(list(numbers), np.int64)
        wrong = (given < -1) | (given >= len(self.words))
        if wrong.any():
            raise DataError.at(
                "vocabulary",
                f"no number {given[wrong][0]}",
                f"the numbers are 0..{len(self.words) - 1}, and -1 for none",
                "correct it",
            )
        return [self.words[number] if number >= 0 else None for number in given.tolist()]


class OpenVocabulary(Vocabulary):
    """Number words that another vocabulary does not have, too, so that they can be written again.

    `list(numbered)` has the word of each number; those from `len(words)` on are not known.
    """

    __slots__ = ()

    @property
    def numbered(self) -> dict[str, int]:
        """Return the number of each word, in the order of numbers."""
        return self._numbers

    def find(self, word: str) -> int | None:
        """Return the number of a word, a new one where it has none."""
        return self._numbers.setdefault(word, len(self._numbers))


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Hold a data set: each split is one graph batch, from which minibatches are taken.

    Attributes:
        name: as `load` was asked for it.
        format: what was read or generated, a name of `FORMATS`.
        splits: "train", "dev" and "test", those that there are.
        vocabularies: by pull, what numbers its words.
        counts: by pull of whole numbers that no vocabulary numbers: the largest and one.
        description: one line on what it is, for people.
        ids: by split, what the data call each graph; where they do not, None.
    """

    name: str
    format: str
    splits: dict[str, GraphBatch]
    vocabularies: Mapping[str, Vocabulary]
    counts: Mapping[str, int]
    description: str
    ids: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def vocabulary(self) -> Vocabulary:
        """Return what numbers the words of the pull "word"; of `<unk>` alone, where it has none."""
        return self.vocabularies.get("word") or Vocabulary((UNKNOWN,))

    @property
    def classes(self) -> int:
        """Return how many labels the pull "label" has; 0 when there are none."""
        return len(self.labels) or self.counts.get("label", 0)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the classes, () where they are numbers."""
        found = self.vocabularies.get("label")
        return found.words if found else ()

    def sizes(self) -> dict[str, int]:
        """Return the sizes that data decide, by the argument of a model that takes them."""
        known = {**self.counts, **{pull: len(words) for pull, words in self.vocabularies.items()}}
        named = {"vocab": known.get("word"), "classes": known.get("label")}
        found = {**named, **{f"num_{pull}": size for pull, size in known.items()}}
        return {name: size for name, size in found.items() if size}
