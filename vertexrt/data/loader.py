"""Cut graphs into minibatches, and hand them out epoch after epoch in a seeded order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.checks import is_whole
from vertexrt.errors import UsageError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.graph.batch import fill
from vertexrt.locks import CallThreads

IntArray = npt.NDArray[np.int32]
Prepare = Callable[[GraphBatch, np.random.Generator], GraphBatch]

AHEAD = 2  # minibatches that each worker is ahead


def _cut(order: IntArray, count: int) -> list[IntArray]:
    """Return views of so many elements each; the last one may be smaller."""
    return [order[at : at + count] for at in range(0, len(order), count)]


class Loader:
    """Minibatches of graphs: `for batch in loader` goes through one epoch.

    The order of an epoch depends on its number and the arguments alone, so that a run which is
    resumed goes on as it would have.

    Args:
        graphs: a batch, or graphs.
        batch_size: graphs a minibatch; the last one of an epoch may be smaller.
        shuffle: False keeps the order of the graphs.
        bucket: minibatches over which graphs are sorted by their number of vertices, so that graphs
            of like cost come together and levels are fuller; 1 sorts nothing. The minibatches are
            shuffled anew then.
        seed: of the order, and of the generators that `prepare` is given.
        prepare: makes of a minibatch the one that is handed out: noise in pulls, words dropped.
            It has a random generator of its own, the same whatever the number of workers.
        workers: threads that prepare minibatches ahead. To take graphs out of a batch costs 10 to
            30 microseconds, less than to hand it to a thread, so 0 is best without `prepare`.
    Attributes:
        epoch: number of the epoch that is gone through next, or now.
    Raises: UsageError, when an argument does not fit; GraphError and PullError, as
        `GraphBatch.from_graphs` does.
    """

    def __init__(
        self,
        graphs: GraphBatch | Iterable[InputGraph],
        batch_size: int,
        *,
        shuffle: bool = True,
        bucket: int = 1,
        seed: int = 0,
        prepare: Prepare | None = None,
        workers: int = 0,
    ) -> None:
        if prepare is not None and not callable(prepare):
            raise _wrong(f"prepare={prepare!r:.60}", "a function of a batch and a generator")
        self.graphs = graphs if isinstance(graphs, GraphBatch) else GraphBatch.from_graphs(graphs)
        self.batch_size = _whole("batch_size", batch_size, 1)
        self.shuffle, self.bucket = bool(shuffle), _whole("bucket", bucket, 1)
        self.seed, self.workers = _whole("seed", seed, 0), _whole("workers", workers, 0)
        self.epoch = 0
        self._prepare = prepare
        self._done = 0  # minibatches of this epoch
        self._resumed = 0  # of them, before the state was loaded

    def __len__(self) -> int:
        """Return the number of minibatches of an epoch."""
        return -(-len(self.graphs) // self.batch_size)

    def __iter__(self) -> Iterator[GraphBatch]:
        """Go through an epoch from its beginning, or through what a loaded state leaves of it."""
        self._done, self._resumed = self._resumed, 0
        numbers = self.order(self.epoch)
        jobs = [(self.epoch, at, numbers[at]) for at in range(self._done, len(numbers))]
        for batch in self._ahead(jobs) if self.workers else map(self._make, jobs):
            self._done += 1
            yield batch
        self.epoch, self._done = self.epoch + 1, 0

    def order(self, epoch: int) -> list[IntArray]:
        """Return the graphs of each minibatch of an epoch, int32; every graph is in exactly one."""
        rng = np.random.default_rng([self.seed, epoch])
        order = np.arange(len(self.graphs), dtype=np.int32)
        if self.shuffle:
            order = rng.permutation(order)
        sizes = self.graphs.sizes()
        for part in _cut(order, self.bucket * self.batch_size) if self.bucket > 1 else ():
            part[:] = part[np.argsort(sizes[part], kind="stable")]
        batches = _cut(order, self.batch_size)
        if self.bucket > 1 and self.shuffle:
            batches = [batches[number] for number in rng.permutation(len(batches))]
        return batches

    def _make(self, job: tuple[int, int, IntArray]) -> GraphBatch:
        """Return a minibatch: of an epoch, its place there, its graphs."""
        epoch, at, graphs = job
        batch = self.graphs.take(graphs)
        if self.workers:
            fill(batch)  # here, not in the thread that it is handed out to
        if self._prepare is None:
            return batch
        made: object = self._prepare(batch, np.random.default_rng([self.seed, epoch, at]))
        if not isinstance(made, GraphBatch):
            raise _wrong(f"prepare returned a {type(made).__name__}", "a GraphBatch")
        return made

    def _ahead(self, jobs: Iterable[tuple[int, int, IntArray]]) -> Iterator[GraphBatch]:
        """Return minibatches in their order, some of which are made before they are asked for."""
        threads, waiting = CallThreads(), deque[SimpleQueue[GraphBatch | BaseException | None]]()
        left: list[bool] = []  # something, once nobody waits for what no thread has begun

        def run(job: tuple[int, int, IntArray], to: SimpleQueue[Any]) -> None:
            try:
                to.put(None if left else self._make(job))
            except BaseException as error:  # noqa: BLE001, `result` raises it
                to.put(error)

        def result() -> GraphBatch:
            made = waiting.popleft().get()
            if isinstance(made, BaseException):
                raise made
            assert made is not None
            return made

        threads.start(self.workers)
        try:
            for job in jobs:
                waiting.append(SimpleQueue())  # of C, which a signal cannot leave half used
                threads.put(partial(run, job, waiting[-1]))
                if len(waiting) > AHEAD * self.workers:
                    yield result()
            while waiting:
                yield result()
        finally:
            left.append(True)
            threads.wait()

    def state(self) -> dict[str, int]:
        """Return where the loader stands, with what its order depends on; JSON can hold it."""
        own = {
            name: int(getattr(self, name)) for name in ("batch_size", "shuffle", "bucket", "seed")
        }
        return {"epoch": self.epoch, "batch": self._done, "graphs": len(self.graphs), **own}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on where another loader of the same graphs and arguments stood.

        Raises: UsageError, when the state is of another order, or beyond an epoch.
        """
        own = self.state()
        if not isinstance(state, Mapping) or state.keys() != own.keys():
            raise _wrong(f"the state {state!r:.80}", f"a dict of {', '.join(own)}")
        for name in own.keys() - {"epoch", "batch"}:
            if state[name] != own[name]:
                raise _wrong(f"a state with {name}={state[name]!r:.40}", f"{name}={own[name]}")
        done = _whole("batch", state["batch"], 0, len(self))
        self.epoch = _whole("epoch", state["epoch"], 0)
        self._done = self._resumed = done


def _whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return a whole number as Python's, which JSON can hold. Raises: UsageError, if it is none."""
    if not is_whole(value) or value < least or (most is not None and value > most):
        limit = f"{least} or more" if most is None else f"{least}..{most}"
        raise _wrong(f"{name}={value!r:.40}", f"a whole number, {limit}")
    return int(value)


def _wrong(got: str, expected: str) -> UsageError:
    return UsageError.at("loader", got, f"expected {expected}", "correct it")
