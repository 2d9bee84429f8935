"""Run many functions, in several processes, and count what came of them by way."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from tests.fuzz.batches import BatchSpec, draw_batch
from tests.fuzz.compare import Expected, check
from tests.fuzz.function import FunctionSpec, builder, source
from tests.fuzz.generate import MOST_NODES, draw_function
from tests.fuzz.shrink import Failure, shrink
from tests.fuzz.ways import NamedWay, chosen, ways_of

TWO_BATCHES = 0.25  # how many functions run two batches in one network
DIED = "the process died"
CONTEXT = multiprocessing.get_context("spawn")  # neither threads nor a GPU survive a fork
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """How each function of a campaign is run.

    Attributes:
        device, dtype: see `ways_of`; ways: prefixes of names, "" for all.
        per: ways of each function; all take turns.
        most: vertices of a graph; nodes: of a function, about.
        shrink: seconds for the first failure of each function.
        relation: how the relations that are tried begin.
    """

    device: str = "reference"
    dtype: str = "float64"
    ways: str = ""
    per: int = 2
    most: int = 6
    nodes: int = MOST_NODES
    shrink: float = 20.0
    relation: str = ""

    def listed(self) -> list[NamedWay]:
        """List the ways."""
        found = ways_of(self.device, self.dtype)
        return chosen(found, self.ways) if self.ways else found

    def of_ways(self) -> str:
        """Return what the command line says of them: a seed's way depends on which there are."""
        return f" --ways {self.ways}" if self.ways else ""

    def taken(self, seed: int) -> list[NamedWay]:
        """Return the ways of one function: all take turns."""
        found = self.listed()
        count = min(self.per, len(found))
        return [found[(seed * count + k) % len(found)] for k in range(count)]


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure: what differs, and a script that shows it; "" but for a function's first."""

    seed: int
    way: str
    kind: str
    text: str
    script: str


@dataclass(slots=True)
class Tally:
    """What came of some functions.

    Attributes:
        functions: how many were run; unclear: how many were not, since rounding may decide.
        tried, refused, tied: runs by way; see `Outcome`.
    """

    functions: int = 0
    unclear: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    tied: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what came of others."""
        self.functions += other.functions
        self.unclear += other.unclear
        self.tried.update(other.tried)
        self.refused.update(other.refused)
        self.tied.update(other.tied)
        self.findings += other.findings

    def table(self) -> str:
        """Print a line for each way, then the kinds of failures."""
        failed = Counter(finding.way for finding in self.findings)
        lines = [f"{self.functions} functions, {self.unclear} more left out (rounding decides)"]
        lines.append(f"{'way':32} {'tried':>8} {'refused':>8} {'tied':>8} {'failed':>8}")
        columns = (self.tried, self.refused, self.tied, failed)
        for way in sorted(self.tried):
            lines.append(f"{way:32}" + "".join(f" {column[way]:8}" for column in columns))
        lines.append(f"{'all':32}" + "".join(f" {column.total():8}" for column in columns))
        lines += [
            f"  {count:5} {kind}"
            for kind, count in Counter(f.kind for f in self.findings).most_common()
        ]
        return "\n".join(lines)


def drawn(
    seed: int, most: int, nodes: int = MOST_NODES
) -> tuple[FunctionSpec, tuple[BatchSpec, ...]]:
    """Draw the function of a seed and its batches; the numbers are those of `Settings`."""
    rng = np.random.default_rng([seed])
    spec = draw_function(rng, nodes)
    count = 2 if rng.random() < TWO_BATCHES else 1
    return spec, tuple(draw_batch(rng, spec, most) for _ in range(count))


def run_one(seed: int, settings: Settings) -> Tally:
    """Draw the function of a seed and run it."""
    tally = Tally()
    spec, batches = drawn(seed, settings.most, settings.nodes)
    build = builder(source(spec))
    expected = [Expected(build, batch) for batch in batches]
    if any(want.unclear(settings.dtype) for want in expected):
        tally.unclear += 1
        return tally
    tally.functions += 1
    shuffle = 1 + seed % 1_000_000
    for way in settings.taken(seed):
        outcome = check(build, expected, way, shuffle)
        tally.tried[way.name] += 1
        tally.refused[way.name] += outcome.kind == "refused"
        tally.tied[way.name] += outcome.kind == "tied"
        if outcome.failed:
            script = ""
            if not tally.findings:
                failure = Failure(spec, batches, way, shuffle, outcome)
                script = shrink(failure, settings.shrink).script()
            tally.findings.append(Finding(seed, way.name, outcome.kind, outcome.text, script))
    return tally


RunOne = Callable[[int, Settings], Tally]


def run_campaign(
    seeds: Iterable[int], settings: Settings, jobs: int, one: RunOne = run_one
) -> Iterator[Tally]:
    """Run what many seeds draw; the death of a process is a finding of the seed it had."""

    def died(seed: int) -> Tally:
        script = source(drawn(seed, settings.most, settings.nodes)[0]) if one is run_one else ""
        ways = ", ".join(way.name for way in settings.taken(seed))
        return Tally(1, findings=[Finding(seed, ways, DIED, DIED, script)])

    return run_all(seeds, partial(one, settings=settings), died, jobs)


def run_all(
    seeds: Iterable[int], one: Callable[[int], T], died: Callable[[int], T], jobs: int
) -> Iterator[T]:
    """Run many seeds, in this process or in several; yield what came of each as it ends.

    Args:
        died: what stands for a seed that ends its process.
    """
    if jobs == 1:
        yield from map(one, seeds)
        return
    left = iter(seeds)
    while (first := next(left, None)) is not None:
        under_way: set[int] = set()
        yield from _run_in_pool(itertools.chain([first], left), one, jobs, under_way)
        for seed in under_way:  # one of them has ended the process
            with ProcessPoolExecutor(1, CONTEXT) as pool:
                future = pool.submit(one, seed)
                dead = isinstance(future.exception(), BrokenProcessPool)
                yield died(seed) if dead else future.result()


def _run_in_pool(
    seeds: Iterator[int], one: Callable[[int], T], jobs: int, under_way: set[int]
) -> Iterator[T]:
    """Run seeds until none is left or a process has died; then some are still under way."""
    running: dict[Future[T], int] = {}
    with ProcessPoolExecutor(jobs, CONTEXT) as pool:

        def begin(count: int) -> None:
            for seed in itertools.islice(seeds, count):
                running[pool.submit(one, seed)] = seed

        begin(2 * jobs)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            if any(isinstance(future.exception(), BrokenProcessPool) for future in done):
                break
            for future in done:
                del running[future]
                yield future.result()
            begin(len(done))
    under_way.update(running.values())
