"""Language-model text: every sentence, or every piece of a stream, is a chain of words."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import END, UNKNOWN, Vocabulary
from vertexrt.data.files import WORD
from vertexrt.data.typed import chain_pairs, stacked
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Language:
    """One sentence a line, of which each word is to be foretold from those before it.

    Words stand between spaces; `<eos>` ends a sentence, too, and blank lines are skipped. A
    sentence w1 ... wn has the inputs `<eos> w1 ... wn` and the labels `w1 ... wn <eos>`: the pulls
    "word" and "label" at every vertex, int32; `<unk>` is 0 and `<eos>` is 1.

    Attributes:
        pieces: None for one chain a sentence; n to cut the stream of all sentences into chains of n
            words (the last may be shorter).
        streams: text is cut into so many parts of one length first. Chains come in the order piece
            0 of each stream, piece 1 of each, so that minibatches of as many graphs follow each
            other and a state may be carried from one to the next.
        layers: None for vertices of one type; n for the types of a `LanguageModel`.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
    Raises: UsageError, when a number is under 1, or there are streams of sentences.
    """

    pieces: int | None = None
    streams: int = 1
    layers: int | None = None
    min_count: int = 1

    def __post_init__(self) -> None:
        for what, number in asdict(self).items():
            if what != "min_count" and number is not None and number < 1:
                raise UsageError.at("data", f"{what} {number}", "expected 1 or more", "correct it")
        if self.streams > 1 and self.pieces is None:
            got = f"{self.streams} streams of sentences"
            raise UsageError.at("data", got, "expected pieces", "set pieces")

    def parse(self, text: str, file: str) -> list[str]:
        """Return the words of all sentences in one row, one `<eos>` after each.

        Raises: DataError, without a word.
        """
        words = WORD.findall(f"{text}\n".replace("\n", f" {END} "))
        found = [word for last, word in pairwise([END, *words]) if (last, word) != (END, END)]
        if not found:
            action = "add text or give another folder"
            raise DataError.at(file, "no word", "expected at least one sentence", action)
        return found

    def vocabularies(
        self, given: Mapping[str, Vocabulary] | None, parsed: Mapping[str, list[str]]
    ) -> Mapping[str, Vocabulary]:
        """Return what numbers words and labels: what was given, or the words of train."""
        if given is not None:
            return dict.fromkeys(("word", "label"), given["word"])
        first, counts = (UNKNOWN, END), Counter(parsed["train"])
        built = Vocabulary.build(counts, min_count=self.min_count, first=first)
        return {"word": built, "label": built}

    def graphs(self, tokens: list[str], known: Mapping[str, Vocabulary]) -> GraphBatch:
        """Return the chains of a split."""
        label = known["word"].encode(tokens)
        end = known["word"].index(END)
        # Sentences begin after an <eos>, which is also their first input: one shift gives all.
        word = np.concatenate([np.array([end], np.int32), label[:-1]])
        if self.pieces is None:
            sizes = np.diff([*np.flatnonzero(word == end), len(label)])
        else:
            order, sizes = _cut(len(label), self.pieces, self.streams)
            word, label = word[order], label[order]
        if self.layers is not None:
            return layered_chains(sizes, word, label, self.layers)
        graph_ptr = np.concatenate([[0], np.cumsum(sizes)])
        has_child = np.ones(len(label), np.bool_)
        has_child[graph_ptr[:-1]] = False
        child_ptr = np.concatenate([[0], np.cumsum(has_child)])
        pulls = {"word": word, "label": label}
        return GraphBatch(graph_ptr, child_ptr, chain_pairs(sizes)[:, 0], pulls)


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
    return stacked(sizes, chain_pairs(sizes), layers, ("", "next"), pulls)
