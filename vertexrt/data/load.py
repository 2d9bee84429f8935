"""Load a data set by its name or from a folder."""

import os
from pathlib import Path
from typing import get_args

from vertexrt.data.catalogue import catalogue
from vertexrt.data.dataset import Dataset, Task
from vertexrt.data.download import fetch
from vertexrt.data.files import Texts, expanded
from vertexrt.data.generated_text import generate_text
from vertexrt.data.language import language_model_dataset, read_sentences
from vertexrt.data.sentiment import read_treebank, treebank_dataset
from vertexrt.data.tree_fc import LEAVES, tree_fc_dataset
from vertexrt.data.treebank import generate_treebank
from vertexrt.errors import DataError, UsageError, message, nearest

GENERATED = "generated"


def load(
    data: str | os.PathLike[str],
    *,
    task: str,
    binary: bool = False,
    lower: bool = True,
    min_count: int = 1,
    pieces: int | None = None,
    leaves: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Load a data set.

    Args:
        data: a name of the catalogue ("generated", "sst", "ptb"), or the path of a folder, which
            is used as it is. A folder that has the name of a data set is given as "./name".
        task: "sentiment", "language-model" or "tree-fc".
        binary: sentiment: two classes, neutral trees left out.
        lower: sentiment: lower-case the words; other text is used as it is.
        min_count: words of train that are rarer count as `<unk>`.
        pieces: language model: cut the text into chains of so many words; None for sentences.
        leaves: tree-fc: leaves of each tree, a power of 2; None for 256.
        seed: of generated data.
    Raises: UsageError, on an unknown name or task, or an option that the task does not have;
        DataError, when the data cannot be had or read, or are empty.
    """
    tasks = get_args(Task)
    if task not in tasks:
        raise UsageError(
            message(
                "data",
                f"no task '{task}'",
                f"the tasks are {', '.join(tasks)}",
                "give one of them." + nearest(task, tasks),
            )
        )
    _refuse_option(binary, "binary", task, "sentiment")
    _refuse_option(pieces is not None, "pieces", task, "language-model")
    _refuse_option(leaves is not None, "leaves", task, "tree-fc")
    # A path object always means a folder; joined with "." it cannot be taken for a name.
    name = data if isinstance(data, str) else os.path.join(os.curdir, data)
    if task == "tree-fc":
        if name != GENERATED:
            raise _not_for(task, f"'{name}'")
        return tree_fc_dataset(leaves=LEAVES if leaves is None else leaves, seed=seed)
    if task == "sentiment":
        trees = _generated_trees(seed) if name == GENERATED else read_treebank(_folder(name, task))
        return treebank_dataset(trees, name=name, binary=binary, lower=lower, min_count=min_count)
    text = _generated_text(seed) if name == GENERATED else read_sentences(_folder(name, task))
    return language_model_dataset(text, name=name, pieces=pieces, min_count=min_count)


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


def _not_for(task: str, got: str) -> UsageError:
    known = ", ".join(entry.name for entry in catalogue(task))
    path = "" if task == "tree-fc" else " or the path of a folder"
    return UsageError(message("data", got, f"for {task} there is {known}", f"give that{path}"))


def _folder(name: str, task: str) -> Path:
    """Return the folder that a name or a path stands for."""
    path = expanded(name)
    of_name = [entry for entry in catalogue() if entry.name == name]
    if of_name and of_name[0].task == task:
        return fetch(name)
    if of_name:
        raise _not_for(task, f"'{name}' is made for the task {of_name[0].task}")
    if os.path.isdir(path):  # also False where the system refuses such a name
        return path
    if os.path.exists(path):
        raise DataError(
            message("data", f"{path} is a file", "expected a folder", "give the folder it is in")
        )
    if os.sep not in name and not name.startswith("."):
        known = [entry.name for entry in catalogue(task)]
        raise UsageError(
            message(
                "data",
                f"'{name}' is neither a data set nor a folder",
                f"for {task} there is {', '.join(known)}",
                "give one of them or the path of a folder." + nearest(name, known),
            )
        )
    raise DataError(
        message("data", f"no folder {path}", "expected a folder with the data", "check the path")
    )


def _refuse_option(given: bool, option: str, task: str, owner: str) -> None:
    if given and task != owner:
        raise UsageError(
            message(
                "data",
                f"'{option}' for the task {task}",
                f"it belongs to the task {owner}",
                "leave it out",
            )
        )
