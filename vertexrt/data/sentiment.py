"""Read a sentiment treebank: trees in brackets with a label 0..4 at every vertex."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.files import Texts, files_of, has_split, read_splits, read_text
from vertexrt.errors import DataError
from vertexrt.graph import BracketForest, GraphBatch, parse_brackets

IntArray = npt.NDArray[np.int32]

LABELS = 5
SPLITS = {split: (f"{split}.txt", f"{split}.txt.gz") for split in ("train", "dev", "test")}

# The binary task: negative, (neutral: absent), positive.
_BINARY = np.array([0, 0, -1, 1, 1], np.int32)


def is_treebank(path: Path) -> bool:
    """Tell whether a folder has trees to learn from: its train.txt begins with a bracket."""
    folder = _folder_of(path)
    if not has_split(folder, SPLITS["train"]):
        return False
    file = files_of(folder, SPLITS, ["train"])["train"]
    return read_text(file).lstrip().startswith("(")


def _folder_of(path: Path) -> Path:
    return path / "trees" if (path / "trees").is_dir() else path


def read_treebank(path: Path, splits: Sequence[str] = tuple(SPLITS)) -> Texts:
    """Read train.txt, dev.txt and test.txt from a folder, or from the folder `trees` in it.

    They may be compressed, as train.txt.gz.

    Raises: DataError, when a file is missing or cannot be read.
    """
    return read_splits(_folder_of(path), SPLITS, splits, "sentiment trees")


def treebank_dataset(
    source: Texts,
    *,
    name: str,
    binary: bool = False,
    lower: bool = True,
    min_count: int = 1,
    vocabulary: Vocabulary | None = None,
) -> Dataset:
    """Make a data set of trees in brackets.

    Args:
        source: one tree a line.
        name: of the data set.
        binary: two classes: labels 0 and 1 become 0, labels 3 and 4 become 1, neutral vertices
            have no label, and trees with a neutral root are left out.
        lower: lower-case the words.
        min_count: words of train that are rarer count as `<unk>`; so do words not in train.
        vocabulary: that numbers the words; by default one of the words of train.
    Returns: pulls "word" (leaves only) and "label" (every vertex), int32, -1 where absent.
    Raises: DataError, on malformed brackets (file, line, column) or a split without trees.
    """
    forests = {
        split: parse_brackets(text, file=source.files[split], labels=LABELS)
        for split, text in source.texts.items()
    }
    words = {split: _words(forest, lower) for split, forest in forests.items()}
    known = vocabulary or _vocabulary(forests["train"], words["train"], min_count)
    splits = {}
    for split, forest in forests.items():
        if len(forest.graph_ptr) == 1:
            raise _empty(source.files[split], "no tree", "add trees or give another folder")
        numbers = known.encode(words[split])
        word = np.where(forest.word >= 0, numbers[forest.word], -1)
        splits[split] = _batch(forest, word, binary, source.files[split])
    numbered, classes = {"word": known}, 2 if binary else LABELS
    return Dataset(name, "trees", splits, numbered, classes, source.description)


def _batch(forest: BracketForest, word: IntArray, binary: bool, file: str) -> GraphBatch:
    """Return the trees of a split; of two classes, those whose root is not neutral."""
    label = _BINARY[forest.label] if binary else forest.label
    pulls = {"word": word, "label": label}
    batch = GraphBatch.from_arrays(forest.graph_ptr, forest.child_ptr, forest.child, pulls)
    if not binary:
        return batch
    kept = np.flatnonzero(label[forest.graph_ptr[1:] - 1] >= 0)
    if not kept.size:
        raise _empty(file, "neutral trees only", "use all five classes or add trees")
    return batch.take(kept)


def _words(forest: BracketForest, lower: bool) -> list[str]:
    return [word.lower() for word in forest.words] if lower else list(forest.words)


def _vocabulary(forest: BracketForest, words: list[str], min_count: int) -> Vocabulary:
    leaves = forest.word[forest.word >= 0]
    counts: Counter[str] = Counter()
    for word, count in zip(words, np.bincount(leaves, minlength=len(words)).tolist(), strict=True):
        counts[word] += count
    return Vocabulary.build(counts, min_count=min_count)


def _empty(file: str, got: str, action: str) -> DataError:
    return DataError.at(file, got, "expected at least one tree to learn from", action)
