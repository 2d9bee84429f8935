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
from vertexrt.bench.record import aligned
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
    value: Callable[[Mapping[str, Any]], float]


def _share(part: str, whole: str) -> Callable[[Mapping[str, Any]], float]:
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


def confusion(label: np.ndarray, answer: np.ndarray, classes: int) -> np.ndarray:
    """Count vertices by their class and the one that is answered, [C, C + 1], int64.

    The last column is of answers that are no class of the data.
    """
    has = label >= 0
    found = np.minimum(np.argmax(answer[has], axis=1), classes)
    cells = label[has] * np.int64(classes + 1) + found
    return np.bincount(cells, minlength=classes * (classes + 1)).reshape(classes, classes + 1)


def scores(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and F1 of each class, [C]; 0 where nothing is found or right.

    Args:
        cells: as `confusion` counts.
    """
    right, found, there = np.diagonal(cells), cells.sum(0)[: len(cells)], cells.sum(1)
    least = np.maximum(found, 1), np.maximum(there, 1), np.maximum(found + there, 1)
    return right / least[0], right / least[1], 2 * right / least[2]


def _macro_f1(of: int) -> Measure:
    """Return the mean F1 of the classes that occur or are answered; of 0 roots, of 1 vertices."""

    def value(sums: Mapping[str, Any]) -> float:
        if sums["confusion"] is None or not sums["confusion"][of].any():
            return math.nan
        cells = sums["confusion"][of]
        seen = cells.sum(1) + cells.sum(0)[: len(cells)] > 0
        return float(scores(cells)[2][seen].mean())

    return Measure(True, (), lambda judged: {}, value)


_OF_NUMBERS = ("numbers", "squared_errors", "absolute_errors")
_OF_ENTITIES = ("entities", "entities_found", "entities_right")
_OF_VERTICES = _right("vertices", False)

MEASURES = {
    "loss": Measure(False, (), lambda judged: {}, _share("loss", "graphs")),
    "root_accuracy": _right("roots", True),
    "vertex_accuracy": _OF_VERTICES,
    "macro_f1": _macro_f1(1),
    "micro_f1": _OF_VERTICES,  # the same where each vertex has one class
    "root_macro_f1": _macro_f1(0),
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
        confusion: of roots and of vertices, int64 [2, C, C + 1]; None where none is counted.
    """

    loss: float = 0.0
    graphs: Count = 0
    seconds: NotNegative = 0.0
    sums: dict[str, NotNegative] = field(default_factory=dict)
    confusion: np.ndarray | None = None

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
        for count in dict.fromkeys(MEASURES[name].count for name in task.measures):
            counted |= count(judged)  # several measures share one
        for name, value in counted.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def value(self, measure: str) -> float:
        """Return a measure, NaN when nothing was seen that it is made of."""
        row = MEASURES[measure]
        found = {name: self.sums.get(name, 0) for name in row.sums}
        fixed = {"loss": self.loss, "graphs": self.graphs, "confusion": self.confusion}
        return row.value({**fixed, **found})

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
    return f"{name.replace('_', ' ')} {value_text(value, name)}"


def in_table(line: Mapping[str, Any], title: str = "", names: Sequence[str] = ()) -> dict[str, str]:
    """Return values of a line of metrics.jsonl as cells of a table, by their heads.

    Args:
        title: before each head.
        names: of measures; all if none are given.
    """
    there = [name for name in names or MEASURES if line.get(name) is not None]
    return {f"{title}{name.replace('_', ' ')}": value_text(line[name], name) for name in there}


def table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows, cells by their heads, as lines; cells may be missing."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return aligned(heads, [[row.get(head, "") for head in heads] for row in rows])


def value_text(value: float, name: str) -> str:
    """Return the value of a measure alone: `45.60 %`."""
    if name.endswith(PER_CENT):
        return f"{100 * value:.2f} %"
    if abs(value) >= LONG:
        return f"{value:.3e}"
    return f"{value:.2f}" if name == "perplexity" else f"{value:.4f}"


def counted(found: Totals) -> dict[str, np.ndarray]:
    """Return the confusions there are: of roots, and of vertices where other ones have labels."""
    if found.confusion is None:
        return {}
    roots, vertices = found.confusion
    every = {"roots": roots, "vertices": vertices}
    if np.array_equal(roots, vertices):
        del every["vertices"]
    return {title: cells for title, cells in every.items() if cells.any()}


def deciding(task: Task, dev: Totals, metric: str | None = None) -> str:
    """Return the measure that decides over the best checkpoint: the first that dev has.

    Args:
        metric: of the user, which decides then.
    """
    return metric or next(
        (name for name in task.measures if not math.isnan(dev.value(name))), "loss"
    )


def better(measure: str, new: tuple[float, float], old: tuple[float, float] | None) -> bool:
    """Tell whether `new` beats the best so far; NaN or infinity never does.

    Args:
        new, old: the value and the loss; of equal values the lower loss is better.
    """
    value, loss = new
    if not math.isfinite(value):
        return False
    if old is None or value == old[0]:
        return old is None or loss < old[1]
    return value > old[0] if MEASURES[measure].larger else value < old[0]
