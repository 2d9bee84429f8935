"""Exponential moving averages of parameters, to evaluate with (Polyak and Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from vertexrt.api.network import Network
from vertexrt.api.parameters import NameDifferences
from vertexrt.checks import is_real
from vertexrt.errors import UsageError
from vertexrt.native.at_once import write_at_once

Array = np.ndarray[Any, Any]


def check_network(where: str, given: object) -> None:
    """Refuse what is no network. Raises: UsageError."""
    if not isinstance(given, Network):
        raise UsageError.at(
            where, f"a {type(given).__name__}", "a network", "pass what vrt.compile returned"
        )


class ExponentialMovingAverage:
    """The parameters of a network, averaged over its updates: decay * average + (1 - decay) * now.

        average = vrt.ExponentialMovingAverage(net, decay=0.999)
        net.step(batch, optimizer)
        average.update()
        with average.in_place():
            net(test)

    It starts from the parameters as they are. `vrt.save_checkpoint(path, net, average=average)`
    stores it, and `average.load_state(vrt.load_checkpoint(path).average)` goes on from there.

    Attributes:
        parameters: the averages by name; of what is not trained, the network's own arrays.
    """

    def __init__(self, net: Network, decay: float = 0.999) -> None:
        check_network("ExponentialMovingAverage", net)
        if not is_real(decay) or not 0.0 <= decay < 1.0:
            raise UsageError.at(
                "ExponentialMovingAverage", f"decay={decay!r:.60}", "decay in [0, 1)", "set it"
            )
        self._net, self.decay = net, float(decay)
        self._store = net.executor.model.store
        self._trained = self._store.trained
        own = {name: self._store.value(name) for name in self._store.names}
        with net.executor.lock:
            self._store.refresh()
            self.parameters: dict[str, Array] = {
                n: v.copy() if n in self._trained else v for n, v in own.items()
            }
        self._inside = False

    def update(self) -> None:
        """Take the parameters of now into the average; on a GPU it waits, and copies them."""
        if self._inside:
            raise UsageError.at(
                "average",
                "update inside of in_place()",
                "the network's own parameters",
                "call it outside",
            )
        writes = []
        with self._net.executor.lock:
            self._store.refresh()
            for name in self._trained:
                average = self.parameters[name]
                now = (1.0 - self.decay) * self._store.value(name)
                writes.append((average, average * self.decay + now))
            write_at_once(writes)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the network have the averages, inside a `with`; its own come back at the end.

        What is trained or set inside is lost.
        """
        if self._inside:
            raise UsageError.at("average", "in_place() inside of itself", "one `with`", "leave it")
        own = dict(self._net.parameters)
        self._inside = True
        try:
            self._net.parameters.update(self.parameters)
            yield
        finally:
            self._net.parameters.update(own)
            self._inside = False

    def state(self) -> dict[str, Array]:
        """Return what continues a run: copies of the averages by name."""
        return {name: value.copy() for name, value in self.parameters.items()}

    def load_state(self, state: Mapping[str, Array], *, strict: bool = True) -> NameDifferences:
        """Set averages by name, as `Network.load_state` does the network's parameters.

        What is not trained is set in the network.
        """
        names = NameDifferences.between(state, self.parameters, strict, "the average")
        known = self._net.parameters
        new = {n: known.checked(n, v) for n, v in state.items() if n in self.parameters}
        for name, value in new.items():
            if name in self._trained:
                self.parameters[name] = value.copy()
            else:
                known[name] = value
        return names
