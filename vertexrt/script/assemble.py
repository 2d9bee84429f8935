"""Assemble scripts: from the launch table of a minibatch to one script for each processor.

All processors of a group run the same tiles in the same order. On the path each has its own units
of every tile, before and after it its own rows. Since a processor works in order, waiting for the
last of several tiles means waiting for all of them, so that one wait an instruction is enough: for
the latest tile that made a child (forward), for the exchange inside the tile, or for the stage
before. A wait that an earlier one of the same script implies is left out.

A task may be cut in tiles. Segment s of a tile then runs before segment s + 1 of the tile before
it, so that a processor works while the others finish what it is to receive. The temporaries of the
tiles that are under way at once lie apart. Tasks that sum over rows stay whole: parts would change
the order of additions; so do the stages outside the path, where no processor waits inside a task.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.ir.passes.segment import Split
from vertexrt.ir.program import Stage
from vertexrt.kernels.layout import PAD, temporaries
from vertexrt.native.compiled import compiled
from vertexrt.script import isa
from vertexrt.script.shape import Shape

Array = np.ndarray[Any, Any]

BY_ROWS = int(Split.ROWS)
EVEN = 8  # rows by which tiles of a task may differ
PATH = int(Stage.PATH)
PATH_BACKWARD = int(Stage.PATH_BACKWARD)


class Batch(NamedTuple):
    """A scheduled minibatch.

    Attributes:
        table: launches in order, as `kernels.layout` describes.
        edge_ptr, every_ptr, child_row: of the schedule.
    """

    table: Array
    edge_ptr: Array
    every_ptr: Array
    child_row: Array


class GroupSize(NamedTuple):
    """How a group cuts its tasks.

    Attributes:
        processors: of the group.
        tile: most rows of a tile; 0 for whole tasks.
    """

    processors: int
    tile: int


class Tile(NamedTuple):
    """Rows of a launch: all of them, or some. Fields as in the launch table."""

    program: Any
    rows: Any
    first: Any
    listed: Any
    edges: Any
    first_edge: Any


class Draft(NamedTuple):
    """What scripts are written from, where, and what is known of them.

    Attributes:
        shape: of the task programs; batch: the launches; size: of the group.
        script: [scripts, *, columns], one script a processor or one for all; they start at `here`.
        made: [rows] the last instruction of the path on each.
        done: [tiles or launches] the last instruction of each.
    """

    shape: Shape
    batch: Batch
    size: GroupSize
    script: Array
    here: int
    made: Array
    done: Array


class Progress(NamedTuple):
    """How far a script is written.

    Attributes:
        at: the next instruction; before: the last of the earlier stages.
        waited: the latest instruction that was waited for.
        temporary: elements of temporaries that are needed so far.
    """

    at: Any
    before: Any
    waited: Any
    temporary: Any


class Scripts(NamedTuple):
    """Scripts of a group: int32 [processors, instructions, WORDS].

    Attributes:
        temporary: elements of temporaries that each processor needs.
    """

    words: Array
    temporary: int


def count_instructions(shape: Shape, program: int, rows: int, tile: int) -> int:
    """Return how many instructions a launch of so many rows is on the path, none for no rows."""
    tiles = min(rows, 1)
    if 0 < tile < rows and shape.tiled[program]:
        tiles = -(-rows // tile)
    return int((shape.segment_ptr[program + 1] - shape.segment_ptr[program]) * tiles)


@compiled
def assemble(shape: Shape, batch: Batch, processors: int, tile: int) -> Scripts:
    """Write the scripts of one group for one minibatch.

    Args:
        shape: of the task programs; batch: their launches.
        processors: of the group.
        tile: most rows of a tile; 0 for whole tasks.
    """
    table, launches = batch.table, len(batch.table)
    total, most = 0, max(1, launches)
    for t in range(launches):
        count = count_instructions(shape, table[t, 0], max(table[t, 1], 1), tile)
        total += count
        most = max(most, count)
    script = np.empty((processors, total, isa.WORDS), np.int32)
    made = np.full(len(batch.edge_ptr) - 1, -1, np.int64)
    size = GroupSize(processors, tile)
    _, temporary = fill(Draft(shape, batch, size, script, 0, made, np.empty(most, np.int64)))
    return Scripts(script, temporary)


def fill(draft: Draft) -> tuple[int, int]:
    """Write scripts where there is room for them.

    Returns: how many instructions there are; elements of temporaries.
    """
    table, shape = draft.batch.table, draft.shape
    progress = Progress(0, -1, -1, 0)
    begin, end = 0, 0
    while begin < len(table):
        now, phase = shape.stage[table[begin, 0]], shape.phase[table[begin, 0]]
        while end < len(table) and shape.phase[table[end, 0]] == phase:
            end += 1
        progress = Progress(progress.at, progress.at - 1, progress.waited, progress.temporary)
        if now in (PATH, PATH_BACKWARD):
            progress = _fill_path(draft, progress, begin, end)
        else:
            progress = _fill_stage(draft, progress, begin, end)
        begin = end
    return progress.at, progress.temporary


def _fill_path(draft: Draft, progress: Progress, begin: int, end: int) -> Progress:
    """Write the instructions of a side of the path: of each task the tiles, segment by segment."""
    shape, size = draft.shape, draft.size
    table, every_ptr = draft.batch.table, draft.batch.every_ptr
    script, done, made = draft.script, draft.done, draft.made
    scratch, segment_ptr = shape.scratch, shape.segment_ptr
    forward, several = shape.stage[table[begin, 0]] == PATH, size.processors > 1
    at, waited, temporary = progress.at, progress.waited, progress.temporary
    for t in range(begin, end):
        task = _launch(table, t)
        p = task.program
        segments = segment_ptr[p + 1] - segment_ptr[p]
        width, tiles = task.rows, 1
        if 0 < size.tile < task.rows and shape.tiled[p]:
            tiles = -(-task.rows // size.tile)
            width = -(-task.rows // tiles)  # tiles are about alike, in whole steps of EVEN rows
            width = min(size.tile, -(-width // EVEN) * EVEN)
        apart = 0  # elements between the temporaries of tiles under way
        if tiles > 1 and segments > 1:
            apart = _apart(scratch, every_ptr, task, width)
        for diagonal in range(tiles + segments - 1):
            for s in range(max(0, diagonal - tiles + 1), min(segments - 1, diagonal) + 1):
                k = diagonal - s
                tile = task
                if tiles > 1:
                    tile = _rows(task, k * width, min(width, task.rows - k * width), every_ptr)
                need = progress.before
                if s > 0:
                    need = done[k]
                elif forward and shape.gathers[p] and several:
                    need = _latest_child(draft, tile, need)
                wait = need if several and need > waited else isa.NONE
                waited = max(waited, need)
                start = (k % segments) * apart
                for r in range(len(script)):
                    _write(script, r, draft.here + at, segment_ptr[p] + s, tile, wait, start)
                room = start + temporaries(scratch[p], tile.rows, tile.edges)
                temporary = max(temporary, room)
                done[k] = at
                if forward and s == segments - 1:
                    for row in range(tile.first, tile.first + tile.rows):
                        made[row] = at
                at += 1
    return Progress(at, progress.before, waited, temporary)


def _latest_child(draft: Draft, tile: Tile, need: int) -> int:
    """Return the latest instruction that made a child of a tile, if it is after `need`."""
    _, edge_ptr, every_ptr, child_row = draft.batch
    for e in range(tile.first_edge, tile.first_edge + tile.edges):
        if child_row[e] >= 0:
            need = max(need, draft.made[child_row[e]])
    if every_ptr[0] > 0:  # the edges of slots are others
        for e in range(edge_ptr[tile.first], edge_ptr[tile.first + tile.rows]):
            if child_row[e] >= 0:
                need = max(need, draft.made[child_row[e]])
    return need


def _apart(scratch: Array, every_ptr: Array, task: Tile, width: int) -> int:
    """Return the elements from the temporaries of a tile to those of the next."""
    widest, end = 0, task.first + task.rows
    for first in range(task.first, end, width):
        widest = max(widest, every_ptr[min(first + width, end)] - every_ptr[first])
    return int(-(-temporaries(scratch[task.program], width, widest) // PAD) * PAD)


def _fill_stage(draft: Draft, progress: Progress, begin: int, end: int) -> Progress:
    """Write the instructions of a stage outside the path: segment by segment over its launches."""
    shape, processors = draft.shape, draft.size.processors
    table, every_ptr = draft.batch.table, draft.batch.every_ptr
    script, done, scratch, segment_ptr = draft.script, draft.done, shape.scratch, shape.segment_ptr
    at, waited, temporary = progress.at, progress.waited, progress.temporary
    segments = 0
    for t in range(begin, end):
        p = table[t, 0]
        segments = max(segments, segment_ptr[p + 1] - segment_ptr[p])
    for s in range(segments):
        for t in range(begin, end):
            task = _launch(table, t)
            op = segment_ptr[task.program] + s
            if op >= segment_ptr[task.program + 1]:
                continue
            need = done[t] if s > 0 else progress.before
            wait = need if processors > 1 and need > waited else isa.NONE
            waited = max(waited, need)
            by_rows = shape.split[op] == BY_ROWS
            for r in range(len(script)):
                own = task
                if by_rows:
                    lo = task.rows * r // processors
                    hi = task.rows * (r + 1) // processors
                    own = _rows(task, lo, hi - lo, every_ptr)
                _write(script, r, draft.here + at, op, own, wait, 0)
                need = temporaries(scratch[own.program], own.rows, own.edges)
                temporary = max(temporary, need)
            done[t] = at
            at += 1
    return Progress(at, progress.before, waited, temporary)


def _launch(table: Array, t: int) -> Tile:
    """Return a row of the launch table."""
    return Tile(table[t, 0], table[t, 1], table[t, 2], table[t, 3], table[t, 4], table[t, 5])


def _rows(task: Tile, start: int, rows: int, every_ptr: Array) -> Tile:
    """Return some rows of a launch; listed ones have no edges."""
    if task.first < 0:
        first_edge, edges = task.first_edge, task.edges
        return Tile(task.program, rows, task.first, task.listed + start, edges, first_edge)
    first = task.first + start
    first_edge = every_ptr[first]
    edges = every_ptr[first + rows] - first_edge
    return Tile(task.program, rows, first, task.listed, edges, first_edge)


def _write(
    script: Array, copy: int, at: int, op: int, tile: Tile, wait: int, temporary: int
) -> None:
    script[copy, at, isa.OP] = op
    script[copy, at, isa.PROGRAM] = tile.program
    script[copy, at, isa.ROWS] = tile.rows
    script[copy, at, isa.FIRST] = tile.first
    script[copy, at, isa.LISTED] = tile.listed
    script[copy, at, isa.EDGES] = tile.edges
    script[copy, at, isa.FIRST_EDGE] = tile.first_edge
    script[copy, at, isa.WAIT] = wait
    script[copy, at, isa.TEMPORARY] = temporary
