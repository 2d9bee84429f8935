"""The parameters of a network by name: `net.parameters["w"]`, `net.parameters["w"] = array`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn

import numpy as np

from vertexrt.api.arguments import Array, check_mapping, real_array
from vertexrt.engine.parameters import ParameterStore
from vertexrt.errors import CheckpointError, UnknownParameterError, nearest


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


class Parameters(MutableMapping[str, Array]):
    """Arrays by name, in the order of declaration.

    What is read is a read-only copy as of now: it costs a copy of the parameter, and on a GPU a
    wait for the steps under way. `parameters["w"] = array` writes one, `parameters.update({...})`
    several, all or none. Only modules of PyTorch share memory with a network.
    A copy (`copy`, `deepcopy`, `pickle`) is a dict.

    Raises: UnknownParameterError, which is a KeyError, for a name that is not declared.
    """

    def __init__(self, store: ParameterStore, lock: AbstractContextManager[object]) -> None:
        self._store = store
        self._lock = lock  # of the network, which threads may share

    def __getitem__(self, name: str) -> Array:
        self._check_name(name)
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
            self._check_name(name)
        self._write({name: self.checked(name, value) for name, value in values.items()})

    def replace(self, values: Mapping[str, Array], strict: bool, function: str) -> NameDifferences:
        """Set parameters by name, all or none; see `Network.load_state`.

        Args:
            function: what users call the network's F.
        """
        names = NameDifferences.between(values, self, strict, function)
        self._write(
            {n: self.checked(n, value) for n, value in values.items() if n in self._store.shapes}
        )
        return names

    def _write(self, values: Mapping[str, Array]) -> None:
        with self._lock:
            self._store.write(values)

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

    def __delitem__(self, name: str) -> NoReturn:
        raise CheckpointError.at(
            "parameters",
            f"{name!r} is to be deleted",
            "the parameters that the vertex function declares",
            "remove it from the vertex function, or set it to zero",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.names)

    def __len__(self) -> int:
        return len(self._store.names)

    def __repr__(self) -> str:
        shapes = (f"{name}: {list(self._store.shapes[name])}" for name in self)
        return f"Parameters({', '.join(shapes)}; {self._store.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ({name: value.copy() for name, value in self.items()},)

    def _check_name(self, name: object) -> None:
        if name not in self._store.shapes:
            known = ", ".join(self._store.names) or "none"
            close = nearest(str(name), self._store.names)
            raise UnknownParameterError.at(
                "parameters",
                f"no parameter is called {name!r}",
                f"the parameters are {known}",
                f"correct the name.{close}",
            )
