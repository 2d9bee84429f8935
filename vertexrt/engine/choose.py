"""Choose how a minibatch runs: batched or persistent, groups, processors and rows of a tile.

An analytic model ranks the configurations (GRNN, EuroSys 2019, section 7, does so for GPUs); the
best few are timed on the first minibatches of their size (VPPS, MICRO 2018, section III-A); the
winner is kept on disk by function, sizes, dtype and threads, so that the next run starts with it.
Sizes are classes of the number of vertices, a factor of two wide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields

from vertexrt.cache import entries
from vertexrt.graph import GraphBatch

KIND = "choices"  # of entries in the cache
TIMED = 4  # configurations that are timed
SAMPLES = 5  # minibatches for each; the first of them warms up

# Seconds, for ranking only, on one core of a 2-core Xeon (float32, hidden size 256).
MULTIPLY_ADD = 1.3e-11
WEIGHT = 5e-11  # of a matrix, to read it: a product takes at least this, however few its rows are
INSTRUCTION = 0.3e-6  # to decode it and to call its products
EXCHANGE = 1.5e-6  # to signal and to notice, for each processor of the group
STEP = 150e-6  # what a step costs once
SHARE = 60e-6  # to hand a share of a batch to a thread
SHARED = 0.1  # of the path: what processors that share tasks do twice, or in narrower products
LATE = 0.02  # of the path: by how much processors arrive apart
FAR = 0.08  # of the path: when what a product makes has left the nearest cache before it is read,
NEAR = 12e3  # beyond so many elements
TILES = (8,)  # rows of a tile to consider in addition to whole tasks,
WIDEST = 32  # which have at most so many tiles: wide products are packed once, and then cheaper
FEWEST = -1  # processors of a group
MARGIN = 0.98  # what is not faster than batched by this is noise


@dataclass(frozen=True, slots=True)
class Configuration:
    """A way to run a minibatch.

    Attributes:
        persistent: scripts for processors, instead of the batched engine.
        groups: shares of the batch, each with its own memory.
        processors: of a group, which share each task; FEWEST on a GPU, where weights must fit.
        tile: most rows that an instruction of the path works on; 0 for whole tasks.
    """

    persistent: bool
    groups: int
    processors: int = 1
    tile: int = 0

    @property
    def threads(self) -> int:
        """Count the threads it needs."""
        return self.groups * self.processors

    def __str__(self) -> str:
        if not self.persistent:
            return f"batched, {self.groups} worker{'s' if self.groups > 1 else ''}"
        tiles = f", tiles of {self.tile} rows" if self.tile else ""
        if self.processors == FEWEST:
            return "persistent, as few processors a group as fit"
        return f"persistent, {self.groups} x {self.processors} processors{tiles}"


def configurations(threads: int) -> list[Configuration]:
    """List the ways to use some threads: all of them, or one."""
    found = [Configuration(False, threads)]
    for processors in range(1, threads + 1):
        if threads % processors == 0:
            groups = threads // processors
            found += [Configuration(True, groups, processors, tile) for tile in (0, *TILES)]
    if threads > 1:
        found.append(Configuration(False, 1))
    return found


def predict(option: Configuration, graphs: int, vertices: int, levels: int, work: float) -> float:
    """Predict the seconds of a training step; only the order of predictions matters.

    Args:
        graphs, vertices: of the batch; levels: of its deepest graph, or a guess.
        work: multiplications a vertex.
    """
    groups = min(option.groups, graphs)
    threads, each = groups * option.processors, work / 3  # of a product; forward, back, gradient
    rows = vertices / levels / groups  # of a task
    tiles = math.ceil(rows / option.tile) if option.tile else 1
    width = rows / tiles
    product = each * max(width * MULTIPLY_ADD, WEIGHT) / option.processors
    weights = width * math.sqrt(each)  # 0 where F has no product
    far = 1 + FAR * max(0.0, 1 - NEAR / weights) if weights else 1.0
    path = levels * 2 * tiles * (INSTRUCTION + product * far)
    waits = 0.0
    if option.processors > 1:  # for one tile of each task; the others have arrived meanwhile
        path *= 1 + SHARED
        waits = (3 * levels * EXCHANGE * option.processors + LATE * path) / tiles
    gradients = vertices * each * MULTIPLY_ADD / threads
    return STEP * (1 + 0.3 * (groups - 1)) + SHARE * (threads - 1) + path + waits + gradients


def predicted_best(
    options: Sequence[Configuration], batch: GraphBatch, work: float
) -> list[Configuration]:
    """Rank configurations for a batch by the model alone, the best first.

    Tiles that hold a whole task are left out, and those that are a small part of one.
    """
    levels = max(1, batch.num_vertices // batch.num_graphs // 3)  # of trees, about

    def cost(option: Configuration) -> float:
        return predict(option, batch.num_graphs, batch.num_vertices, levels, work)

    def cuts(option: Configuration) -> bool:
        rows = batch.num_vertices / levels / min(option.groups, batch.num_graphs)
        return option.tile == 0 or option.tile < rows <= WIDEST * option.tile

    return sorted(filter(cuts, options), key=cost)


@dataclass(slots=True)
class Chooser:
    """Remembers what was measured and picks the next configuration.

    Attributes:
        key: names the function, its sizes, the dtype and the device or the threads.
        rank: lists the configurations for a batch, the best by the model first.
        plain: the one that is taken where no other is clearly faster.
        refused: configurations that turned out not to run.
    """

    key: str
    rank: Callable[[GraphBatch], Sequence[Configuration]]
    plain: Configuration
    samples: dict[str, dict[Configuration, list[float]]] = field(default_factory=dict)
    chosen: dict[str, Configuration] = field(default_factory=dict)
    refused: set[Configuration] = field(default_factory=set)

    def __post_init__(self) -> None:
        found = entries.read(KIND, self._name())
        if found is not None:
            self.chosen = {n: Configuration(**c) for n, c in found.facts.items()}

    def pick(self, purpose: str, batch: GraphBatch) -> Configuration:
        """Return the configuration for a batch: the winner of its size, or the next to time."""
        name = size_class(purpose, batch)
        if name in self.chosen:
            return self.chosen[name]
        if name not in self.samples:
            ranked = [option for option in self.rank(batch) if option not in self.refused]
            self.samples[name] = {option: [] for option in ranked[:TIMED]}
        return min(self.samples[name], key=lambda option: len(self.samples[name][option]))

    def times(self, purpose: str, batch: GraphBatch) -> bool:
        """Tell whether batches of a size are still timed."""
        return size_class(purpose, batch) not in self.chosen

    def refuse(self, option: Configuration) -> None:
        """Forget a configuration that does not run."""
        self.refused.add(option)
        for times in self.samples.values():
            times.pop(option, None)
        self.chosen = {name: o for name, o in self.chosen.items() if o != option}

    def observe(
        self, purpose: str, batch: GraphBatch, option: Configuration, seconds: float
    ) -> None:
        """Note what a minibatch took; decide, when all candidates have been timed."""
        name = size_class(purpose, batch)
        times = self.samples.get(name, {})
        if name in self.chosen or option not in times:
            return
        times[option].append(seconds / batch.num_vertices)
        if all(len(t) >= SAMPLES for t in times.values()):
            medians = {o: statistics.median(t[1:]) for o, t in times.items()}
            best = min(medians, key=lambda o: medians[o])
            if medians.get(self.plain, math.inf) * MARGIN <= medians[best]:
                best = self.plain
            self.chosen[name] = best
            chosen = {n: asdict(c) for n, c in self.chosen.items()}
            entries.write(KIND, self._name(), b"", chosen)

    def describe(self) -> str:
        """Print what was measured and chosen, a size class a line."""
        lines = ["configurations by purpose and vertices a batch"]
        for name in sorted({*self.samples, *self.chosen}):
            lines.append(f"  {name}: {self.chosen.get(name, 'being timed')}")
            for option, times in self.samples.get(name, {}).items():
                if len(times) > 1:
                    each = statistics.median(times[1:]) * 1e6
                    lines.append(f"    {option}: {each:.2f} us a vertex")
        return "\n".join(lines)

    def _name(self) -> str:
        return entries.key_of([self.key, *(each.name for each in fields(Configuration))])


def size_class(purpose: str, batch: GraphBatch) -> str:
    """Name the class of a batch: the purpose, and the vertices between two powers of two."""
    low = 1 << (batch.num_vertices.bit_length() - 1)
    few = f", {batch.num_graphs} graphs" if batch.num_graphs < 4 else ""
    return f"{purpose} {low}-{2 * low - 1} vertices{few}"


def level_in_vertices(work: float) -> float:
    """Return how many vertices a level of its own is worth, however narrow it is.

    Args:
        work: multiplications a vertex, forward, back, and for the gradients of its weights.
    """
    level = 2 * (INSTRUCTION + work / 3 * WEIGHT)  # gradients are made after all levels
    return level / (INSTRUCTION + work * MULTIPLY_ADD)
