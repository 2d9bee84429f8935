"""Data sets: splits of graphs, the words that their pulls count, and minibatches of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from vertexrt.checks import is_whole
from vertexrt.errors import DataError, UsageError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.graph.batch import fill
from vertexrt.locks import CallThreads

IntArray = npt.NDArray[np.int32]

UNKNOWN, END = "<unk>", "<eos>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Number words; 0 is `<unk>`, which every word that is not known counts as.

    Attributes:
        words: the word of each number; the first is `<unk>`, none stands twice.
        unknown: `<unk>`; None for labels, which are all known: then no word stands for others.
    Raises: DataError, when the words are not so.
    """

    words: tuple[str, ...]
    unknown: str | None = UNKNOWN
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words: object = self.words
        if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
            raise DataError.at(
                "vocabulary", f"{words!r:.60}", "expected a tuple of words", "convert it"
            )
        numbers = {word: number for number, word in enumerate(words)}
        first = () if self.unknown is None else (self.unknown,)
        if not self.words or self.words[: len(first)] != first or len(numbers) != len(self.words):
            begin = repr(self.words[0]) if self.words else "nothing"
            raise DataError.at(
                "vocabulary",
                f"{len(self.words)} words, {len(numbers)} of them different, {begin} first",
                "expected different words" + "".join(f", '{word}' first" for word in first),
                "correct the list",
            )
        object.__setattr__(self, "_numbers", numbers)

    @classmethod
    def build(
        cls, counts: Mapping[str, int], *, min_count: int = 1, first: Sequence[str] = (UNKNOWN,)
    ) -> Vocabulary:
        """Build one of the words that occur often enough, frequent ones first.

        Args:
            counts: how often each word occurs; words that occur equally often keep their order.
            min_count: rarer words are left out.
            first: words to number before all others, whatever their count.
        """
        kept = [word for word, n in counts.items() if n >= min_count and word not in first]
        kept.sort(key=lambda word: -counts[word])
        return cls((*first, *kept))

    @classmethod
    def of_labels(cls, labels: Iterable[str]) -> Vocabulary:
        """Build one of the different labels in alphabetical order, without `<unk>`."""
        return cls(tuple(sorted(set(labels))), unknown=None)

    def __len__(self) -> int:
        return len(self.words)

    def find(self, word: str) -> int | None:
        """Return the number of a word; that of `<unk>`, or None, when it is not known."""
        return self._numbers.get(word, None if self.unknown is None else 0)

    def index(self, word: str) -> int:
        """Return the number of a word, 0 when it is not known.

        Raises: DataError, when it is not known and there is no `<unk>`.
        """
        number = self.find(word)
        if number is None:
            raise DataError.at(
                "vocabulary",
                f"no word {word!r:.60}",
                f"the words are {', '.join(self.words):.200}",
                "correct the word",
            )
        return number

    def encode(self, words: Iterable[str]) -> IntArray:
        """Return the number of each word, int32; raises as `index` does."""
        listed = list(words)
        numbers = {word: self.index(word) for word in dict.fromkeys(listed)}
        return np.array([numbers[word] for word in listed], np.int32)

    def decode(self, numbers: Iterable[int]) -> list[str | None]:
        """Return the word of each number, None for -1.

        Raises: DataError, when there is no such number.
        """
        given = np.asarray(list(numbers), np.int64)
        wrong = (given < -1) | (given >= len(self.words))
        if wrong.any():
            raise DataError.at(
                "vocabulary",
                f"no number {given[wrong][0]}",
                f"the numbers are 0..{len(self.words) - 1}, and -1 for none",
                "correct it",
            )
        return [self.words[number] if number >= 0 else None for number in given.tolist()]


class OpenVocabulary(Vocabulary):
    """Number words that another vocabulary does not have, too, so that they can be written again.

    `list(numbered)` has the word of each number; those from `len(words)` on are not known.
    """

    __slots__ = ()

    @property
    def numbered(self) -> dict[str, int]:
        """Return the number of each word, in the order of numbers."""
        return self._numbers

    def find(self, word: str) -> int | None:
        """Return the number of a word, a new one where it has none."""
        return self._numbers.setdefault(word, len(self._numbers))


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Hold a data set: each split is one graph batch, from which minibatches are taken.

    Attributes:
        name: as `load` was asked for it.
        format: what was read or generated, a name of `FORMATS`.
        splits: "train", "dev" and "test", those that there are.
        vocabularies: by pull, what numbers its words.
        counts: by pull of whole numbers that no vocabulary numbers: the largest and one.
        description: one line on what it is, for people.
        ids: by split, what the data call each graph; where they do not, None.
    """

    name: str
    format: str
    splits: dict[str, GraphBatch]
    vocabularies: Mapping[str, Vocabulary]
    counts: Mapping[str, int]
    description: str
    ids: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def vocabulary(self) -> Vocabulary:
        """Return what numbers the words of the pull "word"; of `<unk>` alone, where it has none."""
        return self.vocabularies.get("word") or Vocabulary((UNKNOWN,))

    @property
    def classes(self) -> int:
        """Return how many labels the pull "label" has; 0 when there are none."""
        return len(self.labels) or self.counts.get("label", 0)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the classes, () where they are numbers."""
        found = self.vocabularies.get("label")
        return found.words if found else ()

    def sizes(self) -> dict[str, int]:
        """Return the sizes that data decide, by the argument of a model that takes them."""
        known = {**self.counts, **{pull: len(words) for pull, words in self.vocabularies.items()}}
        named = {"vocab": known.get("word"), "classes": known.get("label")}
        found = {**named, **{f"num_{pull}": size for pull, size in known.items()}}
        return {name: size for name, size in found.items() if size}


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
