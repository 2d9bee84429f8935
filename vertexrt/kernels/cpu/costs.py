"""What a training step costs on a CPU, for ranking the ways to run it.

Seconds of one core of a 2-core Xeon (float32, hidden size 256); only their order matters.
"""

from __future__ import annotations

import math

from vertexrt.kernels.ways import Configuration, Work
from vertexrt.scheduler.batch_shape import BatchShape

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


def ways_of(threads: int, asked: int | None) -> list[Configuration]:
    """List the ways to use some threads: all of them, or one.

    Args:
        asked: processors of a group, whose tasks are whole then; None for any number.
    """
    found = [Configuration(False, threads)]
    if asked is not None:
        return [*found, Configuration(True, max(threads // asked, 1), asked)]
    for processors in range(1, threads + 1):
        if threads % processors == 0:
            groups = threads // processors
            found += [Configuration(True, groups, processors, tile) for tile in (0, *TILES)]
    if threads > 1:
        found.append(Configuration(False, 1))
    return found


def seconds_of(way: Configuration, work: Work, batch: BatchShape) -> float:
    """Predict the seconds of a step, or of an evaluation.

    Tiles that hold a whole task, and those that are a small part of one, take for ever.
    """
    groups = min(way.groups, batch.graphs)
    threads, each = groups * way.processors, work.all / 3  # of a product; forward, back, gradient
    rows = batch.vertices / batch.levels / groups  # of a task
    if way.tile and not way.tile < rows <= WIDEST * way.tile:
        return math.inf
    tiles = math.ceil(rows / way.tile) if way.tile else 1
    width = rows / tiles
    product = each * max(width * MULTIPLY_ADD, WEIGHT) / way.processors
    weights = width * math.sqrt(each)  # 0 where F has no product
    far = 1 + FAR * max(0.0, 1 - NEAR / weights) if weights else 1.0
    path = batch.levels * 2 * tiles * (INSTRUCTION + product * far)
    waits = 0.0
    if way.processors > 1:  # for one tile of each task; the others have arrived meanwhile
        path *= 1 + SHARED
        waits = (3 * batch.levels * EXCHANGE * way.processors + LATE * path) / tiles
    gradients = batch.vertices * each * MULTIPLY_ADD / threads
    return STEP * (1 + 0.3 * (groups - 1)) + SHARE * (threads - 1) + path + waits + gradients


def level_in_vertices(work: float) -> float:
    """Return how many vertices a level of its own is worth, however narrow it is.

    Args:
        work: multiplications a vertex, forward, back, and for the gradients of its weights.
    """
    level = 2 * (INSTRUCTION + work / 3 * WEIGHT)  # gradients are made after all levels
    return level / (INSTRUCTION + work * MULTIPLY_ADD)
