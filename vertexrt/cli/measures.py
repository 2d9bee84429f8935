"""The measures that tasks are judged by: a row for each, made of sums over minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vertexrt.graph import GraphBatch, Pulled

Sums = dict[str, float]
PERPLEXITY_CEILING = 700.0  # math.exp overflows above 709


@dataclass(frozen=True, slots=True)
class Judged:
    """A minibatch, what is right in it, and what the model made of it.

    Attributes:
        label: the pull that says what is right; None where the graphs have none.
        answer: [V, n], the push that the task looks at; None where it was not asked for.
        names: of the classes; () where they are numbers.
    """

    batch: GraphBatch
    label: np.ndarray | Pulled | None
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


def classes_of(label: np.ndarray | Pulled | None) -> np.ndarray | None:
    """Return the class of each vertex, -1 where it has none; None where there are no classes."""
    if isinstance(label, Pulled):
        label = rows_of(label, np.int32(-1))
    return label if label is not None and label.dtype.kind == "i" else None


def rows_of(table: Pulled, absent: np.generic) -> np.ndarray:
    """Return the row of each vertex, `absent` where it has none."""
    if table.index is None:
        return table.values
    found = table.values[np.maximum(table.index, 0)] if len(table.values) else table.values
    missing = (table.index < 0).reshape(-1, *[1] * (found.ndim - 1))
    return np.where(missing, absent, found)


def _labelled(judged: Judged) -> Sums:
    label = classes_of(judged.label)
    return {} if label is None else {"labelled": int(np.count_nonzero(label >= 0))}


def _right(judged: Judged) -> tuple[np.ndarray, np.ndarray] | None:
    """Return which vertices have a class, and of which the largest logit is that class."""
    label = classes_of(judged.label)
    if label is None or judged.answer is None:
        return None
    return label >= 0, np.argmax(judged.answer, axis=1) == label  # -1 equals no class


def _vertices(judged: Judged) -> Sums:
    found = _right(judged)
    if found is None:
        return {}
    seen, right = (int(np.count_nonzero(each)) for each in found)
    return {"vertices": seen, "vertices_right": right}


def _roots(judged: Judged) -> Sums:
    found = _right(judged)
    if found is None:
        return {}
    roots = judged.batch.roots
    seen, right = (int(np.count_nonzero(each[roots])) for each in found)
    return {"roots": seen, "roots_right": right}


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
    right = rows_of(label, none) if isinstance(label, Pulled) else label
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


_OF_VERTICES = ("vertices", "vertices_right")
_OF_NUMBERS = ("numbers", "squared_errors", "absolute_errors")
_OF_ENTITIES = ("entities", "entities_found", "entities_right")

MEASURES = {
    "loss": Measure(False, (), lambda judged: {}, _share("loss", "graphs")),
    "root_accuracy": Measure(
        True, ("roots", "roots_right"), _roots, _share("roots_right", "roots")
    ),
    "vertex_accuracy": Measure(True, _OF_VERTICES, _vertices, _share("vertices_right", "vertices")),
    "accuracy": Measure(True, _OF_VERTICES, _vertices, _share("vertices_right", "vertices")),
    "entity_f1": Measure(True, _OF_ENTITIES, _entities, _f1),
    "mean_squared_error": Measure(
        False, _OF_NUMBERS, _numbers, _share("squared_errors", "numbers")
    ),
    "mean_absolute_error": Measure(
        False, _OF_NUMBERS, _numbers, _share("absolute_errors", "numbers")
    ),
    "perplexity": Measure(False, ("labelled",), _labelled, _perplexity),
}
