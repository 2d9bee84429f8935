"""The gradients of a shared step as flat arrays: the dense part, then rows of tables.

Which rows those are, all processes know: what the whole batch looks up. So arrays of all processes
have one length, and are added up as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import Outcome, Touched, Update
from vertexrt.parallel.group import ProcessGroup
from vertexrt.parallel.sums import FlatArrays, HostArrays

Array = np.ndarray[Any, Any]

SAMPLE = 4096  # parameters that processes compare before each step


class PackedGradients(FlatArrays, Protocol):
    """Packed gradients of a step, where they are added up.

    Attributes:
        kept: an update that was refused has left them in the store.
    """

    kept: bool

    def sample(self) -> Array:
        """Return some of the parameters."""

    def pack(self, touched: Sequence[Touched]) -> Any:
        """Return a copy of the gradients that a launch has left.

        Args:
            touched: what `Executor.begin_gradients` returned.
        """

    def zeros(self) -> Any:
        """Return the gradients of a share without a graph."""

    def unpack(self, total: Any) -> None:
        """Give the update the sum of all; it is there when this returns.

        Raises: ParallelError, when a process is lost.
        """

    def update(self, update: Update) -> Outcome:
        """Update by the sum: see `Executor`."""


class UpdatesByHost(Protocol):
    """What brings gradients to the host, and updates by those: an executor."""

    def collect_gradients(self, touched: Sequence[Touched]) -> None:
        """See `Executor`."""

    def update(self, update: Update) -> Outcome:
        """See `Executor`."""


class HostGradients(HostArrays):
    """Packed in the host's memory, where the group sends them from.

    Args:
        rows: the rows of sparse parameters that the batch looks up.
    """

    kept = True

    def __init__(
        self, executor: UpdatesByHost, store: ParameterStore, group: ProcessGroup, rows: Touched
    ) -> None:
        super().__init__(group.communicator)
        self._executor, self._store, self._rows = executor, store, rows

    def sample(self) -> Array:
        """Return every so many-th parameter."""
        return self._store.values[:: sample_stride(self._store)]

    def update(self, update: Update) -> Outcome:
        """Let the executor take them from the store."""
        return self._executor.update(update)

    def pack(self, touched: Sequence[Touched]) -> Array:
        """Copy the dense part, and rows of tables."""
        store = self._store
        self._executor.collect_gradients(touched)
        tables = (store.gradient(name)[own].reshape(-1) for name, own in self._rows.items())
        return np.concatenate([store.gradients[: store.dense_size], *tables])

    def zeros(self) -> Array:
        """Return as many zeros."""
        return np.zeros(packed_size(self._store, self._rows), self._store.dtype)

    def unpack(self, total: Array) -> None:
        """Put them back into the store."""
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


def sample_stride(store: ParameterStore) -> int:
    """Return the distance of the parameters that processes compare."""
    return max(1, store.values.size // SAMPLE)
