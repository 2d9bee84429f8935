"""Pulls of a whole file, column by column: words are numbered, numbers become arrays.

What a column holds (words, whole numbers, real numbers or vectors) is known when all of it has been
read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypedDict

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Vocabulary
from vertexrt.errors import DataError, UsageError, nearest
from vertexrt.graph import GraphBatch, Pulled, PullValue

LARGEST = 2**31 - 2  # of whole numbers

# What a column holds, by the types of its values.
_FORMS = {
    frozenset[type](): "whole numbers",
    frozenset({int}): "whole numbers",
    frozenset({float}): "real numbers",
    frozenset({int, float}): "real numbers",
    frozenset({str}): "words",
    frozenset({list}): "vectors",
}


class Examples(NamedTuple):
    """What a reader returns.

    Attributes:
        batch: all graphs of the file, in its order.
        vocabularies: by pull, what numbers its words; pass them on to read other files.
    """

    batch: GraphBatch
    vocabularies: dict[str, Vocabulary]


def real_pulls(batch: GraphBatch) -> list[str]:
    """Return the pulls of vertices and edges that are real: `reals` of `ReadOptions`."""
    tables = {
        name: pull.values if isinstance(pull, Pulled) else pull
        for pulls in (batch.pulls, batch.edge_pulls)
        for name, pull in pulls.items()
    }
    return [name for name, table in tables.items() if table.dtype.kind == "f"]


class ReadOptions(TypedDict, total=False):
    """How words become numbers, the same for every reader.

    Attributes:
        vocabularies: by pull, what numbers its words: those of the training file, to read others.
            None builds one for each pull whose values are words; None for a pull builds that one.
        labels: pulls whose vocabulary is built without `<unk>`: all their words are known.
        reals: pulls that are real numbers even where a file has whole ones only, or none.
        min_count: when a vocabulary is built, words that are rarer count as `<unk>` (1).
        dtype: of real numbers and vectors, float32 (the default) or float64.
    """

    vocabularies: Mapping[str, Vocabulary | None] | None
    labels: Sequence[str]
    reals: Sequence[str]
    min_count: int
    dtype: npt.DTypeLike


class Numbering(NamedTuple):
    """Options of a reader that have been checked; see `ReadOptions`."""

    vocabularies: Mapping[str, Vocabulary | None] | None
    labels: Collection[str]
    reals: Collection[str]
    min_count: int
    dtype: np.dtype[Any]


def read_options(options: ReadOptions) -> Numbering:
    """Return options with defaults. Raises: UsageError, when one is unknown or no such value."""
    known = list(ReadOptions.__annotations__)
    for name in options:
        if name not in known:
            expected = f"the options are {', '.join(known)}"
            action = "give one of them." + nearest(name, known)
            raise UsageError.at("read", f"no option '{name}'", expected, action)
    vocabularies, dtype = options.get("vocabularies"), options.get("dtype", np.float32)
    labels, reals = options.get("labels", ()), options.get("reals", ())
    min_count = options.get("min_count", 1)
    real = str(getattr(dtype, "__name__", dtype))  # a name, a type or a dtype
    for name, fits, expected in (
        ("vocabularies", isinstance(vocabularies, Mapping | None), "a dict of pulls to Vocabulary"),
        ("labels", _are_names(labels), "a list of names of pulls"),
        ("reals", _are_names(reals), "a list of names of pulls"),
        ("min_count", isinstance(min_count, int), "a whole number"),
        ("dtype", real in ("float32", "float64"), "float32 or float64"),
    ):
        if not fits:
            got = f"{name}={options.get(name)!r:.60}"
            raise UsageError.at("read", got, f"expected {expected}", "correct it")
    return Numbering(vocabularies, labels, reals, min_count, np.dtype(real))


def _are_names(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, str)


class _Span(NamedTuple):
    """Vertices of one graph whose values stand side by side in a column.

    Attributes:
        line: of the file.
        first: their first vertex, counted through the file.
        at: where their values begin.
    """

    line: int
    first: int
    at: int


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one pull, None where a vertex has none."""

    file: str
    unit: str
    what: str
    name: str
    values: list[Any] = field(default_factory=list)
    spans: list[_Span] = field(default_factory=list)

    def add(self, line: int, first: int, values: Sequence[Any]) -> None:
        """Add the values of some that stand side by side, the first of which is given."""
        self.spans.append(_Span(line, first, len(self.values)))
        self.values.extend(values)

    def refuse(self, at: int, expected: str, got: str = "") -> NoReturn:
        """Raise the error for one value."""
        span = self.spans[bisect_right(self.spans, at, key=lambda span: span.at) - 1]
        where = f"{self.file}, {self.unit} {span.line}"
        got = got or f"{self.values[at]!r:.60}"
        where_in_line = f"value {at - span.at} of the {self.what} '{self.name}'"
        raise DataError.at(where, f"{where_in_line} is {got}", expected, "correct it")

    def form(self) -> str:
        """Return what the column holds.

        Raises: DataError, when its values are of several sorts, or of none that can be pulled.
        """
        kinds = frozenset(map(type, self.values)) - {type(None)}
        if kinds in _FORMS:
            return _FORMS[kinds]
        so_far: frozenset[type] = frozenset()
        for at, value in enumerate(self.values):
            kind = frozenset({type(value)}) if value is not None else so_far
            if so_far | kind not in _FORMS:
                expected = f"{_FORMS[so_far]} as before" if so_far else "a word or a number"
                self.refuse(at, f"expected {expected}")
            so_far |= kind
        raise AssertionError(kinds)

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the vertex of each value."""
        counts = np.diff([*(span.at for span in self.spans), len(self.values)])
        shift = [span.first - span.at for span in self.spans]
        return np.arange(len(self.values)) + np.repeat(np.array(shift, np.int64), counts)

    def words(self, numbering: Numbering) -> Vocabulary:
        """Return the vocabulary of the column's words, which is built if none was given.

        Raises: DataError, when vocabularies were given, and none for this pull.
        """
        given = numbering.vocabularies
        if given is not None and self.name not in given:
            have = f"vocabularies were given for {', '.join(given) or 'nothing'}"
            action = f"read it with those of the training file, or with '{self.name}': None"
            raise DataError.at(self.file, f"the {self.what} '{self.name}' has words", have, action)
        found = given[self.name] if given is not None else None
        if found is not None:
            return found
        counts = Counter(self.values)
        counts.pop(None, None)
        if self.name in numbering.labels:
            return Vocabulary.of_labels(counts)
        return Vocabulary.build(counts, min_count=numbering.min_count)

    def numbers(self, vocabulary: Vocabulary) -> list[int | None]:
        """Return the number of each word, -1 where there is none.

        Raises: DataError, on a word that a vocabulary of labels does not have.
        """
        known = {word: vocabulary.find(word) for word in set(self.values) - {None}}
        missing = [word for word, number in known.items() if number is None]
        if missing:
            at = min(map(self.values.index, missing))
            self.refuse(at, f"the labels are {', '.join(vocabulary.words):.200}")
        known[None] = -1
        return [known[word] for word in self.values]

    def whole(self, values: Sequence[int | None], vertices: int) -> npt.NDArray[np.int32]:
        """Return whole numbers by vertex, int32 [V], -1 where there is none."""
        out = np.full(vertices, -1, np.int32)
        numbers = [-1 if value is None else value for value in values]
        if numbers and (min(numbers) < -1 or max(numbers) > LARGEST):
            at = next(i for i, number in enumerate(numbers) if not -1 <= number <= LARGEST)
            self.refuse(at, f"expected 0..{LARGEST}, or no value, or real numbers (option reals)")
        out[self.rows()] = numbers
        return out

    def reals(self, dtype: npt.DTypeLike, vertices: int) -> PullValue:
        """Return real numbers or vectors: a row for each vertex, or a table with an index map."""
        present = [at for at, value in enumerate(self.values) if value is not None]
        values = self._array([self.values[at] for at in present], dtype)
        if values is None:
            self._refuse_vector(present, dtype)
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if not finite.all():
            self.refuse(
                present[int(np.argmin(finite))], f"expected finite numbers of {values.dtype}"
            )
        rows = self.rows()[present]
        if len(rows) == vertices and (np.diff(rows) > 0).all():
            return values
        index = np.full(vertices, -1, np.int32)
        index[rows] = np.arange(len(rows))
        return Pulled(values, index)

    def _array(self, values: list[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
        """Return numbers of one shape; None, where they are not."""
        try:
            array = np.array(values)
        except ValueError:  # rows of unequal length
            return None
        if array.dtype.kind not in "iuf":
            return None
        with np.errstate(over="ignore"):
            return array.astype(dtype)

    def _refuse_vector(self, present: Sequence[int], dtype: npt.DTypeLike) -> NoReturn:
        """Raise the error for the first vector that is not as the first one."""
        shape = None
        for at in present:
            array = self._array([self.values[at]], dtype)
            if array is None or (shape and array.shape != shape):
                expected = f"numbers of shape {list(shape[1:])} as before" if shape else "numbers"
                self.refuse(at, f"expected {expected}")
            shape = array.shape
        raise AssertionError(self.name)
