"""Run many networks, in several processes, and count what came of them by way.

`python -m tests.fuzz` is its command line.
"""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tests.fuzz.batches import BatchSpec, draw_batch
from tests.fuzz.calls import Call, Player, draw_calls, draw_checks
from tests.fuzz.function import NetworkSpec
from tests.fuzz.generate import (
    FUNCTION,
    LENGTHS,
    MOST_NODES,
    OF_SEVERAL,
    WIDE,
    draw_network,
)
from tests.fuzz.shrink import Case, shrink
from tests.fuzz.special import draw_linear
from tests.fuzz.updates import PLAIN, Rule, draw_rule
from tests.fuzz.ways import NamedWay, chosen, ways_of
from tests.runs import ALL
from vertexrt.ir.updates import OPTIMIZERS

TWO_BATCHES = 0.25  # how many functions run two batches in one network
BATCHES = 4  # of a network on which sequences are played
DIED = "the process died"
CONTEXT = multiprocessing.get_context("spawn")  # neither threads nor a GPU survive a fork


@dataclass(frozen=True, slots=True)
class Settings:
    """How each network of a campaign is run.

    Attributes:
        device, dtype: see `ways_of`; ways: prefixes of names, "" for all.
        per: ways of each network, of which all take turns; or sequences.
        most: vertices of a graph; nodes: of a function, about.
        shrink: seconds for the first failure of each network.
    """

    device: str = "reference"
    dtype: str = "float64"
    ways: str = ""
    per: int = 2
    most: int = 6
    nodes: int = MOST_NODES
    shrink: float = 20.0

    def listed(self, plain: bool = False) -> list[NamedWay]:
        """List the ways; plain ones leave passes as they are."""
        found = ways_of(self.device, self.dtype)
        found = chosen(found, self.ways) if self.ways else found
        return [w for w in found if w.way.passes == ALL and w.tile is None] if plain else found

    def turns(self, seed: int, count: int, plain: bool = False) -> list[NamedWay]:
        """Return so many ways of one network: all take turns."""
        found = self.listed(plain)
        count = min(count, len(found))
        return [found[(seed * count + k) % len(found)] for k in range(count)]


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure: what differs, and a script that shows it; "" but for a network's first."""

    seed: int
    way: str
    kind: str
    text: str
    script: str


@dataclass(slots=True)
class Tally:
    """What came of some networks.

    Attributes:
        networks: how many were run; unclear: how many were not, since rounding may decide.
        tried, refused, vague: runs by way: all, those without a kernel, and those in which rounding
            decides what is compared.
    """

    networks: int = 0
    unclear: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    vague: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what came of others."""
        self.networks += other.networks
        self.unclear += other.unclear
        self.tried.update(other.tried)
        self.refused.update(other.refused)
        self.vague.update(other.vague)
        self.findings += other.findings

    def table(self) -> str:
        """Print a line for each way, then the kinds of failures."""
        failed = Counter(finding.way for finding in self.findings)
        lines = [f"{self.networks} networks, {self.unclear} more left out (rounding decides)"]
        lines.append(f"{'way':32} {'tried':>8} {'refused':>8} {'vague':>8} {'failed':>8}")
        columns = (self.tried, self.refused, self.vague, failed)
        for way in sorted(self.tried):
            lines.append(f"{way:32}" + "".join(f" {column[way]:8}" for column in columns))
        lines.append(f"{'all':32}" + "".join(f" {column.total():8}" for column in columns))
        kinds = Counter(f.kind for f in self.findings)
        lines += [f"  {count:5} {kind}" for kind, count in kinds.most_common()]
        return "\n".join(lines)


RunOne = Callable[[int, Settings], Tally]
Sequences = Iterable[tuple[Rule, tuple[Call, ...]]]


def drawn(
    seed: int, most: int = 6, nodes: int = MOST_NODES, types: int | None = None
) -> tuple[NetworkSpec, tuple[BatchSpec, ...]]:
    """Draw the network of a seed and its batches.

    Args:
        types: how many; 0 for a function alone.
    """
    rng = np.random.default_rng([seed])
    style = replace(FUNCTION, nodes=nodes)
    style = style if types is None else replace(style, types={types: 1.0})
    network = draw_network(rng, style)
    count = 2 if rng.random() < TWO_BATCHES else 1
    return network, tuple(draw_batch(rng, network, most) for _ in range(count))


def run_functions(seed: int, settings: Settings) -> Tally:
    """Draw a network and look at all that it computes, in some ways."""
    network, batches = drawn(seed, settings.most, settings.nodes)
    calls = draw_checks(np.random.default_rng([seed, 1]), network, len(batches))
    ways = settings.turns(seed, settings.per)
    return play(seed, settings, network, batches, [(PLAIN, calls)], ways)


def run_wide(seed: int, settings: Settings) -> Tally:
    """Draw a small function with a long vector, table or list of children, and run it."""
    rng = np.random.default_rng([seed, 1024])
    network, fan = draw_network(rng, WIDE), int(rng.choice(LENGTHS))
    batches = tuple(draw_batch(rng, network, 4, fan) for _ in range(2))
    calls = draw_checks(rng, network, len(batches))
    ways = settings.turns(seed, settings.per, plain=True)
    return play(seed, settings, network, batches, [(PLAIN, calls)], ways)


def run_sequences(seed: int, settings: Settings) -> Tally:
    """Draw a network of several types, and play sequences of calls on it in one way."""
    rng = np.random.default_rng([seed, 2])
    network = draw_network(rng, replace(OF_SEVERAL, nodes=min(settings.nodes, OF_SEVERAL.nodes)))
    return _in_one_way(seed, settings, rng, network)


def run_optimizers(seed: int, settings: Settings) -> Tally:
    """Play sequences on a network whose gradients are what it pulls: every optimizer in turn."""
    rng = np.random.default_rng([seed, 7])
    return _in_one_way(seed, settings, rng, draw_linear(), updates=True)


def _in_one_way(
    seed: int,
    settings: Settings,
    rng: np.random.Generator,
    network: NetworkSpec,
    updates: bool = False,
) -> Tally:
    batches = tuple(draw_batch(rng, network, settings.most) for _ in range(BATCHES))
    names = [name for p, name in network.names().items() if p not in network.frozen]
    sequences = [
        (
            draw_rule(rng, k % len(OPTIMIZERS), updates, names),
            draw_calls(rng, network, BATCHES, settings.device, updates),
        )
        for k in range(seed, seed + settings.per)
    ]
    return play(seed, settings, network, batches, sequences, settings.turns(seed, 1, plain=True))


def play(
    seed: int,
    settings: Settings,
    network: NetworkSpec,
    batches: tuple[BatchSpec, ...],
    sequences: Sequences,
    ways: Iterable[NamedWay],
) -> Tally:
    """Play sequences on one network, in some ways; make the first failure small."""
    tally, shuffle = Tally(), 1 + seed % 1_000_000
    for way in ways:
        player = Player(network, batches, way, shuffle)
        before: tuple[Call, ...] = ()
        for rule, calls in sequences:
            outcome = player.play(calls, rule)
            tally.tried[way.name] += 1
            tally.refused[way.name] += outcome.kind == "refused"
            tally.vague[way.name] += outcome.kind == "unclear"
            if outcome.failed:
                script, case = "", Case(network, batches, calls, rule)
                if not tally.findings and settings.shrink:
                    if case.play(way, shuffle).kind != outcome.kind:  # what was before matters
                        case = replace(case, calls=(*before, *calls))
                        outcome = replace(outcome, number=outcome.number + len(before))
                    small = shrink(case, way, shuffle, outcome, settings.shrink)
                    script = small.script(way, shuffle, outcome.text)
                tally.findings.append(Finding(seed, way.name, outcome.kind, outcome.text, script))
                break  # what the network is then is not known
            before = (*before, *calls, ("reset",))
    tally.networks = int(tally.tried.total() > tally.vague.total())
    return tally


def died(seed: int, settings: Settings) -> Tally:
    """Return what stands for a seed that ended its process."""
    way = ", ".join(way.name for way in settings.turns(seed, settings.per))
    return Tally(1, findings=[Finding(seed, way, DIED, DIED, "")])


def run_campaign(
    seeds: Iterable[int], settings: Settings, jobs: int, one: RunOne = run_functions
) -> Iterator[Tally]:
    """Run many seeds, in this process or in several; yield what came of each as it ends.

    The death of a process is a finding of the seed that it had.
    """
    if jobs == 1:
        yield from (one(seed, settings) for seed in seeds)
        return
    left = iter(seeds)
    while (first := next(left, None)) is not None:
        under_way: set[int] = set()
        begun = itertools.chain([first], left)
        yield from _run_in_pool(begun, partial(one, settings=settings), jobs, under_way)
        for seed in under_way:  # one of them has ended the process
            with ProcessPoolExecutor(1, CONTEXT) as pool:
                future = pool.submit(one, seed, settings)
                dead = isinstance(future.exception(), BrokenProcessPool)
                yield died(seed, settings) if dead else future.result()


def _run_in_pool(
    seeds: Iterator[int], one: Callable[[int], Tally], jobs: int, under_way: set[int]
) -> Iterator[Tally]:
    """Run seeds until none is left or a process has died; then some are still under way."""
    running: dict[Future[Tally], int] = {}
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
