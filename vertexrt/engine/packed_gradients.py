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
        store = self._store
        shapes = [(len(own), *store.shapes[name][1:]) for name, own in self._rows.items()]
        return np.zeros(store.dense_size + sum(map(math.prod, shapes)), store.dtype)

    def unpack(self, total: Array) -> None:
        """Put the sum of all back into the store, whose update reads it."""
        store = self._store
        store.zero_gradients()
        store.gradients[: store.dense_size] = total[: store.dense_size]
        at = store.dense_size
        for name, own in self._rows.items():
            shape = (len(own), *store.shapes[name][1:])
            end = at + math.prod(shape)
            store.touched[name] = own
            store.gradient(name)[own] = total[at:end].reshape(shape)
            at = end


class PackedRows(NamedTuple):
    """Where rows of tables are in the store, and in an array that they are packed in.

    Attributes:
        memory: int64 [*]: the first elements of all rows, the same when packed, and then as int32
            their widths.
        rows: how many; by_table: of each.
        size: elements of a packed array.
    """

    memory: Array
    rows: int
    by_table: dict[str, int]
    size: int

    def tables(self, apart: bool) -> dict[str, tuple[Array, Array]]:
        """Return the first elements of rows, and their widths, by table.

        Args:
            apart: else those of all tables as if they were one.
        """
        found, first = {}, 0
        starts, widths = self.memory, self.memory[2 * self.rows :].view(np.int32)
        for name, count in (self.by_table if apart else {"": self.rows}).items():
            part = slice(first, first + count)
            found[name], first = (starts[part], widths[part]), part.stop
        return found


def packed_rows(store: ParameterStore, rows: Touched) -> PackedRows:
    """List rows of tables, which are packed after the dense part."""
    by_table = {name: len(own) for name, own in rows.items()}
    count = sum(by_table.values())
    memory = np.empty(2 * count + (count + 1) // 2, np.int64)
    first, at = 0, store.dense_size
    for name, own in rows.items():
        width = math.prod(store.shapes[name][1:])
        at = _write_ranges(memory, count, first, own, store.offsets[name], width, at)
        first += len(own)
    return PackedRows(memory, count, by_table, at)


@compiled
def _write_ranges(
    memory: Array, count: int, first: int, rows: Array, offset: int, width: int, at: int
) -> int:
    """Write rows of a table from number `first` on, see `PackedRows`; return where they end.

    Args:
        count: of the rows of all tables; at: element where those of this one are packed.
    """
    packed, widths = memory[count + first :], memory[2 * count :].view(np.int32)[first:]
    for k in range(len(rows)):
        memory[first + k] = offset + rows[k] * width
        packed[k] = at
        widths[k] = width
        at += width
    return at


def sample_stride(parameters: int) -> int:
    """Return the distance of the parameters that processes compare."""
    return max(1, parameters // SAMPLE)
