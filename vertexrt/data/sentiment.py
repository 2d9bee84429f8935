"""A sentiment treebank: trees with a label 0..4 at every vertex, or pyramids over their words."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Vocabulary
from vertexrt.errors import DataError
from vertexrt.graph import BracketForest, GraphBatch, parse_brackets

LABELS = 5

# The binary task: negative, (neutral: absent), positive.
_BINARY = np.array([0, 0, -1, 1, 1], np.int32)


@dataclass(frozen=True, slots=True)
class Treebank:
    """One tree a line; pulls "word" (leaves only) and "label", int32, -1 where absent.

    Attributes:
        binary: two classes: labels 0 and 1 become 0, labels 3 and 4 become 1, neutral vertices
            have no label, and trees with a neutral root are left out.
        lower: lower-case the words.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        pyramid: pyramids over the words of the trees instead.
    """

    binary: bool = False
    lower: bool = True
    min_count: int = 1
    pyramid: bool = False

    @property
    def classes(self) -> int:
        """Return the number of labels."""
        return 2 if self.binary else LABELS

    def parse(self, text: str, file: str) -> BracketForest:
        """Read the trees of a split.

        Raises: DataError, on malformed brackets (file, line, column), or without a tree.
        """
        forest = parse_brackets(text, file=file, labels=LABELS)
        got, action = "no tree", "add trees or give another folder"
        if len(forest.graph_ptr) > 1:
            if not self.binary or self._labelled(forest).size:
                return forest
            got, action = "neutral trees only", "use all five classes or add trees"
        raise DataError.at(file, got, "expected at least one tree to learn from", action)

    def vocabularies(
        self, given: Mapping[str, Vocabulary] | None, parsed: Mapping[str, BracketForest]
    ) -> Mapping[str, Vocabulary]:
        """Return what numbers words: what was given, or the words of train."""
        if given is not None:
            return {"word": given["word"]}
        train = parsed["train"]
        words = self._words(train)
        found = np.bincount(train.word[train.word >= 0], minlength=len(words)).tolist()
        counts: Counter[str] = Counter()
        for word, count in zip(words, found, strict=True):
            counts[word] += count
        return {"word": Vocabulary.build(counts, min_count=self.min_count)}

    def graphs(self, forest: BracketForest, known: Mapping[str, Vocabulary]) -> GraphBatch:
        """Return the trees of a split; of two classes, those whose root is not neutral."""
        numbers = known["word"].encode(self._words(forest))
        pulls = {
            "word": np.where(forest.word >= 0, numbers[forest.word], -1),
            "label": _BINARY[forest.label] if self.binary else forest.label,
        }
        batch = GraphBatch.from_arrays(forest.graph_ptr, forest.child_ptr, forest.child, pulls)
        if self.binary:
            batch = batch.take(self._labelled(forest))
        return pyramids(batch) if self.pyramid else batch

    def _words(self, forest: BracketForest) -> list[str]:
        return [word.lower() if self.lower else word for word in forest.words]

    def _labelled(self, forest: BracketForest) -> npt.NDArray[np.intp]:
        """Return the trees whose root is not neutral."""
        return np.flatnonzero(_BINARY[forest.label[forest.graph_ptr[1:] - 1]] >= 0)


def pyramids(trees: GraphBatch) -> GraphBatch:
    """Build the pyramid over the words of each tree, for time-delay networks.

    A level has one vertex less than the one below it: vertex i reads vertices i and i + 1 of that.
    The apex has the label of the tree.
    Source: Waibel et al. 1989; TD-RNN and TD-LSTM of VPPS (Khorasani et al., MICRO 2018).

    Args:
        trees: with pulls "word" (leaves, from left to right) and "label" (roots).
    Returns: pulls "word" (lowest level) and "label" (apex), int32.
    """
    word, label = (np.asarray(trees.pulls[name]) for name in ("word", "label"))
    graphs = trees.graph_of[word >= 0]
    lengths = np.bincount(graphs, minlength=trees.num_graphs)
    sizes = lengths * (lengths + 1) // 2
    graph_ptr = np.concatenate([[0], np.cumsum(sizes)])
    children = [_children(int(n)) + first for n, first in zip(lengths, graph_ptr[:-1], strict=True)]
    at_leaf = np.arange(len(graphs)) + np.repeat(
        graph_ptr[:-1] - np.cumsum(lengths) + lengths, lengths
    )
    leaf = np.zeros(graph_ptr[-1], np.bool_)
    leaf[at_leaf] = True
    pulled = {name: np.full(len(leaf), -1, np.int32) for name in ("word", "label")}
    pulled["word"][at_leaf] = word[word >= 0]
    pulled["label"][graph_ptr[1:] - 1] = label[trees.graph_ptr[1:] - 1]
    child_ptr = np.concatenate([[0], np.cumsum(np.where(leaf, 0, 2))])
    return GraphBatch.from_arrays(graph_ptr, child_ptr, np.concatenate(children), pulled)


def _children(words: int) -> npt.NDArray[np.integer]:
    """Return both children of each vertex above the lowest level, level after level."""
    levels = np.arange(words, 1, -1)
    first = np.cumsum(levels) - levels
    left = np.concatenate(
        [np.arange(at, at + n - 1) for at, n in zip(first, levels, strict=True)] or [levels]
    )
    return np.stack([left, left + 1], axis=1).ravel()
