"""What batches have in common that differ in real pulls alone: all that decides how they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vertexrt.graph.pulls import IntArray, PullValue, Rows, held_index, held_table, in_order


class BatchForm:
    """Graphs, whole numbers and index maps, known by the object alone.

    Attributes:
        seen: by whom, and for what, a batch of it was prepared.
    """

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: set[object] = set()


def form_with(
    form: BatchForm, held: Mapping[str, PullValue], new: Mapping[str, PullValue]
) -> BatchForm:
    """Return the form of a batch that has some pulls in addition, or in place of others."""
    alike = all(_same_places(held.get(name), value) for name, value in new.items())
    return form if alike else BatchForm()


def _same_places(old: PullValue | None, new: PullValue) -> bool:
    """Tell whether vertices pull real numbers from the places from which they pulled others.

    Args:
        old: None, where they pulled none; those that come in addition are a row for each vertex.
    """
    table, index = _parts_of(new)
    before, places = (table, in_order(len(table))) if old is None else _parts_of(old)
    return table.dtype.kind == before.dtype.kind == "f" and index is places


def _parts_of(value: PullValue) -> tuple[Any, IntArray]:
    """Return the numbers of a pull, and which of them each vertex has."""
    table = held_table(value) if isinstance(value, Rows) else value
    index = held_index(value) if isinstance(value, Rows) else None
    return table, in_order(len(table)) if index is None else index
