"""The formats that data sets are read in: a row for each, with what makes a data set of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vertexrt.data.dataset import Dataset
from vertexrt.data.files import Texts
from vertexrt.data.generated_tags import generate_tagged
from vertexrt.data.generated_text import generate_text
from vertexrt.data.language import ChainForm, language_model_dataset, read_sentences
from vertexrt.data.logic import logic_dataset
from vertexrt.data.pyramid import pyramids
from vertexrt.data.sentiment import read_treebank, treebank_dataset
from vertexrt.data.tagging import read_tagged, tagging_dataset
from vertexrt.data.tree_fc import LEAVES, tree_fc_dataset
from vertexrt.data.treebank import generate_treebank


@dataclass(frozen=True, slots=True)
class Reading:
    """Say what to make a data set of.

    Attributes:
        name: of the data set.
        path: where its files are; None for generated data.
        seed: of generated data.
        options: those of the format that were given.
    """

    name: str
    path: Path | None
    seed: int
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DataFormat:
    """A format that data sets are read in, or generated as.

    Attributes:
        text: what the graphs are, and in which files; for people.
        make: reads or generates a data set.
        options: what may be said of it besides where it is.
        read: whether there are files of it; else it is only generated.
    """

    name: str
    text: str
    make: Callable[[Reading], Dataset]
    options: tuple[str, ...]
    read: bool = True


def _trees(given: Reading) -> Dataset:
    texts = _generated_trees(given.seed) if given.path is None else read_treebank(given.path)
    options = dict(given.options)
    pyramid = options.pop("pyramid", False)
    trees = treebank_dataset(texts, name=given.name, **options)
    if not pyramid:
        return trees
    return replace(trees, splits={name: pyramids(split) for name, split in trees.splits.items()})


def _text(given: Reading) -> Dataset:
    texts = _generated_text(given.seed) if given.path is None else read_sentences(given.path)
    options = dict(given.options)
    form = ChainForm(**{name: options.pop(name) for name in ChainForm._fields if name in options})
    return language_model_dataset(texts, name=given.name, form=form, **options)


def _tree_fc(given: Reading) -> Dataset:
    leaves = given.options.get("leaves")
    return tree_fc_dataset(leaves=LEAVES if leaves is None else leaves, seed=given.seed)


def _tagged(given: Reading) -> Dataset:
    generated = given.path is None
    source = generate_tagged(given.seed) if given.path is None else read_tagged(given.path)
    about = f"generated, seed {given.seed}" if generated else f"from {given.path}"
    text = f"tagged sentences {about}"
    return tagging_dataset(source, name=given.name, description=text, **given.options)


def _logic(given: Reading) -> Dataset:
    return logic_dataset(seed=given.seed)


def _generated_trees(seed: int) -> Texts:
    texts = generate_treebank(seed)
    files = {split: f"generated {split} trees" for split in texts}
    return Texts(texts, files, f"sentiment trees of a small grammar, seed {seed}")


def _generated_text(seed: int) -> Texts:
    made = generate_text(seed)
    floors = " and ".join(f"{made[split].perplexity:.2f} on {split}" for split in ("dev", "test"))
    return Texts(
        {split: part.text for split, part in made.items()},
        {split: f"generated {split} text" for split in made},
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
        ),
        DataFormat(
            "text",
            "sentences, one a line, in train.txt, valid.txt, test.txt",
            _text,
            (*ChainForm._fields, "min_count"),
        ),
        DataFormat(
            "tagged",
            "sentences of word|tag, one a line, in train.txt, dev.txt and perhaps test.txt",
            _tagged,
            ("letters", "min_count"),
        ),
        DataFormat("logic", "logic circuits", _logic, (), read=False),
        DataFormat("tree-fc", "complete binary trees", _tree_fc, ("leaves",), read=False),
    )
}
