"""Carry the state of a model from each piece of a text to the piece after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.api.average import check_network
from vertexrt.api.network import Network
from vertexrt.errors import GraphError
from vertexrt.graph import GraphBatch, Pulled

Numbers = npt.NDArray[np.intp]
Chains = tuple[Numbers, Numbers, Numbers]  # their numbers, first and last vertices
NONE = np.zeros(0, np.intp)


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
        self._kept: dict[str, Any] = {}
        self._rows, self._graphs = NONE, 0  # what chain each row is of; graphs of the last batch
        self._found: tuple[GraphBatch | None, Chains] = None, (NONE, NONE, NONE)  # of that batch

    def restart(self) -> None:
        """Forget what was kept: the next minibatch is the first of its streams."""
        self._kept = {}

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
        row_of = np.full(graphs * max(len(self._types), 1), -1, np.int32)
        row_of[rows] = np.arange(len(rows))
        index = np.full(batch.num_vertices, -1, np.int32)
        index[starts] = row_of[chains]
        pulls = {}
        for name, shape in self.shapes.items():
            kept = self._kept.get(name)
            if kept is None:
                kept = np.zeros((len(rows), *shape), np.float32)
            pulls[name] = Pulled(kept, index)
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
            goes_on = self._rows < batch.num_graphs * max(len(self._types), 1)
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
