"""Make a data set of files of JSON lines: a folder of splits, or one file that is divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vertexrt.data.columns import ReadOptions, real_pulls
from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.files import WHOLE, files_of, split_names
from vertexrt.data.jsonl import read_jsonl
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

LABEL = "label"  # the pull whose words are classes: all are known
SPLITS = split_names(".jsonl")
HELD_OUT = 10  # of so many graphs of a file that is divided, one is for dev and one for test
SEED = 0  # of the division: the same in every run


def json_lines_dataset(
    path: Path,
    options: ReadOptions,
    *,
    name: str,
    splits: Sequence[str] = tuple(SPLITS),
    dev: str | None = None,
    test: str | None = None,
) -> Dataset:
    """Make a data set of graphs in JSON lines; `read_jsonl` has the schema.

    Args:
        path: a folder with train.jsonl, dev.jsonl and, where there is one, test.jsonl (.gz is read
            too), or a file. Of a file, a tenth of the graphs, drawn with a fixed seed, is for dev
            and another for test, as far as `dev` and `test` name no files.
        options: of `read_jsonl`. Vocabularies, and what is real, are those of train unless given.
        name: of the data set.
        splits: which to read.
    Returns: pulls as the lines have them. Words of the pull "label" are classes.
    Raises: DataError, when a file cannot be read or is too short to be divided.
    """
    if WHOLE in splits:
        files = {WHOLE: path}
    elif path.is_dir():
        files = files_of(path, SPLITS, [name for name in SPLITS if name in splits], ("test",))
    else:
        named = {"dev": dev, "test": test}
        files = {"train": path, **{split: Path(file) for split, file in named.items() if file}}
    found: dict[str, GraphBatch] = {}
    known: Mapping[str, Vocabulary] = {}
    given: ReadOptions = {**options, "labels": [LABEL]}
    for split, file in files.items():
        found[split], known = read_jsonl(file, **given)
        given["vocabularies"] = known
        given["reals"] = sorted({*given.get("reals", ()), *real_pulls(found[split])})
    about = f"graphs from {path}"
    held = [split for split in ("dev", "test") if split not in files]
    if path.is_file() and WHOLE not in splits and held:
        found |= _divided(found["train"], held, path)
        about += f"; held out by lot: a tenth for each of {' and '.join(held)}"
    parts = {split: found[split] for split in splits if split in found}
    return Dataset(name, "json-lines", parts, known, _classes(found, known), about)


def _divided(graphs: GraphBatch, held: Sequence[str], path: Path) -> dict[str, GraphBatch]:
    """Return the splits of a file: train, and those to be held out."""
    count = graphs.num_graphs // HELD_OUT or 1
    if graphs.num_graphs <= count * len(held):
        raise DataError.at(
            str(path),
            f"{graphs.num_graphs} graphs to divide into train, {' and '.join(held)}",
            "expected more",
            "add graphs, or name other files with --dev and --test",
        )
    order = np.random.default_rng(SEED).permutation(graphs.num_graphs)
    cut = [count * number for number in range(len(held) + 1)]
    parts = {split: order[a : a + count] for split, a in zip(held, cut, strict=False)}
    return {
        split: graphs.take(np.sort(part))
        for split, part in {**parts, "train": order[cut[-1] :]}.items()
    }


def _classes(splits: Mapping[str, GraphBatch], vocabularies: Mapping[str, Vocabulary]) -> int:
    """Return the number of classes: of the words of the labels, or one above the largest number."""
    if LABEL in vocabularies:
        return len(vocabularies[LABEL])
    pulls = [batch.pulls.get(LABEL) for batch in splits.values()]
    labels = [pull for pull in pulls if isinstance(pull, np.ndarray) and pull.dtype.kind == "i"]
    return max((int(label.max(initial=-1)) + 1 for label in labels), default=0)
