"""Carry the state of a model from the end of each piece of a text to the piece after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError
from vertexrt.graph import GraphBatch, Pulled

Array = npt.NDArray[Any]


class CarriedState:
    """Hand what a model pushes at the end of each chain to the beginning of the next one.

    Graph i of a minibatch goes on where graph i of the one before it ended, as `streams` of
    `vrt.data.load` cuts a text. The model pushes its state and pulls it under the same name: the
    first vertex of each type pulls what the last one pushed. No gradient goes back to the piece
    before (truncated backpropagation through time, Williams and Peng 1990).

    Args:
        fields: elements of each field, by name.
    """

    def __init__(self, fields: Mapping[str, int]) -> None:
        self.fields = dict(fields)
        self._kept: dict[str, Array] = {}  # [graphs * types, size]

    def begin(self) -> None:
        """Forget what was kept: the next minibatch begins texts of its own."""
        self._kept = {}

    def give(self, batch: GraphBatch) -> GraphBatch:
        """Return the batch with what was kept; vertices other than the first pull nothing.

        Raises: GraphError, when the batch has more graphs than the one before.
        """
        first, owner = _ends(batch, last=False)
        pulls: dict[str, Any] = dict(batch.pulls)
        for name, size in self.fields.items():
            index = np.full(batch.num_vertices, -1, np.int32)
            values = self._kept.get(name)
            if values is None:
                values = np.zeros((0, size), np.float32)
            elif owner.max() >= len(values):
                got = f"a minibatch of {batch.num_graphs} graphs after one of fewer"
                action = "take as many graphs as there are streams"
                raise GraphError.at("carried state", got, "each graph goes on with one", action)
            else:
                index[first] = owner
            pulls[name] = Pulled(values, index)
        return GraphBatch(batch.graph_ptr, batch.child_ptr, batch.child, pulls, batch.types)

    def keep(self, batch: GraphBatch, outputs: Mapping[str, Array]) -> None:
        """Keep what the last vertices of each type pushed: `net.outputs`, or of `net.forward`."""
        last, owner = _ends(batch, last=True)
        kinds = 1 if batch.types is None else len(batch.types.names)
        for name in self.fields:
            pushed = outputs[name]
            self._kept[name] = np.zeros((batch.num_graphs * kinds, *pushed.shape[1:]), pushed.dtype)
            self._kept[name][owner] = pushed[last]


def _ends(batch: GraphBatch, *, last: bool) -> tuple[Array, Array]:
    """Return the first or the last vertex of each type in each graph, and a number of the two."""
    owner = np.repeat(np.arange(batch.num_graphs), np.diff(batch.graph_ptr))
    if batch.types is not None:
        owner = owner * len(batch.types.names) + batch.types.of_vertex
    found, at = np.unique(owner[::-1] if last else owner, return_index=True)
    return (len(owner) - 1 - at if last else at), found
