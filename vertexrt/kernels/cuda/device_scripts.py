"""From a minibatch to the scripts of a persistent kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.cell_script import WORD, CellBatch, CellFacts, write_cells
from vertexrt.kernels.cuda.lookups import sort_lookups
from vertexrt.kernels.cuda.persistent_launch import Paths, PersistentLaunch, WrittenScripts
from vertexrt.kernels.cuda.rounds import Facts, Launched, write_rounds
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.rows import (
    ABOVE_EDGE,
    CHILD_ROW,
    EDGE_PTR,
    EDGE_ROW,
    EVERY_PTR,
    ORDER,
    PARENT_EDGE,
    PARENT_PTR,
    part_of,
)
from vertexrt.script.groups import Groups

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

new_room = partial(np.empty, dtype=np.uint8)


@compiled
def write_all(
    table: Array,
    pulls: Array,
    rows: Array,
    schedule: tuple[Array, Array],
    graph_ptr: Array,
    seen: Array,
    lookups: tuple[Array, Array],
    of_kernel: tuple[Any, ...],
    of_cells: tuple[Array, ...],
    gradients: int,
    groups: int,
    clips: bool,
    updates: bool,
    wide: int,
    has_cells: bool,
    room: Array,
) -> tuple[Any, ...]:
    """Write all scripts of a launch in one call: objects of Python between them would cost more.

    Args:
        table: of launches; pulls: int32 [pulls, V]; rows: of launches that take a list.
        schedule: indices and extents, of `number_rows`; graph_ptr: of the batch.
        seen, lookups: of `sort_lookups`.
        of_kernel: the fields of `Facts`; of_cells: of `CellFacts`.
        gradients, clips, updates, wide: of `Launched`.
        groups: that the graphs are shared out among.
        has_cells: what `write_cells` writes is known; room: of it.
    Returns: what `write_cells` does; the fields of `WrittenScripts`.
    """
    indices, extents = schedule
    found = 0, np.zeros((0, 0, 2), np.int32), True
    edge_ptr, child_row = part_of(indices, extents, EDGE_PTR), part_of(indices, extents, CHILD_ROW)
    if not has_cells:
        batch = CellBatch(
            table,
            edge_ptr,
            child_row,
            part_of(indices, extents, PARENT_PTR),
            part_of(indices, extents, EDGE_ROW),
            part_of(indices, extents, PARENT_EDGE),
            part_of(indices, extents, ABOVE_EDGE),
        )
        shared_out = Groups(part_of(indices, extents, ORDER), graph_ptr, groups)
        found = write_cells(CellFacts(*of_cells), batch, shared_out, room)
    lookup_ptr, lookup_at, word, ptr, row = sort_lookups(
        table, lookups, pulls, schedule, rows, seen, False
    )
    launched = Launched(
        table, lookup_ptr, lookup_at, rows, edge_ptr, part_of(indices, extents, EVERY_PTR),
        child_row, gradients, clips, updates, wide,
    )  # fmt: skip
    sorted_by = lookup_ptr, lookup_at, (word, ptr, row)
    made = write_rounds(launched, Facts(*of_kernel))
    return found, made + sorted_by + (clips, updates)


def write_launch(
    run: Run,
    table: Array,
    persistent_launch: PersistentLaunch,
    clips: bool,
    updates: bool,
    take_room: Callable[[int], Array] = new_room,
) -> tuple[PersistentExecutable, Paths, WrittenScripts]:
    """Write the scripts of the one launch that stands for launches of a minibatch's table.

    Groups of processors share the graphs of a batch. Where the batch does not fit the cells of the
    kernel, the one without cells runs it.

    Args:
        table: the launches.
        clips, updates: whether they end with a norm, and with an update.
        take_room: given a number of bytes, returns at least so many, where scripts of cells lie; by
            default anew, where they do not go up.
    """
    executable = cast("PersistentExecutable", run.ready.processors)
    graphs, layout, count, fits = run.share.batch.num_graphs, run.layout, 0, False
    seen = persistent_launch.session.marks(run.variant.reader.largest)
    while not fits or count < 0:
        room, groups = take_room(WORD * -count), min(executable.groups, graphs)
        key = executable, len(table), *table[:1, 0].tolist(), groups
        kept = layout.scripts.get(key)
        wide = 0 if persistent_launch.watched else executable.wide
        (count, sections, fits), written = write_all(
            table,
            run.inputs.index,
            layout.rows,
            (layout.indices, layout.extents),
            layout.graph_ptr,
            seen,
            (executable.lookups_ptr, executable.lookups),
            tuple(executable.facts),
            tuple(executable.cells),
            executable.gradients,
            groups,
            clips,
            updates,
            wide,
            kept is not None,
            room,
        )
        if not fits:
            executable = executable.without_cells
    cells = room[: WORD * count].view(np.int32)
    if kept is not None:
        known, sections = kept
        cells = take_room(known.nbytes)[: known.nbytes].view(np.int32)
        cells[:] = known
    elif layout.came_again:
        layout.scripts[key] = cells.copy(), sections
    return executable, Paths(executable, groups, cells, sections), WrittenScripts(*written)
