"""How minibatches are laid out, and batches whose layout has come before.

A layout follows from the graphs, and from which vertices pull something; only where identical
vertices are merged does it depend on the numbers that they pull. Sentences of one length and trees
of one shape come again and again with other words, so the last layouts are kept, and comparing
graphs takes a tenth of the time of laying them out.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vertexrt.memory import MemoryPlan
from vertexrt.native.compiled import compiled
from vertexrt.scheduler import Schedule
from vertexrt.scheduler.schedule import schedule_of

if TYPE_CHECKING:
    from vertexrt.engine.inputs import Inputs, Reader

Array = np.ndarray[Any, Any]
Key = tuple[object, bytes]  # of `alike_key`
Graphs = tuple[Array, Array, Array, Array, Array]

MOST_LAYOUTS, MOST_VERTICES = 32, 1 << 20  # that are kept for a variant
MOST_KEYS = 64  # by which a layout is known
RUN = 1024  # elements that are compared before it is looked whether they differ


@dataclass(slots=True)
class BatchLayout:
    """Where everything of a minibatch lies, and what is launched; read-only.

    Attributes:
        indices, extents, weight: what `number_rows` found.
        table: launches; forward launches are the first `forward_launches` rows.
        rows: int32, of launches that take a list.
        with_loss: vertices whose loss counts.
        graph_ptr: of its batches; came_again: a later one had it too.
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


@dataclass(slots=True)
class KeptLayout:
    """A layout, and what it follows from.

    Attributes:
        inputs: of a batch that has it, without real numbers; graph_ptr: of that batch.
        keys: by which it is known, of `alike_key`.
    """

    layout: BatchLayout
    inputs: Inputs
    graph_ptr: Array
    keys: list[Key]

    @property
    def graphs(self) -> Graphs:
        """What is compared of graphs: see `is_alike`."""
        return _graphs_of(self.graph_ptr, self.inputs)


class KeptLayouts:
    """The layouts of a variant that were used last, one for each size of a batch."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int, bool], KeptLayout] = OrderedDict()
        self._named: dict[Key, KeptLayout] = {}  # a signal may leave names of what is gone

    def __len__(self) -> int:
        return len(self._kept)

    def known(self, key: Key) -> KeptLayout | None:
        """Return what is kept of batches with a key."""
        found = self._named.get(key)
        if found is None or self._kept.get(size := _size_of(found.inputs)) is not found:
            return None
        self._kept.move_to_end(size)
        return found

    def find(
        self, reader: Reader, graph_ptr: Array, inputs: Inputs, exact: bool = False
    ) -> KeptLayout | None:
        """Return what is kept of a batch like this one, if one is.

        None as well where a pulled number is out of bounds: laying out finds which.

        Args:
            exact: it pulls the same numbers, too, or the same rows.
        """
        size = _size_of(inputs, exact)
        kept = self._kept.get(size)
        if kept is None:
            return None
        pulls = inputs.index, reader.used, reader.bounds, exact
        if not is_alike(kept.graphs, _graphs_of(graph_ptr, inputs), kept.inputs.index, pulls):
            return None
        self._kept.move_to_end(size)
        kept.layout.came_again = True
        return kept

    def keep(
        self, graph_ptr: Array, inputs: Inputs, layout: BatchLayout, exact: bool = False
    ) -> None:
        """Keep a layout, and let the oldest go where these become too many.

        Args:
            exact: as of `find`.
        """
        size = _size_of(inputs, exact)
        self._let_go(size)
        # Plans write new numbers into the index of a run, so it is not the index that is kept.
        bare = replace(inputs, floats=(), index=inputs.index.copy())
        self._kept[size] = KeptLayout(layout, bare, graph_ptr, [])
        while len(self._kept) > MOST_LAYOUTS or sum(n for n, *_ in self._kept) > MOST_VERTICES:
            self._let_go(next(iter(self._kept)))

    def name(self, kept: KeptLayout, key: Key) -> None:
        """Let a layout be known by a key, if it is still kept."""
        if key in self._named:
            return
        if len(kept.keys) == MOST_KEYS:
            self._named.pop(kept.keys.pop(0), None)
        kept.keys.append(key)
        self._named[key] = kept

    def _let_go(self, size: tuple[int, int, bool]) -> None:
        gone = self._kept.pop(size, None)
        for key in () if gone is None else gone.keys:
            self._named.pop(key, None)

    def clear(self) -> None:
        """Forget all: there are new kinds of vertices."""
        self._kept.clear()
        self._named.clear()


def _size_of(inputs: Inputs, exact: bool = False) -> tuple[int, int, bool]:
    return len(inputs.child_ptr), len(inputs.child), exact


def _graphs_of(graph_ptr: Array, inputs: Inputs) -> Graphs:
    return inputs.child_ptr, inputs.child, inputs.functions, inputs.first_of, graph_ptr


@compiled
def is_alike(
    before: Graphs,
    now: Graphs,
    pulled: Array,
    pulls: tuple[Array, Array, Array, bool],
) -> bool:
    """Tell whether a batch has the graphs of one before, and pulls where that does.

    Args:
        before, now: child_ptr, child, functions, first_of and graph_ptr.
        pulled: int32 [pulls, V + E], what was pulled.
        pulls: int32 [pulls, V + E], what is pulled now; the numbers of those that are read; int64
            [pulls, functions], how many values each may take, -1 for any; whether it is to be the
            same that was pulled. With a number out of bounds it is not alike.
    """
    index, used, bounds, exact = pulls
    if _other_graphs(before, now):
        return False
    for k in used:
        if _pulled_otherwise(pulled[k], index[k], exact) or _beyond(index[k], bounds[k]):
            return False
    return True


def _other_graphs(before: Graphs, now: Graphs) -> bool:
    differ = _differ(before[0], now[0]) or _differ(before[1], now[1])
    differ = differ or _differ(before[2], now[2]) or _differ(before[3], now[3])
    return differ or _differ(before[4], now[4])


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


def _pulled_otherwise(pulled: Array, values: Array, exact: bool) -> bool:
    """Tell whether other vertices pull something than before, or other numbers."""
    if exact:
        return _differ(pulled, values)
    differs = False
    for v in range(len(values)):
        differs |= (pulled[v] < 0) != (values[v] < 0)
    return differs


@compiled
def is_within(index: Array, used: Array, bounds: Array) -> bool:
    """Tell whether all that is pulled is within bounds; see `is_alike`."""
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
