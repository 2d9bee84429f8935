"""The formats that data sets are read in: a row for each, with what makes a data set of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from vertexrt.data.circuits import circuits_dataset
from vertexrt.data.columns import ReadOptions
from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.files import Texts
from vertexrt.data.generated_tags import generate_tagged
from vertexrt.data.generated_text import generate_text
from vertexrt.data.json_dataset import is_json_lines, json_lines_dataset
from vertexrt.data.language import ChainForm, is_text, language_model_dataset, read_sentences
from vertexrt.data.logic import logic_dataset
from vertexrt.data.pyramid import pyramids
from vertexrt.data.sentiment import is_treebank, read_treebank, treebank_dataset
from vertexrt.data.tagging import TaggedTexts, read_tagged_splits, tagging_dataset
from vertexrt.data.translation import generate_pairs, read_pairs, translation_dataset
from vertexrt.data.tree_fc import LEAVES, tree_fc_dataset
from vertexrt.data.treebank import generate_treebank

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Reading:
    """Say what to make a data set of.

    Attributes:
        name: of the data set.
        path: the folder of its files, or one file; None for generated data.
        seed: of generated data.
        options: those of the format that were given.
        splits: which to read; `WHOLE` alone for one file that is not divided.
        vocabularies: by pull, what numbers its words; None to build them of the words of train.
        reals: pulls that are real numbers, whatever the files have.
    """

    name: str
    path: Path | None
    seed: int
    options: Mapping[str, Any]
    splits: Sequence[str]
    vocabularies: Mapping[str, Vocabulary] | None
    reals: Sequence[str]

    @property
    def vocabulary(self) -> Vocabulary | None:
        """Return what numbers the words of the pull "word"."""
        return None if self.vocabularies is None else self.vocabularies["word"]


@dataclass(frozen=True, slots=True)
class DataFormat:
    """A format that data sets are read in, or generated as.

    Attributes:
        text: what the graphs are, and in which files; for people.
        make: reads or generates a data set.
        options: what may be said of it besides where it is.
        fits: tells whether a folder or file is of this format.
        read: whether there are files of it; else it is only generated.
        generated: whether there is a generated data set.
        file: whether one file may be a whole data set; else it is a folder.
    """

    name: str
    text: str
    make: Callable[[Reading], Dataset]
    options: tuple[str, ...]
    fits: Callable[[Path], bool] = lambda path: False
    read: bool = True
    generated: bool = True
    file: bool = False


def _source(
    given: Reading,
    generate: Callable[[int, Sequence[str]], Source],
    read: Callable[[Path, Sequence[str]], Source],
) -> Source:
    """Return what a data set is made of: generated, or read from files."""
    if given.path is None:
        return generate(given.seed, given.splits)
    return read(given.path, given.splits)


def _trees(given: Reading) -> Dataset:
    texts = _source(given, _generated_trees, read_treebank)
    how: dict[str, Any] = {**given.options, "vocabulary": given.vocabulary}
    pyramid = how.pop("pyramid", False)
    trees = treebank_dataset(texts, name=given.name, **how)
    if not pyramid:
        return trees
    return replace(trees, splits={name: pyramids(split) for name, split in trees.splits.items()})


def _text(given: Reading) -> Dataset:
    texts = _source(given, _generated_text, read_sentences)
    how: dict[str, Any] = {**given.options, "vocabulary": given.vocabulary}
    form = ChainForm(**{name: how.pop(name) for name in ChainForm._fields if name in how})
    return language_model_dataset(texts, name=given.name, form=form, **how)


def _json_lines(given: Reading) -> Dataset:
    assert given.path is not None  # none are generated
    how = dict(given.options)
    read: ReadOptions = {
        "vocabularies": given.vocabularies,
        "reals": given.reals,
        "min_count": how.pop("min_count", 1),
    }
    return json_lines_dataset(given.path, read, name=given.name, splits=given.splits, **how)


def _tree_fc(given: Reading) -> Dataset:
    leaves = given.options.get("leaves")
    return tree_fc_dataset(leaves=LEAVES if leaves is None else leaves, seed=given.seed)


def _tagged(given: Reading) -> Dataset:
    source = _source(given, _generated_tags, read_tagged_splits)
    how: dict[str, Any] = {**given.options, "vocabularies": given.vocabularies}
    return tagging_dataset(source, name=given.name, **how)


def _logic(given: Reading) -> Dataset:
    return logic_dataset(seed=given.seed, **given.options)


def _circuits(given: Reading) -> Dataset:
    return circuits_dataset(seed=given.seed)


def _pairs(given: Reading) -> Dataset:
    texts = _source(given, generate_pairs, read_pairs)
    how: dict[str, Any] = {**given.options, "vocabularies": given.vocabularies}
    return translation_dataset(texts, name=given.name, **how)


def _generated_trees(seed: int, splits: Sequence[str]) -> Texts:
    made = generate_treebank(seed)
    texts = {split: made[split] for split in splits}
    files = {split: f"generated {split} trees" for split in splits}
    return Texts(texts, files, f"sentiment trees of a small grammar, seed {seed}")


def _generated_tags(seed: int, splits: Sequence[str]) -> TaggedTexts:
    made = generate_tagged(seed)
    return TaggedTexts({split: made[split] for split in splits}, "generated sentences")


def _generated_text(seed: int, splits: Sequence[str]) -> Texts:
    made = generate_text(seed)
    floors = " and ".join(f"{made[split].perplexity:.2f} on {split}" for split in ("dev", "test"))
    return Texts(
        {split: made[split].text for split in splits},
        {split: f"generated {split} text" for split in splits},
        f"sentences of a small grammar, seed {seed}; its own perplexity is {floors}",
    )


FORMATS = {
    row.name: row
    for row in (
        DataFormat(
            "trees",
            "trees in brackets, (4 (2 very) (3 good)), one a line, in train.txt, dev.txt, test.txt",
            _trees,
            ("binary", "lower", "min_count", "pyramid"),
            is_treebank,
        ),
        DataFormat(
            "text",
            "sentences, one a line, in train.txt, valid.txt, test.txt",
            _text,
            (*ChainForm._fields, "min_count"),
            is_text,
        ),
        DataFormat(
            "tagged",
            "sentences of word|tag, one a line, in train.txt, dev.txt and perhaps test.txt",
            _tagged,
            ("crf", "letters", "min_count"),
        ),
        DataFormat(
            "pairs",
            "source<TAB>translation, one pair a line, in train.tsv, dev.tsv, test.tsv",
            _pairs,
            ("min_count",),
        ),
        DataFormat("logic", "logic circuits", _logic, ("layers",), read=False),
        DataFormat("circuits", "AND gates and inverters", _circuits, (), read=False),
        DataFormat("tree-fc", "complete binary trees", _tree_fc, ("leaves",), read=False),
        DataFormat(
            "json-lines",
            "graphs, one a line, in one file or in train.jsonl, dev.jsonl, test.jsonl",
            _json_lines,
            ("dev", "test", "min_count"),
            is_json_lines,
            generated=False,
            file=True,
        ),
    )
}
