"""Choose how a minibatch runs: batched or persistent, in how many groups of how many processors.

A cost model of the device ranks its ways (GRNN, EuroSys 2019, section 7): the choice is a function
of F, the numbers of the batch and the device alone, so that a seed repeats bit for bit.

With `vrt.compile(tune=True)` the best few of these are timed on the first minibatches of each size
(VPPS, MICRO 2018, section III-A, chooses so). The winner is kept on disk by function, sizes, dtype
and threads, so that the next run starts with it. Sizes are classes of the number of vertices, a
factor of two wide.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields

from vertexrt.cache import entries
from vertexrt.engine.variant import CompileOptions, draws_numbers
from vertexrt.graph import GraphBatch
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.publish import leaf_products
from vertexrt.ir.program import Domain, Node, Program, Stage, longest_chains
from vertexrt.kernels.backend import Backend
from vertexrt.kernels.ways import FEWEST, Configuration, Work
from vertexrt.scheduler.batch_shape import BatchShape, shape_of

MARGIN = 0.96  # what is not faster than the plain way by this is an error of the model
KIND = "choices"  # of entries in the cache
TIMED = 4  # configurations that are timed
SAMPLES = 5  # minibatches for each; the first of them warms up
TIMED_MARGIN = 0.98  # what is not faster than the plain way by this is noise


def work_of(function: Program) -> Work:
    """Return what F computes, with the layers of its functions, where it has some."""
    nodes = place(function).nodes
    products, handed = (
        {k for k, node in enumerate(nodes) if node.op == op} for op in ("matmul", "scatter")
    )
    # Vertices that pull the same numbers are computed once, where that pays.
    whole = any(node.op == "pull" and node["dtype"] == "int" for node in function.nodes)
    on_path = {k for k in products if nodes[k].stage == Stage.PATH}
    of_edges = {k for k in on_path if nodes[k].type.domain == Domain.EDGE}
    types = len({node.function for node in nodes})
    on_paths = {nodes[k].function for k in on_path}
    together = Counter(function.layer_of(f) for f in on_paths)
    several = max(len(on_paths), 1)
    return Work(
        row=_read_by(nodes, on_path - of_edges) / several,
        edge=_read_by(nodes, of_edges) / several,
        apart=_read_by(nodes, products - on_path) / types,
        types=several,
        together=max(together.values(), default=1),
        share=several / types,
        products=max(longest_chains(nodes, lambda k: k in on_path)),
        state=_read_by(nodes, handed) // types,
        trains=True,
        merges=whole and not draws_numbers(function) and bool(leaf_products(function)),
    )


def _read_by(nodes: Sequence[Node], chosen: Iterable[int]) -> int:
    """Count the elements of the first operands of some nodes: of products, the weights."""
    return sum(nodes[nodes[k].inputs[0]].type.size for k in chosen)


def ways_for(options: CompileOptions, ways: Sequence[Configuration]) -> list[Configuration]:
    """Return the ways that options allow: `auto` takes an engine that has what they ask for.

    Args:
        ways: of a backend, the batched engine first.
    """
    engine = options.engine
    if engine == "auto" and (options.passes.streams > 1 or not options.passes.loop):
        engine = "batched"
    elif engine == "auto" and options.precision == "bf16":
        engine = "persistent"
    if engine == "batched":
        return [ways[0]]
    if engine == "persistent":
        return [way for way in ways if way.persistent]
    return [way for way in ways if way.processors != FEWEST]


@dataclass(slots=True)
class Chooser:
    """Picks the way that the model finds best among those that run.

    Attributes:
        ways: to run a batch, the plain one first; `backend` predicts what they take.
    """

    backend: Backend
    work: Work
    ways: list[Configuration]
    _known: dict[tuple[bool, BatchShape], Configuration] = field(default_factory=dict)

    def pick(self, trains: bool, batch: GraphBatch) -> Configuration:
        """Return the way of a batch."""
        if len(self.ways) == 1:
            return self.ways[0]
        key = trains, shape_of(batch)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.rank(*key)[0]
        return found

    def rank(self, trains: bool, shape: BatchShape) -> list[Configuration]:
        """List the ways that are possible, the best first; of two alike, the simpler first.

        What other ways have in common, outside the path, is most of a large step: they differ by
        little of it, so only the plain way, which is in front, has a margin.
        """
        work = self.work._replace(trains=trains)
        seconds = {way: self.backend.seconds(way, work, shape) for way in self.ways}
        seconds[self.ways[0]] *= MARGIN
        possible = [way for way in self.ways if seconds[way] < math.inf] or self.ways
        return sorted(possible, key=lambda way: seconds[way])

    def describe(self, trains: bool, batch: GraphBatch) -> str:
        """Print the ways of a batch, the best first, and the milliseconds that the model says."""
        shape, work = shape_of(batch), self.work._replace(trains=trains)
        lines = ["ways by the cost model, ms"]
        for way in self.rank(trains, shape):
            lines.append(f"  {1e3 * self.backend.seconds(way, work, shape):8.3f}  {way}")
        return "\n".join(lines)

    def only(self, way: Configuration) -> None:
        """Take one way for every batch from now on."""
        self.ways[:] = [way]
        self._known.clear()

    def refuse(self, way: Configuration) -> bool:
        """Forget a way that has no kernel; return False where nothing else is left to try."""
        if len(self.ways) == 1 or way.processors == FEWEST:  # which has tried all sizes
            return False
        self.ways.remove(way)
        self._known.clear()
        return True


@dataclass(slots=True)
class Tuner:
    """Remembers what was measured and picks the next configuration.

    Attributes:
        key: names the function, its sizes, the dtype and the device or the threads.
        chooser: ranks the configurations by the model.
        plain: the one that is taken where no other is clearly faster.
    """

    key: str
    chooser: Chooser
    plain: Configuration
    samples: dict[str, dict[Configuration, list[float]]] = field(default_factory=dict)
    chosen: dict[str, Configuration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = entries.read(KIND, self._name())
        if found is not None:
            self.chosen = {n: Configuration(**c) for n, c in found.facts.items()}

    def pick(self, trains: bool, batch: GraphBatch) -> Configuration:
        """Return the configuration of a batch: the winner of its size, or the next to time."""
        name = size_class(trains, batch)
        if name in self.chosen:
            return self.chosen[name]
        if name not in self.samples:
            ranked = self.chooser.rank(trains, shape_of(batch))
            self.samples[name] = {option: [] for option in ranked[:TIMED]}
        return min(self.samples[name], key=lambda option: len(self.samples[name][option]))

    def times(self, trains: bool, batch: GraphBatch) -> bool:
        """Tell whether batches of a size are still timed."""
        return size_class(trains, batch) not in self.chosen

    def refuse(self, option: Configuration) -> None:
        """Forget a configuration that does not run."""
        for times in self.samples.values():
            times.pop(option, None)
        self.chosen = {name: o for name, o in self.chosen.items() if o != option}

    def observe(
        self, trains: bool, batch: GraphBatch, option: Configuration, seconds: float
    ) -> None:
        """Note what a minibatch took; decide, when all candidates have been timed."""
        name = size_class(trains, batch)
        times = self.samples.get(name, {})
        if name in self.chosen or option not in times:
            return
        times[option].append(seconds / batch.num_vertices)
        if all(len(t) >= SAMPLES for t in times.values()):
            medians = {o: statistics.median(t[1:]) for o, t in times.items()}
            best = min(medians, key=lambda o: medians[o])
            if medians.get(self.plain, math.inf) * TIMED_MARGIN <= medians[best]:
                best = self.plain
            self.chosen[name] = best
            chosen = {n: asdict(c) for n, c in self.chosen.items()}
            entries.write(KIND, self._name(), b"", chosen)

    def _name(self) -> str:
        return entries.key_of([self.key, *(each.name for each in fields(Configuration))])


def size_class(trains: bool, batch: GraphBatch) -> str:
    """Name the class of a batch: its purpose, and the vertices between two powers of two."""
    low = 1 << (batch.num_vertices.bit_length() - 1)
    few = f", {batch.num_graphs} graphs" if batch.num_graphs < 4 else ""
    return f"{'training' if trains else 'inference'} {low}-{2 * low - 1} vertices{few}"
