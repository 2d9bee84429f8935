"""How minibatches are laid out, and batches whose layout has come before.

A layout follows from the graphs, and from which vertices pull something; only where identical
vertices are merged does it depend on the numbers that they pull. Sentences of one length and trees
of one shape come again and again with other words, so the last layouts are kept by the digest of
what they follow from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vertexrt.engine.launches import ProgramFacts, build_table
from vertexrt.engine.structure import Structure
from vertexrt.memory import MemoryPlan
from vertexrt.memory.plan import place_tensors
from vertexrt.native.compiled import compiled
from vertexrt.scheduler import Schedule
from vertexrt.scheduler.kinds import FINE, VertexFacts, read_vertices
from vertexrt.scheduler.kinds import is_within as is_within  # for the front end
from vertexrt.scheduler.rows import EVERY_PTR, ORDER, TASK_KIND, TASK_LO, number_rows, part_of
from vertexrt.scheduler.schedule import schedule_of

Array = np.ndarray[Any, Any]

MOST_LAYOUTS, MOST_VERTICES = 32, 1 << 20  # that are kept for a variant


@dataclass(slots=True)
class BatchLayout:
    """Where everything of a minibatch lies, and what is launched; read-only.

    Attributes:
        indices, extents, weight: what `number_rows` found.
        table: launches; forward launches are the first `forward_launches` rows.
        rows: int32, of launches that take a list; most: rows or edges of a launch.
        with_loss: vertices whose loss counts.
        structure, graph_ptr: of its batches; came_again: an earlier one was laid out like it, so
            that it is kept.
        launched: the table as a device launches it, once that is decided.
        scripts: what a device has written from it, by what it was written for.
        replays: of a device, by which launches it replays.
    """

    indices: Array
    extents: npt.NDArray[np.int64]
    weight: Array
    table: npt.NDArray[np.int64]
    forward_launches: int
    rows: Array
    most: int
    plan: MemoryPlan
    with_loss: int
    structure: Structure
    graph_ptr: Array
    came_again: bool = False
    launched: npt.NDArray[np.int64] | None = None
    scripts: dict[object, Any] = field(default_factory=dict)
    replays: dict[object, Any] = field(default_factory=dict)
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
def read_numbers(numbers: Array, room: Array, rows: Array, count: int) -> bool:
    """Read whole numbers again; tell whether those are absent that were.

    Args:
        numbers: int32 [V + E], of vertices, of which there are `count`, and of edges.
        room: int32, what they are read from, the last one -1; rows: int32 [V + E], -1 for that.
    """
    same = True
    for v in range(len(numbers)):
        found = room[rows[v] if rows[v] >= 0 else len(room) - 1]
        same &= v >= count or (found < 0) == (numbers[v] < 0)
        numbers[v] = found
    return same


@compiled
def lay_out(
    child_ptr: Array,
    child: Array,
    functions: Array,
    first_of: Array,
    pulls: Array,
    real: Array,
    policy: int,
    merges: bool,
    inner: bool,
    lists_edges: bool,
    vertices: VertexFacts,
    programs: ProgramFacts,
) -> tuple[Any, ...]:
    """Decide everything about a minibatch.

    Args:
        child_ptr, child: CSR of the children; pulls: int32 [pulls, V].
        functions: of `read_vertices`; first_of: of `Structure`.
        real: an array of the dtype of reals.
        policy: of `policy_of`; merges, inner, lists_edges: of `number_rows`.
    Returns: what `read_vertices` found, and unless that is FINE nothing else that counts; how many
        vertices have a loss; what `number_rows` returns; the fields of `MemoryPlan`; and of
        `build_table` the table, how many launches are forward, the rows of launches that take a
        list, and the most rows or edges of one launch.
    """
    found, _, _, path, lazy, level, forest, losses = read_vertices(
        child_ptr, child, functions, pulls, vertices
    )
    used, path_kinds = vertices.used, len(vertices.path_known)
    if found != FINE:
        child_ptr, child, first_of = child_ptr[:1], child[:0], first_of[:0]
        path, lazy, level = path[:0], lazy[:0], level[:0]
    weight = np.empty(len(path) if merges else 0, real.dtype)
    schedule = number_rows(
        child_ptr, child, functions, vertices.begins, vertices.layers, first_of, path, path_kinds,
        level, policy, pulls, used, weight, forest, inner, lists_edges,
    )  # fmt: skip
    ints, extents, _ = schedule
    ordered = (
        part_of(ints, extents, TASK_LO), part_of(ints, extents, TASK_KIND),
        part_of(ints, extents, EVERY_PTR), part_of(ints, extents, ORDER),
    )  # fmt: skip
    table, forward, listed, first_row, end_row, scratch, most = build_table(ordered, lazy, programs)
    plan = place_tensors(
        programs.buffer, programs.width, programs.sizes, first_row, end_row,
        programs.zero_elements, scratch,
    )  # fmt: skip
    return found, losses, schedule, plan, table, forward, listed, most


T = TypeVar("T")


class Known:
    """Keys that have come of late.

    Most of what varies from step to step never comes again. To hold what is made of it would take
    new memory for each step, of which each page costs the system a microsecond or two: only what
    comes again is held. What comes again after more others than can be held would be let go before
    it comes once more, so it counts as new.

    Args:
        most: keys that are known.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._hashes: OrderedDict[int, bool] = OrderedDict()  # the oldest first

    def has_come(self, key: Hashable) -> bool:
        """Tell whether a key came before; from now on it has. Threads may ask at once."""
        number = hash(key)
        came = self._hashes.pop(number, False)
        self._hashes[number] = True
        if len(self._hashes) > self._most:
            self._hashes.popitem(last=False)
        return came


class Recent(OrderedDict[Hashable, T]):
    """A mapping that lets go of what was not asked for the longest: it comes first.

    Args:
        most: entries; most_size: of all together.

    Attributes:
        known: keys of what was made to be held.
    """

    def __init__(self, most: int, most_size: int) -> None:
        super().__init__()
        self.most, self.most_size = most, most_size
        self._sizes: dict[Hashable, int] = {}
        self.known = Known(most)

    def keep(self, key: Hashable, value: T, size: int) -> None:
        """Hold something for a key, in place of what was held before."""
        self[key], self._sizes[key] = value, size
        self.move_to_end(key)
        while len(self) > self.most or sum(self._sizes.values()) > self.most_size:
            gone, _ = self.popitem(last=False)
            del self._sizes[gone]

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._sizes.clear()
