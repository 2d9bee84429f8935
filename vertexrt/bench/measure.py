"""Time contenders in turn over the same minibatches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.bench.contender import Contender
from vertexrt.data import minibatches
from vertexrt.graph import GraphBatch

LR = 1e-3  # small: the parameters stay where arithmetic takes its usual time
BLOCK_SECONDS = 0.05  # of the fastest contender: one synchronisation is short compared with that
MICROSECONDS = 1e6  # of a second
Samples = dict[str, list[float]]  # of the parts of a step, by name in microseconds
ROUNDS = (3, 25)  # at least, at most
WARM_STEPS = (2, 60)  # of each contender, before its speed is estimated
WARM_SHARE = 0.2  # of the time, for all contenders together


class Draw:
    """Draw minibatches from a pool, every graph once an epoch; the last, smaller ones are left out.

    Contenders get the numbers of graphs only: taking them from the pool is a part of a step.
    """

    def __init__(self, pool: GraphBatch, batch_size: int, seed: int = 0) -> None:
        self.pool = pool
        self.batch_size = min(batch_size, pool.num_graphs)
        cut = partial(minibatches, pool.sizes(), self.batch_size, seed=seed)
        drawn = (ids for epoch in count() for ids in cut(epoch=epoch))
        self._numbers = (ids for ids in drawn if len(ids) == self.batch_size)

    def take(self, number: int) -> list[np.ndarray]:
        """Return the graph numbers of the next minibatches."""
        return list(islice(self._numbers, number))


def measure(
    contenders: Mapping[str, Contender],
    draw: Draw,
    seconds: float,
    rounds: tuple[int, int] = ROUNDS,
    infer: bool = False,
) -> dict[str, list[float]]:
    """Time every contender in turn over the same minibatches.

    The order turns by one place from round to round (A B C, B C A, C A B ...). A sample is a
    block of steps with one synchronisation at its end; before and after it the device is idle.

    Args:
        seconds: for all contenders together, warm-up included.
        rounds: the fewest, also when they take longer than `seconds`, and the most.
        infer: outputs are timed, not training.
    Returns: graphs/s by contender, one a round.
    """

    def turn(contender: Contender, ids: list[np.ndarray]) -> float:
        for each in contenders.values():
            each.sync()
        begin = time.perf_counter()
        for graphs in ids:
            batch = draw.pool.take(graphs)
            if infer:
                contender.infer(batch)
            else:
                contender.train(batch, LR)
        contender.sync()
        return time.perf_counter() - begin

    least, most = rounds
    start = time.perf_counter()
    share = WARM_SHARE * seconds / len(contenders)
    took = [_warm_up(partial(turn, each), draw, share) for each in contenders.values()]
    left = max(seconds - (time.perf_counter() - start), 0.0)
    steps = math.ceil(BLOCK_SECONDS / min(took))
    steps = max(1, min(steps, int(left / least / sum(took))))
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for k in range(min(max(int(left / (steps * sum(took))), least), most)):
        ids = draw.take(steps)
        first = k % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(steps * draw.batch_size / turn(contenders[name], ids))
    return samples


def _warm_up(turn: Callable[[list[np.ndarray]], float], draw: Draw, seconds: float) -> float:
    """Run untimed steps, which compile and grow buffers; return the seconds of the quickest."""
    end = time.perf_counter() + seconds
    took = math.inf
    done = 0
    count = WARM_STEPS[0]
    while done < WARM_STEPS[0] or (done < WARM_STEPS[1] and time.perf_counter() < end):
        took = min(took, turn(draw.take(count)) / count)
        done += count
        count = max(1, min(2 * count, int((end - time.perf_counter()) / took)))
    return took


def take_steps(net: vrt.Network, draw: Draw, count: int) -> float:
    """Run so many steps; return microseconds a step."""
    optimizer, numbers = vrt.SGD(lr=LR), draw.take(count)
    begin = time.perf_counter()
    for ids in numbers:
        net.step(draw.pool.take(ids), optimizer)
    net.sync()
    return (time.perf_counter() - begin) / count * MICROSECONDS


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
