"""Runs of batches that come again: prepared once, and given other real pulls each time.

How a batch runs depends on its graphs, its whole numbers and its index maps, not on the rows of
real numbers. So batches that differ in these alone (`BatchForm`) share a run from the time on when
one has come before. What devices and results find for a run is kept with it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from vertexrt.engine.batched import Run
from vertexrt.engine.inputs import read_table
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch_form import BatchForm
from vertexrt.scheduler.balance import Share

MOST_RUNS, MOST_IN_ALL = 128, 1 << 20  # that are kept, and their vertices
MOST_VERTICES = 1 << 14  # of a batch: preparing it takes less than running it, where it is larger


class KeptRuns:
    """The runs that were used last; without pulls, since these may be large.

    Args:
        prepare: returns the runs of a batch that has not come before.
    Attributes:
        most: how many runs are kept, of all uses.
    """

    def __init__(self, prepare: Callable[[Use, Share], list[Run]]) -> None:
        self._prepare, self.most = prepare, MOST_RUNS
        self._runs: OrderedDict[tuple[BatchForm, Use], Run] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, use: Use, form: BatchForm) -> Run | None:
        """Return the run of batches of a form, without pulls; None, where none is kept."""
        key = form, use
        kept = self._runs.get(key)
        if kept is None or kept.ready is not kept.variant.loaded:
            return None
        self._runs.move_to_end(key)
        return kept

    def __call__(self, use: Use, batch: GraphBatch) -> list[Run]:
        """Return the runs of a batch; where a run was kept, with its own real pulls.

        Raises: PullError and GraphError, as `CompiledModel.prepare` does.
        """
        kept = self.find(use, batch.form)
        if kept is not None:
            return [_with_pulls(kept, batch) if kept.variant.reader.reals else kept]
        runs = self._prepare(use, Share(batch))
        mine = id(self), use
        if mine not in batch.form.seen:
            batch.form.seen.add(mine)
        elif len(runs) == 1 and batch.num_vertices <= MOST_VERTICES:
            runs[0].kept = {}
            self._runs[batch.form, use] = runs[0].bare()
            sizes = [len(run.inputs.child_ptr) for run in self._runs.values()]
            while len(sizes) > self.most or sum(sizes) > MOST_IN_ALL:
                self._runs.popitem(last=False)
                del sizes[0]
        return runs


def _with_pulls(kept: Run, batch: GraphBatch) -> Run:
    """Return a kept run that reads the real pulls of a batch."""
    reader, dtype = kept.variant.reader, kept.inputs.no_reals.dtype
    tables = [read_table(reader, k, batch, dtype) for k in reader.reals]
    return kept.with_floats(batch, tuple(tables))
