"""A batch whose pulls lie in the memory of a GPU, brought to the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vertexrt.graph.batch import GraphBatch, edge_pulls_of, pulls_of, with_values
from vertexrt.graph.device_rows import DeviceRows
from vertexrt.graph.digest import BatchForm
from vertexrt.graph.owned import own
from vertexrt.graph.pulls import PullValue, Rows, held_index, held_table, rows_unchecked

Download = Callable[[np.ndarray[Any, Any], int], None]


def with_host_pulls(batch: GraphBatch, download: Download) -> GraphBatch:
    """Return the same batch, all of whose pulls are arrays of the host.

    Args:
        download: copies from an address of the device into an array, and waits.
    """
    pulls = {name: _on_host(value, download) for name, value in pulls_of(batch).items()}
    of_edges = {name: _on_host(value, download) for name, value in edge_pulls_of(batch).items()}
    return with_values(batch, pulls, of_edges, BatchForm())


def _on_host(value: PullValue, download: Download) -> PullValue:
    table: Any = held_table(value) if isinstance(value, Rows) else value
    if not isinstance(value, Rows) or not isinstance(table, DeviceRows):
        return value
    copied = np.empty(table.shape, table.dtype)
    download(copied, table.address)
    return rows_unchecked(own(copied, copied.dtype), held_index(value))
