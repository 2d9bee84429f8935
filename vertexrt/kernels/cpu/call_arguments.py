"""The arguments of generated task programs: their names, and their values for a minibatch."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.kernels.layout import Buffers

# Which segment of a task, where processors share it; the rows and edges of a launch; what is the
# same for all launches of a minibatch.
OF_SEGMENT = "segment, part, parts"
OF_LAUNCH = "n, lo, at, m, elo"
OF_BATCH = (
    "rows, ar, off, tmp, pv, pg, po, weight, order, edge_ptr, child_row, edge_row, parent_ptr, "
    "parent_edge, user_vertex, user_edge, ints, floats, findex, seeds, scale, seed"
)


def arguments(b: Buffers, temporary: int) -> tuple[Any, ...]:
    """Return what drivers take after their own arguments, in the order of OF_BATCH.

    Args:
        temporary: element at which the temporaries of the caller start.
    """
    s = b.schedule
    return (
        b.rows,
        b.arena,
        b.base,
        temporary,
        b.params,
        b.gradients,
        b.param_at,
        s.weight,
        s.order,
        s.edge_ptr,
        s.child_row,
        s.edge_row,
        s.parent_ptr,
        s.parent_edge,
        b.user_vertex,
        b.user_edge,
        b.ints,
        b.floats,
        b.float_index,
        b.seeds,
        b.params.dtype.type(b.loss_scale),
        np.uint32(b.random_seed),
    )
