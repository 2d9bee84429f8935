"""Values that vertices pull from outside: checked once, joined and taken with their graphs.

A pull has one of three forms: whole numbers for each vertex (a word, a label; -1 where the vertex
has none), floats for each vertex, or rows of a table that vertices share through an index map.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from vertexrt.errors import PullError
from vertexrt.graph.checks import shape_of
from vertexrt.graph.device_rows import DeviceRows, on_device
from vertexrt.graph.owned import (
    INT32,
    MOST,
    Array,
    assembler,
    hand_out,
    own,
    own_numbers,
    read_array,
    same_memory,
    view_of,
)

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.floating[Any]]

_NUMBERS = "rows of one shape, of whole numbers of 32 bits, float32 or float64"

# Our copies of tables, by the identity of what they were copied from: graphs that are given the
# same table share one copy. What is found is compared, so that a table may change between them.
_copies: WeakValueDictionary[int, Array] = WeakValueDictionary()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
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

    table: npt.NDArray[Any]
    index: IntArray | None = None

    def __post_init__(self) -> None:
        table: Any = held_table(self)
        table = DeviceRows.of(table) if on_device(table) else _own_table(table)
        object.__setattr__(self, "table", table)
        if self.index is not None:
            object.__setattr__(self, "index", _own_index(self.index, len(table)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (held_table(self), held_index(self))  # pickled once, if it is shared

    def __setstate__(self, state: Sequence[Any]) -> None:
        Rows.__init__(self, *state)

    def __repr__(self) -> str:
        return f"Rows({describe(self)})"


rows_unchecked = assembler(Rows)
held_table, held_index = hand_out(Rows, view_of, "table", "index")

# Whole numbers [V], floats [V, *shape], or a table with an index map.
PullValue = npt.NDArray[Any] | Rows


class Pulls(Mapping[str, PullValue]):
    """Pulled values by name that have been checked: a read-only mapping that hands out views."""

    __slots__ = ("_held",)

    def __init__(self, held: Mapping[str, PullValue]) -> None:
        self._held = held

    def __getitem__(self, name: str) -> PullValue:
        value = self._held[name]
        return value if isinstance(value, Rows) else value.view()

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"Pulls({describe_all(self)})"


def check_pulls(
    pulls: Mapping[Any, Any], count: int, where: str = "input graph", each: str = "vertex"
) -> dict[str, PullValue]:
    """Return the pulls as arrays of an allowed dtype, read-only and fit for V vertices.

    Args:
        pulls: by name; arrays, nested lists or `Rows`.
        count: V; or E for pulls of edges.
        where: name for error messages.
        each: whose pulls they are, `vertex` or `edge`.
    Returns: whole numbers as int32, floats as they are (float32 or float64).
    Raises: PullError, when a name, length, shape, dtype or value does not fit.
    """
    given: object = pulls
    if not isinstance(given, Mapping):
        got = f"the pulls are a {type(given).__name__}"
        raise PullError.at(where, got, "expected arrays by name", "pass a dict")
    found: dict[str, PullValue] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            got = f"a pull is called {name!r}"
            raise PullError.at(where, got, "expected text", "use the name that F pulls")
        if on_device(value):
            value = _by_row(value, name, count, where)
        check = _check_pulled if isinstance(value, Rows) else _check_plain
        what = "pull" if each == "vertex" else "edge pull"
        found[name] = check(f"{what} '{name}' has", value, (count, each), where)
    return found


def _by_row(given: Any, name: str, count: int, where: str) -> Rows:
    """Return an array of a GPU, a row for each vertex (or edge), with that as an index map."""
    rows = DeviceRows.of(given)
    if len(rows) != count:
        raise _misfit(where, f"pull '{name}' has {shape_of(rows)}", f"[{count}, ...]")
    return rows_unchecked(rows, in_order(count))


@lru_cache(64)
def in_order(count: int) -> IntArray:
    """Return the index map with which vertex i pulls row i."""
    return own(np.arange(count, dtype=INT32), INT32)


def with_rows(pulled: Rows, rows: Any) -> Rows:
    """Return other rows for the vertices that pull some by an index map.

    Raises: PullError, as `Rows` do.
    """
    index, few = held_index(pulled), len(rows) < len(held_table(pulled))
    if index is None or few:
        return Rows(rows, index)
    values = DeviceRows.of(rows) if on_device(rows) else _own_table(rows)
    return rows_unchecked(values, index)  # which was checked for as many rows


def rows_of_pull(value: PullValue, rows: npt.NDArray[np.integer[Any]]) -> PullValue:
    """Return what some vertices (or edges) pull, in another order."""
    if not isinstance(value, Rows):
        return own(value[rows], value.dtype)
    index = held_index(value)
    taken = rows.astype(np.int32) if index is None else index[rows]
    return rows_unchecked(held_table(value), own(taken, INT32))


def take_pulls(
    pulls: Mapping[str, PullValue], ptr: IntArray, ids: npt.NDArray[np.int64]
) -> dict[str, PullValue]:
    """Return the pulls of the graphs named.

    Args:
        ptr: [graphs + 1], the first vertex (or edge) of each.
    """
    if not pulls:
        return {}
    sizes = ptr[ids + 1] - ptr[ids]
    rows = np.arange(sizes.sum()) + np.repeat(ptr[ids] - np.cumsum(sizes) + sizes, sizes)
    return {name: rows_of_pull(value, rows) for name, value in pulls.items()}


def ordered_pulls(
    pulls: Mapping[Any, Any] | None, order: npt.NDArray[np.integer[Any]], where: str
) -> dict[str, PullValue]:
    """Check pulls of edges, None for none, and return them in another order of the edges.

    Raises: PullError, as `check_pulls` does.
    """
    found = check_pulls({} if pulls is None else pulls, len(order), where, "edge")
    return {name: rows_of_pull(value, order) for name, value in found.items()}


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
    pulls: Sequence[Mapping[str, PullValue]], sizes: Sequence[int], what: str = "graph"
) -> dict[str, PullValue]:
    """Join the checked pulls of several graphs, graph after graph; or of several batches.

    A table that all graphs share (the same memory) stays one; other tables are joined.

    Args:
        pulls: of each graph.
        sizes: vertices of each graph.
        what: these are, for messages.
    Raises: PullError, when a graph lacks a pull that another has, or has it in another form.
    """
    first = pulls[0]
    some = {
        name: next((x[name] for x in pulls if not is_of_none(x.get(name, value))), value)
        for name, value in first.items()
    }
    forms = {name: _form(value) for name, value in some.items()}
    for number, other in enumerate(pulls):
        if other.keys() != forms.keys():
            raise _missing(what, number, first, other)
        for name, value in other.items():
            # A form that ends in True has no index: each vertex has a row.
            if _form(value) != forms[name] and (forms[name][-1] is True or not is_of_none(value)):
                number_of = next(n for n, x in enumerate(pulls) if x[name] is some[name])
                raise PullError.at(
                    f"{what} {number}",
                    f"pull '{name}' is {_form_text(value)}",
                    f"in {what} {number_of} it is {_form_text(some[name])}",
                    f"give every {what} the same form, shape and dtype",
                )
    return {
        name: _join(name, [_like(value, other[name]) for other in pulls], sizes)
        for name, value in some.items()
    }


def is_of_none(value: PullValue) -> bool:
    """Tell whether nobody pulls anything, of no dtype and shape: a table without rows."""
    return isinstance(value, Rows) and not len(held_table(value))


def _like(form: PullValue, value: PullValue) -> PullValue:
    """Return a pull, one of nothing in the form of another."""
    if not isinstance(value, Rows) or not is_of_none(value):
        return value
    if not isinstance(form, Rows):
        return cast("Array", held_index(value))
    rows = held_table(form)
    return rows_unchecked(own(np.empty((0, *rows.shape[1:])), rows.dtype), held_index(value))


def _join(name: str, parts: list[PullValue], sizes: Sequence[int]) -> PullValue:
    plain = [part for part in parts if not isinstance(part, Rows)]
    if plain:
        return own(np.concatenate(plain), plain[0].dtype)
    return _join_pulled(name, [part for part in parts if isinstance(part, Rows)], sizes)


def _join_pulled(name: str, tables: list[Rows], sizes: Sequence[int]) -> Rows:
    """Join tables with or without an index map; equal ones are shared."""
    values = [held_table(table) for table in tables]
    _refuse_device_rows(name, values)
    maps = [index for index in map(held_index, tables) if index is not None]
    if len(values) == 1:
        return tables[0]
    if not maps:
        return rows_unchecked(own(np.concatenate(values), values[0].dtype), None)
    index = np.concatenate(maps)
    if all(each is values[0] or same_memory(each, values[0]) for each in values):
        return rows_unchecked(values[0], own(index, INT32))
    return _join_tables(name, values, index, sizes)


def _refuse_device_rows(name: str, tables: Sequence[Any]) -> None:
    """Refuse to join arrays of a GPU, but one with itself. Raises: PullError."""
    if any(isinstance(each, DeviceRows) and each is not tables[0] for each in tables):
        got = f"pull '{name}' lies on a GPU, in several arrays"
        action = "join the batches first: batch.with_pulls({...})"
        raise PullError.at("graph batch", got, "one array, of the batch", action)


def _join_tables(name: str, values: list[Array], index: IntArray, sizes: Sequence[int]) -> Rows:
    """Put tables one after another; each graph's part of the index moves with its table."""
    rows = [len(each) for each in values]
    if sum(rows) > MOST:
        got = f"the tables of pull '{name}' have {sum(rows)} rows together"
        raise PullError.at("graph batch", got, f"at most {MOST}", "let graphs share a table")
    before = np.repeat(np.cumsum([0, *rows[:-1]]), sizes)
    moved = np.where(index >= 0, index + before, -1)
    return rows_unchecked(own(np.concatenate(values), values[0].dtype), own(moved, INT32))


def _missing(
    what: str, number: int, first: Mapping[str, object], other: Mapping[str, object]
) -> PullError:
    lacking = [name for name in first if name not in other]
    if lacking:
        got, have = f"no pull '{lacking[0]}'", f"{what} 0 has it"
    else:
        extra = next(name for name in other if name not in first)
        got, have = f"a pull '{extra}'", f"{what} 0 has none"
    return PullError.at(f"{what} {number}", got, have, f"give every {what} the same pulls")


def _form(value: PullValue) -> tuple[object, ...]:
    """Return what must agree between graphs; rows of a table that has an index may differ."""
    if isinstance(value, Rows):
        return value.table.dtype, value.table.shape[1:], value.index is None
    return value.dtype, value.shape[1:]


def _form_text(value: PullValue) -> str:
    values = value.table if isinstance(value, Rows) else value
    shape = "".join(f", {n}" for n in values.shape[1:])
    if not isinstance(value, Rows):
        return f"{values.dtype} [V{shape}]"
    return f"{values.dtype} [N{shape}] {'without' if value.index is None else 'with'} an index"


def _check_plain(has: str, given: Any, of: tuple[int, str], where: str) -> PullValue:
    array, (count, each) = _numbers(has, given, where), of
    if array.ndim == 0 or len(array) != count:
        expected = f"[{count}, ...], one row {'an' if each == 'edge' else 'a'} {each}"
        raise _misfit(where, f"{has} {shape_of(array)}", expected)
    if array.dtype.kind == "i":
        if array.ndim != 1:
            got = f"{has} whole numbers of shape {shape_of(array)}"
            raise _misfit(where, got, f"[{count}]")
        _check_lowest(has, array, each, where)
    return array


def _check_pulled(has: str, given: Rows, of: tuple[int, str], where: str) -> Rows:
    """Check how many vertices (or edges) it is for; the rest was checked when it was made."""
    (count, each), index = of, held_index(given)
    if index is None:
        if len(held_table(given)) != count:
            got = f"{has} a table of shape {shape_of(given.table)} without an index"
            expected = f"[{count}, ...], one row {'an' if each == 'edge' else 'a'} {each}"
            raise _misfit(where, got, expected)
    elif len(index) != count:
        got = f"{has} an index int32 {shape_of(index)}"
        raise _misfit(where, got, f"whole numbers [{count}]")
    return given


def _own_table(given: Any) -> Array:
    """Return a read-only table: a copy, or one that was made before of the same."""
    held = _copies.get(id(given))
    if held is not None:
        array = read_array(given)
        if isinstance(array, np.ndarray) and _same_bits(array, held):
            return held
    values = _numbers("", given, "Rows")
    if values.ndim == 0:
        raise _misfit("Rows", "a table of shape []", "[N, ...], one row a value")
    if values.dtype.kind == "i":
        if values.ndim != 1:
            raise _misfit("Rows", f"whole numbers of shape {shape_of(values)}", "[N]")
        _check_lowest("", values, "row", "Rows")
    if not isinstance(given, np.ndarray) or not same_memory(given, values):
        _copies[id(given)] = values
    return values


def _same_bits(array: Array, held: Array) -> bool:
    if array.dtype != held.dtype or array.shape != held.shape:
        return False
    bits = f"i{held.dtype.itemsize}"  # a NaN equals itself
    return np.array_equal(array.view(bits), held.view(bits))


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


def _check_lowest(has: str, array: Array, at: str, where: str) -> None:
    if int(array.min(initial=0)) < -1:
        number = int(np.argmin(array))
        expected = f"at least 0, or -1 where the {at} has none"
        raise _misfit(where, f"{has} {array.flat[number]} at {at} {number}", expected)


def _numbers(has: str, given: Any, where: str) -> Array:
    """Return int32, float32 or float64, read-only."""
    array = read_array(given)
    owned = array if isinstance(array, str) else own_numbers(array)
    if isinstance(owned, str):
        raise _misfit(where, f"{has} {owned}", _NUMBERS)
    return owned


def _misfit(where: str, got: str, expected: str) -> PullError:
    return PullError.at(where, got.strip(), f"expected {expected}", "correct the array")
