"""Load a data set by its name or from a folder."""

import os
from pathlib import Path
from typing import TypedDict, Unpack, get_args

from vertexrt.data.catalogue import catalogue
from vertexrt.data.dataset import Dataset, Task
from vertexrt.data.download import fetch
from vertexrt.data.files import Texts, expanded
from vertexrt.data.generated_text import generate_text
from vertexrt.data.language import ChainForm, language_model_dataset, read_sentences
from vertexrt.data.sentiment import read_treebank, treebank_dataset
from vertexrt.data.tree_fc import LEAVES, tree_fc_dataset
from vertexrt.data.treebank import generate_treebank
from vertexrt.errors import DataError, UsageError, VertexrtError, nearest

GENERATED = "generated"


class LoadOptions(TypedDict, total=False):
    """Hold what may be said of one task, each of its own; `load` says what."""

    binary: bool
    lower: bool
    min_count: int
    pieces: int | None
    streams: int
    layers: int | None
    leaves: int | None


# Option -> the only task that has it; the others are for every text.
OWNERS = {"binary": "sentiment", "leaves": "tree-fc"} | dict.fromkeys(
    ChainForm._fields, "language-model"
)


def load(
    data: str | os.PathLike[str], *, task: str, seed: int = 0, **options: Unpack[LoadOptions]
) -> Dataset:
    """Load a data set.

    Args:
        data: a name of the catalogue ("generated", "sst", "ptb"), or the path of a folder, which
            is used as it is. A folder that has the name of a data set is given as "./name".
        task: "sentiment", "language-model" or "tree-fc".
        seed: of generated data.
        options:
            binary: sentiment: two classes, neutral trees left out (False).
            lower: sentiment: lower-case the words (True); other text is used as it is.
            min_count: words of train that are rarer count as `<unk>` (1).
            pieces: language model: cut the text into chains of so many words; None for sentences.
            streams: language model: parts of the text side by side, cut into pieces (1).
            layers: language model: types of vertices for so many layers; None for one type.
            leaves: tree-fc: leaves of each tree, a power of 2; None for 256.
    Raises: UsageError, on an unknown name, task or option, or an option that the task does not
        have; DataError, when the data cannot be had or read, or are empty.
    """
    tasks = get_args(Task)
    if task not in tasks:
        known = f"the tasks are {', '.join(tasks)}"
        action = "give one of them." + nearest(task, tasks)
        raise UsageError.at("data", f"no task '{task}'", known, action)
    _check_options(options, task)
    # A path object always means a folder; joined with "." it cannot be taken for a name.
    name = data if isinstance(data, str) else os.path.join(os.curdir, data)
    min_count = options.get("min_count", 1)
    if task == "tree-fc":
        if name != GENERATED:
            raise _not_for(task, f"'{name}'")
        leaves = options.get("leaves")
        return tree_fc_dataset(leaves=LEAVES if leaves is None else leaves, seed=seed)
    if task == "sentiment":
        trees = _generated_trees(seed) if name == GENERATED else read_treebank(_folder(name, task))
        binary, lower = options.get("binary", False), options.get("lower", True)
        return treebank_dataset(trees, name=name, binary=binary, lower=lower, min_count=min_count)
    text = _generated_text(seed) if name == GENERATED else read_sentences(_folder(name, task))
    form = ChainForm(options.get("pieces"), options.get("streams", 1), options.get("layers"))
    return language_model_dataset(text, name=name, form=form, min_count=min_count)


def _check_options(options: LoadOptions, task: str) -> None:
    """Refuse options that there are not, or that another task has."""
    known = list(LoadOptions.__annotations__)
    for option, value in options.items():
        if option not in known:
            action = "give one of them." + nearest(option, known)
            got, expected = f"no option '{option}'", f"the options are {', '.join(known)}"
            raise UsageError.at("data", got, expected, action)
        owner = OWNERS.get(option, task)
        if owner != task and value is not None and value is not False:
            got, expected = f"'{option}' for the task {task}", f"it belongs to the task {owner}"
            raise UsageError.at("data", got, expected, "leave it out")


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
    return UsageError.at("data", got, f"for {task} there is {known}", f"give that{path}")


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
    raise _no_folder(name, task, path)


def _no_folder(name: str, task: str, path: Path) -> VertexrtError:
    """Say why what was given is no data: a file, a name that is not known, or no folder."""
    if os.path.exists(path):
        return DataError.at(
            "data", f"{path} is a file", "expected a folder", "give the folder it is in"
        )
    if os.sep in name or name.startswith("."):
        text = ("expected a folder with the data", "check the path")
        return DataError.at("data", f"no folder {path}", *text)
    known = [entry.name for entry in catalogue(task)]
    action = "give one of them or the path of a folder." + nearest(name, known)
    got = f"'{name}' is neither a data set nor a folder"
    return UsageError.at("data", got, f"for {task} there is {', '.join(known)}", action)
