"""From a minibatch to a run: read what it pulls, and lay it out unless one like it came before."""

from __future__ import annotations

import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.inputs import Inputs, read_inputs
from vertexrt.engine.kinds import meet_kinds
from vertexrt.engine.lay_out import lay_out
from vertexrt.engine.layouts import BatchLayout, is_within
from vertexrt.engine.variant import Variant
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import graph_ptr_of, numbers_key, structure_key
from vertexrt.kernels.ways import Configuration
from vertexrt.memory import MemoryPlan
from vertexrt.scheduler import policy_of
from vertexrt.scheduler.balance import Share
from vertexrt.scheduler.kinds import FINE

BATCHED = Configuration(False, 1)


def prepare(
    variant: Variant,
    share: Share,
    policy: str,
    dtype: npt.DTypeLike,
    configuration: Configuration = BATCHED,
    merge: bool = True,
) -> Run:
    """Schedule a share of a batch and plan its memory, compiling kinds not seen before.

    Args:
        merge: let identical vertices be computed once, where the variant does; which are identical
            depends on the numbers that they pull.

    Raises: PullError, when pulled values do not fit; GraphError, when a vertex has more children
        than the function has slots.
    """
    batch, reader, merges = share.batch, variant.reader, variant.merges and merge
    key = None
    if not merges:
        key = structure_key(batch)
    elif not reader.reads_integers:  # words never come again alike
        key = numbers_key(batch)
    layout = None if key is None else variant.layouts.find(key)
    structure = None if layout is None else layout.structure
    inputs = read_inputs(reader, batch, dtype, structure=structure)
    if layout is not None and is_within(inputs.index, reader.used, reader.bounds):
        layout.came_again = True
    else:
        layout = _lay_out(variant, batch, inputs, policy_of(policy), merges)
        if key is not None:
            variant.layouts.keep(key, layout, len(inputs.child_ptr))
    return Run(variant, variant.ready(), share, inputs, layout, configuration)


def _lay_out(
    variant: Variant, batch: GraphBatch, inputs: Inputs, policy: int, merges: bool
) -> BatchLayout:
    """Lay out a batch, compiling kinds not seen before. Raises: as `prepare`."""
    if variant.loaded is None:
        meet_kinds(variant, batch, inputs)
    while True:
        programs = variant.ready().programs
        found, with_loss, (indices, extents, weight), plan, table, forward, rows = lay_out(
            inputs.child_ptr,
            inputs.child,
            inputs.functions,
            inputs.first_of,
            inputs.index,
            inputs.no_reals,
            policy,
            merges,
            variant.merges_inner,
            variant.reader.reads_edges,
            variant.vertex_facts(),
            programs,
        )
        if found == FINE:
            planned = MemoryPlan(*plan)
            return BatchLayout(
                indices,
                extents,
                weight,
                table,
                forward,
                rows,
                planned,
                with_loss,
                inputs.structure,
                graph_ptr_of(batch),
            )
        meet_kinds(variant, batch, inputs)
