"""What every reader returns: splits of graphs, and the words that their pulls count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

IntArray = npt.NDArray[np.int32]

UNKNOWN = "<unk>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Number words; 0 is `<unk>`, which every word that is not known counts as.

    Attributes:
        words: the word of each number; the first is `<unk>`, none stands twice.
    Raises: DataError, when the words are not so.
    """

    words: tuple[str, ...]
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {word: number for number, word in enumerate(self.words)}
        if not self.words or self.words[0] != UNKNOWN or len(numbers) != len(self.words):
            first = repr(self.words[0]) if self.words else "nothing"
            raise DataError.at(
                "vocabulary",
                f"{len(self.words)} words, {len(numbers)} of them different, {first} first",
                f"expected different words, '{UNKNOWN}' first",
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

    def __len__(self) -> int:
        return len(self.words)

    def index(self, word: str) -> int:
        """Return the number of a word, 0 when it is not known."""
        return self._numbers.get(word, 0)

    def encode(self, words: Iterable[str]) -> IntArray:
        """Return the number of each word, int32."""
        get = self._numbers.get
        return np.array([get(word, 0) for word in words], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Hold a data set: each split is one graph batch, from which minibatches are taken.

    Attributes:
        name: as `load` was asked for it.
        format: what was read or generated, a name of `FORMATS`.
        splits: "train", "dev" and "test".
        vocabulary: what the pull "word" counts.
        classes: labels of the pull "label"; 0 when there are none.
        description: one line on what it is, for people.
        labels: the name of each class, () where they are numbers.
        worded: pulls whose numbers are those of `vocabulary`.
        vocabularies: of pulls that number texts of their own.
    """

    name: str
    format: str
    splits: dict[str, GraphBatch]
    vocabulary: Vocabulary
    classes: int
    description: str
    labels: tuple[str, ...] = ()
    worded: tuple[str, ...] = ("word",)
    vocabularies: Mapping[str, Vocabulary] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        """Return what arguments of a model are called that the data decide: see `models.build`."""
        numbered = {f"num_{pull}": len(words) for pull, words in self.vocabularies.items()}
        return {"vocab": len(self.vocabulary), "classes": self.classes, **numbered}
