"""From a minibatch to the scripts of a persistent kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.cell_script import CellBatch, CellFacts, write_cells
from vertexrt.kernels.cuda.gpu_script import write_common
from vertexrt.kernels.cuda.lookups import sort_lookups
from vertexrt.kernels.cuda.persistent_launch import Paths, PersistentLaunch, WrittenScripts
from vertexrt.kernels.cuda.script_rounds import Facts, Launched
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


class LaidOut(NamedTuple):
    """A scheduled minibatch, as a compiled call takes it.

    Attributes:
        table: launches; pulls: int32 [pulls, V]; rows: of launches that take a list.
        indices, extents: of `number_rows`; graph_ptr: of the batch.
        seen: of `sort_lookups`.
    """

    table: Array
    pulls: Array
    rows: Array
    indices: Array
    extents: Array
    graph_ptr: Array
    seen: Array


class OfKernel(NamedTuple):
    """What is known of a kernel whatever the minibatch.

    Attributes:
        gradients, lookups_ptr, lookups, facts, cells: of `PersistentExecutable`.
    """

    gradients: int
    lookups_ptr: Array
    lookups: Array
    facts: Facts
    cells: tuple[Array, Array, Array, Array, Array]


class Chosen(NamedTuple):
    """How a minibatch is run.

    Attributes:
        groups: that the graphs are shared out among.
        clips, updates, wide: of `Launched`.
    """

    groups: int
    clips: bool
    updates: bool
    wide: int


class GroupPaths(NamedTuple):
    """The scripts of groups, which follow from a layout alone.

    Attributes:
        known: whether they are; else the rest is empty.
        cells, cell_sections, fits: of `write_cells`.
    """

    known: bool
    cells: Array
    cell_sections: Array
    fits: bool


NO_CELLS = np.empty((0, 4), np.int32), np.empty((0, 0, 2), np.int32)
UNKNOWN = tuple(GroupPaths(False, *NO_CELLS, True))


def _paths_of(scheduled: LaidOut, known: OfKernel, chosen: Chosen) -> tuple[Any, ...]:
    """Return the fields of `GroupPaths`."""
    indices, extents = scheduled.indices, scheduled.extents
    groups = Groups(part_of(indices, extents, ORDER), scheduled.graph_ptr, chosen.groups)
    batch = CellBatch(
        scheduled.table,
        part_of(indices, extents, EDGE_PTR),
        part_of(indices, extents, CHILD_ROW),
        part_of(indices, extents, PARENT_PTR),
        part_of(indices, extents, EDGE_ROW),
        part_of(indices, extents, PARENT_EDGE),
        part_of(indices, extents, ABOVE_EDGE),
    )
    words, sections, fits = write_cells(CellFacts(*known.cells), batch, groups)
    return True, words, sections, fits


@compiled
def write_all(
    of_batch: tuple[Any, ...],
    of_kernel: tuple[Any, ...],
    of_run: tuple[Any, ...],
    of_groups: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Write all scripts of a launch in one call: objects of Python between them would cost more.

    Records are made inside, where that costs nothing: plain tuples come in.

    Args:
        of_batch: the fields of `LaidOut`; of_kernel: of `OfKernel`; of_run: of `Chosen`;
            of_groups: of `GroupPaths`.
    Returns: the fields of `GroupPaths`; those of `WrittenScripts`.
    """
    scheduled, known, chosen = LaidOut(*of_batch), OfKernel(*of_kernel), Chosen(*of_run)
    table, indices, extents = scheduled.table, scheduled.indices, scheduled.extents
    found = of_groups
    if not GroupPaths(*of_groups).known:
        found = _paths_of(scheduled, known, chosen)
    lookup_ptr, lookup_at, word, ptr, row = sort_lookups(
        table, (known.lookups_ptr, known.lookups), scheduled.pulls,
        (indices, extents), scheduled.rows, scheduled.seen, False,
    )  # fmt: skip
    launched = Launched(
        table, lookup_ptr, lookup_at, scheduled.rows, part_of(indices, extents, EDGE_PTR),
        part_of(indices, extents, EVERY_PTR), part_of(indices, extents, CHILD_ROW),
        known.gradients, chosen.clips, chosen.updates, chosen.wide,
    )  # fmt: skip
    made = write_common(launched, known.facts)
    sorted_by = lookup_ptr, lookup_at, (word, ptr, row)
    return found, made + sorted_by + (chosen.clips, chosen.updates)


def write_launch(
    run: Run, table: Array, persistent_launch: PersistentLaunch, clips: bool, updates: bool
) -> tuple[PersistentExecutable, Paths, WrittenScripts]:
    """Write the scripts of the one launch that stands for launches of a minibatch's table.

    Groups of processors share the graphs of a batch. Where the batch does not fit the cells of the
    kernel, the one without cells runs it.

    Args:
        table: the launches.
        clips, updates: whether they end with a norm, and with an update.
    """
    executable = cast("PersistentExecutable", run.ready.processors)
    paths, written = _write(run, table, persistent_launch, executable, clips, updates)
    if not paths.fits:
        executable = executable.without_cells
        paths, written = _write(run, table, persistent_launch, executable, clips, updates)
    return executable, paths, written


def _write(
    run: Run,
    table: Array,
    persistent_launch: PersistentLaunch,
    executable: PersistentExecutable,
    clips: bool,
    updates: bool,
) -> tuple[Paths, WrittenScripts]:
    """Write the scripts of a launch of a kernel."""
    graphs, layout = run.share.batch.num_graphs, run.layout
    seen = persistent_launch.session.marks(run.variant.reader.largest)
    groups = min(executable.groups, graphs)
    key = executable, len(table), *table[:1, 0].tolist(), groups
    found, written = write_all(
        (
            table,
            run.inputs.index,
            run.layout.rows,
            run.layout.indices,
            run.layout.extents,
            layout.graph_ptr,
            seen,
        ),
        (
            executable.gradients,
            executable.lookups_ptr,
            executable.lookups,
            executable.facts,
            tuple(executable.cells),
        ),
        (groups, clips, updates, 0 if persistent_launch.watched else executable.wide),
        layout.scripts.get(key, UNKNOWN),
    )
    if layout.came_again:
        layout.scripts.setdefault(key, found)
    of_groups = GroupPaths(*found)
    paths = Paths(
        executable, groups, of_groups.cells, of_groups.cell_sections, bool(of_groups.fits)
    )
    return paths, WrittenScripts(*written)
