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

Ends = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]
NO_ENDS = np.zeros(0, np.intp), np.zeros(0, np.intp)


class CarriedState:
    """Let each chain of a minibatch begin with the state in which one before it ended.

    What a model pulls under the name of one of its pushes is carried: the first vertex of chain i
    pulls what the last vertex of chain i pushed in the minibatch before. So minibatch n holds piece
    n of each stream, as `vrt.data.load(..., format="text", pieces=35, streams=20)` cuts a text.
    Gradients end with a piece (truncated backpropagation through time; Zaremba et al. 2014).

    Arrays of a GPU stay there: `net.on_device.step(batch, optimizer, carried.shapes,
    vertices=carried.ends(batch))` waits for nothing, and leaves in `net.on_device.outputs` what
    `keep` takes.

    Args:
        net: a compiled network that pulls and pushes under one name.
    Attributes:
        shapes: of what is carried, by name: outputs to ask `net.step` or `net.forward` for.
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
        self._types = {program.sites[n.function].name for n in nodes if program.sites}
        self._kept: dict[str, Any] = {}
        self._found: tuple[GraphBatch | None, Ends] = None, NO_ENDS  # of the last batch

    def restart(self) -> None:
        """Forget what was kept: the next minibatch is the first of its streams."""
        self._kept = {}

    def put(self, batch: GraphBatch, draw: object = None) -> GraphBatch:
        """Return a minibatch whose chains begin with what was kept, zeros where nothing was.

        Args:
            draw: a generator that `Loader` hands over; nothing is drawn.
        Raises: GraphError, when the minibatch before had fewer chains.
        """
        starts, ends = self._ends(batch)
        if any(len(kept) < len(starts) for kept in self._kept.values()):
            got = f"a minibatch of {batch.num_graphs} graphs after one of fewer"
            action = "take as many graphs as there are streams, or call restart()"
            raise GraphError.at("carried state", got, "each chain goes on with one", action)
        index = np.full(batch.num_vertices, -1, np.int32)
        index[starts] = np.arange(len(starts))
        pulls = {}
        for name, shape in self.shapes.items():
            kept = self._kept.get(name)
            if kept is None:
                kept = np.zeros((len(starts), *shape), np.float32)
            pulls[name] = Pulled(kept[: len(starts)], index)
        found = batch.with_pulls(pulls)
        self._found = found, (starts, ends)
        return found

    def ends(self, batch: GraphBatch) -> npt.NDArray[np.intp]:
        """Return the last vertex of each chain: what to give as `vertices` to `net.step`."""
        return self._ends(batch)[1]

    def keep(self, batch: GraphBatch, pushed: Mapping[str, Any]) -> None:
        """Keep what the last vertex of each chain pushed.

        Args:
            pushed: of all vertices or of those of `ends`: `net.outputs`, or what `net.forward`
                returned, of the host or of `net.on_device`.
        """
        ends = self.ends(batch)
        whole = any(len(pushed[name]) != len(ends) for name in self.shapes)
        chosen = ends if whole else slice(None)
        self._kept = {name: pushed[name][chosen] for name in self.shapes}

    def _ends(self, batch: GraphBatch) -> Ends:
        """Return the first and the last vertex of each chain: a graph, or one type in it."""
        last, found = self._found
        if last is batch:
            return found
        change = np.zeros(batch.num_vertices + 1, np.bool_)
        change[batch.graph_ptr] = True
        if batch.types is not None:
            change[1:-1] |= np.diff(batch.types.of_vertex) != 0
        bounds = np.flatnonzero(change)
        starts, ends = bounds[:-1], bounds[1:] - 1
        if batch.types is None:
            return starts, ends
        kinds, chosen = batch.types.of_vertex[starts], np.zeros(len(starts), np.bool_)
        for name in self._types:
            chosen |= kinds == batch.types.number(name)
        return starts[chosen], ends[chosen]
