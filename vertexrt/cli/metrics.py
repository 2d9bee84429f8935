"""Count what a data set's loss and predictions are worth, a batch at a time, as array code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch

# The pushes that `Totals.add` reads. A language model's logits, V x words, are never asked for.
PUSHES: dict[str, tuple[str, ...]] = {
    "sentiment": ("logits", "loss"),
    "language-model": ("loss",),
    "tree-fc": ("loss",),
}
PERPLEXITY_CEILING = 700.0  # math.exp overflows above 709
COUNTED = ("graphs", "roots", "roots_right", "vertices", "judged", "vertices_right")
LONG = 1e6  # larger values are shown with an exponent


@dataclass(slots=True)
class Totals:
    """Hold sums over the minibatches seen so far; every mean is formed at the end.

    Attributes:
        loss: sum of the loss over all vertices.
        graphs: graphs seen.
        roots, roots_right: roots with a label, and those whose largest logit is the label.
        vertices, judged, vertices_right: vertices with a label, those of them whose logits were
            seen, and those whose largest logit is the label.
        seconds: wall time spent on these minibatches.
    """

    loss: float = 0.0
    graphs: int = 0
    roots: int = 0
    roots_right: int = 0
    vertices: int = 0
    judged: int = 0
    vertices_right: int = 0
    seconds: float = 0.0

    @classmethod
    def from_json(cls, fields: JsonRecord) -> Self:
        """Read the sums back. Raises: CheckpointError."""
        loss, seconds = fields.real("loss"), fields.real("seconds", 0.0)
        counts = {name: fields.whole(name, 0, LARGEST_COUNT) for name in COUNTED}
        fields.end()
        return cls(loss=loss, seconds=seconds, **counts)

    def add(
        self, batch: GraphBatch, pushed: Mapping[str, np.ndarray], loss: float, seconds: float
    ) -> None:
        """Add one minibatch.

        Args:
            batch: its graphs; `pulls["label"]` is int [V] with -1 where there is no label.
            pushed: outputs in the user's vertex order; "logits" [V, C] where the task has classes.
            loss: sum of the loss over its vertices.
            seconds: wall time that it took.
        """
        self.loss += loss
        self.graphs += batch.num_graphs
        self.seconds += seconds
        label = batch.pulls.get("label")
        if not isinstance(label, np.ndarray):
            return
        self.vertices += labelled(batch)
        logits = pushed.get("logits")
        if logits is None:
            return
        self.judged += labelled(batch)
        right = np.argmax(logits, axis=1) == label  # a label of -1 equals no class
        roots = batch.roots
        self.vertices_right += int(np.count_nonzero(right))
        self.roots += int(np.count_nonzero(label[roots] >= 0))
        self.roots_right += int(np.count_nonzero(right[roots]))

    def mean_loss(self) -> float:
        """Return the loss of one graph, NaN when none was seen."""
        return self.loss / self.graphs if self.graphs else math.nan

    def perplexity(self) -> float:
        """Return exp(loss of one labelled vertex); infinity when that overflows."""
        if not self.vertices:
            return math.nan
        mean = self.loss / self.vertices
        return math.exp(mean) if mean < PERPLEXITY_CEILING else math.inf

    def root_accuracy(self) -> float:
        """Return the right share of the labelled roots, NaN when there are none."""
        return self.roots_right / self.roots if self.roots else math.nan

    def vertex_accuracy(self) -> float:
        """Return the right share of the vertices that were judged, NaN when there are none."""
        return self.vertices_right / self.judged if self.judged else math.nan

    def graphs_per_s(self) -> float:
        """Return graphs in a second."""
        return self.graphs / self.seconds if self.seconds > 0 else 0.0

    def measures(self, task: str) -> dict[str, float]:
        """Return the values by which a task is judged, the first one being the most important."""
        if task == "sentiment":
            return {
                "root_accuracy": self.root_accuracy(),
                "vertex_accuracy": self.vertex_accuracy(),
            }
        if task == "language-model":
            return {"perplexity": self.perplexity()}
        return {}

    def record(self, task: str, epoch: int, split: str) -> dict[str, Any]:
        """Return the line of metrics.jsonl; a value that is not finite is null."""
        values = {
            "loss": self.mean_loss(),
            **self.measures(task),
            "graphs_per_s": self.graphs_per_s(),
            "seconds": self.seconds,
        }
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        return {"epoch": epoch, "split": split, **finite}

    def text(self, task: str) -> str:
        """Return the values in a form for people: `loss 1.234, root accuracy 45.6 %`."""
        values = {"loss": self.mean_loss(), **self.measures(task)}
        if self.vertices and not self.judged:  # logits were not asked for
            values = {name: value for name, value in values.items() if "accuracy" not in name}
        return ", ".join(shown(name, value) for name, value in values.items())

    def require_finite(self, where: str) -> None:
        """Raise NumericError when the loss is not finite.

        Args:
            where: what was evaluated, such as `dev`.
        """
        if not math.isfinite(self.loss):
            raise NumericError.at(
                where,
                f"the loss is {self.loss}",
                "expected a finite number",
                "Lower --lr, or bound the gradient with --clip-norm",
            )


def labelled(batch: GraphBatch) -> int:
    """Return the number of vertices with a label (0 where the batch has no labels)."""
    label = batch.pulls.get("label")
    return int(np.count_nonzero(label >= 0)) if isinstance(label, np.ndarray) else 0


def shown(name: str, value: float) -> str:
    """Return a value of metrics.jsonl in a form for people: `root accuracy 45.60 %`."""
    if name.endswith("accuracy"):
        return f"{name.replace('_', ' ')} {100 * value:.2f} %"
    if abs(value) >= LONG:
        return f"{name} {value:.3e}"
    return f"{name} {value:.2f}" if name == "perplexity" else f"{name} {value:.4f}"


@dataclass(frozen=True, slots=True)
class Criterion:
    """Say which dev value decides over the best checkpoint, and in which direction.

    Attributes:
        name: key of metrics.jsonl.
        larger: whether larger is better.
    """

    name: str
    larger: bool

    def value(self, totals: Totals, task: str) -> float:
        """Read the deciding value."""
        return {"loss": totals.mean_loss(), **totals.measures(task)}[self.name]

    def better(self, new: float, old: float | None) -> bool:
        """Tell whether `new` beats the best value so far; a tie does not, NaN or infinity never."""
        if not math.isfinite(new):
            return False
        if old is None:
            return True
        return new > old if self.larger else new < old


def criterion(task: str) -> Criterion:
    """Return what decides for a task: root accuracy, perplexity, or the loss."""
    if task == "sentiment":
        return Criterion("root_accuracy", True)
    if task == "language-model":
        return Criterion("perplexity", False)
    return Criterion("loss", False)
