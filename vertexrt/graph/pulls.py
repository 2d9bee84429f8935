"""Values that vertices pull from outside: checked once, joined and taken with their graphs.

A pull has one of three forms: whole numbers for each vertex (a word, a label; -1 where the vertex
has none), floats for each vertex, or rows of a table that vertices share through an index map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from vertexrt.errors import PullError
from vertexrt.graph.checks import shape_of
from vertexrt.graph.compiled import take_rows
from vertexrt.graph.device_rows import DeviceRows, on_device
from vertexrt.graph.owned import (
    INT32,
    MOST,
    Array,
    handed_out,
    own,
    own_numbers,
    read_array,
    same_memory,
    unwritten,
)

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.floating[Any]]

_OF_EACH = {"vertex": "a vertex", "edge": "an edge", "row": "a value"}
_NUMBERS = "rows of one shape, of whole numbers of 32 bits, float32 or float64"

# Our copies of tables, by the identity of what they were copied from: graphs that are given the
# same table share one copy. What is found is compared, so that a table may change between them.
_copies: WeakValueDictionary[int, Array] = WeakValueDictionary()


# What a table of rows holds, for code that changes nothing: no view is made.
held_table, held_index = attrgetter("_table"), attrgetter("_index")


class Rows:
    """Give vertices rows of a table through an index map.

    Construction checks everything and copies both arrays, so that nothing changes later. Objects
    that are given the same table share one copy of it, as long as it has not changed between them.
    To know that is to compare it: where a large table is shared by many graphs, give all but the
    first the `table` of the first, which is taken as it is.

    Attributes:
        table: float32, float64 or int32 [N, *shape]; whole numbers are -1 where there
            is none. Real ones may lie on a GPU (arrays of CuPy, PyTorch, JAX), for a network that
            does: these are neither copied nor looked at.
        index: int32 [V], the row that each vertex pulls, -1 where it pulls nothing; None when
            vertex i pulls row i (then N = V).
    Raises: PullError, on a dtype or shape that does not fit, or a row that is not in the table.
    """

    __slots__ = ("_index", "_table")
    table: npt.NDArray[Any] = handed_out(held_table)
    index: IntArray | None = handed_out(held_index)

    def __init__(self, table: Any, index: Any = None) -> None:
        self._table: Any = DeviceRows.of(table) if on_device(table) else _own_table(table)
        self._index = None if index is None else _own_index(index, len(self._table))

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (held_table(self), held_index(self))  # pickled once, if it is shared

    def __setstate__(self, state: Sequence[Any]) -> None:
        Rows.__init__(self, *state)

    def __repr__(self) -> str:
        return f"Rows({describe(self)})"


def rows_unchecked(table: Any, index: Any) -> Rows:
    """Return rows of a table, both of which are known to be right."""
    rows = object.__new__(Rows)
    rows._table, rows._index = table, index
    return rows


# Whole numbers [V], floats [V, *shape], or a table with an index map, which has one in a graph.
PullValue = npt.NDArray[Any] | Rows


def parts_of(value: Any) -> tuple[Any, Any]:
    """Return the values of a pull, and which of them each vertex has; None for one each."""
    return (held_table(value), held_index(value)) if isinstance(value, Rows) else (value, None)


def parts_of_pull(value: Any) -> tuple[Any, IntArray]:
    """Return the values of a pull, and which of them each vertex has."""
    table, index = parts_of(value)
    return table, in_order(len(table)) if index is None else index


@lru_cache(64)
def in_order(count: int) -> IntArray:
    """Return the index map with which vertex i pulls row i."""
    return own(np.arange(count, dtype=INT32), INT32)


def _moved(value: PullValue, move: Callable[[Array], Array]) -> PullValue:
    """Return a pull of other vertices, or edges: of a table with an index map, move the map."""
    table, index = parts_of(value)
    return move(table) if index is None else rows_unchecked(table, move(index))


def ordered_pulls(
    pulls: Mapping[str, PullValue], order: npt.NDArray[np.integer[Any]]
) -> dict[str, PullValue]:
    """Return what vertices (or edges) pull, some of them or in another order."""
    return {
        name: _moved(value, lambda each: own(each[order], each.dtype))
        for name, value in pulls.items()
    }


class Pulls(Mapping[str, PullValue]):
    """Checked pulls by name: a read-only mapping that hands out views.

    What graphs pull that were taken is copied, each pull when it is looked at first. Tables with an
    index map are shared, not copied: only the map is taken.

    Args:
        of: pulls of all graphs.
        taken: the first vertex (or edge) of each of these, [graphs + 1]; the numbers of those that
            were taken; and how many vertices (or edges) they have. None, where these are all.
    """

    __slots__ = ("_found", "_of", "_taken")
    _found: Any
    _of: Mapping[str, PullValue]
    _taken: Any

    def __new__(cls, of: Mapping[str, PullValue], taken: Any = None) -> Pulls:
        if taken is None and isinstance(of, Pulls):
            return of
        made = object.__new__(cls)  # no `__init__`, which could be called again
        made._of, made._taken, made._found = of, taken, {} if taken else of
        return made

    def held(self) -> Any:
        """Return all of them, copied, for code that changes nothing: no view is made."""
        return {name: self._copied(name) for name in self._of} if self._taken else self._of

    def __getitem__(self, name: str) -> PullValue:
        found = self._copied(name)
        return found.view() if type(found) is np.ndarray else found

    def _copied(self, name: str) -> Any:
        found = self._found.get(name)
        if found is None:
            taken = _moved(self._of[name], lambda rows: taken_rows(rows, *self._taken))
            found = self._found.setdefault(name, taken)  # of several threads, the first one's
        return found

    def copy_numbers(self, name: str, to: Array) -> bool:
        """Copy whole numbers of graphs that were taken to int32 [count]; False, for other pulls."""
        value = self._of.get(name) if self._taken else None
        if type(value) is not np.ndarray or value.dtype is not INT32:
            return False
        take_rows(to, value, *self._taken[:2])
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def __reduce__(self) -> tuple[Any, ...]:
        return Pulls, (dict(self),)

    def __repr__(self) -> str:
        return f"Pulls({describe_all(self)})"


def taken_rows(rows: Array, ptr: IntArray, ids: npt.NDArray[np.int64], count: int) -> Array:
    """Return the rows of the graphs named, in read-only memory.

    Args:
        ptr: [graphs + 1], the first row of each.
        count: how many rows those named have.
    """
    shape = rows.shape[1:]
    taken = unwritten(count * math.prod(shape) if shape else count, rows.dtype)
    take_rows(taken, rows, ptr, ids)
    return taken.reshape(count, *shape) if shape else taken[:]  # a view: see `graph/owned.py`


def check_pulls(
    pulls: Mapping[Any, Any] | None, count: int, where: str, each: str = "vertex"
) -> dict[str, PullValue]:
    """Return the pulls as arrays of an allowed dtype, read-only and fit for V vertices.

    Args:
        pulls: by name; arrays, nested lists or `Rows`; None for none.
        count: V; or E for pulls of edges.
        where: name for error messages.
        each: whose pulls they are, `vertex` or `edge`.
    Returns: whole numbers as int32, floats as they are (float32 or float64); `Rows` without an
        index as their table.
    Raises: PullError, when a name, length, shape, dtype or value does not fit.
    """
    given: object = {} if pulls is None else pulls
    if not isinstance(given, Mapping):
        got = f"the pulls are a {type(given).__name__}"
        raise PullError.at(where, got, "expected arrays by name", "pass a dict")
    found: dict[str, PullValue] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            got = f"a pull is called {name!r}"
            raise PullError.at(where, got, "expected text", "use the name that F pulls")
        has = f"{'pull' if each == 'vertex' else 'edge pull'} '{name}' has"
        found[name] = check_pull(has, value, count, each, where)
    return found


def check_pull(has: str, value: Any, count: int, each: str, where: str) -> PullValue:
    """Return one pull, checked as `check_pulls` does.

    Args:
        has: what has this value, for messages, such as "pull 'x' has".
    """
    table, index = parts_of(value)
    if not isinstance(value, Rows):
        lent = on_device(value)
        table = DeviceRows.of(value) if lent else _own_values(has, value, count, each, where)
    if len(table if index is None else index) != count:
        got, expected = f"{has} {shape_of(table)}", f"[{count}, ...], one row {_OF_EACH[each]}"
        if index is not None:  # the rest was checked when it was made
            got, expected = f"{has} an index int32 {shape_of(index)}", f"whole numbers [{count}]"
        elif isinstance(value, Rows):
            got = f"{has} a table of shape {shape_of(table)} without an index"
        raise _misfit(where, got, expected)
    if isinstance(table, DeviceRows):
        return rows_unchecked(table, in_order(count) if index is None else index)
    return table if index is None else value  # type: ignore[no-any-return]


def with_rows(pulled: Rows, rows: Any) -> Rows:
    """Return other rows for the vertices that pull some by an index map.

    Args:
        rows: real ones are not copied: the caller must not change them later.
    Raises: PullError, as `Rows` do.
    """
    index = held_index(pulled)
    if len(rows) < len(held_table(pulled)) or rows.dtype.kind != "f":
        return Rows(rows, index)
    return rows_unchecked(rows, index)  # which was checked for as many rows


def describe(value: PullValue) -> str:
    """Return dtypes and shapes of a pull in a few words."""
    if not isinstance(value, Rows):
        return f"{value.dtype} {shape_of(value)}"
    rows = "rows by vertex" if value.index is None else f"an index {shape_of(value.index)}"
    return f"{value.table.dtype} {shape_of(value.table)} with {rows}"


def describe_all(pulls: Mapping[str, PullValue]) -> str:
    """Return the pulls of a graph or batch in one line."""
    return ", ".join(f"{name} {describe(value)}" for name, value in pulls.items()) or "none"


def join_pulls(
    pulls: Sequence[Mapping[str, PullValue]],
    sizes: Sequence[int],
    what: str,
    names: Sequence[object] = (),
) -> dict[str, PullValue]:
    """Join the checked pulls of several graphs, graph after graph; or of batches, or of types.

    A table that all graphs share (the same memory) stays one; other tables are joined.

    Args:
        pulls: of each graph.
        sizes: vertices of each graph.
        what, names: these are, for messages; without names they are numbered.
    Raises: PullError, when a graph lacks a pull that another has, or has it in another form.
    """
    first = pulls[0]
    for number, other in enumerate(pulls):
        if other.keys() != first.keys():
            name = next(x for x in [*first, *other] if (x in first) != (x in other))
            got, have = f"a pull '{name}'", f"{what} 0 has none"
            if name in first:
                got, have = f"no pull '{name}'", f"{what} 0 has it"
            action = f"give every {what} the same pulls"
            raise PullError.at(f"{what} {number}", got, have, action)
    names = names or range(len(pulls))
    return {name: _join(name, [x[name] for x in pulls], sizes, what, names) for name in first}


def _join(
    name: str, values: list[PullValue], sizes: Sequence[int], what: str, names: Sequence[object]
) -> PullValue:
    tables, maps = zip(*map(parts_of, values), strict=True)
    forms = [(x.dtype, x.shape[1:], i is None) for x, i in zip(tables, maps, strict=True)]
    # A table without rows is of no dtype and shape: nobody pulls anything.
    some = [n for n, index in enumerate(maps) if index is None or len(tables[n])] or [0]
    dtype, _, plain = form = forms[some[0]]
    for number in some if not plain or dtype.kind == "i" else range(len(values)):
        if forms[number] != form:
            raise PullError.at(
                f"{what} {names[number]}",
                f"pull '{name}' is {_form_text(forms[number])}",
                f"in {what} {names[some[0]]} it is {_form_text(form)}",
                f"give every {what} the same form, shape and dtype",
            )
    if len(values) == 1:
        return values[0]
    if plain:  # or nothing, in whole numbers
        numbers = [x if index is None else index for x, index in zip(tables, maps, strict=True)]
        return own(np.concatenate(numbers), dtype)
    index = np.concatenate(maps)
    rows = [tables[number] for number in some]
    if any(each is not rows[0] for each in rows) and any(map(on_device, rows)):
        got = f"pull '{name}' lies on a GPU, in several arrays"
        action = "join the batches first: batch.with_pulls({...})"
        raise PullError.at("graph batch", got, "one array, of the batch", action)
    if not all(same_memory(each, rows[0]) for each in rows):
        sizes_of = [len(table) for table in tables]
        if sum(sizes_of) > MOST:
            got = f"the tables of pull '{name}' have {sum(sizes_of)} rows together"
            raise PullError.at("graph batch", got, f"at most {MOST}", "let graphs share a table")
        before = np.repeat(np.cumsum([0, *sizes_of[:-1]]), sizes)
        index = np.where(index >= 0, index + before, -1)
        rows = [own(np.concatenate(rows), dtype)]
    return rows_unchecked(rows[0], own(index, INT32))


def _form_text(form: tuple[Any, tuple[int, ...], bool]) -> str:
    dtype, extents, plain = form
    shape = "".join(f", {n}" for n in extents)
    return f"{dtype} [V{shape}]" if plain else f"{dtype} [N{shape}] with an index"


def _own_table(given: Any) -> Array:
    """Return a read-only table: a copy, or one that was made before of the same."""
    held = _copies.get(id(given))
    array = None if held is None else read_array(given)  # else it is read once, below
    if held is not None and isinstance(array, np.ndarray):
        bits = f"i{held.dtype.itemsize}"  # a NaN equals itself
        same = (array.dtype, array.shape) == (held.dtype, held.shape)
        if same and np.array_equal(array.view(bits), held.view(bits)):
            return held
    values = _own_values("", given, "N", "row", "Rows")
    if not isinstance(given, np.ndarray) or not same_memory(given, values):
        _copies[id(given)] = values
    return values


def _own_index(given: Any, rows: int) -> IntArray:
    index = _numbers("", given, "Rows")
    if index.dtype != INT32 or index.ndim != 1:
        got = f"an index {index.dtype} {shape_of(index)}"
        raise _misfit("Rows", got, "whole numbers [V]")
    wrong = (index < -1) | (index >= rows)
    if wrong.any():
        vertex = int(np.argmax(wrong))
        expected = f"rows 0..{rows - 1}, or -1 where the vertex has none"
        raise _misfit("Rows", f"row {int(index[vertex])} at vertex {vertex}", expected)
    return index


def _own_values(has: str, given: Any, size: object, each: str, where: str) -> Array:
    """Return values, read-only: a row for each vertex, edge, or row of a table."""
    values = _numbers(has, given, where)
    if values.ndim == 0:
        got = f"{has or 'a table of shape'} {shape_of(values)}"
        raise _misfit(where, got, f"[{size}, ...], one row {_OF_EACH[each]}")
    if values.dtype.kind == "i":
        if values.ndim != 1:
            got = f"{has} whole numbers of shape {shape_of(values)}"
            raise _misfit(where, got, f"[{size}]")
        if int(values.min(initial=0)) < -1:
            number = int(np.argmin(values))
            expected = f"at least 0, or -1 where the {each} has none"
            raise _misfit(where, f"{has} {values[number]} at {each} {number}", expected)
    return values


def _numbers(has: str, given: Any, where: str) -> Array:
    """Return int32, float32 or float64, read-only."""
    array = read_array(given)
    owned = array if isinstance(array, str) else own_numbers(array)
    if isinstance(owned, str):
        kind = "" if isinstance(array, str) else array.dtype.kind
        actions = {
            "U": "number the words: vrt.data.from_records does",
            "b": "write array.astype(np.int32)",
        }
        raise _misfit(where, f"{has} {owned}", _NUMBERS, actions.get(kind, "correct the array"))
    return owned


def _misfit(where: str, got: str, expected: str, action: str = "correct the array") -> PullError:
    return PullError.at(where, got.strip(), f"expected {expected}", action)
