"""Time the best few ways to run a minibatch, on the first minibatches of their size.

VPPS (MICRO 2018, section III-A) chooses so. The winner is kept on disk by function, sizes, dtype
and threads, so that the next run starts with it. Sizes are classes of the number of vertices, a
factor of two wide. `vrt.compile(tune=True)` asks for it.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field, fields

from vertexrt.cache import entries
from vertexrt.engine.choose import Chooser
from vertexrt.graph import GraphBatch
from vertexrt.kernels.ways import Configuration
from vertexrt.scheduler.batch_shape import shape_of

KIND = "choices"  # of entries in the cache
TIMED = 4  # configurations that are timed
SAMPLES = 5  # minibatches for each; the first of them warms up
MARGIN = 0.98  # what is not faster than the plain way by this is noise


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
            if medians.get(self.plain, math.inf) * MARGIN <= medians[best]:
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
