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
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vertexrt.errors import UsageError, nearest, one_line

if TYPE_CHECKING:
    from vertexrt.api.model import Model
    from vertexrt.api.vertex_function import VertexFunction

SHARED = ("layers",)  # options of models that decide over the graphs
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
        got = f"its model is {one_line(name)}, a file that would be run"
        raise UsageError.at(where, got, "expected one that you have named", f"Read it, then {how}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as the command line sees it.

    Attributes:
        task: what it is trained for and judged by, a name of `cli.options.TASKS`.
        format: of the data that it reads, a name of `data.FORMATS`.
        module: where its class is.
        title: of its class, a `VertexFunction` or a `Model`.
        options: arguments of the class that users choose, with their defaults; others may be set.
        train: training options with their defaults.
        graphs: options of the format that give the vertex types of the model.
    """

    name: str
    task: str
    format: str
    module: str
    title: str
    options: Mapping[str, Any]
    train: Mapping[str, Any]
    graphs: Mapping[str, Any] = field(default_factory=dict)

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
                raise UsageError.at(
                    self.title,
                    f"option {name!r}",
                    "one of " + ", ".join(known),
                    f"leave it out.{nearest(name, known)}",
                )
        made = getattr(import_module(self.module), self.title)
        chosen = {**self.options, **options}
        return made(**chosen, **_from_data(self.title, known, chosen, dataset.sizes()))  # type: ignore[no-any-return]

    def arguments(self) -> dict[str, inspect.Parameter]:
        """Return the arguments of the class by name; its module is imported."""
        signature = inspect.signature(getattr(import_module(self.module), self.title))
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        found = signature.parameters.items()
        return {name: each for name, each in found if each.kind not in several}

    def reading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the format that follow from the model and its options."""
        return {**self.graphs, **{name: options[name] for name in SHARED if name in options}}


def _from_data(
    title: str,
    arguments: Mapping[str, inspect.Parameter],
    chosen: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """Return the arguments that nobody chose and that have no default.

    Raises: UsageError, when the data do not say one of them.
    """
    needed = [name for name, a in arguments.items() if a.default is a.empty and name not in chosen]
    for name in needed:
        if name not in sizes:
            got = f"nothing says what the argument '{name}' is"
            expected = f"a default, or one that the data decide: {', '.join(sizes)}"
            raise UsageError.at(title, got, expected, f"give it: --set {name}=VALUE")
    return {name: sizes[name] for name in needed}


ADAM = {"optimizer": "adam", "lr": 2e-3, "batch_size": 20, "epochs": 3, "data": "generated"}
OF_TEXT = {**ADAM, "clip_norm": 5.0}
OF_TREES = {**ADAM, "optimizer": "adagrad", "lr": 0.05, "batch_size": 25, "epochs": 6}
WIDTHS = {"embed": 128, "hidden": 128, "dropout": 0.3}
LAYERED = {"embed": 128, "hidden": 128, "dropout": 0.2, "layers": 1}


def _of_trees(
    name: str, module: str, title: str, options: Mapping[str, Any], pyramid: bool = False
) -> ModelSpec:
    """Return the row of a classifier of trees."""
    graphs = {"pyramid": True} if pyramid else {}
    module = f"vertexrt.models.{module}"
    return ModelSpec(name, "classification", "trees", module, title, options, OF_TREES, graphs)


def _of_text(name: str, module: str, title: str, options: Mapping[str, Any]) -> ModelSpec:
    """Return the row of a language model."""
    module = f"vertexrt.models.{module}"
    return ModelSpec(name, "language-model", "text", module, title, options, OF_TEXT)


SPECS = (
    _of_trees("tree-lstm", "tree_lstm", "TreeLSTM", WIDTHS),
    _of_trees("nary-tree-lstm", "nary_tree_lstm", "NaryTreeLSTM", WIDTHS),
    _of_trees("child-sum-tree-lstm", "child_sum_tree_lstm", "ChildSumTreeLSTM", WIDTHS),
    _of_trees("rvnn", "rvnn", "RvNN", {"hidden": 128, "dropout": 0.3}),
    _of_trees("td-rnn", "rvnn", "RvNN", {"hidden": 128, "dropout": 0.3}, pyramid=True),
    _of_trees("td-lstm", "nary_tree_lstm", "NaryTreeLSTM", WIDTHS, pyramid=True),
    ModelSpec(
        "tree-fc",
        "regression",
        "tree-fc",
        "vertexrt.models.tree_fc",
        "TreeFC",
        {"hidden": 64},
        {**ADAM, "lr": 1e-3, "batch_size": 16, "epochs": 5},
    ),
    _of_text("rnn-lm", "rnn_lm", "RNNLanguageModel", LAYERED),
    _of_text("lstm-lm", "lstm_lm", "LSTMLanguageModel", LAYERED),
    _of_text("gru-lm", "gru_lm", "GRULanguageModel", LAYERED),
    _of_text("slstm-lm", "slstm_lm", "SLSTMLanguageModel", LAYERED),
    _of_text(
        "residual-rnn", "residual_rnn", "ResidualRNN", {"hidden": 64, "dropout": 0.0, "layers": 48}
    ),
    ModelSpec(
        "bilstm-tagger",
        "tagging",
        "tagged",
        "vertexrt.models.bilstm_tagger",
        "BiLSTMTagger",
        WIDTHS,
        ADAM,
        {"letters": False},
    ),
    ModelSpec(
        "bilstm-char-tagger",
        "tagging",
        "tagged",
        "vertexrt.models.bilstm_char_tagger",
        "BiLSTMCharTagger",
        {"embed": 100, "hidden": 128, "dropout": 0.6, "spelling": 50},
        ADAM | {"batch_size": 10, "epochs": 10, "schedule": "cosine"},
        {"letters": True, "crf": True},
    ),
    ModelSpec(
        "dag-lstm",
        "classification",
        "logic",
        "vertexrt.models.child_sum_tree_lstm",
        "ChildSumTreeLSTM",
        {"embed": 16, "hidden": 32, "dropout": 0.0},
        ADAM | {"epochs": 12},
    ),
    ModelSpec(
        "seq2seq",
        "translation",
        "pairs",
        "vertexrt.models.seq2seq",
        "Seq2Seq",
        {"embed": 32, "hidden": 64},
        ADAM | {"epochs": 10},
    ),
    ModelSpec(
        "dagnn",
        "classification",
        "logic",
        "vertexrt.models.dagnn",
        "DAGNN",
        {"hidden": 32, "layers": 2},
        ADAM | {"epochs": 12},
    ),
    ModelSpec(
        "deepgate",
        "regression",
        "circuits",
        "vertexrt.models.deepgate",
        "DeepGate",
        {"hidden": 32},
        ADAM | {"epochs": 10},
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
