"""Values that vertices pull from outside: checked once, joined and taken with their graphs.

A pull has one of three forms: whole numbers for each vertex (a word, a label; -1 where the vertex
has none), floats for each vertex, or rows of a table that vertices share through an index map.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import PullError, message

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.floating[Any]]

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Pulled:
    """Give vertices rows of a table through an index map.

    Attributes:
        values: float32, float64 or int32 [N, *shape], the table.
        index: int32 [V], the row that each vertex pulls, -1 where it pulls nothing; None when
            vertex i pulls row i (then N = V).
    """

    values: npt.NDArray[Any]
    index: IntArray | None = None


# Whole numbers [V], floats [V, *shape], or a table with an index map.
PullValue = npt.NDArray[Any] | Pulled


def check_pulls(
    pulls: Mapping[str, Any], num_vertices: int, where: str = "input graph"
) -> dict[str, PullValue]:
    """Return the pulls as contiguous arrays of an allowed dtype, each fit for V vertices.

    Args:
        pulls: by name; arrays, nested lists or `Pulled`.
        num_vertices: V.
        where: name for error messages.
    Returns: whole numbers as int32, floats as they are (float32 or float64).
    Raises: PullError, when a length, shape, dtype or value does not fit.
    """
    return {
        name: _check_pulled(name, value, num_vertices, where)
        if isinstance(value, Pulled)
        else _check_plain(name, value, num_vertices, where)
        for name, value in pulls.items()
    }


def join_pulls(
    pulls: Sequence[Mapping[str, PullValue]], sizes: Sequence[int]
) -> dict[str, PullValue]:
    """Join the checked pulls of several graphs, graph after graph.

    A table that all graphs share (the same array object) stays one; other tables are joined.

    Args:
        pulls: of each graph.
        sizes: vertices of each graph.
    Raises: PullError, when a graph lacks a pull that another has, or has it in another form.
    """
    first = pulls[0]
    for number, other in enumerate(pulls):
        if other.keys() != first.keys():
            raise _missing(number, first, other)
        for name, value in other.items():
            if _form(value) != _form(first[name]):
                raise PullError(
                    message(
                        f"graph {number}",
                        f"pull '{name}' is {_form(value)}",
                        f"in graph 0 it is {_form(first[name])}",
                        "give every graph the same form, shape and dtype",
                    )
                )
    return {name: _join([other[name] for other in pulls], sizes) for name in first}


def _join(parts: list[PullValue], sizes: Sequence[int]) -> PullValue:
    plain = [part for part in parts if not isinstance(part, Pulled)]
    if plain:
        return np.concatenate(plain)
    tables = [part for part in parts if isinstance(part, Pulled)]
    maps = [table.index for table in tables if table.index is not None]
    values = tables[0].values
    if not maps:
        return Pulled(np.concatenate([table.values for table in tables]))
    index = np.concatenate(maps)
    if any(table.values is not values for table in tables):
        rows = [len(table.values) for table in tables]
        before = np.repeat(np.cumsum([0, *rows[:-1]]), sizes)
        index = np.where(index >= 0, index + before, -1).astype(np.int32)
        values = np.concatenate([table.values for table in tables])
    return Pulled(values, index)


def _missing(number: int, first: Mapping[str, object], other: Mapping[str, object]) -> PullError:
    lacking = [name for name in first if name not in other]
    if lacking:
        got, have = f"no pull '{lacking[0]}'", "graph 0 has it"
    else:
        extra = next(name for name in other if name not in first)
        got, have = f"a pull '{extra}'", "graph 0 has none"
    return PullError(message(f"graph {number}", got, have, "give every graph the same pulls"))


def _form(value: PullValue) -> str:
    """Describe what must agree between graphs; rows of a table that has an index may differ."""
    values = value.values if isinstance(value, Pulled) else value
    shape = "".join(f", {n}" for n in values.shape[1:])
    if not isinstance(value, Pulled):
        return f"{values.dtype} [V{shape}]"
    return f"{values.dtype} [N{shape}] {'without' if value.index is None else 'with'} an index"


def _check_plain(name: str, given: Any, num_vertices: int, where: str) -> PullValue:
    array = _numbers(name, given, where)
    if array.ndim == 0 or len(array) != num_vertices:
        raise _misfit(name, where, _shape(array), f"[{num_vertices}, ...], one row a vertex")
    if array.dtype == np.int32:
        if array.ndim != 1:
            raise _misfit(
                name, where, f"whole numbers of shape {_shape(array)}", f"[{num_vertices}]"
            )
        lowest = int(array.min(initial=0))
        if lowest < -1:
            raise _misfit(
                name,
                where,
                f"{lowest} at vertex {int(np.argmin(array))}",
                "at least 0, or -1 where the vertex has none",
            )
    return array


def _check_pulled(name: str, given: Pulled, num_vertices: int, where: str) -> Pulled:
    values = _numbers(name, given.values, where)
    if values.ndim == 0:
        raise _misfit(name, where, "a table of shape []", "[N, ...], one row a value")
    if given.index is None:
        if len(values) != num_vertices:
            raise _misfit(
                name,
                where,
                f"a table of shape {_shape(values)} without an index",
                f"[{num_vertices}, ...], one row a vertex",
            )
        return Pulled(values)
    index = _numbers(name, given.index, where)
    if index.dtype != np.int32 or index.shape != (num_vertices,):
        raise _misfit(
            name,
            where,
            f"an index {index.dtype} {_shape(index)}",
            f"whole numbers [{num_vertices}]",
        )
    wrong = (index < -1) | (index >= len(values))
    if wrong.any():
        vertex = int(np.argmax(wrong))
        raise _misfit(
            name,
            where,
            f"row {int(index[vertex])} at vertex {vertex}",
            f"rows 0..{len(values) - 1}, or -1 where the vertex has none",
        )
    return Pulled(values, index)


def _numbers(name: str, given: Any, where: str) -> npt.NDArray[Any]:
    """Return int32, float32 or float64, contiguous and writable."""
    try:
        array = np.asarray(given)
    except ValueError as error:  # rows of unequal length
        raise _misfit(name, where, "rows of unequal length", "one shape for all") from error
    if array.dtype.kind in "iu":
        if array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
            raise _misfit(name, where, "a whole number beyond 32 bits", "int32")
        array = array.astype(np.int32, copy=False)
    elif array.dtype not in (np.float32, np.float64):
        raise _misfit(name, where, f"dtype {array.dtype}", "whole numbers, float32 or float64")
    return np.require(array, requirements=["C", "A", "W"])


def _misfit(name: str, where: str, got: str, expected: str) -> PullError:
    return PullError(
        message(where, f"pull '{name}' has {got}", f"expected {expected}", "correct the array")
    )


def _shape(array: npt.NDArray[Any]) -> str:
    return "[" + ", ".join(map(str, array.shape)) + "]"
