"""Ways of doing one thing, timed in turn, and engines whose first step is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

import vertexrt as vrt

Seconds = list[float] | np.ndarray[Any, Any]


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


def seconds_in_turn(ways: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return what each way took in each round, by name; a round before them does not count."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if number:
                took[name].append(time.perf_counter() - start)
    return took


def ratio_text(before: Seconds, after: Seconds) -> str:
    """Return how many times as fast `after` is: the median of the rounds, and quartiles."""
    low, ratio, high = np.percentile(np.array(before) / np.array(after), [25, 50, 75])
    return f"{ratio:5.2f} [{low:.2f} {high:.2f}]"
