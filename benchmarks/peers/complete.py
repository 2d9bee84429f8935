"""The schedule of a batch of complete binary trees: the strongest one that a peer can have.

The two children of a vertex lie side by side and in the order of their parents, so that the
operands [left, right] of a level are the rows of the level before, seen as half as many rows of
twice the width: no level gathers anything.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from vertexrt import GraphBatch, Rows


@dataclass(frozen=True, slots=True)
class CompleteLevels:
    """Hold the schedule of one batch; level 0 is the leaves, the last one the roots.

    Attributes:
        level_ptr: first row of each level, D + 1 numbers.
        word: int64 [leaves], by row.
        target: float [K, 1], by row of the root.
        row: int64 [V], the row of each vertex.
    """

    level_ptr: list[int]
    word: np.ndarray
    target: np.ndarray
    row: np.ndarray


def build_complete(trees: GraphBatch) -> CompleteLevels:
    """Return the schedule of a batch of complete binary trees of one depth.

    Args:
        trees: with the pulls "word" at the leaves and "target" (a table with an index map) at the
            roots.
    Raises: ValueError, when the batch is not made of such trees.
    """
    target = trees.pulls["target"]
    if not isinstance(target, Rows):
        raise ValueError("the peer of Tree-FC takes targets as a table with an index map")
    row, word, target_row, sizes = _build(
        trees.child_ptr, trees.child, trees.pulls["word"], target.index
    )
    if not len(sizes):
        raise ValueError(
            "the peer of Tree-FC takes complete binary trees of one depth, words at the leaves "
            "and targets at the roots"
        )
    level_ptr = np.cumsum([0, *sizes]).tolist()
    return CompleteLevels(level_ptr, word, target.table[target_row], row)


@njit(cache=True)
def _build(child_ptr, child, word, target):  # type: ignore[no-untyped-def]
    num_vertices = len(child_ptr) - 1
    nothing = np.empty(0, np.int64)
    is_root = np.ones(num_vertices, np.bool_)
    for kid in child:
        if kid < 0 or not is_root[kid]:
            return nothing, nothing, nothing, nothing
        is_root[kid] = False
    level = np.flatnonzero(is_root)
    target_row = np.empty(len(level), np.int64)
    for i, v in enumerate(level):
        target_row[i] = target[v]
        if target[v] < 0:
            return nothing, nothing, nothing, nothing
    row = np.empty(num_vertices, np.int64)
    end = num_vertices  # rows from here on are numbered: from the roots down
    sizes = np.empty(num_vertices, np.int64)
    depth = 0
    while True:
        width = len(level)
        sizes[depth] = width
        depth += 1
        end -= width
        slots = child_ptr[level[0] + 1] - child_ptr[level[0]]
        below = np.empty(2 * width if slots else 0, np.int64)
        for i in range(width):
            v = level[i]
            first = child_ptr[v]
            row[v] = end + i
            if child_ptr[v + 1] - first != slots or slots not in (0, 2):
                return nothing, nothing, nothing, nothing
            if (word[v] < 0) != (slots == 2):
                return nothing, nothing, nothing, nothing
            for k in range(slots):
                below[2 * i + k] = child[first + k]
        if not slots:
            break
        level = below
    if end:
        return nothing, nothing, nothing, nothing
    word_of_row = np.empty(len(level), np.int64)
    for i, v in enumerate(level):
        word_of_row[i] = word[v]
    return row, word_of_row, target_row, sizes[:depth][::-1].copy()
