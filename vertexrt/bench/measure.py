"""Time contenders in turn over the same minibatches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertexrt.bench.contender import Contender
from vertexrt.data import minibatches
from vertexrt.graph import GraphBatch

LR = 1e-3  # small: the parameters stay where arithmetic takes its usual time
BLOCK_SECONDS = 0.05  # of the fastest contender: one synchronisation is little beside that
MICROSECONDS = 1e6  # of a second
ROUNDS = (3, 25)  # at least, at most
WARM_STEPS = (2, 60)  # of each contender, before its speed is estimated
WARM_SHARE = 0.2  # of the time, for all contenders together


@dataclass(frozen=True, slots=True)
class Runner:
    """What is timed: `run` starts the work on a minibatch, `sync` waits until nothing runs."""

    run: Callable[[GraphBatch], object]
    sync: Callable[[], None]


def runners(contenders: Mapping[str, Contender], mode: str = "train") -> dict[str, Runner]:
    """Return what is timed; before and after each turn nothing runs on the device.

    Args:
        mode: "train" or "infer".
    """

    def sync() -> None:
        for contender in contenders.values():
            contender.sync()

    def runner(contender: Contender) -> Runner:
        if mode == "train":
            return Runner(lambda batch: contender.train(batch, LR), sync)
        return Runner(contender.infer, sync)

    return {name: runner(contender) for name, contender in contenders.items()}


class Draw:
    """Draw minibatches from a pool, every graph once an epoch; the last, smaller ones are left out.

    Contenders get the numbers of graphs only: taking them from the pool is a part of a step.
    """

    def __init__(self, pool: GraphBatch, batch_size: int, seed: int = 0) -> None:
        self.pool = pool
        self.batch_size = min(batch_size, pool.num_graphs)
        self._numbers = self._epochs(seed)

    def _epochs(self, seed: int) -> Iterator[np.ndarray]:
        sizes = self.pool.sizes()
        epoch = 0
        while True:
            for ids in minibatches(sizes, self.batch_size, seed=seed, epoch=epoch):
                if len(ids) == self.batch_size:
                    yield ids
            epoch += 1

    def take(self, count: int) -> list[np.ndarray]:
        """Return the graph numbers of the next minibatches."""
        return [next(self._numbers) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Timing:
    """Hold the samples of contenders that took turns.

    Attributes:
        batch_size: graphs a minibatch.
        steps: minibatches a sample.
        samples: graphs/s by contender, one a round.
    """

    batch_size: int
    steps: int
    samples: dict[str, list[float]]


def measure(
    runners: Mapping[str, Runner], draw: Draw, seconds: float, rounds: tuple[int, int] | None = None
) -> Timing:
    """Time every contender in turn over the same minibatches.

    The order turns by one place from round to round (A B C, B C A, C A B ...). A sample is a
    block of steps with one synchronisation at its end.

    Args:
        seconds: for all contenders together, warm-up included.
        rounds: the fewest, also when they take longer than `seconds`, and the most.
    """
    least, most = rounds or ROUNDS
    start = time.perf_counter()
    share = WARM_SHARE * seconds / len(runners)
    step_seconds = [_warm_up(runner, draw, share) for runner in runners.values()]
    left = max(seconds - (time.perf_counter() - start), 0.0)
    steps = math.ceil(BLOCK_SECONDS / min(step_seconds))
    steps = max(1, min(steps, int(left / least / sum(step_seconds))))
    count = min(max(int(left / (steps * sum(step_seconds))), least), most)
    names = list(runners)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(count):
        ids = draw.take(steps)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            took = _take_turn(runners[name], draw.pool, ids)
            samples[name].append(steps * draw.batch_size / took)
    return Timing(draw.batch_size, steps, samples)


def _warm_up(runner: Runner, draw: Draw, seconds: float) -> float:
    """Run untimed steps, which compile and grow buffers; return the seconds of the quickest."""
    end = time.perf_counter() + seconds
    took = math.inf
    done = 0
    count = WARM_STEPS[0]
    while done < WARM_STEPS[0] or (done < WARM_STEPS[1] and time.perf_counter() < end):
        took = min(took, _take_turn(runner, draw.pool, draw.take(count)) / count)
        done += count
        count = max(1, min(2 * count, int((end - time.perf_counter()) / took)))
    return took


def _take_turn(runner: Runner, pool: GraphBatch, ids: list[np.ndarray]) -> float:
    runner.sync()
    begin = time.perf_counter()
    for graphs in ids:
        runner.run(pool.take(graphs))
    runner.sync()
    return time.perf_counter() - begin


@contextmanager
def timed(owner: object, method: str) -> Iterator[list[float]]:
    """Note the seconds of each call of a method of one object, in the list that is yielded."""
    original: Callable[..., Any] = getattr(owner, method)
    noted: list[float] = []

    def wrapper(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        result = original(*arguments, **options)
        noted.append(time.perf_counter() - begin)
        return result

    setattr(owner, method, wrapper)
    try:
        yield noted
    finally:
        delattr(owner, method)
