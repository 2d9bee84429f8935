"""How a task program reads its inputs, and the arrays of a run.

`Binding` numbers the tensors, parameters and pulled arrays of one compiled function; `Buffers` are
the arrays of one minibatch; a launch table lists the task programs to run, one row each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.ir.passes.store import Key
from vertexrt.scheduler.schedule import Schedule

Array = np.ndarray[Any, Any]

# Columns of the launch table.
PROGRAM, ROWS, FIRST, LIST, EDGES, FIRST_EDGE = range(6)
COLUMNS = 6

PAD = 16  # rows and edges of a temporary are rounded up, so that each starts on 64 bytes


@dataclass(frozen=True, slots=True)
class Binding:
    """Numbers of everything that task programs name.

    Attributes:
        tensors: key -> number of the dynamic tensor.
        params: name of a parameter or stack -> position in `Buffers.param_at`.
        ints, floats: name of a pull -> position among the integer and the real pulls.
        d_pushes: name of a push with a given gradient -> position.
        splits_edges, reads_edges, relations: of `Program`; layers, where edges are told apart by
            them (`ir.passes.zero_gradients`), else nothing.
    """

    tensors: Mapping[Key, int]
    params: Mapping[str, int]
    ints: Mapping[str, int]
    floats: Mapping[str, int]
    d_pushes: Mapping[str, int]
    splits_edges: bool = False
    reads_edges: bool = False
    relations: int = 1
    layers: tuple[int, ...] = ()

    @property
    def edge_words(self) -> int:
        """Count what kernels may read of the schedule that others do not have: see `Schedule`.

        It is `every_ptr` and `edge_order`, or these and `relation_ptr`.
        """
        if self.relations > 1:
            return 3
        return 2 if self.splits_edges or self.reads_edges else 0


@dataclass(slots=True)
class Buffers:
    """The arrays that one run reads and writes. Real ones share a dtype; indices are int32.

    Attributes:
        arena: [elements], the memory plan's.
        base: [tensors] int64, element of row 0 of each tensor.
        temporary: element at which the running task's temporaries start.
        params, gradients: flat parameter store; param_at: [names] int64 offsets.
        schedule: of the minibatch.
        rows: [*] execution rows of launches that are not contiguous.
        user_vertex, user_edge: [V] what random draws count by: the number of each of the user's
            vertices in the whole batch, of which this may be a share, and of its first edge there.
        ints: [pulls, V] in the user's order; floats: flat values, with float_index: [pulls, V].
        d_pushes: flat gradients of pushes, in the user's order.
        loss_scale: factor on the loss; random_seed: of this step, 32 bits.
        kept: what a backend makes of all this, for launches to come, in which floats,
            d_pushes, scale and random seed may be others.
    """

    arena: Array
    base: Array
    temporary: int
    params: Array
    gradients: Array
    param_at: Array
    schedule: Schedule
    rows: Array
    user_vertex: Array
    user_edge: Array
    ints: Array
    floats: tuple[Array, ...]
    float_index: Array
    d_pushes: tuple[Array, ...]
    loss_scale: float
    random_seed: int
    kept: Array | None = None


def temporaries(scratch: Any, rows: int, edges: int) -> Any:
    """Return the elements of temporary memory of a launch; `scratch` is that of its program."""
    by_row, by_edge, once = scratch
    return by_row * (-(-rows // PAD) * PAD) + by_edge * (-(-edges // PAD) * PAD) + once
