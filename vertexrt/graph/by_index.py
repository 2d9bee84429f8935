"""A batch whose pulls are all tables with an index map: other numbers can take their places.

Shares of such a batch have the whole tables; their maps say which vertex pulls which row.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vertexrt.graph.batch import GraphBatch, edge_pulls_of, pulls_of, with_values
from vertexrt.graph.digest import BatchForm
from vertexrt.graph.owned import INT32, own
from vertexrt.graph.pulls import PullValue, Rows, held_index, held_table, rows_unchecked


def pulls_by_index(batch: GraphBatch) -> GraphBatch:
    """Return the same batch, in which every pull is `Rows` that have an index."""
    found = _by_index(pulls_of(batch)), _by_index(edge_pulls_of(batch))
    return with_values(batch, *found, BatchForm())


def _by_index(pulls: Mapping[str, PullValue]) -> dict[str, PullValue]:
    found: dict[str, PullValue] = {}
    for name, value in pulls.items():
        table = held_table(value) if isinstance(value, Rows) else value
        index = held_index(value) if isinstance(value, Rows) else None
        if index is None:
            index = own(np.arange(len(table)), INT32)
        found[name] = rows_unchecked(table, index)
    return found
