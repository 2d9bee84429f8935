"""How minibatches are laid out, and batches whose layout has come before.

A layout follows from the graphs, and from which vertices pull something; only where identical
vertices are merged does it depend on the numbers that they pull. Sentences of one length and trees
of one shape come again and again with other words, so the last layouts are kept, and comparing
graphs takes a tenth of the time of laying them out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.memory import MemoryPlan
from vertexrt.native.compiled import compiled

if TYPE_CHECKING:
    from vertexrt.engine.inputs import Inputs, Reader

Array = np.ndarray[Any, Any]

MOST_LAYOUTS, MOST_VERTICES = 32, 1 << 20  # that are kept for a variant
RUN = 1024  # elements that are compared before it is looked whether they differ


@dataclass(slots=True)
class BatchLayout:
    """Where everything of a minibatch lies, and what is launched; read-only.

    Attributes:
        indices, extents, weight: what `number_rows` found.
        table: launches; forward launches are the first `forward_launches` rows.
        rows: int32, of launches that take a list.
        with_loss: vertices whose loss counts.
        came_again: a later batch had it too.
    """

    indices: Array
    extents: npt.NDArray[np.int64]
    weight: Array
    table: npt.NDArray[np.int64]
    forward_launches: int
    rows: Array
    plan: MemoryPlan
    with_loss: int
    came_again: bool = False


class _KeptLayout(NamedTuple):
    """A layout, and what it follows from.

    Attributes:
        graphs: child_ptr, child, functions and first_of of `Inputs`.
        absent: bool [pulls, V + E], where nothing is pulled.
    """

    layout: BatchLayout
    graphs: tuple[Array, Array, Array, Array]
    absent: Array


class KeptLayouts:
    """The layouts of a variant that were used last, one for each size of a batch."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], _KeptLayout] = OrderedDict()
        self._vertices = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, reader: Reader, inputs: Inputs) -> BatchLayout | None:
        """Return the layout of a batch, if one like it is kept.

        None as well where a pulled number is out of bounds: laying out finds which.
        """
        key = len(inputs.child_ptr), len(inputs.child)
        kept = self._kept.get(key)
        if kept is None:
            return None
        pulls = inputs.index, reader.used, reader.bounds
        if not is_alike(kept.graphs, _graphs_of(inputs), kept.absent, pulls):
            return None
        self._kept.move_to_end(key)
        kept.layout.came_again = True
        return kept.layout

    def keep(self, inputs: Inputs, layout: BatchLayout) -> None:
        """Keep a layout, and let the oldest go where these become too many."""
        key = len(inputs.child_ptr), len(inputs.child)
        if key in self._kept:
            del self._kept[key]
        else:
            self._vertices += key[0]
        # Plans write new numbers into the index of a run, so it is not the index that is kept.
        self._kept[key] = _KeptLayout(layout, _graphs_of(inputs), inputs.index < 0)
        while len(self._kept) > MOST_LAYOUTS or self._vertices > MOST_VERTICES:
            (vertices, _), _ = self._kept.popitem(last=False)
            self._vertices -= vertices

    def clear(self) -> None:
        """Forget all: there are new kinds of vertices."""
        self._kept.clear()
        self._vertices = 0


def _graphs_of(inputs: Inputs) -> tuple[Array, Array, Array, Array]:
    return inputs.child_ptr, inputs.child, inputs.functions, inputs.first_of


@compiled
def is_alike(
    before: tuple[Array, Array, Array, Array],
    now: tuple[Array, Array, Array, Array],
    absent: Array,
    pulls: tuple[Array, Array, Array],
) -> bool:
    """Tell whether a batch has the graphs of one before, and pulls where that does.

    Args:
        before, now: child_ptr, child, functions and first_of.
        absent: bool [pulls, V + E], where nothing was pulled.
        pulls: int32 [pulls, V + E], what is pulled now; the numbers of those that are read; int64
            [pulls, functions], how many values each may take, -1 for any. With a number out of
            bounds it is not alike.
    """
    child_ptr, child, functions, first_of = before
    index, used, bounds = pulls
    differ = _differ(child_ptr, now[0]) or _differ(child, now[1])
    if differ or _differ(functions, now[2]) or _differ(first_of, now[3]):
        return False
    for k in used:
        if _pulled_elsewhere(absent[k], index[k]) or _beyond(index[k], bounds[k]):
            return False
    return True


def _differ(before: Array, now: Array) -> bool:
    """Tell whether arrays differ."""
    if len(before) != len(now):
        return True
    for begin in range(0, len(before), RUN):
        differs = False
        for i in range(begin, min(begin + RUN, len(before))):
            differs |= before[i] != now[i]
        if differs:
            return True
    return False


def _pulled_elsewhere(absent: Array, values: Array) -> bool:
    """Tell whether other vertices pull something than before."""
    differs = False
    for v in range(len(values)):
        differs |= absent[v] != (values[v] < 0)
    return differs


def _beyond(values: Array, bounds: Array) -> bool:
    """Tell whether a number is beyond the bound of any function."""
    largest, least = -1, -1
    for v in range(len(values)):
        largest, least = max(largest, values[v]), min(least, values[v])
    beyond = least < -1
    for bound in bounds:
        beyond |= bound >= 0 and largest >= bound
    return beyond
