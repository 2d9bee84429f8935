"""Plans of batches: planned with other numbers than those that are then given."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import vertexrt as vrt

Array = np.ndarray[Any, Any]


def tables_of(batch: vrt.GraphBatch) -> dict[str, Array]:
    """Return what a request gives to have the pulls of a batch."""
    each = {**batch.pulls, **batch.edge_pulls}
    return {name: v.table if isinstance(v, vrt.Rows) else v for name, v in each.items()}


def other_numbers(batch: vrt.GraphBatch) -> vrt.GraphBatch:
    """Return a batch of the same structure whose vertices with the same children are all equal."""
    pulls, edge_pulls = (_others(each) for each in (batch.pulls, batch.edge_pulls))
    return replace(batch, pulls=pulls, edge_pulls=edge_pulls)


def _others(pulls: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pulls.items():
        table = value.table if isinstance(value, vrt.Rows) else value
        other = np.where(table >= 0, 0, -1) if table.dtype.kind == "i" else np.full_like(table, 0.5)
        found[name] = other
        if isinstance(value, vrt.Rows):
            found[name] = vrt.Rows(other, value.index)
    return found


def by_plan(
    net: vrt.Network, batch: vrt.GraphBatch, outputs: Collection[str] | None = None, **options: Any
) -> dict[str, Array]:
    """Evaluate a batch by a plan of another of the same structure."""
    return net.plan(other_numbers(batch), outputs=outputs, **options)(tables_of(batch))
