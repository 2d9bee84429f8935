"""From a minibatch to the scripts of a persistent kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.errors import NoKernelError
from vertexrt.kernels.cuda.cell_script import CellBatch, CellFacts, write_cells
from vertexrt.kernels.cuda.gpu_script import (
    NO_RING,
    RING_ALONE,
    RING_OF_SEVERAL,
    EdgesBetween,
    write_paths,
    write_scripts,
)
from vertexrt.kernels.cuda.instruction import COLUMNS
from vertexrt.kernels.cuda.lookups import sort_lookups
from vertexrt.kernels.cuda.overlap import idle_processors
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
from vertexrt.script.assemble import Batch, GroupSize
from vertexrt.script.groups import Groups, assemble_groups
from vertexrt.script.shape import Shape

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
        gradients, lookups_ptr, lookups: of `PersistentExecutable`.
        facts: of its scripts; shape: of the task programs.
        cells, assembled: of `PersistentExecutable`.
    """

    gradients: Array
    lookups_ptr: Array
    lookups: Array
    facts: Facts
    shape: Shape
    cells: tuple[Array, Array, Array, Array, Array]
    assembled: Array


class Chosen(NamedTuple):
    """How a minibatch is run.

    Attributes:
        groups: that the graphs are shared out among; processors: of each.
        tile: most rows of a tile; ring: of `write_scripts`.
        clips, updates, wide, idle: of `Launched`.
    """

    groups: int
    processors: int
    tile: int
    ring: int
    clips: bool
    updates: bool
    wide: int
    idle: int


class GroupPaths(NamedTuple):
    """The scripts of groups, which follow from a layout alone.

    Attributes:
        known: whether they are; else the rest is empty.
        lengths, temporary: of `GroupScripts`.
        script, child_slot: of `write_paths`.
        cells, cell_sections, fits: of `write_cells`.
    """

    known: bool
    lengths: Array
    temporary: int
    script: Array
    child_slot: Array
    cells: Array
    cell_sections: Array
    fits: bool


NOTHING = (
    *(np.empty((0, 0), np.int64), 0, np.empty((0, COLUMNS), np.int32), np.empty(0, np.int32)),
    *(np.empty((0, 4), np.int32), np.empty((0, 0, 2), np.int32), True),
)
UNKNOWN = tuple(GroupPaths(False, *NOTHING))


def _paths_of(scheduled: LaidOut, known: OfKernel, chosen: Chosen) -> tuple[Any, ...]:
    """Return the fields of `GroupPaths`."""
    table, indices, extents = scheduled.table, scheduled.indices, scheduled.extents
    edge_ptr, every_ptr = part_of(indices, extents, EDGE_PTR), part_of(indices, extents, EVERY_PTR)
    child_row, facts = part_of(indices, extents, CHILD_ROW), known.facts
    groups = Groups(part_of(indices, extents, ORDER), scheduled.graph_ptr, chosen.groups)
    size = GroupSize(chosen.processors, chosen.tile)
    batch = Batch(table, edge_ptr, every_ptr, child_row)
    found = assemble_groups(
        known.shape, batch, known.assembled, len(facts.rings), groups, size, COLUMNS
    )
    between = EdgesBetween(
        edge_ptr, part_of(indices, extents, PARENT_PTR), part_of(indices, extents, PARENT_EDGE),
        child_row,
    )  # fmt: skip
    script, child_slot = write_paths(
        table, facts, found.script, found.lengths, between, chosen.ring
    )
    above = part_of(indices, extents, ABOVE_EDGE)
    parents = between.parent_ptr, part_of(indices, extents, EDGE_ROW), between.parent_edge
    edges = CellBatch(table, edge_ptr, child_row, *parents, above)
    words, sections, fits = write_cells(CellFacts(*known.cells), edges, groups)
    return True, found.lengths, found.temporary, script, child_slot, words, sections, fits


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
    paths = GroupPaths(*found)
    lookup_ptr, lookup_at, word, ptr, row = sort_lookups(
        table, (known.lookups_ptr, known.lookups), scheduled.pulls,
        (indices, extents), scheduled.rows, scheduled.seen, False,
    )  # fmt: skip
    launched = Launched(
        table, lookup_ptr, lookup_at, known.gradients, chosen.clips, chosen.updates, chosen.wide,
        chosen.idle,
    )  # fmt: skip
    made = write_scripts(launched, known.facts, paths.script, paths.lengths, paths.child_slot)
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
    ready, batch = run.ready, run.share.batch
    assert ready.shape is not None, f"{run.configuration} has no scripts"
    graphs = batch.num_graphs
    groups = executable.most_groups(graphs)
    if not groups:
        got = f"a group of {executable.processors} processors"
        have = f"at most the device's {persistent_launch.session.device.processors}"
        raise NoKernelError.at("cuda", got, have, "take fewer processors a group")
    seen = persistent_launch.session.marks(run.variant.reader.largest)
    ring = NO_RING
    if executable.has_ring(graphs):
        ring = RING_ALONE if executable.processors == 1 else RING_OF_SEVERAL
    tile = executable.tile if ring == NO_RING else executable.tile_beside_ring
    chosen = min(groups, graphs), executable.processors, tile, ring
    clustered, idle = executable.clustered(graphs), 0
    if executable.may_overlap:
        blocks = persistent_launch.blocks(executable, clustered)
        idle = idle_processors(blocks, chosen[0] * executable.processors)
    layout, key = run.layout, (executable, len(table), *table[:1, 0].tolist(), chosen)
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
            ready.shape,
            tuple(executable.cells),
            executable.assembled,
        ),
        (*chosen, clips, updates, 0 if persistent_launch.watched else executable.wide, idle),
        layout.scripts.get(key, UNKNOWN),
    )
    if layout.came_again:
        layout.scripts.setdefault(key, found)
    of_groups = GroupPaths(*found)
    paths = Paths(
        executable,
        of_groups.lengths,
        of_groups.temporary,
        clustered,
        ring != NO_RING,
        of_groups.cells,
        of_groups.cell_sections,
        bool(of_groups.fits),
    )
    return paths, WrittenScripts(*written)
