"""The parameters of a network and their gradients, arrays by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from vertexrt.api.arguments import Array, check_mapping, real_array
from vertexrt.engine.executor import Executor
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.results import shapes_of
from vertexrt.errors import CheckpointError, UnknownParameterError, UsageError, nearest
from vertexrt.memory.aligned import aligned_zeros
from vertexrt.native.at_once import Write, write_at_once


class NameDifferences(NamedTuple):
    """How the names of values differ from those of parameters."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @classmethod
    def between(
        cls, values: Mapping[str, Array], own: Mapping[str, Array], strict: bool, owner: str
    ) -> NameDifferences:
        """Compare the names of values with those of an owner's parameters.

        Raises: CheckpointError, when `values` has no names, or they differ and `strict`.
        """
        check_mapping("parameters", values, CheckpointError)
        missing = tuple(sorted(set(own) - set(values)))
        unexpected = tuple(sorted(set(values) - set(own), key=str))
        if strict and (missing or unexpected):
            raise CheckpointError.at(
                "parameters",
                f"missing {list(missing)}, unknown {list(unexpected)}",
                f"the parameters of {owner}: {sorted(own)}",
                "load a checkpoint of the same model, or pass strict=False for what fits; one "
                "alone is set by net.parameters[name] = array",
            )
        return cls(missing, unexpected)


class ArraysByName(Mapping[str, Array]):
    """Arrays of which a store has the names.

    Raises: UnknownParameterError, which is a KeyError, for another name.
    """

    def __init__(self, store: ParameterStore, names: Collection[str]) -> None:
        self._store, self._names = store, names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _check_name(self, where: str, got: str, name: object) -> None:
        if name not in self._names:
            raise UnknownParameterError.at(
                where,
                f"{got} {name!r}",
                f"the parameters are {', '.join(self._names) or 'none'}",
                f"correct the name.{nearest(name, self._names)}",
            )


class Parameters(ArraysByName, MutableMapping[str, Array]):
    """Arrays by name, in the order of declaration.

    What is read is a read-only copy as of now: it costs a copy of the parameter, and on a GPU a
    wait for the steps under way. `parameters["w"] = array` writes one, `parameters.update({...})`
    several, all or none. Only modules of PyTorch share memory with a network.
    A copy (`copy`, `deepcopy`, `pickle`) is a dict.

    Raises: UnknownParameterError, which is a KeyError, for a name that is not declared.
    """

    def __init__(self, store: ParameterStore, lock: AbstractContextManager[object]) -> None:
        super().__init__(store, store.names)
        self._lock = lock  # of the network, which threads may share

    def __getitem__(self, name: str) -> Array:
        self._check_name("parameters", "no parameter is called", name)
        with self._lock:
            self._store.refresh()
            found = self._store.value(name).copy()
        found.flags.writeable = False
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        """Copy an array into a parameter.

        Args:
            value: of the parameter's shape; real, finite.
        Raises: CheckpointError, when it is not; nothing is changed then.
        """
        self.update({name: value})

    def update(self, other: Any = None, /, **named: Any) -> None:
        """Set parameters by name, all or none.

        Args:
            other: arrays by name; named: likewise.
        Raises: UnknownParameterError, CheckpointError; nothing is changed then.
        """
        if other is not None:
            check_mapping("parameters", other, CheckpointError)
        values = dict(other or {}, **named)
        for name in values:
            self._check_name("parameters", "no parameter is called", name)
        checked = {name: self.checked(name, value) for name, value in values.items()}
        with self._lock:
            self._store.write(checked)

    def checked(self, name: str, value: Any) -> Array:
        """Return what a parameter would be set to, in the network's dtype.

        Raises: CheckpointError, when it does not fit.
        """
        shape, dtype = self._store.shapes[name], self._store.dtype
        array, wrong = real_array(value, shape, dtype)
        if array is None or not np.isfinite(array).all():
            raise CheckpointError.at(
                "parameters",
                f"{name!r} {wrong or f'has numbers that are not finite in {dtype}'}",
                f"real numbers of shape {list(shape)}",
                "pass an array of that shape, or load a checkpoint of the same sizes",
            )
        return array

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be called, as PyTorch's `parameters` are. Raises: UsageError."""
        raise UsageError.at(
            "parameters",
            "net.parameters()",
            "net.parameters, arrays by name",
            "leave the brackets out; an optimizer takes none: vrt.Adam(lr=1e-3), then "
            "net.step(batch, optimizer)",
        )

    def __delitem__(self, name: str) -> NoReturn:
        raise CheckpointError.at(
            "parameters",
            f"{name!r} is to be deleted",
            "the parameters that the vertex function declares",
            "remove it from the vertex function, or set it to zero",
        )

    def __repr__(self) -> str:
        shapes = (f"{name}: {list(self._store.shapes[name])}" for name in self)
        return f"Parameters({', '.join(shapes)}; {self._store.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ({name: value.copy() for name, value in self.items()},)


class AccumulatedGradients(ArraysByName):
    """Gradients of parameters, summed over backward passes since `Network.zero_grad`.

    The arrays are live: `net.gradients["w"] *= 0.5` scales one. Of a table, which is only looked up
    in, an optimizer updates the rows that the passes looked up; what is written to others rests.

    Raises: UnknownParameterError, which is a KeyError, for a name that has no gradient.
    """

    def __init__(self, store: ParameterStore) -> None:
        super().__init__(store, store.trained)
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
        self._check_name("gradients", "no gradient of a parameter", name)
        self._shown.add(name)
        return self._views[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Copy numbers into an array, as `net.gradients[name] *= 0.5` does."""
        self[name][...] = value

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
