"""Ways of doing one thing, timed in turn, and engines whose first step is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import vertexrt as vrt
from vertexrt.bench.measure import in_turn
from vertexrt.bench.record import ratio_of


def compiled(
    engines: Iterable[str], make: Callable[[], vrt.Model], batch: vrt.GraphBatch, device: str
) -> dict[str, vrt.Network]:
    """Return a network for each engine; print when its first step, which changes nothing, ended."""
    nets = {}
    for engine in engines:
        start = time.perf_counter()
        net = nets[engine] = vrt.compile(make(), device=device, engine=engine, seed=1)
        net.step(batch, vrt.SGD(lr=0.0))
        net.sync()
        print(f"{engine}: first step after {time.perf_counter() - start:.1f} s", flush=True)
    return nets


def seconds_in_turn(
    ways: Mapping[str, Callable[[], None]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return what each way took in each round, by name; a round before them does not count."""

    def timed(way: Callable[[], None], number: int) -> float:
        start = clock()
        way()
        return clock() - start

    return in_turn({name: partial(timed, way) for name, way in ways.items()}, rounds, -1)


def ratio_text(before: Sequence[float], after: Sequence[float]) -> str:
    """Return how many times as fast `after` is: the median of the rounds, and quartiles."""
    ratio = ratio_of(before, after)
    return f"{ratio.median:5.2f} [{ratio.low:.2f} {ratio.high:.2f}]"
