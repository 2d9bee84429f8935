"""The gradients of a shared step as flat arrays: the dense part, then rows of tables.

Which rows those are, all processes know: what the whole batch looks up. So arrays of all processes
have one length, and are added up as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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


@compiled
def packed_starts(widths: Array, dense: int) -> Array:
    """Return where each of some rows begins when packed after the dense part: int64."""
    found, at = np.empty(len(widths), np.int64), dense
    for k in range(len(widths)):
        found[k] = at
        at += widths[k]
    return found


def sample_stride(parameters: int) -> int:
    """Return the distance of the parameters that processes compare."""
    return max(1, parameters // SAMPLE)
