"""How minibatches are laid out, and batches whose layout has come before.

A layout follows from the graphs, and from which vertices pull something; only where identical
vertices are merged does it depend on the numbers that they pull. Sentences of one length and trees
of one shape come again and again with other words, so the last layouts are kept by the digest of
what they follow from.

A layout holds the launch table of a step. The loop that makes it of a schedule is compiled: at
batch 1 a step takes a millisecond, so Python objects per task would cost more than the arithmetic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from vertexrt.engine.structure import Structure
from vertexrt.kernels.layout import COLUMNS, temporaries
from vertexrt.memory import MemoryPlan
from vertexrt.memory.plan import NO_ROW, place_tensors
from vertexrt.native.compiled import compiled
from vertexrt.scheduler import Schedule
from vertexrt.scheduler.kinds import FINE, VertexFacts, read_vertices
from vertexrt.scheduler.kinds import is_within as is_within  # for the front end
from vertexrt.scheduler.rows import EVERY_PTR, ORDER, TASK_KIND, TASK_LO, number_rows, part_of
from vertexrt.scheduler.schedule import schedule_of

Array = np.ndarray[Any, Any]
T = TypeVar("T")

MOST_LAYOUTS, MOST_VERTICES = 32, 1 << 20  # that are kept for a variant
FEWEST_ROWS = 256  # of a launch that is cut
LAUNCHES, LISTED = range(2)  # counts of launches, and of rows in the list


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
    levels: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Decide everything about a minibatch.

    Args:
        child_ptr, child: CSR of the children; pulls: int32 [pulls, V].
        functions: of `read_vertices`; first_of: of `Structure`.
        real: an array of the dtype of reals.
        policy: of `policy_of`; merges, inner, lists_edges: of `number_rows`.
        levels: of `levels_of`.
    Returns: what `read_vertices` found, and unless that is FINE nothing else that counts; how many
        vertices have a loss; what `number_rows` returns; the fields of `MemoryPlan`; and of
        `build_table` the table, how many launches are forward, the rows of launches that take a
        list, and the most rows or edges of one launch.
    """
    found, _, _, path, lazy, level, forest, losses = read_vertices(
        child_ptr, child, functions, pulls, vertices, levels
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


class ProgramFacts(NamedTuple):
    """What a launch table and a memory plan are made from, besides a schedule.

    Attributes:
        path_programs: [4, path kinds] program of the eager, path, backward path and final stage, -1
            for none; layers: [path kinds] the layer of each; lazy_programs: [2, lazy kinds] those
            of the two lazy stages.
        by_ranges: [programs] True where a program cannot take a list of rows (it uses edges).
        scratch: [programs, 3] elements for each row, for each edge, and once.
        writes_ptr, writes: CSR of the tensors that each program writes.
        writes_edges: [tensors] their rows are edges; sizes: elements of a row.
        buffer, width: of `Sharing`.
        most_scratch: elements of temporaries beyond which a launch over all rows of a kind is cut.
        zero_elements: of the row of zeros that stands for an absent child.
    """

    path_programs: Array
    layers: Array
    lazy_programs: Array
    by_ranges: Array
    scratch: Array
    writes_ptr: Array
    writes: Array
    writes_edges: Array
    sizes: Array
    buffer: Array
    width: Array
    most_scratch: int
    zero_elements: int


class _TableDraft(NamedTuple):
    """A launch table while it is made.

    Attributes:
        table, listed: with room for the most there may be; counts: see LAUNCHES.
        program_of, run_lo: of runs of rows with the same program: the program, and the first row;
            starts, ends: of the runs of one program.
    """

    table: Array
    listed: Array
    counts: Array
    program_of: Array
    run_lo: Array
    starts: Array
    ends: Array


def build_table(
    schedule: tuple[Array, ...], lazy_kinds: Array, facts: ProgramFacts
) -> tuple[Array, int, Array, Array, Array, int, int]:
    """List the launches of a step in order, and what they need.

    Args:
        schedule: task_lo, task_kind, every_ptr and order.
        lazy_kinds: [V] in the user's order.
    Returns: the table; how many launches are forward; the rows of launches that take a list; the
        first and end row of each tensor; the most scratch, and the most rows or edges, of one
        launch.
    """
    task_lo, task_kind, edge_ptr, order = schedule
    path_programs, lazy_programs = facts.path_programs, facts.lazy_programs
    by_ranges = facts.by_ranges
    tasks, vertices, programs = len(task_kind), len(order), len(by_ranges)
    chunk = np.empty(programs, np.int64)
    ranges = 0
    for p in range(programs):
        chunk[p] = max(FEWEST_ROWS, facts.most_scratch // max(1, facts.scratch[p, 0]))
        ranges += vertices if by_ranges[p] else 1 + vertices // chunk[p]
    draft = _TableDraft(
        np.empty((2 * tasks + ranges + 1, COLUMNS), np.int64),
        np.empty(4 * vertices, np.int32),
        np.zeros(2, np.int64),
        np.empty(vertices, np.int64),
        np.empty(vertices + 1, np.int32),
        np.empty(vertices, np.int32),
        np.empty(vertices, np.int32),
    )
    cut = by_ranges, chunk, edge_ptr
    row_kind, row_lo = np.empty(vertices, task_kind.dtype), np.empty(vertices + 1, task_lo.dtype)
    runs = 0  # of rows of one lazy kind
    for r in range(vertices):
        kind = lazy_kinds[order[r]]
        if runs == 0 or row_kind[runs - 1] != kind:
            row_kind[runs], row_lo[runs] = kind, r
            runs += 1
    row_lo[runs] = vertices
    bounds = _bounds_of_layers(task_kind, facts.layers)
    for layer in range(len(bounds) - 1):
        between = bounds[layer], bounds[layer + 1]
        _launch_all(path_programs[0], between, (task_kind, task_lo), cut, draft)
        _launch_tasks(path_programs[1], False, between, schedule, draft)
    rows = 0, runs
    _launch_all(lazy_programs[0], rows, (row_kind, row_lo), cut, draft)
    forward = draft.counts[LAUNCHES]
    _launch_all(lazy_programs[1], rows, (row_kind, row_lo), cut, draft)
    for layer in range(len(bounds) - 2, -1, -1):
        between = bounds[layer], bounds[layer + 1]
        _launch_tasks(path_programs[2], True, between, schedule, draft)
        _launch_all(path_programs[3], between, (task_kind, task_lo), cut, draft)
    table = draft.table[: draft.counts[LAUNCHES]]
    first_row, end_row, scratch, most = _extents(table, edge_ptr, facts)
    listed = draft.listed[: draft.counts[LISTED]]
    return table, forward, listed, first_row, end_row, scratch, most


def _bounds_of_layers(task_kind: Array, layers: Array) -> Array:
    """Return [layers + 1] the first task of each layer that has some, and how many tasks there are.

    Tasks come layer by layer.
    """
    bounds = np.zeros(len(task_kind) + 1, np.int64)
    found = 0
    for t in range(len(task_kind)):
        if found == 0 or layers[task_kind[t]] != layers[task_kind[t - 1]]:
            bounds[found] = t
            found += 1
    bounds[found] = len(task_kind)
    return bounds[: found + 1]


def _launch_tasks(
    programs: Array,
    backward: bool,
    between: tuple[int, int],
    schedule: tuple[Array, ...],
    draft: _TableDraft,
) -> None:
    """Launch the program of each task of a layer.

    Args:
        programs: by kind; backward: the last task comes first.
        between: the first task, and the first after them.
    """
    task_lo, task_kind, edge_ptr, _ = schedule
    first, end = between
    for k in range(end - first):
        t = end - 1 - k if backward else first + k
        p = programs[task_kind[t]]
        if p >= 0:
            _launch(draft, p, task_lo[t], task_lo[t + 1], edge_ptr)


def _launch_all(
    programs: Array,
    between: tuple[int, int],
    kinds: tuple[Array, Array],
    cut: Any,
    draft: _TableDraft,
) -> None:
    """Launch each program of a stage over all its rows, in the order of their first rows.

    Their numbers are no order: they say which kinds other batches had, and sums go by launches.

    Args:
        programs: by kind; kinds: of tasks, or of rows, and the first row of each; between: the
            first of these, and the first after them.
        cut: which programs take no list, the most rows of a launch of each, and edge_ptr.
    """
    kind, first_row = kinds
    runs = 0
    for t in range(between[0], between[1]):
        p = programs[kind[t]]
        if runs == 0 or draft.program_of[runs - 1] != p:
            draft.program_of[runs] = p
            draft.run_lo[runs] = first_row[t]
            runs += 1
    draft.run_lo[runs] = first_row[between[1]]
    by_ranges, chunk, edge_ptr = cut
    starts, ends = draft.starts, draft.ends
    for first in range(runs):
        p, found = draft.program_of[first], 0
        if p < 0:
            continue
        for k in range(first, runs):
            if draft.program_of[k] == p:
                starts[found] = draft.run_lo[k]
                ends[found] = draft.run_lo[k + 1]
                draft.program_of[k] = -1
                found += 1
        if by_ranges[p]:
            for k in range(found):
                _launch(draft, p, starts[k], ends[k], edge_ptr)
        elif found == 1:
            each = _even(ends[0] - starts[0], chunk[p])
            for lo in range(starts[0], ends[0], each):
                _launch(draft, p, lo, min(lo + each, ends[0]), edge_ptr)
        else:
            _launch_list(draft, p, found, chunk[p])


def _even(count: Any, most: Any) -> Any:
    """Return the rows of a launch, where so many are cut into as few as may be."""
    launches = max(1, (count + most - 1) // most)
    return max(1, (count + launches - 1) // launches)


def _launch_list(draft: _TableDraft, program: int, runs: int, chunk: int) -> None:
    """Launch a program over the rows of some runs, as a list."""
    table, counts = draft.table, draft.counts
    used = counts[LISTED]
    for k in range(runs):
        for r in range(draft.starts[k], draft.ends[k]):
            draft.listed[counts[LISTED]] = r
            counts[LISTED] += 1
    each = _even(counts[LISTED] - used, chunk)
    for at in range(used, counts[LISTED], each):
        c = counts[LAUNCHES]
        table[c] = 0
        table[c, 0] = program
        table[c, 1] = min(each, counts[LISTED] - at)
        table[c, 2] = -1
        table[c, 3] = at
        counts[LAUNCHES] += 1


def _launch(draft: _TableDraft, program: int, lo: int, hi: int, edge_ptr: Array) -> None:
    table, count = draft.table, draft.counts[LAUNCHES]
    table[count, 0] = program
    table[count, 1] = hi - lo
    table[count, 2] = lo
    table[count, 3] = 0
    table[count, 4] = edge_ptr[hi] - edge_ptr[lo]
    table[count, 5] = edge_ptr[lo]
    draft.counts[LAUNCHES] += 1


def _extents(table: Array, edge_ptr: Array, facts: ProgramFacts) -> tuple[Array, Array, Any, Any]:
    """Return the last four of what `build_table` returns."""
    scratch, writes_ptr, writes_edges = facts.scratch, facts.writes_ptr, facts.writes_edges
    vertices, edges = len(edge_ptr) - 1, edge_ptr[-1]
    first_row = np.empty(len(writes_edges), np.int64)
    end_row = np.zeros(len(writes_edges), np.int64)
    for x in range(len(writes_edges)):
        first_row[x] = NO_ROW
    most_scratch, most = 0, 0
    for c in range(len(table)):
        p, n, lo, m = table[c, 0], table[c, 1], table[c, 2], table[c, 4]
        most_scratch = max(most_scratch, temporaries(scratch[p], n, m))
        most = max(most, n, m)
        for w in range(writes_ptr[p], writes_ptr[p + 1]):
            x = facts.writes[w]
            if writes_edges[x]:
                first_row[x] = 0
                end_row[x] = edges
            elif lo < 0:
                first_row[x] = 0
                end_row[x] = vertices
            else:
                first_row[x] = min(first_row[x], lo)
                end_row[x] = max(end_row[x], lo + n)
    return first_row, end_row, most_scratch, most


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

    def find(self, key: Hashable) -> T | None:
        """Return what is held for a key, which is asked for now; None, where nothing is."""
        found = self.get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def keep(self, key: Hashable, value: T, size: int) -> None:
        """Hold something for a key, in place of what was held before."""
        self[key], self._sizes[key] = value, size
        self.move_to_end(key)
        while len(self) > self.most or sum(self._sizes.values()) > self.most_size:
            self._sizes.pop(next(iter(self)), None)  # first: a signal leaves no size of nothing
            self.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self._sizes.clear()
