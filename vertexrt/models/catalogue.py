"""The models by name, with what each needs from a data set and how it is trained by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vertexrt.api.vertex_function import VertexFunction
from vertexrt.errors import UsageError, message, nearest
from vertexrt.models.lstm_lm import LSTMLanguageModel
from vertexrt.models.tree_fc import TreeFC
from vertexrt.models.tree_lstm import TreeLSTM

Build = Callable[..., VertexFunction]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as the command line sees it.

    Attributes:
        task: what the data set must offer: sentiment, tree-fc or language-model.
        make: builds the vertex function from a data set and options.
        options: sizes and dropout with their defaults.
        train: training options with their defaults.
    """

    name: str
    task: str
    make: Build
    options: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)

    def build(self, dataset: Any, **options: Any) -> VertexFunction:
        """Build the vertex function for a data set.

        Args:
            dataset: with `vocabulary` and `classes`.
            options: any of `self.options`.
        Raises: UsageError for an option that the model does not have.
        """
        for name in options:
            if name not in self.options:
                raise UsageError(
                    message(
                        self.name,
                        f"option {name!r}",
                        "one of " + ", ".join(self.options),
                        f"leave it out.{nearest(name, self.options)}",
                    )
                )
        return self.make(dataset, **{**self.options, **options})


def _tree_lstm(dataset: Any, embed: int, hidden: int, dropout: float) -> VertexFunction:
    return TreeLSTM(len(dataset.vocabulary), embed, hidden, dataset.classes, dropout=dropout)


def _tree_fc(dataset: Any, hidden: int) -> VertexFunction:
    return TreeFC(len(dataset.vocabulary), hidden)


def _lstm_lm(dataset: Any, embed: int, hidden: int, dropout: float) -> VertexFunction:
    return LSTMLanguageModel(len(dataset.vocabulary), embed, hidden, dropout)


SPECS = (
    ModelSpec(
        "tree-lstm",
        "sentiment",
        _tree_lstm,
        {"embed": 128, "hidden": 128, "dropout": 0.3},
        {"optimizer": "adagrad", "lr": 0.05, "batch_size": 25, "epochs": 6, "data": "generated"},
    ),
    ModelSpec(
        "tree-fc",
        "tree-fc",
        _tree_fc,
        {"hidden": 64},
        {"optimizer": "adam", "lr": 1e-3, "batch_size": 16, "epochs": 5, "data": "generated"},
    ),
    ModelSpec(
        "lstm-lm",
        "language-model",
        _lstm_lm,
        {"embed": 128, "hidden": 128, "dropout": 0.2},
        {
            "optimizer": "adam",
            "lr": 2e-3,
            "batch_size": 20,
            "clip_norm": 5.0,
            "epochs": 3,
            "data": "generated",
        },
    ),
)


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
    raise UsageError(
        message(
            "model",
            f"no model is called {name!r}",
            "one of " + ", ".join(names()),
            f"choose one of these.{nearest(name, names())}",
        )
    )
