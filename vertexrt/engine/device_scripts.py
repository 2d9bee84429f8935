"""From a minibatch to what goes up to a GPU: its arrays, and the scripts of a persistent kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vertexrt.engine.batched import Run
from vertexrt.kernels.cuda.one_launch import OneLaunch, Paths, Written
from vertexrt.kernels.cuda.session import Inputs
from vertexrt.script.assemble import assemble_groups

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.persistent import PersistentExecutable

Array = np.ndarray[Any, Any]


def inputs_of(
    run: Run, seeds: tuple[Array, ...] = (), loss_scale: float = 1.0, random_seed: int = 0
) -> Inputs:
    """Return the arrays of a minibatch that go up to the device."""
    s = run.schedule
    return Inputs(
        base=run.plan.base,
        temporary=run.plan.temporary,
        rows=run.rows,
        order=s.order,
        edge_ptr=s.edge_ptr,
        child_row=s.child_row,
        edge_row=s.edge_row,
        parent_ptr=s.parent_ptr,
        parent_edge=s.parent_edge,
        user_edge=run.share.batch.child_ptr,
        weight=s.weight,
        pulls=run.inputs.index,
        largest=run.variant.reader.largest,
        floats=run.inputs.floats,
        seeds=seeds,
        loss_scale=loss_scale,
        random_seed=random_seed,
    )


def write_launch(
    run: Run, table: Array, one_launch: OneLaunch, inputs: Inputs, clips: bool, updates: bool
) -> tuple[PersistentExecutable, Paths, Written]:
    """Write the scripts of the one launch that stands for launches of a minibatch's table.

    Args:
        table: the launches.
        clips, updates: whether they end with a norm, and with an update.
    """
    executable = cast("PersistentExecutable", run.variant.ready().processors)
    paths = _paths(run, table, executable)
    written = one_launch.write(executable, table, paths, inputs, clips, updates)
    return executable, paths, written


def _paths(run: Run, table: Array, executable: PersistentExecutable) -> Paths:
    """Write the scripts of the path: groups of processors share the graphs of a batch."""
    s, shape, batch = run.schedule, run.variant.ready().shape, run.share.batch
    assert shape is not None, f"{run.configuration} has no scripts"
    groups = min(executable.most_groups(batch.num_graphs), batch.num_graphs)
    ring = executable.has_ring(batch.num_graphs)
    scripts = assemble_groups(
        shape,
        table,
        executable.beside,
        s.order,
        s.edge_ptr,
        s.child_row,
        batch.graph_ptr,
        groups,
        executable.processors,
        executable.tile_beside_ring if ring else executable.tile,
    )
    return Paths(*scripts, executable.clustered(batch.num_graphs), ring)
