"""The gradients of a shared step as flat arrays: the dense part, then rows of tables.

Which rows those are, all processes know: what the whole batch looks up. So arrays of all processes
have one length, and are added up as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.engine.executor import Executor
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Touched
from vertexrt.native.compiled import compiled
from vertexrt.parallel.communicator import Communicator
from vertexrt.parallel.sums import HostArrays

Array = np.ndarray[Any, Any]

SAMPLE = 4096  # parameters that processes compare in each step


class PackedGradients(HostArrays):
    """Packed in the host's memory, from where a group sends them.

    Args:
        rows: the rows of sparse parameters that the batch looks up.
    """

    def __init__(self, executor: Executor, communicator: Communicator, rows: Touched) -> None:
        super().__init__(communicator)
        self._executor, self._store, self._rows = executor, executor.model.store, rows

    def pack(self, touched: Sequence[Touched]) -> Array:
        """Return a copy of the gradients that a launch has left: the dense part, rows of tables.

        Args:
            touched: what `Executor.begin_gradients` returned.
        """
        store = self._store
        self._executor.collect_gradients(touched)
        tables = (store.gradient(name)[own].reshape(-1) for name, own in self._rows.items())
        return np.concatenate([store.gradients[: store.dense_size], *tables])

    def zeros(self) -> Array:
        """Return the gradients of a share without a graph."""
        return np.zeros(packed_size(self._store, self._rows), self._store.dtype)

    def unpack(self, total: Array) -> None:
        """Put the sum of all back into the store, whose update reads it."""
        store = self._store
        store.zero_gradients()
        store.gradients[: store.dense_size] = total[: store.dense_size]
        at = store.dense_size
        for name, own in self._rows.items():
            shape = (len(own), *store.shapes[name][1:])
            end = at + math.prod(shape)
            store.gradient(name)[own] = total[at:end].reshape(shape)
            store.touched[name] = own
            at = end


def packed_size(store: ParameterStore, rows: Touched) -> int:
    """Return the elements of packed gradients."""
    return store.dense_size + sum(
        len(own) * math.prod(store.shapes[name][1:]) for name, own in rows.items()
    )


class PackedRows(NamedTuple):
    """Where rows of tables are in the store, and in an array that they are packed in.

    Attributes:
        memory: int64 [*], of what follows: starts, packed: int64 [rows], first elements; widths:
            int32 [rows].
        tables: starts and widths by table.
        size: elements of a packed array.
    """

    memory: Array
    starts: Array
    packed: Array
    widths: Array
    tables: dict[str, tuple[Array, Array]]
    size: int


def packed_rows(store: ParameterStore, rows: Touched, align: int) -> PackedRows:
    """List rows of tables, which are packed after the dense part.

    Args:
        align: elements; the first row begins at a multiple.
    """
    count = sum([len(own) for own in rows.values()])
    memory = np.empty(2 * count + (count + 1) // 2, np.int64)
    starts, packed = memory[:count], memory[count : 2 * count]
    widths = memory[2 * count :].view(np.int32)[:count]
    tables, first, at = {}, 0, -(-store.dense_size // align) * align
    for name, own in rows.items():
        part = slice(first, first + len(own))
        width = math.prod(store.shapes[name][1:])
        given = own, store.offsets[name], width, at
        at = _write_ranges(*given, starts[part], packed[part], widths[part])
        tables[name], first = (starts[part], widths[part]), part.stop
    return PackedRows(memory, starts, packed, widths, tables, at)


@compiled
def _write_ranges(
    rows: Array, offset: int, width: int, at: int, starts: Array, packed: Array, widths: Array
) -> int:
    """Write where rows of a table are, packed from an element on; return where they end."""
    for k in range(len(rows)):
        starts[k] = offset + rows[k] * width
        packed[k] = at
        widths[k] = width
        at += width
    return at


def sample_stride(parameters: int) -> int:
    """Return the distance of the parameters that processes compare."""
    return max(1, parameters // SAMPLE)
