"""What a step costs on a GPU, for ranking the ways to run it.

Seconds on an H200, float32; only their order matters. The terms are those of GRNN (EuroSys 2019,
section 7): waits of a level, products of a processor's share of the weights, and what all
processors do outside the path. The constants are a least-squares fit of logarithms to what
`benchmarks.choosing` measured (`benchmarks/results/choosing_h200.txt`); those outside the path were
set anew for faster tiles, see there.
"""

from __future__ import annotations

import math

from vertexrt.kernels.cuda.persistent import GRAPHS_A_CLUSTER, GROUPS
from vertexrt.kernels.cuda.rows_at_once import MOST_OF_A_CLUSTER
from vertexrt.kernels.cuda.weights import TILE_ROWS
from vertexrt.kernels.ways import FEWEST, Configuration, Work
from vertexrt.scheduler.batch_shape import BatchShape

FLOAT = 4  # bytes
SIZES = (1, 2, 4, *GROUPS)  # processors of a group
MOST_TYPES = 2  # of a layer on the path: kernels of more take a minute to compile, and spill
ON_CHIP = 200e3  # bytes of weights that a processor holds
LAST = 1e3  # seconds: where no size of groups holds all weights

# What vertices of a type do in a level, by the persistent engine.
ALONE, NEAR, FAR = 1.3e-6, 1.9e-6, 2.75e-6  # a product and a meeting: of one, in a cluster, in L2
ROW, TILE = 1.33e-11, 4.4e-11  # an element that a processor holds, for a row, and for a tile
# of TILE_ROWS; each further tile costs another meeting
SENT = 1.06e-10  # an element of a state that is sent inside a cluster
BACK = 0.85  # backward to forward
FINISH = 155e-6  # gradients and the update

# The same by the batched engine.
LAUNCH, LAUNCHES = 2.7e-6, 2  # and how many in addition to the products
READ = 2.3e-12  # an element of a weight
STEP, FINISH_APART = 50e-6, 160e-6

# Outside the path: a multiplication of a wide product, of all processors.
TILED, CUBLAS = 5e-14, 6e-14


def ways_of(processors: int, asked: int | None) -> list[Configuration]:
    """List the ways to use a device.

    Args:
        processors: of the device; asked: those of a group, None for any number.
    """
    sizes = [n for n in SIZES if n <= processors] + [FEWEST] if asked is None else [asked]
    return [Configuration(False, 1), *(Configuration(True, 1, size) for size in sizes)]


def seconds_of(way: Configuration, work: Work, batch: BatchShape, processors: int) -> float:
    """Predict the seconds of a step, or of an evaluation; of groups that hold too much, infinity.

    Args:
        processors: of the device.
    """
    path = batch.inner * work.row + batch.edges * work.edge
    wide = batch.vertices * work.apart * (3 if work.trains else 1) + path * work.trains
    levels = batch.levels * work.types * (1 + BACK * work.trains)
    if way.persistent:
        level = _persistent_level(way.processors, work, batch, processors)
        return levels * level + FINISH * work.trains + wide * TILED
    level = _batched_level(work, batch)
    return STEP + levels * level + FINISH_APART * work.trains + wide * CUBLAS


def _batched_level(work: Work, batch: BatchShape) -> float:
    """Predict the seconds of what vertices of a type do in a level, forward."""
    weights, rows = work.row + work.edge, batch.inner / batch.levels / work.types
    return LAUNCH * (LAUNCHES + work.products) + weights * max(rows * CUBLAS, READ)


def _persistent_level(size: int, work: Work, batch: BatchShape, processors: int) -> float:
    """Predict the same of groups of processors.

    Args:
        size: of a group; processors: of the device.
    """
    held = (work.row + work.edge) / size
    if size == FEWEST:
        return LAST
    if work.together > MOST_TYPES or held * work.together * FLOAT > ON_CHIP:
        return math.inf
    groups = min(batch.graphs, processors // size)
    largest = math.ceil(batch.graphs / groups) / batch.graphs  # share of a group
    rows = max(batch.inner / batch.levels / work.types * largest, 1.0)
    clustered = size <= MOST_OF_A_CLUSTER and batch.graphs <= GRAPHS_A_CLUSTER * (
        processors // size
    )
    meeting = ALONE if size == 1 else NEAR if clustered else FAR
    tiles = math.ceil(rows / TILE_ROWS)
    sent = rows * work.state * SENT if clustered and size > 1 else 0.0
    product = held * min(rows * ROW, tiles * TILE)
    return max(work.products, 1) * meeting + (tiles - 1) * FAR + product + sent
