"""Objects of Python that tensors stand for, since ops of PyTorch take and return tensors alone.

A token is an int64 tensor of one number. The object lives as long as the token's memory does,
whatever has a view of it: a saved tensor of autograd, or a graph that was compiled.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch


class _Held(np.ndarray[Any, Any]):
    """The memory of a token; `thing` is what it stands for."""

    thing: object


_numbers = itertools.count(1)
alive: weakref.WeakValueDictionary[int, _Held] = weakref.WeakValueDictionary()


def token_of(thing: object) -> Tensor:
    """Return a tensor that stands for an object, and keeps it alive."""
    number = next(_numbers)
    held = np.array([number]).view(_Held)
    held.thing = thing
    alive[number] = held
    return torch.from_numpy(held)


def taken(token: Tensor) -> Any:
    """Return what a token stands for; None, where that is gone, or was of another process."""
    held = alive.get(int(token))
    return None if held is None else held.thing


class BatchTensors(NamedTuple):
    """A batch as tensors, for `torch.compile` and for pooling over graphs.

    Attributes:
        token: int64 [1], stands for the GraphBatch.
        graph_of: int64 [V], the graph of each vertex.
        roots: int64, the vertices that have no parent, rising.
    """

    token: Tensor
    graph_of: Tensor
    roots: Tensor

    @staticmethod
    def of(batch: object) -> BatchTensors:
        """Return the tensors of a `GraphBatch`.

        Raises: UsageError, when it is none.
        """
        graphs = graphs_in(batch)
        graph_of, roots = (torch.from_numpy(each) for each in (graphs.graph_of, graphs.roots))
        return BatchTensors(token_of(graphs), graph_of.long(), roots.long())

    @property
    def graphs(self) -> GraphBatch:
        """The batch that the token stands for."""
        return graphs_of(self.token)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the batch itself: tokens mean nothing elsewhere."""
        return BatchTensors.of, (self.graphs,)


def graphs_in(batch: object) -> GraphBatch:
    """Return the graphs of a batch of either kind. Raises: UsageError, when it is none."""
    if isinstance(batch, GraphBatch):
        return batch
    if isinstance(batch, BatchTensors):
        return batch.graphs
    got = f"the batch is a {type(batch).__name__}"
    action = "build one: vrt.GraphBatch.from_graphs([...])"
    raise UsageError.at("torch", got, "a GraphBatch, or a BatchTensors of it", action)


def graphs_of(token: Tensor) -> GraphBatch:
    """Return the batch that a token stands for.

    Raises: UsageError, when it is gone.
    """
    found = taken(token)
    if not isinstance(found, GraphBatch):
        got = "the token of a batch that is gone, or of another process"
        action = "keep the BatchTensors; between processes pass a GraphBatch"
        raise UsageError.at("torch", got, "one that is alive", action)
    return found
