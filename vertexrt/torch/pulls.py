"""Tensors in place of the pulls of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vertexrt.graph import GraphBatch, Pulled
from vertexrt.graph.batch import edge_pulls_of, pulls_of, with_values
from vertexrt.graph.batch_form import form_with
from vertexrt.graph.pulls import with_rows
from vertexrt.torch.binding import BoundNetwork
from vertexrt.torch.results import readable, rows_of


def placed(bound: BoundNetwork, pulls: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return pulls where, and as, the network reads them: whole numbers on the host."""
    return {name: _placed(pull, bound.device, bound.dtype) for name, pull in pulls.items()}


def _placed(pull: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    if pull.dtype == dtype and pull.device == device:  # `to` takes longer to find it out
        return pull
    return pull.to(device, dtype) if pull.is_floating_point() else pull.cpu()


def with_gradients(pulls: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the names of pulls to which a gradient will come."""
    if not torch.is_grad_enabled():
        return ()
    return tuple([name for name, tensor in pulls.items() if tensor.requires_grad])


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
        is_table = isinstance(table, Pulled)
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
