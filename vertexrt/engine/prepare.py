"""From a minibatch to a run: read what it pulls, and lay it out unless one like it came before."""

from __future__ import annotations

import numpy.typing as npt

from vertexrt.engine.alike_inputs import read_alike
from vertexrt.engine.batched import Run
from vertexrt.engine.inputs import Inputs, read_inputs
from vertexrt.engine.kinds import meet_kinds
from vertexrt.engine.lay_out import lay_out
from vertexrt.engine.layouts import BatchLayout, Key
from vertexrt.engine.variant import Variant
from vertexrt.graph import GraphBatch
from vertexrt.graph.alike import alike_key
from vertexrt.graph.batch import graph_ptr_of
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
    batch, merges = share.batch, variant.merges and merge
    key = None if merges else alike_key(batch)
    known = None if key is None else variant.layouts.known(key)
    if known is not None:
        found = read_alike(variant.reader, batch, known.inputs, dtype)
        if found is not None:
            return Run(variant, variant.ready(), share, found, known.layout, configuration)
    inputs = read_inputs(variant.reader, batch, dtype)
    layout = _layout_of(variant, batch, inputs, policy_of(policy), merges, key)
    return Run(variant, variant.ready(), share, inputs, layout, configuration)


def _layout_of(
    variant: Variant,
    batch: GraphBatch,
    inputs: Inputs,
    policy: int,
    merges: bool,
    key: Key | None,
) -> BatchLayout:
    """Return the layout of a batch: one that is kept, or a new one. Raises: as `prepare`.

    Args:
        merges: identical vertices are one, so that it depends on the numbers that they pull.
        key: of the batch, by which the layout is known from now on.
    """
    if merges and variant.reader.reads_integers:  # words, which never come again alike
        return _lay_out(variant, batch, inputs, policy, merges)
    graph_ptr = graph_ptr_of(batch)
    kept = variant.layouts.find(variant.reader, graph_ptr, inputs, merges)
    if kept is None:
        layout = _lay_out(variant, batch, inputs, policy, merges)
        variant.layouts.keep(graph_ptr, inputs, layout, merges)
        return layout
    if key is not None:
        variant.layouts.name(kept, key)
    return kept.layout


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
                graph_ptr_of(batch),
            )
        meet_kinds(variant, batch, inputs)
