"""What a step costs on a GPU, for ranking the ways to run it.

Seconds on an H200, float32; only their order matters. The terms are those of GRNN (EuroSys 2019,
section 7): waits of a level, products of a processor's share of the weights, and what all
processors do outside the path. The constants are a fit to what `benchmarks.choosing` measured
(`benchmarks/results/choosing_h200.txt`), of logarithms and of the ways that were taken.
"""

from __future__ import annotations

import math

from vertexrt.kernels.cuda.persistent import GROUPS, MOST_REGISTERS
from vertexrt.kernels.cuda.weights import MOST_OF_A_CLUSTER, THREADS, TILE_ROWS
from vertexrt.kernels.ways import FEWEST, Configuration, Work
from vertexrt.scheduler.batch_shape import BatchShape

FLOAT = 4  # bytes
SIZES = (1, 2, 4, *GROUPS)  # processors of a group
MOST_TYPES = 2  # of a layer on the path: kernels of more take a minute to compile, and spill
ON_CHIP = 200e3  # bytes of weights that a processor holds in registers or in shared memory
# The same of the largest clusters, where a weight may lie in both: a layer of 512, as measured in
# `divided_h200.txt`; one of 1152, of 332,000 bytes, is slower so than in larger groups.
IN_BOTH = 270e3
GPC = 18  # multiprocessors of a graphics processing cluster, in which a thread-block cluster lies
LAST = 1e3  # seconds: where no size of groups holds all weights

# What vertices of a type do in a level, by the persistent engine.
ALONE, NEAR, FAR = 7.1e-7, 1.17e-6, 2.84e-6  # a product and a meeting: of one, in a cluster, in L2
MEMBER = 6.3e-10  # of a meeting in L2, for each processor
ROW, TILE = 1.29e-11, 3.17e-11  # an element that a processor holds, for a row, and for a tile
# of TILE_ROWS
MANY, ROWS_AT_ONCE = 5e-12, 32  # the same for a row in groups that are no clusters, and their tiles
# Elements that a processor has in registers at most, and what one that it has elsewhere takes more:
# fitted to a GRU of 1024 with 20 sequences, which two groups of 64 share, or one of 128.
IN_REGISTERS, ELSEWHERE = MOST_REGISTERS * THREADS, 1e-11
AGAIN = 2.69e-6  # another tile
SENT, FETCHED = 9.6e-11, 1.15e-10  # an element of a state that is sent in a cluster, or read in L2
BACK = 0.95  # backward to forward
FINISH = 175e-6  # gradients and the update

# The same by the batched engine: launch by launch, and where one graph of CUDA replays them
# (`ready_runs.py`); fitted by hand to steps and evaluations of Tree-FC (`tree_fc_h100.txt`).
LAUNCHES = 2  # in addition to the products
READ = 1.9e-12  # an element of a weight
LAUNCH, STEP, FINISH_APART = 4e-6, 57e-6, 114e-6
REPLAYED, STEP_REPLAYED, FINISH_REPLAYED = 2.5e-6, 20e-6, 60e-6

# Outside the path: a multiplication of a wide product, of all processors, and what goes with it;
# both engines leave it to the same kernels.
WIDE = 6.8e-14


def ways_of(processors: int, asked: int | None) -> list[Configuration]:
    """List the ways to use a device.

    Args:
        processors: of the device; asked: those of a group, None for any number.
    """
    sizes = [n for n in SIZES if n <= processors] + [FEWEST] if asked is None else [asked]
    return [Configuration(False, 1), *(Configuration(True, 1, size) for size in sizes)]


def seconds_of(
    way: Configuration, work: Work, batch: BatchShape, processors: int, element: int = FLOAT
) -> float:
    """Predict the seconds of a step, or of an evaluation; of groups that hold too much, infinity.

    Args:
        processors: of the device; element: bytes of one of a weight that is held.
    """
    path = (batch.inner * work.row + batch.edges * work.edge) * work.share
    wide = batch.vertices * work.apart * (3 if work.trains else 1) + path * work.trains
    levels = batch.levels * work.types * (1 + BACK * work.trains)
    if way.persistent:
        if not _fits(way.processors, work, element):
            return math.inf
        level = _persistent_level(way.processors, work, batch, processors)
        end = FINISH if work.trains else STEP
        return end + levels * level + wide * WIDE
    if batch.comes_again and not work.merges:
        step, launch, finish = STEP_REPLAYED, REPLAYED, FINISH_REPLAYED
    else:
        step, launch, finish = STEP, LAUNCH, FINISH_APART
    products = (work.row + work.edge) * max(_rows(work, batch) * WIDE, READ)
    level = launch * (LAUNCHES + work.products) + products
    return step + levels * level + finish * work.trains + wide * WIDE


def _fits(size: int, work: Work, element: int) -> bool:
    """Tell whether groups of a size hold the weights, and a layer has no more than MOST_TYPES."""
    held = (work.row + work.edge) / size * work.together * element
    most = IN_BOTH if size == MOST_OF_A_CLUSTER else ON_CHIP
    return size == FEWEST or (work.together <= MOST_TYPES and held <= most)


def _clusters(size: int, processors: int) -> int:
    """Return how many groups can be clusters: one of more than half a GPC has it alone."""
    if size > MOST_OF_A_CLUSTER:
        return 0
    return processors // (size if 2 * size <= GPC else GPC)


def _rows(work: Work, batch: BatchShape) -> float:
    """Return the rows of a type in a level; all types have as many."""
    return batch.inner * work.share / batch.levels / work.types


def _persistent_level(size: int, work: Work, batch: BatchShape, processors: int) -> float:
    """Predict the seconds of a level of vertices of a type in groups of processors, forward.

    Args:
        size: of a group; processors: of the device.
    """
    held = (work.row + work.edge) / size
    if size == FEWEST:
        return LAST
    near = 1 < size <= MOST_OF_A_CLUSTER
    groups = min(batch.graphs, _clusters(size, processors) if near else processors // size)
    largest = math.ceil(batch.graphs / groups) / batch.graphs  # share of a group
    rows = max(_rows(work, batch) * largest, 1.0)
    meeting, state = FAR + MEMBER * size, FETCHED
    if size == 1:
        meeting, state = ALONE, 0.0
    elif near:
        meeting, state = NEAR, SENT
    product, tiles = _product(held, rows, size)
    several = (tiles - 1) * AGAIN
    return max(work.products, 1) * meeting + several + product + rows * work.state * state


def _product(held: float, rows: float, size: int) -> tuple[float, int]:
    """Predict the seconds of a product of so many rows, and in how many tiles it is made.

    Args:
        held: elements of the weights that a processor holds; size: of its group.
    """
    if size > MOST_OF_A_CLUSTER:
        elsewhere = max(0.0, held - IN_REGISTERS) * ELSEWHERE
        return rows * (held * MANY + elsewhere), math.ceil(rows / ROWS_AT_ONCE)
    tiles = math.ceil(rows / TILE_ROWS)
    return held * min(rows * ROW, tiles * TILE), tiles
