"""Tensors in place of the pulls of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vertexrt.graph import GraphBatch, Rows
from vertexrt.graph.batch import edge_pulls_of, pulls_of, with_values
from vertexrt.graph.digest import form_with
from vertexrt.graph.pulls import with_rows
from vertexrt.torch.binding import BoundNetwork
from vertexrt.torch.results import readable, rows_of


class PlacedPulls(NamedTuple):
    """Pulls that are tensors, where and as the network reads them: whole numbers on the host.

    Attributes:
        names, tensors: of all; wanted: names of those to which a gradient will come.
    """

    names: tuple[str, ...]
    tensors: list[Tensor]
    wanted: tuple[str, ...]

    @staticmethod
    def of(bound: BoundNetwork, pulls: Mapping[str, Tensor]) -> PlacedPulls:
        """Return those of a call."""
        device, dtype, tensors, wanted = bound.device, bound.dtype, [], []
        grad = torch.is_grad_enabled()
        for name, pull in pulls.items():
            pull = pull.resolve_neg()  # kernels see the numbers alone
            if pull.dtype != dtype or pull.device != device:  # `to` takes longer to find it out
                pull = pull.to(device, dtype) if pull.is_floating_point() else pull.cpu()
            tensors.append(pull)
            if grad and pull.requires_grad:
                wanted.append(name)
        return PlacedPulls(tuple(pulls), tensors, tuple(wanted))


def with_pulls(
    bound: BoundNetwork, graphs: GraphBatch, names: Sequence[str], given: Sequence[Tensor]
) -> GraphBatch:
    """Return a batch with pulls from tensors; of one that it has as a table, these are the rows."""
    if not names:
        return graphs
    found: dict[str, Any] = {}
    before, tables = pulls_of(graphs), True
    for name, tensor in zip(names, given, strict=True):
        table, values = before.get(name), _values_of(bound, tensor.detach())
        is_table = isinstance(table, Rows)
        found[name] = with_rows(table, values) if is_table else values
        tables = tables and is_table
    if tables and form_with(graphs.form, before, found) is graphs.form:  # the rest was checked
        return with_values(graphs, before | found, edge_pulls_of(graphs), graphs.form)
    return graphs.with_pulls(found)


def _values_of(bound: BoundNetwork, tensor: Tensor) -> Any:
    """Return the numbers of a pull as a batch takes them."""
    if not tensor.is_floating_point():
        return tensor.numpy().astype(np.int32, copy=False)
    if bound.stays:
        return rows_of(readable(tensor))
    return tensor.numpy().astype(bound.store.dtype, copy=False)
