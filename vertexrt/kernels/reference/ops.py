"""One NumPy function for each op of the table: rows in, rows out.

Values are [n, size], one row a vertex (or edge), each vertex's own shape laid flat. A `Frame` holds
what the leaves of one launch read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.ir.numpy_arithmetic import dropout_factors, evaluate_arrays
from vertexrt.ir.ops import OPS
from vertexrt.ir.program import Domain, Node
from vertexrt.kernels.layout import Array, Binding, Buffers, edge_key


@dataclass(slots=True)
class Frame:
    """One launch: its rows and edges, and the arrays of the run.

    Attributes:
        rows: [n] execution rows.
        edges: [m] their edges; owner: [m] position in `rows` of each edge's parent.
        tensor: number of a tensor and its row size -> the whole tensor as seen from row 0.
    """

    binding: Binding
    buffers: Buffers
    rows: Array
    edges: Array
    owner: Array

    def read(self, tensor: int, size: int, rows: Array) -> Array:
        """Return rows of a tensor, [len(rows), size]."""
        at = self.buffers.base[tensor] + rows.astype(np.int64) * size
        return np.asarray(self.buffers.arena[at[:, None] + np.arange(size)])

    def write(self, tensor: int, size: int, rows: Array, value: Array) -> None:
        """Set rows of a tensor."""
        at = self.buffers.base[tensor] + rows.astype(np.int64) * size
        self.buffers.arena[at[:, None] + np.arange(size)] = value

    def all_rows(self, value: Array, domain: Domain) -> Array:
        """Repeat what is equal for all rows (or edges) of the launch in each of them."""
        if domain == Domain.PARAM:
            return value
        count = len(self.edges) if domain == Domain.EDGE else len(self.rows)
        return np.broadcast_to(value, (count, value.shape[1])) if len(value) == 1 else value

    def weight(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return a parameter, or a stack of them, in a shape."""
        at = self.buffers.param_at[self.binding.params[name]]
        return self.buffers.params[at : at + int(np.prod(shape))].reshape(shape)

    def gradient(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return the live gradient of a parameter."""
        at = self.buffers.param_at[self.binding.params[name]]
        return self.buffers.gradients[at : at + int(np.prod(shape))].reshape(shape)

    @property
    def vertices(self) -> Array:
        """Return the user's numbers of the rows."""
        return np.asarray(self.buffers.schedule.order[self.rows])


def _dropout_factor(frame: Frame, node: Node) -> Array:
    counter = frame.buffers.user_vertex[frame.vertices]
    if node.type.domain == Domain.EDGE:
        first = frame.buffers.schedule.edge_ptr[frame.rows]
        edge = frame.buffers.user_edge[frame.vertices[frame.owner]]
        counter = edge + frame.edges - first[frame.owner]
    elements = np.arange(max(node.type.size, 1))
    return dropout_factors(frame.buffers.random_seed, node["key"], node["p"], counter, elements)


def scalar(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Evaluate an elementwise op by its expression in the table."""
    expression = OPS[node.op].scalar
    assert expression is not None
    names: dict[str, Any] = {f"x{k}": value for k, value in enumerate(x)}
    if "keep" in expression:
        names["keep"] = _dropout_factor(frame, node).astype(x[0].dtype)
    return np.asarray(evaluate_arrays(expression, names))


# Leaves.


def _count(frame: Frame, node: Node) -> int:
    return len(frame.edges) if node.type.domain == Domain.EDGE else len(frame.rows)


def child_rows(frame: Frame, slot: int) -> Array:
    """Return the row of the child in a slot, -1 where there is none."""
    first = frame.buffers.schedule.edge_ptr[frame.rows]
    end = frame.buffers.schedule.edge_ptr[frame.rows + 1]
    has = first + slot < end
    return (
        np.where(has, frame.buffers.schedule.child_row[np.where(has, first + slot, 0)], -1)
        if len(frame.buffers.schedule.child_row)
        else np.full(len(frame.rows), -1)
    )


def _state_rows(frame: Frame, node: Node, child: Array) -> Array:
    value = np.zeros((len(child), node.type.size), frame.buffers.arena.dtype)
    has = child >= 0
    tensor = frame.binding.tensors["state", node["field"]]
    value[has] = frame.read(tensor, node.type.size, child[has])
    return value


def const(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return one row with the constant in every element."""
    return np.full((1, max(node.type.size, 1)), node["value"])


def param(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return a parameter as one row."""
    return frame.weight(node["name"], (1, max(node.type.size, 1)))


def pull(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the vertices' rows of a pulled array, zeros where absent; integers as they are."""
    name = node["name"]
    if node.type.dtype == "int":
        return np.asarray(frame.buffers.ints[frame.binding.ints[name], frame.vertices][:, None])
    number = frame.binding.floats[name]
    index = frame.buffers.float_index[number][frame.vertices]
    table = frame.buffers.floats[number].reshape(-1, max(node.type.size, 1))
    return np.where(index[:, None] >= 0, table[np.maximum(index, 0)], 0.0)


def gather(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the state of the child in a slot, zeros where it is absent."""
    return _state_rows(frame, node, child_rows(frame, node["slot"]))


def gather_all(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the state of the child of every edge, zeros for an empty slot."""
    return _state_rows(frame, node, frame.buffers.schedule.child_row[frame.edges])


def present(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return 1 where the slot holds a child, else 0."""
    return (child_rows(frame, node["slot"]) >= 0).astype(float)[:, None]


def has_pull(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return 1 where the vertex pulls a value, else 0."""
    name, b = node["name"], frame.buffers
    if name in frame.binding.ints:
        index = b.ints[frame.binding.ints[name]]
    else:
        index = b.float_index[frame.binding.floats[name]]
    return np.asarray(index[frame.vertices] >= 0, float)[:, None]


def degree(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the number of children, at least 1."""
    has = frame.buffers.schedule.child_row[frame.edges] >= 0
    return np.maximum(np.bincount(frame.owner, has, len(frame.rows)), 1.0)[:, None]


def has_child(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return 1 where the slot of an edge holds a child, else 0."""
    return (frame.buffers.schedule.child_row[frame.edges] >= 0).astype(float)[:, None]


def loss_scale(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the factor on the loss."""
    return np.full((1, 1), frame.buffers.loss_scale)


def weight(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """How many of the user's vertices each row stands for."""
    return np.asarray(frame.buffers.schedule.weight[frame.rows][:, None])


def seed(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the gradient that the user gave for a push."""
    table = frame.buffers.seeds[frame.binding.seeds[node["name"]]]
    return table.reshape(-1, max(node.type.size, 1))[frame.vertices]


def gather_parents(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Sum what the parents left on the edges that lead to each vertex, edges ascending."""
    b, size = frame.buffers, node.type.size
    first, end = b.schedule.parent_ptr[frame.rows], b.schedule.parent_ptr[frame.rows + 1]
    owner = np.repeat(np.arange(len(frame.rows)), end - first)
    edges = np.concatenate(
        [b.schedule.parent_edge[lo:hi] for lo, hi in zip(first, end, strict=True)] or [first[:0]]
    )
    total = np.zeros((len(frame.rows), size))
    for every in (False, True):
        if node["every" if every else "slots"]:
            tensor = frame.binding.tensors[edge_key(node["field"], every)]
            np.add.at(total, owner, frame.read(tensor, size, edges))
    return total.astype(b.arena.dtype)


# Views and reductions of rows.


def slice_(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return some elements of each row."""
    return x[0][:, node["start"] : node["start"] + max(node.type.size, 1)]


def concat(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Join the operands, row by row."""
    n = _count(frame, node)
    return np.concatenate([np.broadcast_to(part, (n, part.shape[1])) for part in x], axis=1)


def spread(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Repeat a number in every element of a row."""
    return np.broadcast_to(x[0], (len(x[0]), max(node.type.size, 1)))


def to_edges(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Repeat a vertex's row for each of its edges."""
    return x[0] if len(x[0]) == 1 != len(frame.rows) else x[0][frame.owner % len(x[0])]


def reduce_sum(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Sum each row."""
    return np.asarray(x[0].sum(axis=1, keepdims=True))


def reduce_max(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the largest element of each row."""
    return np.asarray(x[0].max(axis=1, keepdims=True))


def logsumexp(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return log(sum(exp(row))) without overflow."""
    top = x[0].max(axis=1, keepdims=True)
    return np.asarray(top + np.log(np.exp(x[0] - top).sum(axis=1, keepdims=True)))


def nll(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return total - logits[label], 0 where the label is absent."""
    logits, label, total = x
    picked = np.take_along_axis(logits, np.maximum(label, 0).astype(np.int64), axis=1)
    return np.where(label >= 0, total - picked, 0.0)


def nll_grad(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return d (softmax - onehot(label)), zeros where the label is absent."""
    logits, label, total, d = x
    softmax = np.exp(logits - total)
    hot = np.arange(logits.shape[1]) == label
    return np.where(label >= 0, d * (softmax - hot), 0.0)


def segment_sum(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Sum the rows of the edges of each vertex; empty slots do not count."""
    keep = frame.buffers.schedule.child_row[frame.edges] >= 0
    out = np.zeros((len(frame.rows), max(node.type.size, 1)))
    value = np.broadcast_to(x[0], (len(frame.edges), x[0].shape[1]))
    np.add.at(out, frame.owner[keep], value[keep])
    return out.astype(x[0].dtype)


def segment_max(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Return the largest over the edges of each vertex, zeros without children."""
    keep = frame.buffers.schedule.child_row[frame.edges] >= 0
    out = np.full((len(frame.rows), max(node.type.size, 1)), -np.inf, x[0].dtype)
    value = np.broadcast_to(x[0], (len(frame.edges), x[0].shape[1]))
    np.maximum.at(out, frame.owner[keep], value[keep])
    has_child = np.zeros((len(frame.rows), 1), np.bool_)
    has_child[frame.owner[keep]] = True
    return np.where(has_child, out, 0.0)


# Lookup, products, sums over all rows.


def embed(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Look up rows of a table, zeros where the index is absent."""
    table, index = x
    rows = table.reshape(-1, node.type.size)
    return np.where(index >= 0, rows[np.maximum(index[:, 0], 0)], 0.0)


def embed_grad(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Add each row to the row of the table that was looked up."""
    index, d = x
    out = np.zeros(node.type.shape)
    has = index[:, 0] >= 0
    np.add.at(out, index[has, 0], np.broadcast_to(d, (len(index), d.shape[1]))[has])
    return out.astype(d.dtype)


def matmul(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Multiply each row by a matrix, or by its transpose."""
    w = x[0]
    n = _count(frame, node)
    rows = np.broadcast_to(x[1], (n, x[1].shape[1])).reshape(
        -1, w.shape[0 if node["transpose"] else 1]
    )
    out = rows @ w if node["transpose"] else rows @ w.T
    return out.reshape(n, node.type.size)


def outer(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Sum outer products over all rows."""
    m, k = node.type.shape
    n = max(len(x[0]), len(x[1]))
    d, y = (np.broadcast_to(v, (n, v.shape[1])) for v in x)
    return np.asarray(d.reshape(-1, m).T @ y.reshape(-1, k))


def sum_rows(frame: Frame, node: Node, x: Sequence[Array]) -> Array:
    """Sum over all rows."""
    return np.asarray(x[0].sum(axis=0, keepdims=True, dtype=np.float64)).astype(x[0].dtype)


Function = Callable[[Frame, Node, Sequence[Array]], Array]

FUNCTIONS: dict[str, Function] = {
    "const": const,
    "param": param,
    "pull": pull,
    "gather": gather,
    "gather_all": gather_all,
    "present": present,
    "has_pull": has_pull,
    "degree": degree,
    "has_child": has_child,
    "loss_scale": loss_scale,
    "weight": weight,
    "seed": seed,
    "gather_parents": gather_parents,
    "slice": slice_,
    "concat": concat,
    "spread": spread,
    "to_edges": to_edges,
    "reduce_sum": reduce_sum,
    "reduce_max": reduce_max,
    "logsumexp": logsumexp,
    "nll": nll,
    "nll_grad": nll_grad,
    "segment_sum": segment_sum,
    "segment_max": segment_max,
    "embed": embed,
    "embed_grad": embed_grad,
    "matmul": matmul,
    "outer": outer,
    "sum_rows": sum_rows,
    **{name: scalar for name, row in OPS.items() if row.scalar is not None},
}
