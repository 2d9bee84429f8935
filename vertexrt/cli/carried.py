"""Carry the state of a model over pieces of text: a piece begins where the one before ended.

What a model pulls under the name of one of its pushes is carried. Minibatch n holds piece n of each
stream (`vertexrt.data.language.ChainForm`); the first vertex of each chain pulls what the last
vertex of the piece before pushed. Gradients end with a piece (truncated backpropagation through
time, Zaremba et al. 2014).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.api.network import Network
from vertexrt.graph import GraphBatch, Pulled

Ends = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]


class CarriedState:
    """What the chains of a minibatch ended with, by push; zeros before the first.

    Args:
        net: whose pulls and pushes of one name are carried.
    """

    def __init__(self, net: Network) -> None:
        program = net.program
        self.shapes = {
            pull.name: pull.shape
            for pull in program.pulls
            if pull.name in net.pushes and pull.dtype == "float"
        }
        nodes = [n for n in program.nodes if n.op == "pull" and n["name"] in self.shapes]
        self._types = {program.sites[n.function].name for n in nodes if program.sites}
        self._kept: dict[str, npt.NDArray[Any]] = {}

    def restart(self) -> None:
        """Forget what was kept: the next minibatch is the first of its streams."""
        self._kept = {}

    def put(self, batch: GraphBatch, draw: object = None) -> GraphBatch:
        """Return a minibatch whose chains begin with what was kept.

        Args:
            draw: a generator that `Loader` hands over; nothing is drawn.
        """
        starts, _ = self._ends(batch)
        index = np.full(batch.num_vertices, -1, np.int32)
        index[starts] = np.arange(len(starts))
        pulls = dict(batch.pulls)
        for name, shape in self.shapes.items():
            kept = self._kept.get(name, np.zeros((len(starts), *shape), np.float32))
            pulls[name] = Pulled(kept[: len(starts)], index)
        return GraphBatch(batch.graph_ptr, batch.child_ptr, batch.child, pulls, batch.types)

    def keep(self, batch: GraphBatch, pushed: Mapping[str, npt.NDArray[Any]]) -> None:
        """Keep what the last vertex of each chain pushed."""
        _, ends = self._ends(batch)
        self._kept = {name: pushed[name][ends] for name in self.shapes}

    def _ends(self, batch: GraphBatch) -> Ends:
        """Return the first and the last vertex of each chain: a graph, or one type in it."""
        change = np.zeros(batch.num_vertices + 1, np.bool_)
        change[batch.graph_ptr] = True
        if batch.types is not None:
            change[1:-1] |= np.diff(batch.types.of_vertex) != 0
        bounds = np.flatnonzero(change)
        starts, ends = bounds[:-1], bounds[1:] - 1
        if batch.types is None:
            return starts, ends
        wanted = [batch.types.number(name) for name in self._types]
        chosen = np.isin(batch.types.of_vertex[starts], wanted)
        return starts[chosen], ends[chosen]
