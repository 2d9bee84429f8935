"""From a minibatch to a run: read what it pulls, and lay it out unless one like it came before."""

from __future__ import annotations

import numpy.typing as npt

from vertexrt.engine.batched import Run
from vertexrt.engine.inputs import Inputs, read_inputs, read_table
from vertexrt.engine.kinds import meet_kinds
from vertexrt.engine.layouts import BatchLayout, Recent, is_within, lay_out
from vertexrt.engine.variant import Use, Variant
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import numbers_key, structure_key, whole_of
from vertexrt.graph.digest import BatchForm
from vertexrt.kernels.ways import Configuration
from vertexrt.memory import MemoryPlan
from vertexrt.scheduler import policy_of
from vertexrt.scheduler.balance import Share
from vertexrt.scheduler.kinds import FINE

BATCHED = Configuration(False, 1)
MOST_RUNS, MOST_IN_ALL = 128, 1 << 20  # that are kept, and their vertices
MOST_SEEN = 1 << 12  # batches that are known to have come
MOST_OF_A_BATCH = 1 << 14  # of a batch: preparing it takes less than running it, where it is larger


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
                batch.graph_ptr,
            )
        meet_kinds(variant, batch, inputs)


class KeptRuns(Recent[Run]):
    """The runs that were used last, by use and numbers; without pulls, since these may be large."""

    def __init__(self) -> None:
        super().__init__(MOST_RUNS, MOST_IN_ALL)
        self._seen: set[tuple[Use, bytes]] = set()

    def of(self, use: Use, form: BatchForm) -> Run | None:
        """Return the run of batches of a form, without pulls; None, where none is kept."""
        kept = self.find((use, form.numbers))
        return None if kept is None or kept.ready is not kept.variant.loaded else kept

    def note(self, use: Use, form: BatchForm, run: Run) -> None:
        """Keep the run of a batch, if one like it has come before."""
        if form.numbers is None:
            return
        key = use, form.numbers
        if not form.comes_again and key not in self._seen:
            if len(self._seen) == MOST_SEEN:
                self._seen.clear()
            self._seen.add(key)
            return
        run.kept = {}
        self.keep(key, run.bare(), len(run.inputs.child_ptr))


def find_numbers(batch: GraphBatch) -> bool:
    """Tell whether the digest of a batch is known by which its run may be kept.

    Graphs of minibatches that are taken from one batch are hashed once. Those of a batch of its own
    are not, unless it comes again: it may be made anew for each step.
    """
    form = batch.form
    if form.numbers is None and batch.num_vertices <= MOST_OF_A_BATCH:
        if form.comes_again or whole_of(batch) is not batch:
            numbers_key(batch)
        else:
            form.comes_again = True
    return form.numbers is not None


def with_pulls(kept: Run, batch: GraphBatch) -> Run:
    """Return a kept run that reads the real pulls of a batch.

    Raises: PullError, when one is missing or does not fit.
    """
    reader, dtype = kept.variant.reader, kept.inputs.no_reals.dtype
    tables = [read_table(reader, k, batch, dtype) for k in reader.reals]
    return kept.with_floats(batch, tuple(tables))
