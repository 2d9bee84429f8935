"""A small vertex function, and what it computes: vertex by vertex in NumPy, without vertexrt.

The evaluation reads plain arrays as they were given, and says itself which of them are a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import vertexrt as vrt

WORDS, CLASSES, HIDDEN, MARK = 7, 3, 3, 2
SLOTS = (1.0, 0.5)  # weights of the two slots
Array = np.ndarray[Any, Any]


class Small(vrt.VertexFunction):
    """Tree network: two slots of different weight, or the sum over any number of children."""

    def __init__(self, slots: bool) -> None:
        super().__init__(arity=len(SLOTS) if slots else None, state={"h": HIDDEN})
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
        out = self.push("out", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(out, self.pull("label")))


class Invalid(Exception):
    """What was given is no batch, or not one of this function."""


class RowParts(NamedTuple):
    """What `vrt.Rows` are made of."""

    table: Any
    index: Any = None


@dataclass
class Given:
    """What a batch is made of: a pull is an array or `RowParts`."""

    graph_ptr: Any
    child_ptr: Any
    child: Any
    pulls: Any


@dataclass
class Result:
    """Pushes, and gradients of parameters and real pulls, by name."""

    out: Array
    loss: Array
    gradients: dict[str, Array]


@dataclass
class Table:
    """A pull as the evaluation reads it: the row of each vertex, -1 for none."""

    values: Array
    rows: list[int]
    mapped: bool  # through an index, so that taking graphs leaves the table


def whole(array: Any) -> list[int]:
    """Return whole numbers of one axis."""
    if not isinstance(array, np.ndarray) or array.ndim != 1:
        raise Invalid("not in one row")
    if array.size and array.dtype.kind not in "iu":
        raise Invalid("no whole numbers")
    if any(not -(2**31) <= number < 2**31 for number in array.tolist()):
        raise Invalid("beyond 32 bits")
    return [int(number) for number in array.tolist()]


def read_structure(given: Given) -> list[list[int]]:
    """Return the child list of each vertex, or raise Invalid."""
    ends, slots, child = (whole(a) for a in (given.graph_ptr, given.child_ptr, given.child))
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
    list(in_order(lists))
    return lists


def in_order(lists: list[list[int]]) -> Iterator[int]:
    """Yield the vertices, children first; raise Invalid on a cycle."""
    state = [0] * len(lists)  # 1: its children are under way, 2: done
    for root in range(len(lists)):
        path = [root]
        while path:
            v = path[-1]
            if state[v] == 2:
                path.pop()
                continue
            below = [c for c in lists[v] if c >= 0 and state[c] != 2]
            if state[v] and any(state[c] == 1 for c in below):
                raise Invalid("cycle")
            state[v] = 1
            if below:
                path += below
                if any(state[c] == 1 for c in below):
                    raise Invalid("cycle")
            else:
                state[v] = 2
                path.pop()
                yield v


def read_pull(value: Any, size: int, real: bool) -> Table:
    """Read an array, or a table with an index; or raise Invalid."""
    table, index = value if isinstance(value, RowParts) else (value, None)
    if not isinstance(table, np.ndarray) or table.ndim == 0:
        raise Invalid("no table")
    if real and (table.dtype.kind != "f" or table.dtype.itemsize not in (4, 8)):
        raise Invalid("no floats")
    if not real and min(whole(table), default=0) < -1:
        raise Invalid("below -1")
    if index is None:
        if len(table) != size:
            raise Invalid("length")
        return Table(table, list(range(size)), False)
    rows = whole(index) if len(np.shape(index)) == 1 and index.dtype.kind in "iu" else None
    if rows is None or len(rows) != size or any(not -1 <= row < len(table) for row in rows):
        raise Invalid("index")
    return Table(table, rows, True)


def read_pulls(given: Given, size: int) -> dict[str, Table]:
    """Return tables and rows of all pulls, those of other names too; or raise Invalid."""
    if not isinstance(given.pulls, Mapping):
        raise Invalid("no mapping")
    found = {}
    for name, value in given.pulls.items():
        if not isinstance(name, str):
            raise Invalid("name")
        table = value.table if isinstance(value, RowParts) else value
        real = isinstance(table, np.ndarray) and table.dtype.kind == "f"
        found[name] = read_pull(value, size, real)
    return found


def evaluate(
    lists: list[list[int]],
    pulls: Mapping[str, Table],
    parameters: Mapping[str, Array],
    slots: bool,
    dtype: Any,
    d_out: Array,
) -> Result:
    """Evaluate the function, and the gradient of sum(out * d_out); raise Invalid, if it cannot be.

    Args:
        d_out: [V, CLASSES], the gradient of `out`.
    """
    size = len(lists)
    words, labels = (_numbers(pulls, name, most) for name, most in _BOUNDS)
    mark, mark_rows = _floats(pulls, "mark", (MARK,), dtype)
    gain, gain_rows = _floats(pulls, "gain", (), dtype)
    if slots and any(c >= 0 for below in lists for c in below[len(SLOTS) :]):
        raise Invalid("too many children")
    weights = [SLOTS if slots else (1.0,) * len(below) for below in lists]
    p = {name: np.asarray(value, np.float64) for name, value in parameters.items()}
    h, below = np.zeros((size, HIDDEN)), np.zeros((size, HIDDEN))
    order = list(in_order(lists))
    for v in order:
        for c, w in zip(lists[v], weights[v], strict=False):
            if c >= 0:
                below[v] += w * h[c]
        x = p["a"] @ below[v]
        if words[v] >= 0:
            x = x + p["e"][words[v]]
        if mark_rows[v] >= 0:
            x = x + p["u"] @ mark[mark_rows[v]]
        if gain_rows[v] >= 0:
            x = x + gain[gain_rows[v]] * p["b"]
        h[v] = np.tanh(x)
    out = h @ p["v"].T
    loss = np.array([_loss(row, label) for row, label in zip(out, labels, strict=True)])
    d = {name: np.zeros_like(value) for name, value in p.items()}
    d |= {"mark": np.zeros_like(mark), "gain": np.zeros_like(gain)}
    d_h = d_out @ p["v"]
    d["v"] = d_out.T @ h
    for v in reversed(order):
        d_x = d_h[v] * (1 - h[v] ** 2)
        for c, w in zip(lists[v], weights[v], strict=False):
            if c >= 0:
                d_h[c] += w * (p["a"].T @ d_x)
        d["a"] += np.outer(d_x, below[v])
        if words[v] >= 0:
            d["e"][words[v]] += d_x
        if mark_rows[v] >= 0:
            d["u"] += np.outer(d_x, mark[mark_rows[v]])
            d["mark"][mark_rows[v]] += p["u"].T @ d_x
        if gain_rows[v] >= 0:
            d["b"] += d_x * gain[gain_rows[v]]
            d["gain"][gain_rows[v]] += p["b"] @ d_x
    return Result(out, loss, d)


_BOUNDS = (("word", WORDS), ("label", CLASSES))


def _numbers(pulls: Mapping[str, Table], name: str, most: int) -> list[int]:
    if name not in pulls:
        raise Invalid(name)
    table, rows = pulls[name].values, pulls[name].rows
    if table.ndim != 1 or table.dtype.kind not in "iu":
        raise Invalid(name)
    found = [int(table[row]) if row >= 0 else -1 for row in rows]
    if max(found, default=-1) >= most:
        raise Invalid(f"{name} out of bounds")
    return found


def _floats(
    pulls: Mapping[str, Table], name: str, shape: tuple[int, ...], dtype: Any
) -> tuple[Array, list[int]]:
    table = pulls[name].values if name in pulls else None
    if table is None or table.dtype.kind != "f" or table.shape[1:] != shape:
        raise Invalid(name)
    return table.astype(dtype).astype(np.float64), pulls[name].rows


def _loss(out: Array, label: int) -> float:
    if label < 0:
        return 0.0
    high = out.max()
    return float(np.log(np.exp(out - high).sum()) + high - out[label])
