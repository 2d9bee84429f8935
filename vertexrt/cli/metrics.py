"""Sum up what a data set's loss and predictions are worth, a minibatch at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np

from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT
from vertexrt.cli.measures import MEASURES, Judged, Sums
from vertexrt.cli.tasks import Task
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch

Count = Annotated[int, JsonRecord.whole, 0, LARGEST_COUNT]
NotNegative = Annotated[float, JsonRecord.real, 0.0]
LONG = 1e6  # larger values are shown with an exponent
PER_CENT = ("accuracy", "f1")  # how names of shares end


@dataclass(slots=True)
class Totals:
    """Hold sums over the minibatches seen so far; every mean is formed at the end.

    Attributes:
        loss: sum of the loss over all vertices.
        graphs: graphs seen.
        seconds: wall time spent on these minibatches.
        sums: what the measures of the task are made of, by name.
    """

    loss: float = 0.0
    graphs: Count = 0
    seconds: NotNegative = 0.0
    sums: dict[str, NotNegative] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Sequence[Totals], seconds: float) -> Self:
        """Add up sums of minibatches, in order."""
        found = cls(seconds=seconds)
        for part in parts:
            found.loss += part.loss
            found.graphs += part.graphs
            found._count(part.sums)
        return found

    def add(
        self,
        task: Task,
        batch: GraphBatch,
        pushed: Mapping[str, np.ndarray],
        loss: float,
        names: Sequence[str] = (),
    ) -> None:
        """Add one minibatch.

        Args:
            task: says which pull is right and which push answers.
            batch: its graphs.
            pushed: outputs in the user's vertex order.
            loss: sum of the loss over its vertices.
            names: of the classes.
        """
        self.loss += loss
        self.graphs += batch.num_graphs
        judged = Judged(batch, batch.pulls.get(task.label), pushed.get(task.answer), names)
        counted: Sums = {}
        for measure in task.measures:  # several are made of the same sums
            counted |= MEASURES[measure].count(judged)
        self._count(counted)

    def _count(self, counted: Sums) -> None:
        for name, value in counted.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def value(self, measure: str) -> float:
        """Return a measure, NaN when nothing was seen that it is made of."""
        row = MEASURES[measure]
        found = {name: self.sums.get(name, 0) for name in row.sums}
        return row.value({"loss": self.loss, "graphs": self.graphs, **found})

    def graphs_per_s(self) -> float:
        """Return graphs in a second."""
        return self.graphs / self.seconds if self.seconds > 0 else 0.0

    def record(self, task: Task, epoch: int, split: str) -> dict[str, Any]:
        """Return the line of metrics.jsonl; a value that is not finite is null."""
        values = {name: self.value(name) for name in ("loss", *task.measures)}
        values |= {"graphs_per_s": self.graphs_per_s(), "seconds": self.seconds}
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        return {"epoch": epoch, "split": split, **finite}

    def text(self, task: Task) -> str:
        """Return the values that there are, for people: `loss 1.234, root accuracy 45.6 %`."""
        values = {name: self.value(name) for name in ("loss", *task.measures)}
        seen = {name: value for name, value in values.items() if not math.isnan(value)}
        return ", ".join(shown(name, value) for name, value in seen.items())

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


def shown(name: str, value: float) -> str:
    """Return a value of metrics.jsonl in a form for people: `root accuracy 45.60 %`."""
    title = name.replace("_", " ")
    if name.endswith(PER_CENT):
        return f"{title} {100 * value:.2f} %"
    if abs(value) >= LONG:
        return f"{title} {value:.3e}"
    return f"{title} {value:.2f}" if name == "perplexity" else f"{title} {value:.4f}"


def deciding(task: Task, dev: Totals) -> str:
    """Return the measure that decides over the best checkpoint: the first that dev has."""
    return next((name for name in task.measures if not math.isnan(dev.value(name))), "loss")


def better(measure: str, new: float, old: float | None) -> bool:
    """Tell whether `new` beats the best value so far; a tie does not, NaN or infinity never."""
    if not math.isfinite(new):
        return False
    if old is None:
        return True
    return new > old if MEASURES[measure].larger else new < old
