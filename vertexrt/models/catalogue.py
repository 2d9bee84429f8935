"""The models by name, with the data that each reads and how it is trained by default.

Nothing slow is imported: the command line takes the names from here. A model's module is imported
when the model is built.

The arguments of a model's `__init__` are its options. One that the data decide is found by its
name: `vocab` (words), `classes` (labels), `num_NAME` (texts that the pull NAME numbers).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from vertexrt.errors import UsageError, nearest, one_line

if TYPE_CHECKING:
    from vertexrt.api.vertex_function import Model, VertexFunction

OWN = re.compile(r"(.+\.py)(?::([^:]*))?", re.DOTALL)  # a model that a file names: FILE.py:CLASS


def is_own(name: str) -> bool:
    """Tell whether a model is named by a file, not by a name of the catalogue."""
    return OWN.fullmatch(name) is not None


def require_known(name: str, where: str, how: str) -> None:
    """Refuse a file of Python that a user has not named: to load a model is to run its file.

    A path in full is no better than another one: `/proc/self/cwd` begins some that are not.

    Args:
        name: of the model, as `where` has it: a checkpoint, or a configuration.
        how: it is named by a user.
    Raises: UsageError, when it is one of a file.
    """
    if is_own(name):
        raise UsageError.at(
            where,
            f"its model is {one_line(name)}, a file that would be run",
            "expected one that you have named",
            f"Read it, then {how}",
        )


class ModelSpec(NamedTuple):
    """A model as the command line sees it.

    Attributes:
        task: what it is trained for and judged by, a name of `cli.options.TASKS`.
        format: of the data that it reads, a name of `data.FORMATS`.
        train: training options with their defaults.
        module: where its class is.
        title: of its class, a `VertexFunction` or a `Model`.
        options: arguments of the class that users choose, with their defaults; others may be set.
        graphs: options of the format that give the vertex types of the model.
    """

    name: str
    task: str
    format: str
    train: Mapping[str, Any]
    module: str
    title: str
    options: Mapping[str, Any]
    graphs: Mapping[str, Any] = {}

    @property
    def model(self) -> type[Any]:
        """Return the class; its module is imported."""
        found: type[Any] = getattr(import_module(self.module), self.title)
        return found

    def build(self, dataset: Any, **options: Any) -> VertexFunction | Model:
        """Build the model for a data set.

        Args:
            dataset: whose `sizes()` are the arguments that data decide, by name.
            options: any of `self.arguments()`.
        Raises: UsageError for an option that the model does not have, or one that nothing says.
        """
        known = self.arguments()
        for name in options:
            if name not in known:
                expected, action = "one of " + ", ".join(known), "leave it out."
                action += nearest(name, known)
                raise UsageError.at(self.title, f"option {name!r}", expected, action)
        chosen = {**self.options, **options}
        sizes = dataset.sizes()
        for name, argument in known.items():
            if name in chosen or argument.default is not argument.empty:
                continue
            if name not in sizes:
                pulls = sorted({pull for batch in dataset.splits.values() for pull in batch.pulls})
                decided = (
                    f"one that the data decide: {', '.join(sizes)} (they pull {', '.join(pulls)})"
                )
                raise UsageError.at(
                    self.title,
                    f"nothing says what the argument '{name}' is",
                    f"a default, or {decided}",
                    f"give it: --set {name}=VALUE, or name the pull with --label or --word",
                )
            chosen[name] = sizes[name]
        return self.model(**chosen)  # type: ignore[no-any-return]

    def arguments(self) -> dict[str, inspect.Parameter]:
        """Return the arguments of the class by name; its module is imported."""
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = inspect.signature(self.model).parameters.items()
        return {name: each for name, each in found if each.kind not in several}

    def reading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the format that follow from the model and its options."""
        layers = {"layers": options["layers"]} if "layers" in options else {}
        return {**self.graphs, **layers}


ADAM = {"optimizer": "adam", "lr": 2e-3, "batch_size": 20, "epochs": 3, "data": "generated"}
OF_TREES = {**ADAM, "optimizer": "adagrad", "lr": 0.05, "batch_size": 25, "epochs": 6}
WIDTHS = {"embed": 128, "hidden": 128, "dropout": 0.3}
NARROW = {"hidden": 128, "dropout": 0.3}
LAYERED = {"embed": 128, "hidden": 128, "dropout": 0.2, "layers": 1}

# Of models that are alike: task, format, training; and where they are.
OF_TREE, OF_DAG = "vertexrt.models.trees", "vertexrt.models.dags"
TREES = "classification", "trees", OF_TREES
LOGIC = "classification", "logic", {**ADAM, "epochs": 12}
TEXT = "language-model", "text", {**ADAM, "clip_norm": 5.0}, "vertexrt.models.language_model"

SPECS = (
    ModelSpec("tree-lstm", *TREES, "vertexrt.models.tree_lstm", "TreeLSTM", WIDTHS),
    ModelSpec("nary-tree-lstm", *TREES, OF_TREE, "NaryTreeLSTM", WIDTHS),
    ModelSpec("child-sum-tree-lstm", *TREES, OF_TREE, "ChildSumTreeLSTM", WIDTHS),
    ModelSpec("rvnn", *TREES, OF_TREE, "RvNN", NARROW),
    ModelSpec("td-rnn", *TREES, OF_TREE, "RvNN", NARROW, {"pyramid": True}),
    ModelSpec("td-lstm", *TREES, OF_TREE, "NaryTreeLSTM", WIDTHS, {"pyramid": True}),
    ModelSpec(
        "tree-fc",
        "regression",
        "tree-fc",
        {**ADAM, "lr": 1e-3, "batch_size": 16, "epochs": 5},
        "vertexrt.models.tree_fc",
        "TreeFC",
        {"hidden": 64},
    ),
    ModelSpec("rnn-lm", *TEXT, "RNNLanguageModel", LAYERED),
    ModelSpec("lstm-lm", *TEXT, "LSTMLanguageModel", LAYERED),
    ModelSpec("gru-lm", *TEXT, "GRULanguageModel", LAYERED),
    ModelSpec("slstm-lm", *TEXT, "SLSTMLanguageModel", LAYERED),
    ModelSpec("residual-rnn", *TEXT, "ResidualRNN", {"hidden": 64, "dropout": 0.0, "layers": 48}),
    ModelSpec(
        "bilstm-tagger",
        "tagging",
        "tagged",
        ADAM,
        "vertexrt.models.taggers",
        "BiLSTMTagger",
        WIDTHS,
        {"letters": False},
    ),
    ModelSpec(
        "bilstm-char-tagger",
        "tagging",
        "tagged",
        {**ADAM, "batch_size": 10, "epochs": 10, "schedule": "cosine"},
        "vertexrt.models.taggers",
        "BiLSTMCharTagger",
        {"embed": 100, "hidden": 128, "dropout": 0.6, "spelling": 50},
        {"letters": True, "crf": True},
    ),
    ModelSpec(
        "dag-lstm",
        *LOGIC,
        OF_TREE,
        "ChildSumTreeLSTM",
        {"embed": 16, "hidden": 32, "dropout": 0.0},
    ),
    ModelSpec(
        "seq2seq",
        "translation",
        "pairs",
        {**ADAM, "epochs": 10},
        "vertexrt.models.seq2seq",
        "Seq2Seq",
        {"embed": 32, "hidden": 64},
    ),
    ModelSpec("dagnn", *LOGIC, OF_DAG, "DAGNN", {"hidden": 32, "layers": 2}),
    ModelSpec(
        "deepgate",
        "regression",
        "circuits",
        {**ADAM, "epochs": 10},
        OF_DAG,
        "DeepGate",
        {"hidden": 32},
    ),
)

# How a model in a user's file is trained.
OWN_TRAIN: Mapping[str, Any] = {"optimizer": "adam", "lr": 1e-3, "batch_size": 16, "epochs": 10}


def names() -> tuple[str, ...]:
    """Return the names of all models."""
    return tuple(spec.name for spec in SPECS)


def get(name: str) -> ModelSpec:
    """Find a model by name.

    Raises: UsageError with the nearest names.
    """
    for spec in SPECS:
        if spec.name == name:
            return spec
    raise UsageError.at(
        "model",
        f"no model is called {name!r}",
        "one of " + ", ".join(names()),
        f"choose one of these.{nearest(name, names())}",
    )
