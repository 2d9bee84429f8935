"""What goes along with steps: averages of the parameters, and states of streams that go on.

Averages are to evaluate with (Polyak and Juditsky 1992); a carried state goes from each piece of a
text to the piece after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.api.network import Network
from vertexrt.api.parameters import NameDifferences
from vertexrt.checks import is_real, is_whole
from vertexrt.errors import CheckpointError, GraphError, UsageError
from vertexrt.graph import GraphBatch, Rows
from vertexrt.native.at_once import write_at_once

Array = np.ndarray[Any, Any]
Numbers = npt.NDArray[np.intp]
Chains = tuple[Numbers, Numbers, Numbers]  # their numbers, first and last vertices
NONE = np.zeros(0, np.intp)


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


class CarriedState:
    """Let each chain of a minibatch begin with the state in which one before it ended.

    What a model pulls under the name of one of its pushes is carried: the first vertex of chain i
    pulls what the last vertex of chain i pushed in the minibatch before. A chain is the vertices of
    a graph, or those of one type in it. So minibatch n holds piece n of each stream, as
    `vrt.data.load(..., format="text", pieces=35, streams=20)` cuts a text; where a graph has no
    vertex of a chain, its state waits for the next one that has.
    Gradients end with a piece (truncated backpropagation through time; Zaremba et al. 2014).

    Arrays of a GPU stay there: `net.step(batch, optimizer, outputs=carried.shapes,
    vertices=carried.ends(batch), arrays="device")` waits for nothing, and `keep` takes the outputs
    of what it returns.

    Args:
        net: a compiled network that pulls and pushes under one name.
    Attributes:
        shapes: of what is carried, by name: outputs to ask `net.step` or `net` for.
    """

    def __init__(self, net: Network) -> None:
        check_network("CarriedState", net)
        program = net.program
        self.shapes = {
            pull.name: pull.shape
            for pull in program.pulls
            if pull.name in net.pushes and pull.dtype == "float"
        }
        nodes = [n for n in program.nodes if n.op == "pull" and n["name"] in self.shapes]
        self._types = sorted({program.sites[n.function].name for n in nodes if program.sites})
        self._each = max(len(self._types), 1)  # chains of a graph
        self._kept: dict[str, Any] = {}
        self._rows, self._graphs = NONE, 0  # what chain each row is of; graphs of the last batch
        self._found: tuple[GraphBatch | None, Chains] = None, (NONE, NONE, NONE)  # of that batch

    def restart(self) -> None:
        """Forget what was kept: the next minibatch is the first of its streams."""
        self._kept, self._rows, self._graphs = {}, NONE, 0

    def state(self) -> dict[str, Any]:
        """Return what was kept, for `load_state`.

        Returns: "graphs" of the last minibatch, a number; "chains", int64 [n], of which of its
            chains each row is; "kept": by name [n, *shape], arrays of the host or of a GPU; none
            at the beginning.
        """
        return {"graphs": self._graphs, "chains": self._rows, "kept": dict(self._kept)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of a network of the same function; its arrays are taken as they are.

        Raises: CheckpointError, when it is not one.
        """
        given: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
        graphs, chains, kept = (given.get(name) for name in ("graphs", "chains", "kept"))
        if not (
            len(given) == 3
            and is_whole(graphs)
            and graphs >= 0
            and isinstance(chains, np.ndarray)
            and chains.ndim == 1
            and chains.dtype.kind in "iu"
            and not ((chains < 0) | (chains >= graphs * self._each)).any()
            and isinstance(kept, Mapping)
            and kept.keys() == (self.shapes.keys() if len(kept) else set())
            and all(np.shape(x) == (len(chains), *self.shapes[n]) for n, x in kept.items())
        ):
            raise CheckpointError.at(
                "carried state",
                f"the state {state!r:.80}",
                f"what state() returns, of {', '.join(self.shapes) or 'nothing'}",
                "load the state of the same function",
            )
        self._kept, self._graphs, self._rows = dict(kept), int(graphs), chains.astype(np.intp)

    def put(self, batch: GraphBatch, draw: object = None) -> GraphBatch:
        """Return a minibatch whose chains begin with what was kept, zeros where nothing was.

        Args:
            draw: a generator that `Loader` hands over; nothing is drawn.
        Raises: GraphError, when the minibatch before had fewer chains.
        """
        chains, starts, _ = found = self._chains(batch)
        if self._kept and batch.num_graphs > self._graphs:
            raise GraphError.at(
                "carried state",
                f"a minibatch of {batch.num_graphs} graphs after one of fewer",
                "each chain goes on with one",
                "take as many graphs as there are streams, or call restart()",
            )
        rows = self._rows if self._kept else chains
        graphs = max(batch.num_graphs, self._graphs)
        row_of = np.full(graphs * self._each, -1, np.int32)
        row_of[rows] = np.arange(len(rows))
        index = np.full(batch.num_vertices, -1, np.int32)
        index[starts] = row_of[chains]
        pulls = {}
        for name, shape in self.shapes.items():
            kept = self._kept.get(name)
            if kept is None:
                kept = np.zeros((len(rows), *shape), np.float32)
            pulls[name] = Rows(kept, index)
        put = batch.with_pulls(pulls)
        self._found = put, found
        return put

    def ends(self, batch: GraphBatch) -> npt.NDArray[np.intp]:
        """Return the last vertex of each chain: what to give as `vertices` to `net.step`."""
        return self._chains(batch)[2]

    def keep(self, batch: GraphBatch, pushed: Mapping[str, Any]) -> None:
        """Keep what the last vertex of each chain pushed.

        Args:
            pushed: of all vertices or of those of `ends`: `loss.outputs` of a step, or what a call
                returned, of the host or of the device.
        """
        chains, _, ends = self._chains(batch)
        whole = any(len(pushed[name]) != len(ends) for name in self.shapes)
        chosen = ends if whole else slice(None)
        found = {name: pushed[name][chosen] for name in self.shapes}
        if self._kept:
            goes_on = self._rows < batch.num_graphs * self._each
            waits = np.flatnonzero(goes_on & ~np.isin(self._rows, chains))
            if len(waits):
                chains = np.concatenate([chains, self._rows[waits]])
                found = {k: np.concatenate([x, self._kept[k][waits]]) for k, x in found.items()}
        self._kept, self._rows, self._graphs = found, chains, batch.num_graphs

    def _chains(self, batch: GraphBatch) -> Chains:
        """Return the chains that have vertices: graph by graph, and in it type by type."""
        last, found = self._found
        if last is batch:
            return found
        chain = np.repeat(np.arange(batch.num_graphs), np.diff(batch.graph_ptr))
        if self._types and batch.types is not None:
            place = np.full(len(batch.types.names), -1)
            place[[batch.types.number(name) for name in self._types]] = range(len(self._types))
            kind = place[batch.types.of_vertex]
            chain = np.where(kind < 0, -1, chain * len(self._types) + kind)
        change = np.flatnonzero(np.diff(chain, prepend=-1, append=-1))
        starts, ends = change[:-1], change[1:] - 1
        carried = chain[starts] >= 0
        return chain[starts[carried]], starts[carried], ends[carried]
