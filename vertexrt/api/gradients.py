"""Gradients that `Record.backward` takes, returns and adds up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from vertexrt.api.arguments import Array
from vertexrt.engine.executor import Executor
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.results import shapes_of
from vertexrt.errors import UnknownParameterError, UsageError, nearest
from vertexrt.memory.aligned import aligned_zeros
from vertexrt.native.at_once import Write, write_at_once


class AccumulatedGradients(Mapping[str, Array]):
    """Gradients of parameters, summed over backward passes since `Network.zero_grad`.

    The arrays are live: `net.gradients["w"] *= 0.5` scales one. Of a table, which is only looked up
    in, an optimizer updates the rows that the passes looked up; what is written to others rests.

    Raises: UnknownParameterError, which is a KeyError, for a name that has no gradient.
    """

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self._flat = aligned_zeros(store.trained_size, store.dtype)
        self._views = store.views(self._flat)
        self._shown: set[str] = set()  # whose arrays were handed out, so that all of it may be set
        self._passes = np.zeros(1, np.int64)
        # By the count of passes: that of the next one is written before the count is.
        self._touched_by: dict[int, dict[str, Array]] = {0: {}}

    @property
    def passes(self) -> int:
        """Those which have been added up."""
        return int(self._passes[0])

    @property
    def _touched(self) -> dict[str, Array]:
        """Rows of tables that have a gradient."""
        return self._touched_by[self.passes]

    def __getitem__(self, name: str) -> Array:
        if name not in self._views:
            got, known = f"no gradient of a parameter {name!r}", ", ".join(self._views) or "none"
            raise UnknownParameterError.at(
                "gradients",
                got,
                f"the parameters are {known}",
                f"correct the name.{nearest(str(name), list(self._views))}",
            )
        self._shown.add(name)
        return self._views[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Copy numbers into an array, as `net.gradients[name] *= 0.5` does."""
        self[name][...] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"AccumulatedGradients({shapes_of(self._views)}; {self.passes} backward passes)"

    def add(self) -> None:
        """Add the gradients that a pass has left in the store."""
        store, passes, touched = self._store, self.passes, dict(self._touched)
        dense = slice(0, store.dense_size)
        known = self._flat[dense]
        writes: list[Write] = [(known, known + store.gradients[dense])]
        for name, rows in store.touched.items():
            view = self._views[name]
            writes.append((view, view[rows] + store.gradient(name)[rows], rows))
            before = touched.get(name)
            touched[name] = rows.copy() if before is None else np.union1d(before, rows)
        self._touched_by = {passes: self._touched, passes + 1: touched}
        write_at_once([*writes, (self._passes, self._passes + 1)])

    def zero(self) -> None:
        """Set them to zero."""
        dense = self._flat[: self._store.dense_size]
        writes: list[Write] = [(dense, np.zeros_like(dense))]
        for name, rows in self._touched.items():
            view = self._views[name]
            writes.append((view, np.zeros_like(view[rows]), rows))
        for name in self._shown:
            writes.append((self._views[name], np.zeros_like(self._views[name])))
        self._touched_by = {self.passes: self._touched, 0: {}}
        write_at_once([*writes, (self._passes, np.zeros(1, np.int64))])

    def hand_over(self) -> None:
        """Copy them into the store, for an update.

        Raises: UsageError, when there are none.
        """
        if not self.passes:
            raise UsageError.at(
                "optimizer.step",
                "no gradients, or zero_grad has cleared them",
                "those of backward passes",
                "call net.record(batch).backward() first, or net.step(batch, optimizer)",
            )
        store = self._store
        store.zero_gradients()
        dense = slice(0, store.dense_size)
        store.gradients[dense] = self._flat[dense]
        for name, rows in self._touched.items():
            store.touched[name] = rows
            store.gradient(name)[rows] = self._views[name][rows]


class Trained(Protocol):
    """A network, as `Optimizer.step` sees it."""

    @property
    def gradients(self) -> AccumulatedGradients:
        """Sum of the gradients of backward passes."""

    @property
    def executor(self) -> Executor:
        """What has its parameters."""
