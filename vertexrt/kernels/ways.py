"""Ways to run a minibatch, and what the cost model of a device goes by to tell which is fastest.

Each backend lists its ways and predicts their seconds (`Backend.ways`, `Backend.seconds`);
`engine.choose` takes the best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vertexrt.errors import number_of

FEWEST = -1  # processors of a group

# Seconds of one core of a CPU, see `kernels.cpu.costs`.
MULTIPLY_ADD = 1.3e-11
WEIGHT = 5e-11  # of a matrix, to read it: see `Work.level`
INSTRUCTION = 0.3e-6  # to decode it and to call its products


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
            return f"batched, {number_of(self.groups, 'worker')}"
        tiles = f", tiles of {self.tile} rows" if self.tile else ""
        if self.processors == FEWEST:
            return "persistent, as few processors a group as fit"
        return f"persistent, {self.groups} x {self.processors} processors{tiles}"


class Work(NamedTuple):
    """What F computes; where it has several types of vertices, what one of them does on average.

    Attributes:
        row, edge: multiplications of products on the path, forward, for each vertex with children
            and for each edge; as many elements have the weights.
        apart: those of all other products, for each vertex.
        types: that have a product on the path, at least one; together: the most of one layer.
        share: of all types, these.
        products: of the path that need each other: the longest chain.
        state: elements that a vertex hands to its parents.
        trains: backward and an update are part of it.
        merges: identical vertices are one, so that how batches run depends on what they pull.
    """

    row: float
    edge: float
    apart: float
    types: int
    together: int
    share: float
    products: int
    state: int
    trains: bool
    merges: bool = False

    @property
    def all(self) -> float:
        """Count the multiplications of a vertex with one child, and of training three times."""
        return (3.0 if self.trains else 1.0) * (self.row + self.edge + self.apart)

    @property
    def level(self) -> float:
        """How many vertices a level of its own is worth, however narrow it is."""
        level = 2 * (INSTRUCTION + self.all / 3 * WEIGHT)  # gradients are made after all levels
        return level / (INSTRUCTION + self.all * MULTIPLY_ADD)
