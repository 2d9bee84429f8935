"""From a minibatch to what goes up to a GPU: its arrays, and the scripts of a persistent kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.engine.batched import Run
from vertexrt.engine.facts import row_at, table_at
from vertexrt.errors import NoKernelError, message
from vertexrt.graph.batch import child_ptr_of, graph_ptr_of
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.driver import sort_lookups
from vertexrt.kernels.cuda.gpu_script import Facts, write_scripts
from vertexrt.kernels.cuda.one_launch import OneLaunch, Paths, Written
from vertexrt.kernels.cuda.session import Inputs
from vertexrt.scheduler.merge import CHILD_ROW, EDGE_PTR, ORDER, PARENT_PTR, part_of
from vertexrt.script.assemble import Shape, assemble_groups

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]

# Of `Ready.script_facts`: the fields of `Facts` and of `Shape`.
(
    STAGES, BESIDE, STEPS_PTR, STEPS, ADDS, ADDS_PTR, ADDED, STEP_SCRATCH, FIRST_SEGMENT, SEGMENTS,
    RINGS,
) = range(11)  # fmt: skip
(
    STAGE, SEGMENT_PTR, SPLIT, GATHERS, TILED, ROW_COST, EDGE_COST, SCRATCH
) = range(11, 19)  # fmt: skip
PATH, LAZY, PATH_BACKWARD = (int(s) for s in (Stage.PATH, Stage.LAZY, Stage.PATH_BACKWARD))


def inputs_of(
    run: Run, seeds: tuple[Array, ...] = (), loss_scale: float = 1.0, random_seed: int = 0
) -> Inputs:
    """Return the arrays of a minibatch that go up to the device."""
    return Inputs(
        base=run.plan.base,
        temporary=run.plan.temporary,
        indices=run.indices,
        extents=run.extents,
        weight=run.weight,
        rows=run.rows,
        user_edge=child_ptr_of(run.share.batch),
        pulls=run.inputs.index,
        largest=run.variant.reader.largest,
        floats=run.inputs.floats,
        seeds=seeds,
        loss_scale=loss_scale,
        random_seed=random_seed,
    )


@njit(cache=True, nogil=True)
def write_all(
    table: Array,
    pulls: Array,
    rows: Array,
    indices: Array,
    extents: Array,
    graph_ptr: Array,
    seen: Array,
    groups: int,
    clips: bool,
    updates: bool,
    # of `PersistentExecutable`
    processors: int,
    tile: int,
    ring: bool,
    gradients: Array,
    lookups_ptr: Array,
    lookups: Array,
    script_facts: Array,
) -> tuple[Any, ...]:
    """Write all scripts of a launch in one call: objects of Python between them would cost more.

    Args:
        table: launches; pulls: int32 [pulls, V]; rows: of launches that take a list.
        indices, extents: of `number_rows`; graph_ptr: of the batch.
        groups: that the graphs are shared out among.
        script_facts: of `Ready`: the facts of `PersistentExecutable`, and those of `Shape`.
        The others are those of `assemble_groups`, `sort_lookups` and `write_scripts`.
    Returns: what `write_scripts` returns; of `assemble_groups` the lengths and the room; what
        `sort_lookups` returns.
    """
    order, edge_ptr = part_of(indices, extents, ORDER), part_of(indices, extents, EDGE_PTR)
    child_row = part_of(indices, extents, CHILD_ROW)
    shape = Shape(
        row_at(script_facts, STAGE), row_at(script_facts, SEGMENT_PTR),
        row_at(script_facts, SPLIT), row_at(script_facts, GATHERS),
        row_at(script_facts, TILED), row_at(script_facts, ROW_COST).view(np.float64),
        row_at(script_facts, EDGE_COST).view(np.float64), table_at(script_facts, SCRATCH),
    )  # fmt: skip
    beside = row_at(script_facts, BESIDE)
    facts = Facts(
        row_at(script_facts, STAGES), beside, row_at(script_facts, STEPS_PTR),
        table_at(script_facts, STEPS), row_at(script_facts, ADDS),
        row_at(script_facts, ADDS_PTR), row_at(script_facts, ADDED),
        table_at(script_facts, STEP_SCRATCH), row_at(script_facts, FIRST_SEGMENT),
        table_at(script_facts, SEGMENTS), table_at(script_facts, RINGS),
    )  # fmt: skip
    words, lengths, temporary = assemble_groups(
        shape, table, beside, order, edge_ptr, child_row, graph_ptr, groups, processors, tile
    )
    found = sort_lookups(table, lookups_ptr, lookups, pulls, order, rows, seen)
    script, sections, child_slot, common, elements = write_scripts(
        table, facts, gradients, (PATH, LAZY, PATH_BACKWARD), found[0], found[1], clips, updates,
        words, lengths, part_of(indices, extents, PARENT_PTR), child_row, ring, processors == 1,
    )  # fmt: skip
    return script, sections, child_slot, common, elements, lengths, temporary, found


def write_launch(
    run: Run, table: Array, one_launch: OneLaunch, clips: bool, updates: bool
) -> tuple[PersistentExecutable, Paths, Written]:
    """Write the scripts of the one launch that stands for launches of a minibatch's table.

    Groups of processors share the graphs of a batch.

    Args:
        table: the launches.
        clips, updates: whether they end with a norm, and with an update.
    """
    ready, batch = run.ready, run.share.batch
    executable = cast("PersistentExecutable", ready.processors)
    assert ready.shape is not None, f"{run.configuration} has no scripts"
    graphs = batch.num_graphs
    groups = executable.most_groups(graphs)
    if not groups:
        got = f"a group of {executable.processors} processors"
        have = f"at most the device's {one_launch.session.device.processors}"
        raise NoKernelError(message("cuda", got, have, "take fewer processors a group"))
    ring = executable.has_ring(graphs)
    script, sections, child_slot, common, elements, lengths, temporary, found = write_all(
        table,
        run.inputs.index,
        run.rows,
        run.indices,
        run.extents,
        graph_ptr_of(batch),
        one_launch.session.marks(run.variant.reader.largest),
        min(groups, graphs),
        clips,
        updates,
        executable.processors,
        executable.tile_beside_ring if ring else executable.tile,
        ring,
        executable.gradients,
        executable.lookups_ptr,
        executable.lookups,
        ready.script_facts,
    )
    paths = Paths(lengths, temporary, executable.clustered(graphs), ring)
    written = Written(
        script,
        common,
        sections,
        child_slot,
        elements,
        clips,
        updates,
        found[0],
        found[1],
        found[2:],
    )
    return executable, paths, written
