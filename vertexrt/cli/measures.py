"""The measures that tasks are judged by: a row for each, one sum over others.

`Totals` holds the sums over minibatches; every mean is formed at the end.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np

from vertexrt.api.json_record import JsonRecord
from vertexrt.api.optimizer import LARGEST_COUNT
from vertexrt.bench.record import aligned
from vertexrt.cli.options import Task
from vertexrt.errors import NumericError
from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.pulls import parts_of

Sums = dict[str, float]
Count = Annotated[int, JsonRecord.whole, 0, LARGEST_COUNT]
NotNegative = Annotated[float, JsonRecord.real, 0.0]
LONG = 1e6  # larger values are shown with an exponent
PER_CENT = ("accuracy", "f1")  # how names of shares end
PERPLEXITY_CEILING = 700.0  # math.exp overflows above 709


class Measure(NamedTuple):
    """A value that tells how good a model is: what is counted, a share of something else.

    Attributes:
        larger: whether larger is better.
        part, wholes: names of sums, the first is divided by all others together.
        value: what is made of the share.
    """

    larger: bool
    part: str
    wholes: tuple[str, ...]
    value: Callable[[float], float] = float


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < PERPLEXITY_CEILING else math.inf


_OF_VERTICES = Measure(True, "vertices_right", ("vertices",))
_OF_ENTITIES = ("entities", "entities_found")
MEASURES = {
    "loss": Measure(False, "loss", ("graphs",)),
    "root_accuracy": Measure(True, "roots_right", ("roots",)),
    "vertex_accuracy": _OF_VERTICES,
    "macro_f1": Measure(True, "vertices_f1", ("vertices_classes",)),
    "micro_f1": _OF_VERTICES,  # the same where each vertex has one class
    "root_macro_f1": Measure(True, "roots_f1", ("roots_classes",)),
    "accuracy": _OF_VERTICES,
    "entity_f1": Measure(True, "entities_right", _OF_ENTITIES, lambda share: 2 * share),
    "mean_squared_error": Measure(False, "squared_errors", ("numbers",)),
    "mean_absolute_error": Measure(False, "absolute_errors", ("numbers",)),
    "perplexity": Measure(False, "loss", ("labelled",), _perplexity),
}
# Sums that are known of every task, or follow from a confusion.
_NOT_COUNTED = {"loss", "graphs", "vertices_f1", "vertices_classes", "roots_f1", "roots_classes"}


def sums_of(task: Task) -> list[str]:
    """Return the names of what is counted in the minibatches of a task."""
    rows = [MEASURES[name] for name in task.measures]
    return sorted({name for row in rows for name in (row.part, *row.wholes)} - _NOT_COUNTED)


def count(
    task: Task, batch: GraphBatch, pushed: Mapping[str, np.ndarray], names: Sequence[str] = ()
) -> Sums:
    """Return what a minibatch adds to the sums of a task, some of `sums_of` by name.

    Args:
        task: says which pull is right, and which push, [V, n], answers.
        pushed: outputs in the user's vertex order; without the answer less is counted.
        names: of the classes; () where they are numbers.
    """
    label, answer, wanted = batch.pulls.get(task.label), pushed.get(task.answer), sums_of(task)
    if label is not None and answer is not None and "numbers" in wanted:
        right = rows_of(label, np.float64(math.nan)).reshape(batch.num_vertices, -1)
        off = answer.reshape(right.shape).astype(np.float64) - right
        off = off[~np.isnan(off).any(axis=1)]
        return {
            "numbers": off.size,
            "squared_errors": float(np.square(off).sum()),
            "absolute_errors": float(np.abs(off).sum()),
        }
    classes = classes_of(label)
    if classes is None:
        return {}
    has, roots = classes >= 0, batch.roots
    found: Sums = {}
    cases = {"labelled": has}
    if answer is not None:
        best = np.argmax(answer, axis=1)
        hits = best == classes  # -1 equals no class
        cases |= {"vertices": has, "roots": has[roots]}
        cases |= {"vertices_right": hits, "roots_right": hits[roots]}
        if "entities" in wanted and any(_iob(name)[1] for name in names):
            graph = batch.graph_of[has].tolist()
            of = [entities(each[has].tolist(), graph, names) for each in (classes, best)]
            both = (*of, of[0] & of[1])
            found = dict(zip((*_OF_ENTITIES, "entities_right"), map(len, both), strict=True))
    found |= {name: int(np.count_nonzero(each)) for name, each in cases.items() if name in wanted}
    return found


def classes_of(label: np.ndarray | Rows | None) -> np.ndarray | None:
    """Return the class of each vertex, -1 where it has none; None where there are no classes."""
    found = None if label is None else rows_of(label, np.int32(-1))
    return found if found is not None and found.dtype.kind == "i" else None


def rows_of(label: np.ndarray | Rows, absent: np.generic) -> np.ndarray:
    """Return the row of each vertex, `absent` where it has none."""
    table, index = parts_of(label)
    if index is None:
        return np.asarray(table)
    found = np.full((len(index), *table.shape[1:]), absent, np.result_type(table, absent))
    has = index >= 0
    found[has] = table[index[has]]
    return found


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
    return {
        (start, end, words[start][0])
        for start, end in pairwise([*starts, len(tags)])
        if words[start][0]
    }


def _iob(name: str) -> tuple[str, str]:
    """Return the two parts of a tag; "", "" of one that is outside of all entities."""
    prefix, _, kind = name.partition("-")
    return (prefix, kind) if prefix in ("B", "I") else ("", "")


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


@dataclass(slots=True)
class Totals:
    """Hold sums over the minibatches seen so far; every mean is formed at the end.

    Attributes:
        loss: sum of the loss over all vertices.
        graphs: graphs seen.
        seconds: wall time spent on these minibatches.
        sums: what the measures of the task are made of, by name.
        confusion: of "roots" and of "vertices", int64 [C, C + 1]; None where none is counted.
    """

    loss: float = 0.0
    graphs: Count = 0
    seconds: NotNegative = 0.0
    sums: dict[str, NotNegative] = field(default_factory=dict)
    confusion: Mapping[str, np.ndarray] | None = None

    def add(
        self,
        task: Task,
        batch: GraphBatch,
        pushed: Mapping[str, np.ndarray],
        loss: float,
        names: Sequence[str] = (),
    ) -> None:
        """Add one minibatch: its loss, summed over its vertices, and what `count` makes of it."""
        self.loss += loss
        self.graphs += batch.num_graphs
        for name, value in count(task, batch, pushed, names).items():
            self.sums[name] = self.sums.get(name, 0) + value

    def value(self, measure: str) -> float:
        """Return a measure, NaN when nothing was seen that it is made of."""
        sums: Sums = {"loss": self.loss, "graphs": self.graphs, **self.sums}
        row = MEASURES[measure]
        for of, cells in (self.confusion or {}).items():
            if row.part == f"{of}_f1":
                seen = cells.sum(1) + cells.sum(0)[: len(cells)] > 0
                sums |= {f"{of}_f1": scores(cells)[2][seen].sum(), f"{of}_classes": seen.sum()}
        whole = sum(sums.get(name, 0) for name in row.wholes)
        return row.value(sums.get(row.part, 0) / whole) if whole else math.nan

    def graphs_per_s(self) -> float:
        """Return graphs in a second."""
        return self.graphs / self.seconds if self.seconds > 0 else 0.0

    def values(self, task: Task) -> dict[str, float]:
        """Return the loss and the measures of a task, those that there are."""
        found = {name: self.value(name) for name in ("loss", *task.measures)}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def record(self, task: Task, epoch: int, split: str) -> dict[str, Any]:
        """Return the line of metrics.jsonl; a value that is not finite is null."""
        found = {name: self.value(name) for name in ("loss", *task.measures)}
        found |= {"graphs_per_s": self.graphs_per_s(), "seconds": self.seconds}
        finite = {key: value if math.isfinite(value) else None for key, value in found.items()}
        return {"epoch": epoch, "split": split, **finite}

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


def in_words(line: Mapping[str, Any], names: Iterable[str], title: str = "") -> dict[str, str]:
    """Return measures that a line of metrics.jsonl has, for people: `root accuracy`, `45.60 %`.

    Args:
        title: before each name.
    """
    found: dict[str, str] = {}
    for name in names:
        value = line.get(name)
        if value is None:
            continue
        if name.endswith(PER_CENT):
            text = f"{100 * value:.2f} %"
        elif abs(value) >= LONG:
            text = f"{value:.3e}"
        else:
            text = f"{value:.2f}" if name == "perplexity" else f"{value:.4f}"
        found[title + name.replace("_", " ")] = text
    return found


def shown(line: Mapping[str, Any], names: Iterable[str] = ()) -> str:
    """Return measures as a text, all if none are named: `loss 1.2340, root accuracy 45.60 %`."""
    found = in_words(line, names or line)
    return ", ".join(f"{name} {text}" for name, text in found.items())


def table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows, cells by their heads, as lines; cells may be missing."""
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return aligned(heads, [[row.get(head, "") for head in heads] for row in rows])


def counted(found: Totals) -> dict[str, np.ndarray]:
    """Return the confusions there are: of roots, and of vertices where other ones have labels."""
    every = dict(found.confusion or {})
    if every and np.array_equal(every["roots"], every["vertices"]):
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


def better(measure: str, new: tuple[float, float], old: tuple[float | None, float | None]) -> bool:
    """Tell whether `new` beats the best so far; NaN or infinity never does.

    Args:
        new, old: the value and the loss, None at first; of equal values the lower loss is better.
    """
    (value, loss), (best, lowest) = new, old
    if not math.isfinite(value):
        return False
    if best is None or lowest is None:
        return True
    if value == best:
        return loss < lowest
    return value > best if MEASURES[measure].larger else value < best
