"""Make a data set of files of JSON lines: a folder of splits, or one file that is divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vertexrt.data.columns import ReadOptions, real_pulls
from vertexrt.data.dataset import Dataset, Vocabulary
from vertexrt.data.files import WHOLE, files_of, has_split
from vertexrt.data.jsonl import read_jsonl
from vertexrt.errors import DataError
from vertexrt.graph import GraphBatch

LABEL = "label"  # the pull whose words are classes: all are known
SPLITS = {split: (f"{split}.jsonl", f"{split}.jsonl.gz") for split in ("train", "dev", "test")}
HELD_OUT = 10  # of so many graphs of a file that is divided, one is for dev and one for test
SEED = 0  # of the division: the same in every run


def is_json_lines(path: Path) -> bool:
    """Tell whether a file or folder is named as one of JSON lines."""
    return path.name.endswith((".jsonl", ".jsonl.gz")) or has_split(path, SPLITS["train"])


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
    files = _files(path, splits, {"dev": dev, "test": test})
    found, known = _read_all(files, options)
    about = f"graphs from {path}"
    held = [split for split in ("dev", "test") if split not in files]
    if path.is_file() and WHOLE not in splits and held:
        found |= _divided(found["train"], held, path)
        about += f"; held out by lot: a tenth for each of {' and '.join(held)}"
    parts = {split: found[split] for split in splits if split in found}
    return Dataset(name, "json-lines", parts, known, _classes(found, known), about)


def _files(path: Path, splits: Sequence[str], named: Mapping[str, str | None]) -> dict[str, Path]:
    """Return the file of each split, that of train first; a folder need not have one of test."""
    if WHOLE in splits:
        return {WHOLE: path}
    if path.is_dir():
        return _in_folder(path, [split for split in SPLITS if split in splits])
    return {"train": path, **{split: Path(file) for split, file in named.items() if file}}


def _in_folder(folder: Path, splits: list[str]) -> dict[str, Path]:
    if splits != ["test"] and not has_split(folder, SPLITS["test"]):
        splits = [split for split in splits if split != "test"]
    return files_of(folder, SPLITS, splits)


def _read_all(
    files: Mapping[str, Path], options: ReadOptions
) -> tuple[dict[str, GraphBatch], Mapping[str, Vocabulary]]:
    """Return the graphs of each file, and what numbers words: those of the first file, or given."""
    found: dict[str, GraphBatch] = {}
    known: Mapping[str, Vocabulary] = {}
    given: ReadOptions = {**options, "labels": [LABEL]}
    for split, file in files.items():
        found[split], known = read_jsonl(file, **given)
        given["vocabularies"] = known
        given["reals"] = sorted({*given.get("reals", ()), *real_pulls(found[split])})
    return found, known


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
