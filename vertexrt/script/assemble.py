"""Assemble scripts: from the launch table of a minibatch to one script for each processor.

All processors of a group run the same tiles in the same order. On the path each has its own units
of every tile, before and after it its own rows. Since a processor works in order, waiting for the
last of several tiles means waiting for all of them, so that one wait an instruction is enough: for
the latest tile that made a child (forward), for the exchange inside the tile, or for the stage
before. A wait that an earlier one of the same script implies is left out.

A task may be cut in tiles. Segment s of a tile then runs before segment s + 1 of the tile before
it, so that a processor works while the others finish what it is to receive. The temporaries of the
tiles that are under way at once lie apart. Tasks that sum over rows stay whole: parts would change
the order of additions; so do the stages beside the path, where nobody waits inside a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.cache.compiled import njit
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import PATH as PATH_STAGES
from vertexrt.ir.passes.segment import SUMS, SegmentedTask, Split
from vertexrt.ir.program import Stage
from vertexrt.script.cost import cost_of
from vertexrt.script.isa import WORDS

Array = np.ndarray[Any, Any]

BY_ROWS = int(Split.ROWS)
PATH = int(Stage.PATH)
PATH_BACKWARD = int(Stage.PATH_BACKWARD)
PAD = 16  # rows and edges of a temporary are rounded up, as `Executable.scratch` says


class Shape(NamedTuple):
    """What the assembler knows of the task programs: flat arrays over them.

    Attributes:
        stage: [programs]; segment_ptr: [programs + 1]; split: [segments]; gathers: [programs].
        tiled: [programs] on the path, without sums over rows.
        row_cost, edge_cost: [segments] seconds that a row and an edge take.
        scratch: [programs, 3] elements of temporaries for each row, for each edge, and once.
    """

    stage: npt.NDArray[np.int64]
    segment_ptr: npt.NDArray[np.int64]
    split: npt.NDArray[np.int64]
    gathers: npt.NDArray[np.bool_]
    tiled: npt.NDArray[np.bool_]
    row_cost: npt.NDArray[np.float64]
    edge_cost: npt.NDArray[np.float64]
    scratch: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scripts:
    """Scripts of a group: [processors, instructions, WORDS].

    Attributes:
        counters: how many they use.
        temporary: elements of temporaries that each processor needs.
    """

    words: npt.NDArray[np.int64]
    counters: int
    temporary: int


def shape_of(tasks: list[SegmentedTask], scratch: Sequence[tuple[int, int, int]]) -> Shape:
    """Collect what the assembler needs, once per compiled function.

    Args:
        scratch: of the backend, see `Executable`.
    """
    counts = [len(t.segments) for t in tasks]
    costs = [cost_of(t, s) for t in tasks for s in t.segments]
    return Shape(
        np.array([int(t.task.stage) for t in tasks], np.int64),
        np.cumsum([0, *counts]).astype(np.int64),
        np.array([int(s.split) for t in tasks for s in t.segments], np.int64),
        np.array([t.gathers for t in tasks], np.bool_),
        np.array([t.task.stage in PATH_STAGES and not _sums(t) for t in tasks], np.bool_),
        np.array([c.row for c in costs], np.float64),
        np.array([c.edge for c in costs], np.float64),
        np.array(scratch, np.int64).reshape(-1, 3),
    )


def _sums(task: SegmentedTask) -> bool:
    nodes = task.task.program.nodes
    steps = (step for segment in task.segments for step in segment.steps)
    members = (k for s in steps for k in (s.nodes if isinstance(s, Group) else (s.node,)))
    return any(nodes[k].op in SUMS for k in members)


def assemble(
    shape: Shape,
    table: Array,
    edge_ptr: Array,
    child_row: Array,
    processors: int,
    tile: int = 0,
) -> Scripts:
    """Write the scripts of one group for one minibatch.

    Args:
        shape: of the task programs.
        table: launches in order, as `kernels.layout` describes.
        edge_ptr, child_row: of the schedule.
        processors: of the group.
        tile: most rows of a tile; 0 for whole tasks.
    """
    words, counters, temporary = _assemble(shape, table, edge_ptr, child_row, processors, tile)
    return Scripts(words, int(counters), int(temporary))


@njit(cache=True, nogil=True)
def bounds_of(graph_ptr: Array, groups: int) -> Array:
    """Cut a batch between graphs, so that groups have about as many vertices: [groups + 1]."""
    bounds = np.empty(groups + 1, np.int64)
    at, vertices = 0, int(graph_ptr[-1])
    for g in range(groups + 1):
        wanted = vertices * g / groups
        while graph_ptr[at] < wanted:
            at += 1
        bounds[g] = graph_ptr[at]
    return bounds


@njit(cache=True, nogil=True)
def assemble_groups(
    shape: Shape,
    table: Array,
    beside: Array,
    order: Array,
    edge_ptr: Array,
    child_row: Array,
    graph_ptr: Array,
    groups: int,
    processors: int,
    tile: int,
) -> tuple[Array, Array, int]:
    """Write the scripts of several groups that share one schedule, for the path alone.

    A group has the rows of its graphs in each launch. All its processors follow the same script.

    Args:
        beside: [programs] programs that are no part of these scripts.
        order: [rows] the user's vertices, ascending within a task.
        graph_ptr: of the batch; its graphs are shared out among so many groups.
        processors: of a group.
    Returns: the words of all scripts one after the other, forward and then backward; [2, groups]
        how many instructions each has; elements of temporaries that a processor needs.
    """
    bounds = bounds_of(graph_ptr, groups)
    path = np.empty((2, len(table)), np.int64)  # launches of each side
    launches = np.zeros(2, np.int64)
    first = np.empty((len(table), groups + 1), np.int64)
    total = 0
    for t in range(len(table)):
        p, n, lo = table[t, 0], table[t, 1], table[t, 2]
        if beside[p] or shape.stage[p] not in (PATH, PATH_BACKWARD):
            continue
        side = 0 if shape.stage[p] == PATH else 1
        path[side, launches[side]] = t
        launches[side] += 1
        _cut_at(order, lo, lo + n, bounds, first[t])
        for g in range(groups):
            total += _instructions(shape, p, first[t, g + 1] - first[t, g], tile)
    words = np.empty((1, total, WORDS), np.int64)
    lengths = np.zeros((2, groups), np.int64)
    part = np.zeros((len(table), table.shape[1]), np.int64)
    made = np.full(len(edge_ptr) - 1, -1, np.int64)  # groups have rows of their own
    most = max(1, len(table), 1 if tile == 0 else -(-len(order) // tile))
    done, loads = np.empty(most, np.int64), np.empty(processors, np.float64)
    cuts = np.empty(processors + 1, np.int64)
    begin, temporary = 0, 0
    for side in range(2):
        for g in range(groups):
            count = 0
            for k in range(launches[side]):
                t = path[side, k]
                lo, hi = first[t, g], first[t, g + 1]
                if lo == hi:
                    continue
                part[count, 0], part[count, 1], part[count, 2] = table[t, 0], hi - lo, lo
                part[count, 4], part[count, 5] = edge_ptr[hi] - edge_ptr[lo], edge_ptr[lo]
                count += 1
            length, need = _fill(
                shape, part[:count], edge_ptr, child_row, processors, tile, made, done, loads, cuts,
                words, begin,
            )  # fmt: skip
            temporary = max(temporary, need)
            lengths[side, g] = length
            begin += length
    return words[0], lengths, temporary


@njit(cache=True, nogil=True)
def _cut_at(order: Array, lo: int, hi: int, bounds: Array, first: Array) -> None:
    """Find the first row of each group among the rows of a task, which rise by vertex.

    Args:
        bounds: [groups + 1] first vertices of the groups.
        first: [groups + 1] gets the rows, and the end.
    """
    row = lo
    for g in range(len(bounds) - 1):
        first[g] = row
        end = bounds[g + 1]
        while row < hi and order[row] < end:
            row += 1
    first[len(bounds) - 1] = hi


@njit(cache=True, nogil=True)
def _instructions(shape: Shape, program: int, rows: int, tile: int) -> int:
    """Return how many instructions a launch of so many rows is on the path, none for no rows."""
    tiles = min(rows, 1)
    if 0 < tile < rows and shape.tiled[program]:
        tiles = -(-rows // tile)
    return int((shape.segment_ptr[program + 1] - shape.segment_ptr[program]) * tiles)


@njit(cache=True, nogil=True)
def _assemble(
    shape: Shape, table: Array, edge_ptr: Array, child_row: Array, processors: int, tile: int
) -> tuple[Array, int, int]:
    """Write the script of each processor of a group; see `assemble`."""
    launches = len(table)
    total, most = 0, max(1, launches)
    for t in range(launches):
        count = _instructions(shape, table[t, 0], max(table[t, 1], 1), tile)
        total += count
        most = max(most, count)
    words = np.empty((processors, total, WORDS), np.int64)
    made = np.full(len(edge_ptr) - 1, -1, np.int64)
    done, loads = np.empty(most, np.int64), np.empty(processors, np.float64)
    cuts = np.empty(processors + 1, np.int64)
    counters, temporary = _fill(
        shape, table, edge_ptr, child_row, processors, tile, made, done, loads, cuts, words, 0
    )
    return words, counters, temporary


@njit(cache=True, nogil=True)
def _fill(
    shape: Shape,
    table: Array,
    edge_ptr: Array,
    child_row: Array,
    processors: int,
    tile: int,
    made: Array,
    done: Array,
    loads: Array,
    cuts: Array,
    words: Array,
    here: int,
) -> tuple[int, int]:
    """Write scripts where there is room for them.

    Args:
        made: [rows] of the path, -1; gets the last instruction on each.
        done: as many as tiles or launches; loads: [processors]; cuts: [processors + 1]. What they
            hold does not matter.
        words: [scripts, *, WORDS], one script a processor or one for all; they start at `here`.
    Returns: how many instructions there are; elements of temporaries.
    """
    launches, copies = len(table), len(words)
    at, waited, temporary = 0, -1, 0
    begin, end = 0, 0
    while begin < launches:
        now = shape.stage[table[begin, 0]]
        before = at - 1  # all of the earlier stages
        segments = 0
        while end < launches and shape.stage[table[end, 0]] == now:
            p = table[end, 0]
            segments = max(segments, shape.segment_ptr[p + 1] - shape.segment_ptr[p])
            end += 1

        if now in (PATH, PATH_BACKWARD):
            for t in range(begin, end):
                # Not `= table[t]`: a view of a row is counted like an object, which takes longer.
                p, n, lo = table[t, 0], table[t, 1], table[t, 2]
                listed, m, elo = table[t, 3], table[t, 4], table[t, 5]
                segments = shape.segment_ptr[p + 1] - shape.segment_ptr[p]
                width, tiles = n, 1
                if 0 < tile < n and shape.tiled[p]:
                    width, tiles = tile, -(-n // tile)
                apart = 0  # elements between the temporaries of tiles under way
                if tiles > 1 and segments > 1:
                    widest = 0
                    for k in range(tiles):
                        first = lo + k * width
                        stop = min(first + width, lo + n)
                        widest = max(widest, int(edge_ptr[stop]) - int(edge_ptr[first]))
                    apart = -(-_elements(shape.scratch, p, width, widest) // PAD) * PAD
                for diagonal in range(tiles + segments - 1):
                    for s in range(max(0, diagonal - tiles + 1), min(segments - 1, diagonal) + 1):
                        k = diagonal - s
                        first, rows, first_edge, edges = lo, n, elo, m
                        if tiles > 1:
                            first = lo + k * width
                            rows = min(width, n - k * width)
                            first_edge = int(edge_ptr[first])
                            edges = int(edge_ptr[first + rows]) - first_edge
                        need = before
                        if s > 0:
                            need = done[k]
                        elif now == PATH and shape.gathers[p] and processors > 1:
                            for e in range(first_edge, first_edge + edges):
                                if child_row[e] >= 0:
                                    need = max(need, made[np.uint32(child_row[e])])
                        wait = need if processors > 1 and need > waited else -1
                        waited = max(waited, need)
                        place = (k % segments) * apart if apart > 0 else 0
                        for r in range(copies):
                            _write(
                                words, r, here + at, p, s, rows, first, listed, edges, first_edge
                            )
                            _order(words, r, here, at, wait, processors, place)
                        temporary = max(temporary, place + _elements(shape.scratch, p, rows, edges))
                        done[k] = at
                        if now == PATH and s == segments - 1:
                            for row in range(first, first + rows):
                                made[row] = at
                        at += 1
        else:
            # What is split by rows comes first, so that loads even out over all of it.
            loads[:] = 0.0
            for s in range(segments):
                for t in range(begin, end):
                    p, n, lo = table[t, 0], table[t, 1], table[t, 2]
                    listed, m, elo = table[t, 3], table[t, 4], table[t, 5]
                    c = shape.segment_ptr[p] + s
                    if c >= shape.segment_ptr[p + 1]:
                        continue
                    need = done[t] if s > 0 else before
                    wait = need if processors > 1 and need > waited else -1
                    waited = max(waited, need)
                    by_rows = shape.split[c] == BY_ROWS
                    if by_rows:
                        _cut(cuts, loads, n, lo, shape.row_cost[c], shape.edge_cost[c], edge_ptr)
                    for r in range(copies):
                        first, rows, entry, edges, first_edge = lo, n, listed, m, elo
                        if by_rows:
                            rows = cuts[r + 1] - cuts[r]
                            if lo >= 0:
                                first = lo + cuts[r]
                                first_edge = int(edge_ptr[first])
                                edges = int(edge_ptr[first + rows]) - first_edge
                            else:
                                entry = listed + cuts[r]
                        _write(words, r, here + at, p, s, rows, first, entry, edges, first_edge)
                        _order(words, r, here, at, wait, processors, 0)
                        temporary = max(temporary, _elements(shape.scratch, p, rows, edges))
                    done[t] = at
                    at += 1
        begin = end
    return at, temporary


@njit(cache=True, nogil=True, inline="always")
def _write(
    words: Array,
    copy: int,
    at: int,
    program: int,
    segment: int,
    rows: int,
    first: int,
    listed: int,
    edges: int,
    first_edge: int,
) -> None:
    words[copy, at, 0] = program
    words[copy, at, 1] = segment
    words[copy, at, 2] = rows
    words[copy, at, 3] = first
    words[copy, at, 4] = listed
    words[copy, at, 5] = edges
    words[copy, at, 6] = first_edge


@njit(cache=True, nogil=True, inline="always")
def _order(
    words: Array, copy: int, here: int, at: int, wait: int, processors: int, temporary: int
) -> None:
    words[copy, here + at, 7] = wait
    words[copy, here + at, 8] = processors if wait >= 0 else 0
    words[copy, here + at, 9] = at if processors > 1 else -1
    words[copy, here + at, 10] = temporary


@njit(cache=True, nogil=True)
def _elements(scratch: Array, program: int, rows: int, edges: int) -> int:
    """Return the elements of temporaries of an instruction."""
    by_row = scratch[program, 0] * (-(-rows // PAD) * PAD)
    by_edge = scratch[program, 1] * (-(-edges // PAD) * PAD)
    return int(by_row + by_edge + scratch[program, 2])


@njit(cache=True, nogil=True)
def _cut(
    cuts: Array,
    loads: Array,
    n: int,
    lo: int,
    row_cost: float,
    edge_cost: float,
    edge_ptr: Array,
) -> None:
    """Give each processor rows of a launch, so that the loads so far even out.

    Args:
        cuts: gets the first row of each, counted from that of the launch, and the number of rows.
        loads: seconds of each processor so far; get those of the launch added.
        lo: first row, negative where the rows are listed (which then have no edges).
    """
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
