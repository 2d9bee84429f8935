"""Share the rows of a launch among processors, so that what they have done so far evens out."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.cache.compiled import njit

Array = np.ndarray[Any, Any]


@njit(cache=True, nogil=True)
def cut_evenly(
    cuts: Array,
    loads: Array,
    n: int,
    lo: int,
    costs: tuple[float, float],
    edge_ptr: Array,
) -> None:
    """Give each processor rows of a launch, so that the loads so far even out.

    Args:
        cuts: gets the first row of each, counted from that of the launch, and the number of rows.
        loads: seconds of each processor so far; get those of the launch added.
        lo: first row, negative where the rows are listed (which then have no edges).
        costs: seconds of a row and of an edge.
    """
    row_cost, edge_cost = costs
    processors = len(loads)
    uses_edges = lo >= 0 and edge_cost > 0.0
    left, open_loads = n * row_cost, 0.0
    if uses_edges:
        left += (edge_ptr[lo + n] - edge_ptr[lo]) * edge_cost
    for r in range(processors):
        open_loads += loads[r]
    start = 0
    for r in range(processors):
        cuts[r] = start
        share = (left + open_loads) / (processors - r) - loads[r]
        rows = n - start
        if r < processors - 1:
            if uses_edges:  # the first row that goes beyond the share
                low, high = 0, n - start
                while low < high:
                    middle = (low + high) // 2
                    edges = edge_ptr[lo + start + middle + 1] - edge_ptr[lo + start]
                    # half of the last row: the nearer cut
                    if (middle + 0.5) * row_cost + edges * edge_cost <= share:
                        low = middle + 1
                    else:
                        high = middle
                rows = low
            else:
                rows = min(max(int(share / row_cost + 0.5), 0), n - start)
        seconds = rows * row_cost
        if uses_edges:
            seconds += (edge_ptr[lo + start + rows] - edge_ptr[lo + start]) * edge_cost
        open_loads -= loads[r]
        left -= seconds
        loads[r] += seconds
        start += rows
    cuts[processors] = n
