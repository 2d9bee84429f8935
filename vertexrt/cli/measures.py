"""The measures that tasks are judged by: a row for each, made of sums over minibatches.

`Totals` holds the sums; every mean is formed at the end.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np

from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT
from vertexrt.cli.options import Task
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch, Rows

Sums = dict[str, float]
Count = Annotated[int, JsonRecord.whole, 0, LARGEST_COUNT]
NotNegative = Annotated[float, JsonRecord.real, 0.0]
LONG = 1e6  # larger values are shown with an exponent
PER_CENT = ("accuracy", "f1")  # how names of shares end
PERPLEXITY_CEILING = 700.0  # math.exp overflows above 709


class Judged(NamedTuple):
    """A minibatch, what is right in it, and what the model made of it.

    Attributes:
        label: the pull that says what is right; None where the graphs have none.
        answer: [V, n], the push that the task looks at; None where it was not asked for.
        names: of the classes; () where they are numbers.
    """

    batch: GraphBatch
    label: np.ndarray | Rows | None
    answer: np.ndarray | None
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """A value that tells how good a model is.

    Attributes:
        larger: whether larger is better.
        sums: what it is made of, besides `loss` and `graphs`.
        count: returns what a minibatch adds to them.
        value: makes it of the sums; NaN where nothing was seen.
    """

    larger: bool
    sums: tuple[str, ...]
    count: Callable[[Judged], Sums]
    value: Callable[[Mapping[str, float]], float]


def _share(part: str, whole: str) -> Callable[[Mapping[str, float]], float]:
    return lambda sums: sums[part] / sums[whole] if sums[whole] else math.nan


def classes_of(label: np.ndarray | Rows | None) -> np.ndarray | None:
    """Return the class of each vertex, -1 where it has none; None where there are no classes."""
    if isinstance(label, Rows):
        label = rows_of(label, np.int32(-1))
    return label if label is not None and label.dtype.kind == "i" else None


def rows_of(table: Rows, absent: np.generic) -> np.ndarray:
    """Return the row of each vertex, `absent` where it has none."""
    if table.index is None:
        return table.table
    found = table.table[np.maximum(table.index, 0)] if len(table.table) else table.table
    missing = (table.index < 0).reshape(-1, *[1] * (found.ndim - 1))
    return np.where(missing, absent, found)


def _labelled(judged: Judged) -> Sums:
    label = classes_of(judged.label)
    return {} if label is None else {"labelled": int(np.count_nonzero(label >= 0))}


def _right(seen: str, roots: bool) -> Measure:
    """Return the share of vertices, or of roots alone, whose largest logit is their class."""
    right = f"{seen}_right"

    def count(judged: Judged) -> Sums:
        label = classes_of(judged.label)
        if label is None or judged.answer is None:
            return {}
        at = judged.batch.roots if roots else slice(None)
        equal = np.argmax(judged.answer, axis=1) == label  # -1 equals no class
        both = {seen: label >= 0, right: equal}
        return {name: int(np.count_nonzero(each[at])) for name, each in both.items()}

    return Measure(True, (seen, right), count, _share(right, seen))


def _entities(judged: Judged) -> Sums:
    label = classes_of(judged.label)
    if label is None or judged.answer is None or not any(_iob(n)[1] for n in judged.names):
        return {}
    at = np.flatnonzero(label >= 0)
    graph = judged.batch.graph_of[at].tolist()
    right = entities(label[at].tolist(), graph, judged.names)
    found = entities(np.argmax(judged.answer[at], axis=1).tolist(), graph, judged.names)
    both = len(right & found)
    return {"entities": len(right), "entities_found": len(found), "entities_right": both}


def entities(
    tags: Sequence[int], graphs: Sequence[int], names: Sequence[str]
) -> set[tuple[int, int, str]]:
    """Return the entities of tagged words: first word, word after the last, type.

    Tags are in the IOB form: `B-PER` begins one, `I-PER` goes on or, after another type, begins
    one, as the CoNLL-2000 evaluation counts. An entity ends with its graph.
    """
    prefixes, kinds = zip(*(_iob(name) for name in names), strict=True)
    words = [(kinds[tag], graph) for tag, graph in zip(tags, graphs, strict=True)]
    starts = [
        at
        for at, tag in enumerate(tags)
        if at == 0 or prefixes[tag] == "B" or words[at] != words[at - 1]
    ]
    ends = [*starts[1:], len(tags)]
    runs = zip(starts, ends, strict=True)
    return {(start, end, words[start][0]) for start, end in runs if words[start][0]}


def _iob(name: str) -> tuple[str, str]:
    """Return the two parts of a tag; "", "" of one that is outside of all entities."""
    prefix, _, kind = name.partition("-")
    return (prefix, kind) if prefix in ("B", "I") else ("", "")


def _f1(sums: Mapping[str, float]) -> float:
    both = sums["entities"] + sums["entities_found"]
    return 2 * sums["entities_right"] / both if both else math.nan


def _numbers(judged: Judged) -> Sums:
    if judged.label is None or judged.answer is None:
        return {}
    none = np.float64(math.nan)
    label = judged.label
    right = rows_of(label, none) if isinstance(label, Rows) else label
    right = right.reshape(len(right), -1)
    off = judged.answer.reshape(len(right), -1).astype(np.float64) - right
    off = off[~np.isnan(off).any(axis=1)]
    return {
        "numbers": off.size,
        "squared_errors": float(np.square(off).sum()),
        "absolute_errors": float(np.abs(off).sum()),
    }


def _perplexity(sums: Mapping[str, float]) -> float:
    if not sums["labelled"]:
        return math.nan
    mean = sums["loss"] / sums["labelled"]
    return math.exp(mean) if mean < PERPLEXITY_CEILING else math.inf


_OF_NUMBERS = ("numbers", "squared_errors", "absolute_errors")
_OF_ENTITIES = ("entities", "entities_found", "entities_right")
_OF_VERTICES = _right("vertices", False)

MEASURES = {
    "loss": Measure(False, (), lambda judged: {}, _share("loss", "graphs")),
    "root_accuracy": _right("roots", True),
    "vertex_accuracy": _OF_VERTICES,
    "accuracy": _OF_VERTICES,
    "entity_f1": Measure(True, _OF_ENTITIES, _entities, _f1),
    "mean_squared_error": Measure(
        False, _OF_NUMBERS, _numbers, _share("squared_errors", "numbers")
    ),
    "mean_absolute_error": Measure(
        False, _OF_NUMBERS, _numbers, _share("absolute_errors", "numbers")
    ),
    "perplexity": Measure(False, ("labelled",), _labelled, _perplexity),
}


def sums_of(task: Task) -> list[str]:
    """Return the names of what the measures of a task are made of."""
    return sorted({name for measure in task.measures for name in MEASURES[measure].sums})


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
        speed = {"graphs_per_s": self.graphs_per_s(), "seconds": self.seconds}
        values = self._values(task) | speed
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        return {"epoch": epoch, "split": split, **finite}

    def text(self, task: Task) -> str:
        """Return the values that there are, for people: `loss 1.234, root accuracy 45.6 %`."""
        found = self._values(task).items()
        return ", ".join(shown(name, value) for name, value in found if not math.isnan(value))

    def _values(self, task: Task) -> dict[str, float]:
        return {name: self.value(name) for name in ("loss", *task.measures)}

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
