"""The models by name, with what each needs from a data set and how it is trained by default.

Nothing slow is imported: the command line takes the names from here. A model's module, which has
`for_dataset`, is imported when the model is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from vertexrt.errors import UsageError, nearest

if TYPE_CHECKING:
    from vertexrt.api.vertex_function import VertexFunction


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as the command line sees it.

    Attributes:
        task: what the data set must offer: sentiment, tree-fc or language-model.
        module: its `for_dataset` builds the vertex function from a data set and options.
        options: sizes and dropout with their defaults.
        train: training options with their defaults.
        graphs: options of `vertexrt.data.load` that give the vertex types of the model.
    """

    name: str
    task: str
    module: str
    options: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)
    graphs: Mapping[str, Any] = field(default_factory=dict)

    def build(self, dataset: Any, **options: Any) -> VertexFunction:
        """Build the vertex function for a data set.

        Args:
            dataset: with `vocabulary` and `classes`.
            options: any of `self.options`.
        Raises: UsageError for an option that the model does not have.
        """
        for name in options:
            if name not in self.options:
                raise UsageError.at(
                    self.name,
                    f"option {name!r}",
                    "one of " + ", ".join(self.options),
                    f"leave it out.{nearest(name, self.options)}",
                )
        make = import_module(f"vertexrt.models.{self.module}").for_dataset
        return cast("VertexFunction", make(dataset, **{**self.options, **options}))


SPECS = (
    ModelSpec(
        "tree-lstm",
        "sentiment",
        "tree_lstm",
        {"embed": 128, "hidden": 128, "dropout": 0.3},
        {"optimizer": "adagrad", "lr": 0.05, "batch_size": 25, "epochs": 6, "data": "generated"},
    ),
    ModelSpec(
        "tree-fc",
        "tree-fc",
        "tree_fc",
        {"hidden": 64},
        {"optimizer": "adam", "lr": 1e-3, "batch_size": 16, "epochs": 5, "data": "generated"},
    ),
    ModelSpec(
        "lstm-lm",
        "language-model",
        "lstm_lm",
        {"embed": 128, "hidden": 128, "dropout": 0.2},
        {
            "optimizer": "adam",
            "lr": 2e-3,
            "batch_size": 20,
            "clip_norm": 5.0,
            "epochs": 3,
            "data": "generated",
        },
        {"layers": 1},
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
    raise UsageError.at(
        "model",
        f"no model is called {name!r}",
        "one of " + ", ".join(names()),
        f"choose one of these.{nearest(name, names())}",
    )
