"""How minibatches are laid out, and batches whose layout has come before.

A layout follows from the graphs, and from which vertices pull something; only where identical
vertices are merged does it depend on the numbers that they pull. Sentences of one length and trees
of one shape come again and again with other words, so the last layouts are kept by the digest of
what they follow from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.engine.structure import Structure
from vertexrt.memory import MemoryPlan
from vertexrt.native.compiled import compiled
from vertexrt.scheduler import Schedule
from vertexrt.scheduler.schedule import schedule_of

Array = np.ndarray[Any, Any]

MOST_LAYOUTS, MOST_VERTICES = 32, 1 << 20  # that are kept for a variant


@dataclass(slots=True)
class BatchLayout:
    """Where everything of a minibatch lies, and what is launched; read-only.

    Attributes:
        indices, extents, weight: what `number_rows` found.
        table: launches; forward launches are the first `forward_launches` rows.
        rows: int32, of launches that take a list.
        with_loss: vertices whose loss counts.
        structure, graph_ptr: of its batches; came_again: a later one had it too.
        launched: the table as a device launches it, once that is decided.
        scripts: what a device has written from it, by what it was written for.
    """

    indices: Array
    extents: npt.NDArray[np.int64]
    weight: Array
    table: npt.NDArray[np.int64]
    forward_launches: int
    rows: Array
    plan: MemoryPlan
    with_loss: int
    structure: Structure
    graph_ptr: Array
    came_again: bool = False
    launched: npt.NDArray[np.int64] | None = None
    scripts: dict[object, Any] = field(default_factory=dict)
    _schedule: Schedule | None = None

    @property
    def forward(self) -> slice:
        """The launches of the way forward."""
        return slice(0, self.forward_launches)

    @property
    def backward(self) -> slice:
        """The launches of the way back."""
        return slice(self.forward_launches, None)

    @property
    def schedule(self) -> Schedule:
        """The schedule, array by array."""
        if self._schedule is None:
            self._schedule = schedule_of(self.indices, self.extents, self.weight)
        return self._schedule


@compiled
def is_within(index: Array, used: Array, bounds: Array) -> bool:
    """Tell whether all that is pulled is within bounds.

    Args:
        index: int32 [pulls, V + E], what is pulled; used: the numbers of pulls that are read.
        bounds: int64 [pulls, functions], how many values each may take, -1 for any.
    """
    for k in used:  # noqa: SIM110, it is translated
        if _beyond(index[k], bounds[k]):
            return False
    return True


def _beyond(values: Array, bounds: Array) -> bool:
    """Tell whether a number is beyond the bound of any function."""
    largest, least = -1, -1
    for v in range(len(values)):
        largest, least = max(largest, values[v]), min(least, values[v])
    beyond = least < -1
    for bound in bounds:
        beyond |= bound >= 0 and largest >= bound
    return beyond
