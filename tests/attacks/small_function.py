"""A small vertex function, and which arrays are a batch of it: told without vertexrt.

Arrays are read as they were given, and written anew as a plain batch.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any

import numpy as np

import vertexrt as vrt

WORDS, CLASSES, HIDDEN, MARK = 7, 3, 3, 2
SLOTS = (1.0, 0.5)  # weights of the two slots
FIELDS = ("graph_ptr", "child_ptr", "child")
Array = np.ndarray[Any, Any]
# What a batch is made of: its fields, its pulls by name, and as `NAME index` the index of a table.
Given = dict[Any, Any]
Lists = list[list[int]]
Pulls = dict[str, tuple[Array, list[int] | None]]  # tables, and their row of each vertex, or none


class Small(vrt.VertexFunction):
    """Tree network: two slots of different weight, or the sum over any number of children.

    Args:
        dropped: share of `out` that training drops.
    """

    def __init__(self, slots: bool = True, dropped: float = 0.0) -> None:
        super().__init__(arity=len(SLOTS) if slots else None, state={"h": HIDDEN})
        self.dropped = dropped
        self.e = vrt.Parameter((WORDS, HIDDEN))
        self.a = vrt.Parameter((HIDDEN, HIDDEN))
        self.u = vrt.Parameter((HIDDEN, MARK))
        self.b = vrt.Parameter((HIDDEN,))
        self.v = vrt.Parameter((CLASSES, HIDDEN))

    def forward(self) -> None:
        if self.arity is None:
            below = vrt.sum(self.gather_all().h)
        else:
            below = sum(w * self.gather(k).h for k, w in enumerate(SLOTS))
        x = vrt.embed(self.e, self.pull("word")) + self.u @ self.pull("mark", shape=(MARK,))
        h = vrt.tanh(x + self.a @ below + self.pull("gain") * self.b)
        self.scatter(h=h)
        h = vrt.random.dropout(h, self.dropped) if self.dropped else h
        out = self.push("out", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(out, self.pull("label")))


class Invalid(Exception):
    """What was given is no batch, or not one of this function."""


def pulled(given: Given) -> list[Any]:
    """Return the names of the pulls."""
    return [name for name in given if name not in FIELDS and not f"{name}".endswith(" index")]


def pulls_of(given: Given) -> dict[Any, Any]:
    """Make the pulls of a batch."""
    found = {name: given[name] for name in pulled(given)}
    tables = {name: given[f"{name} index"] for name in found if f"{name} index" in given}
    return found | {name: vrt.Rows(found[name], index) for name, index in tables.items()}


def whole(array: Any) -> list[int]:
    """Return whole numbers of one axis."""
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise Invalid("not in one row")
    if array.size and array.dtype.kind not in "iu":
        raise Invalid("no whole numbers")
    if any(not -(2**31) <= number < 2**31 for number in array.tolist()):
        raise Invalid("beyond 32 bits")
    return [int(number) for number in array.tolist()]


def read(given: Given) -> tuple[list[int], Lists, Pulls]:
    """Return the ends of graphs, the children of vertices and the pulls; or raise Invalid."""
    ends, slots, child = (whole(given[name]) for name in FIELDS)
    for offsets, total in ((ends, len(slots) - 1), (slots, len(child))):
        if not offsets or offsets[0] != 0 or offsets[-1] != total or offsets != sorted(offsets):
            raise Invalid("offsets")
    if len(ends) < 2 or any(a == b for a, b in pairwise(ends)):
        raise Invalid("no vertices")
    lists = []
    for first, end in pairwise(ends):
        for v in range(first, end):
            lists.append(child[slots[v] : slots[v + 1]])
            if any(c != -1 and not first <= c < end for c in lists[-1]):
                raise Invalid("child")
    below = {v: [c for c in each if c >= 0] for v, each in enumerate(lists)}
    try:
        TopologicalSorter(below).prepare()
    except CycleError:
        raise Invalid("cycle") from None
    return ends, lists, {name: _pull(given, name, len(lists)) for name in pulled(given)}


def _pull(given: Given, name: Any, size: int) -> tuple[Array, list[int] | None]:
    table, index = given[name], given.get(f"{name} index")
    if not isinstance(name, str) or not isinstance(table, np.ndarray) or table.ndim == 0:
        raise Invalid("no table")
    if table.dtype.kind == "f" and table.dtype.itemsize not in (4, 8):
        raise Invalid("no floats")
    if table.dtype.kind != "f" and min(whole(table), default=0) < -1:
        raise Invalid("below -1")
    if index is None:
        if len(table) != size:
            raise Invalid("length")
        return table, None
    rows = whole(index)
    wrong = index.dtype.kind not in "iu" or len(rows) != size
    if wrong or any(not -1 <= row < len(table) for row in rows):
        raise Invalid("index")
    return table, rows


def taken(ends: list[int], lists: Lists, pulls: Pulls, ids: Any) -> tuple[Lists, Pulls]:
    """Return the children and pulls of the graphs that are named; or raise Invalid."""
    chosen = whole(ids)
    if not chosen or ids.dtype.kind not in "iu" or any(not 0 <= k < len(ends) - 1 for k in chosen):
        raise Invalid("ids")
    order: list[int] = []
    out: Lists = []
    for k in chosen:
        move = len(order) - ends[k]
        order += range(ends[k], ends[k + 1])
        for below in lists[ends[k] : ends[k + 1]]:
            out.append([c + move if c >= 0 else -1 for c in below])
    found: Pulls = {
        name: (table[order], None) if rows is None else (table, [rows[v] for v in order])
        for name, (table, rows) in pulls.items()
    }
    return out, found


def plain(lists: Lists, pulls: Pulls, slots: bool) -> vrt.GraphBatch:
    """Return a batch of one graph, made of plain lists and arrays.

    Args:
        slots: whether the function has two slots, or any number of children.

    Raises: Invalid, where the function cannot be evaluated on it.
    """
    read = {name: pulls[name] for name in ("word", "label", "mark", "gain") if name in pulls}
    for name, most in (("word", WORDS), ("label", CLASSES)):
        table, rows = read.get(name, (np.zeros(0), None))
        if table.ndim != 1 or table.dtype.kind not in "iu":
            raise Invalid(name)
        numbers = table if rows is None else table[[row for row in rows if row >= 0]]
        if max(numbers, default=-1) >= most:
            raise Invalid(f"{name} out of bounds")
    for name, shape in (("mark", (MARK,)), ("gain", ())):
        table, _ = read.get(name, (np.zeros(0, int), None))
        if table.dtype.kind != "f" or table.shape[1:] != shape:
            raise Invalid(name)
    if slots and any(c >= 0 for below in lists for c in below[len(SLOTS) :]):
        raise Invalid("too many children")
    made: dict[str, Any] = {}
    for name, (given, rows) in read.items():  # NumPy converts them here, not the batch
        table = np.array(given, np.float64 if given.dtype.kind == "f" else np.int32, order="C")
        made[name] = table if rows is None else vrt.Rows(table, rows)
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(lists, made)])
