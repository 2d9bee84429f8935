"""Pulls of a whole file, column by column: words are numbered, numbers become arrays.

What a column holds (words, whole numbers, real numbers or vectors) is known when all of it has been
read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple, NoReturn, TypedDict

import numpy as np
import numpy.typing as npt

from vertexrt.data.dataset import Vocabulary
from vertexrt.errors import DataError, UsageError, nearest
from vertexrt.graph import GraphBatch, PullValue, Rows

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
        name: pull.table if isinstance(pull, Rows) else pull
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


_DEFAULTS: ReadOptions = {
    "vocabularies": None,
    "labels": (),
    "reals": (),
    "min_count": 1,
    "dtype": np.float32,
}


def checked(options: ReadOptions) -> ReadOptions:
    """Return all options. Raises: UsageError, when one is unknown or no such value."""
    for name in options:
        if name not in _DEFAULTS:
            expected = f"the options are {', '.join(_DEFAULTS)}"
            action = "give one of them." + nearest(name, _DEFAULTS)
            raise UsageError.at("read", f"no option '{name}'", expected, action)
    given: ReadOptions = {**_DEFAULTS, **options}
    vocabularies, dtype = given["vocabularies"], given["dtype"]
    real = str(getattr(dtype, "__name__", dtype))  # a name, a type or a dtype
    for name, fits, expected in (
        ("vocabularies", isinstance(vocabularies, Mapping | None), "a dict of pulls to Vocabulary"),
        ("labels", _are_names(given["labels"]), "a list of names of pulls"),
        ("reals", _are_names(given["reals"]), "a list of names of pulls"),
        ("min_count", isinstance(given["min_count"], int), "a whole number"),
        ("dtype", real in ("float32", "float64"), "float32 or float64"),
    ):
        if not fits:
            got = f"{name}={options.get(name)!r:.60}"
            raise UsageError.at("read", got, f"expected {expected}", "correct it")
    return {**given, "dtype": np.dtype(real)}


def _are_names(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, str)


@dataclass(slots=True)
class Columns:
    """The pulls of all vertices of a file, or of all edges.

    Attributes:
        file, unit: for messages, as of `Collector`.
        what: a column is called: a pull, or an edge pull.
        count: vertices, or edges, so far.
    """

    file: str
    unit: str
    what: str
    count: int = 0
    by_name: dict[str, Column] = field(default_factory=dict)
    _names: dict[str, tuple[int, set[str]]] = field(default_factory=dict)  # by owner

    def add(self, line: int, first: int, values: Mapping[str, Sequence[Any]], size: int) -> None:
        """Add the values of some that stand side by side, the first of which is given."""
        for name, given in values.items():
            if len(given) != size:
                got = f"the {self.what} '{name}' has {len(given)} values"
                expected = f"expected one for each of {size}"
                raise DataError.at(self.place(line), got, expected, "correct it")
            column = self.by_name.setdefault(name, Column(self, name))
            column.spans.append(_Span(line, first, len(column.values)))
            column.values.extend(given)

    def require_same(self, line: int, owner: str, names: Collection[str]) -> None:
        """Refuse other names than graphs before gave for the same owner."""
        before, known = self._names.setdefault(owner, (line, set(names)))
        if known != set(names):
            name = sorted(known ^ set(names))[0]
            got = f"{'no' if name in known else 'a'} {self.what} '{name}'{owner}"
            expected = f"{self.unit} {before} has {'it' if name in known else 'none'}"
            action = f"give all graphs the same {self.what}s, with no value where there is none"
            raise DataError.at(self.place(line), got, expected, action)

    def place(self, line: int) -> str:
        """Return what messages call a graph's line."""
        return f"{self.file}, {self.unit} {line}"


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

    owner: Columns
    name: str
    values: list[Any] = field(default_factory=list)
    spans: list[_Span] = field(default_factory=list)

    def array(self, options: ReadOptions, vocabularies: dict[str, Vocabulary]) -> PullValue:
        """Return the column as an array; what numbers its words is added to the vocabularies.

        Raises: DataError, when its values are of several sorts, or of none that can be pulled.
        """
        kinds = frozenset(map(type, self.values)) - {NoneType}
        if kinds not in _FORMS:
            self._refuse_kinds()
        if _FORMS[kinds] == "words":
            vocabularies[self.name] = self._vocabulary(options)
            return self._whole(self._numbers(vocabularies[self.name]))
        if _FORMS[kinds] == "whole numbers" and self.name not in options["reals"]:
            return self._whole(self.values)
        return self._reals(options["dtype"])

    def _refuse(self, at: int, expected: str) -> NoReturn:
        """Raise the error for one value."""
        span = self.spans[bisect_right(self.spans, at, key=lambda span: span.at) - 1]
        what = f"value {at - span.at} of the {self.owner.what} '{self.name}'"
        got = f"{what} is {self.values[at]!r:.60}"
        raise DataError.at(self.owner.place(span.line), got, expected, "correct it")

    def _refuse_kinds(self) -> NoReturn:
        so_far: frozenset[type] = frozenset()
        for at, value in enumerate(self.values):
            kind = frozenset({type(value)}) if value is not None else so_far
            if so_far | kind not in _FORMS:
                expected = f"{_FORMS[so_far]} as before" if so_far else "a word or a number"
                self._refuse(at, f"expected {expected}")
            so_far |= kind
        raise AssertionError(so_far)

    def _rows(self) -> npt.NDArray[np.int64]:
        """Return the vertex of each value."""
        counts = np.diff([*(span.at for span in self.spans), len(self.values)])
        shift = [span.first - span.at for span in self.spans]
        return np.arange(len(self.values)) + np.repeat(np.array(shift, np.int64), counts)

    def _vocabulary(self, options: ReadOptions) -> Vocabulary:
        """Return the vocabulary of the column's words, which is built if none was given.

        Raises: DataError, when vocabularies were given, and none for this pull.
        """
        given = options["vocabularies"]
        if given is not None and self.name not in given:
            got = f"the {self.owner.what} '{self.name}' has words"
            have = f"vocabularies were given for {', '.join(given) or 'nothing'}"
            action = f"read it with those of the training file, or with '{self.name}': None"
            raise DataError.at(self.owner.file, got, have, action)
        found = given[self.name] if given is not None else None
        if found is not None:
            return found
        counts = Counter(self.values)
        counts.pop(None, None)
        if self.name in options["labels"]:
            return Vocabulary.of_labels(counts)
        return Vocabulary.build(counts, min_count=options["min_count"])

    def _numbers(self, vocabulary: Vocabulary) -> list[int | None]:
        """Return the number of each word, None where there is none.

        Raises: DataError, on a word that a vocabulary of labels does not have.
        """
        known = {word: vocabulary.find(word) for word in set(self.values) - {None}}
        missing = [word for word, number in known.items() if number is None]
        if missing:
            at = min(map(self.values.index, missing))
            self._refuse(at, f"the labels are {', '.join(vocabulary.words):.200}")
        return [known.get(word) for word in self.values]

    def _whole(self, values: Sequence[int | None]) -> npt.NDArray[np.int32]:
        """Return whole numbers by vertex, int32 [V], -1 where there is none."""
        out = np.full(self.owner.count, -1, np.int32)
        numbers = [-1 if value is None else value for value in values]
        if numbers and (min(numbers) < -1 or max(numbers) > LARGEST):
            at = next(i for i, number in enumerate(numbers) if not -1 <= number <= LARGEST)
            self._refuse(at, f"expected 0..{LARGEST}, or no value, or real numbers (option reals)")
        out[self._rows()] = numbers
        return out

    def _reals(self, dtype: npt.DTypeLike) -> PullValue:
        """Return real numbers or vectors: a row for each vertex, or a table with an index map."""
        present = [at for at, value in enumerate(self.values) if value is not None]
        values = _of_one_shape([self.values[at] for at in present], dtype)
        if values is None:
            self._refuse_vector(present, dtype)
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if not finite.all():
            at = present[int(np.argmin(finite))]
            self._refuse(at, f"expected finite numbers of {values.dtype}")
        rows = self._rows()[present]
        if len(rows) == self.owner.count and (np.diff(rows) > 0).all():
            return values
        index = np.full(self.owner.count, -1, np.int32)
        index[rows] = np.arange(len(rows))
        return Rows(values, index)

    def _refuse_vector(self, present: Sequence[int], dtype: npt.DTypeLike) -> NoReturn:
        """Raise the error for the first vector that is not as the first one."""
        shape = None
        for at in present:
            array = _of_one_shape([self.values[at]], dtype)
            if array is None or (shape and array.shape != shape):
                expected = f"numbers of shape {list(shape[1:])} as before" if shape else "numbers"
                self._refuse(at, f"expected {expected}")
            shape = array.shape
        raise AssertionError(self.name)


def _of_one_shape(values: list[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
    """Return numbers of one shape; None, where they are not."""
    try:
        array = np.array(values)
    except ValueError:  # rows of unequal length
        return None
    if array.dtype.kind not in "iuf":
        return None
    with np.errstate(over="ignore"):
        return array.astype(dtype)
