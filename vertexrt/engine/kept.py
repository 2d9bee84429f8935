"""Runs of batches that come again: prepared once, and given other real pulls each time.

How a batch runs depends on its graphs, its whole numbers and its index maps, not on the rows of
real numbers. So batches that are equal in these (`numbers_key`) share a run from the time on when
one has come before. What devices and results find for a run is kept with it.
"""

from __future__ import annotations

from vertexrt.engine.batched import Run
from vertexrt.engine.inputs import read_table
from vertexrt.engine.recent import Recent
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import is_taken, numbers_key
from vertexrt.graph.digest import BatchForm

MOST_RUNS, MOST_IN_ALL = 128, 1 << 20  # that are kept, and their vertices
MOST_SEEN = 1 << 12  # batches that are known to have come
MOST_VERTICES = 1 << 14  # of a batch: preparing it takes less than running it, where it is larger


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
    if form.numbers is None and batch.num_vertices <= MOST_VERTICES:
        if form.comes_again or is_taken(batch):
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
