"""The level schedule of a batch of binary trees, as an expert would build it for a peer.

Rows are sorted by (level, level of the parent), so that the state that one level hands to a later
one is one contiguous piece, and the pieces that a level reads, concatenated, hold each
child once. A level then needs one gather by a permutation, whose adjoint is the inverse one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit

from vertexrt import GraphBatch

ERRORS = (
    "",
    "a vertex has neither 0 nor 2 children",
    "a vertex has two parents",
    "a leaf has no word",
    "an inner vertex has a word",
    "a vertex cannot be reached from the leaves",
)


@dataclass(frozen=True, slots=True)
class Levels:
    """Hold the schedule of one batch; level 0 is the leaves.

    Attributes:
        level_ptr: first row of each level, D + 1 numbers.
        pieces: pieces[l][m] rows of level l have their parent in level m; m = D is no parent.
        take: int64 [E]; for the levels from 1 on, in turn, the position of each left child, then of
            each right child, in the pieces that the level reads, concatenated.
        untake: int64 [E], the inverse permutation of each level's part of `take`.
        child_row: int64 [E], the same children as rows of the batch.
        word: int64 [leaves], by row.
        label: int64 [V], by row.
        row: int64 [V], the row of each vertex.
    """

    level_ptr: list[int]
    pieces: list[list[int]]
    take: np.ndarray
    untake: np.ndarray
    child_row: np.ndarray
    word: np.ndarray
    label: np.ndarray
    row: np.ndarray


def build_levels(trees: GraphBatch) -> Levels:
    """Return the level schedule of a batch of trees whose vertices have 0 or 2 children.

    Args:
        trees: with the pulls "word" and "label", -1 where a vertex has none.

    Raises: ValueError, when the batch is not made of such trees with words at the leaves only.
    """
    fault, *arrays = _build(trees.child_ptr, trees.child, trees.pulls["word"], trees.pulls["label"])
    if fault:
        raise ValueError(f"the level-batched peer takes binary trees; {ERRORS[fault]}")
    level_ptr, pieces, *rest = arrays
    return Levels(level_ptr.tolist(), pieces.tolist(), *rest)


@njit(cache=True)
def _build(child_ptr, child, word, label):  # type: ignore[no-untyped-def]
    num_vertices = len(child_ptr) - 1
    parent, level, fault = _find_levels(child_ptr, child, word)
    depth = level.max() + 1 if num_vertices else 0

    pieces = np.zeros((depth, depth + 1), np.int64)
    consumer = np.empty(num_vertices, np.int64)
    for v in range(num_vertices):
        consumer[v] = level[parent[v]] if parent[v] >= 0 else depth
        pieces[level[v], consumer[v]] += 1
    level_ptr = np.zeros(depth + 1, np.int64)
    first_row = np.zeros((depth, depth + 1), np.int64)  # of a piece
    first_read = np.zeros_like(first_row)  # of a piece, among those its consumer reads
    row = 0
    for a in range(depth):
        for b in range(depth + 1):
            first_row[a, b] = row
            row += pieces[a, b]
            first_read[a, b] = first_read[a - 1, b] + pieces[a - 1, b] if a else 0
        level_ptr[a + 1] = row

    vertex = np.empty(num_vertices, np.int64)
    row_of = np.empty(num_vertices, np.int64)
    read_of = np.empty(num_vertices, np.int64)
    filled = np.zeros_like(pieces)
    for v in range(num_vertices):
        a, b = level[v], consumer[v]
        row_of[v] = first_row[a, b] + filled[a, b]
        read_of[v] = first_read[a, b] + filled[a, b]
        filled[a, b] += 1
        vertex[row_of[v]] = v

    take = np.empty(len(child), np.int64)
    untake = np.empty(len(child), np.int64)
    child_row = np.empty(len(child), np.int64)
    base = 0
    if fault == 0:
        for a in range(1, depth):
            width = level_ptr[a + 1] - level_ptr[a]
            for i in range(width):
                v = vertex[level_ptr[a] + i]
                for slot in range(2):
                    kid = child[child_ptr[v] + slot]
                    at = slot * width + i
                    take[base + at] = read_of[kid]
                    untake[base + read_of[kid]] = at
                    child_row[base + at] = row_of[kid]
            base += 2 * width

    leaves = level_ptr[1] if depth else 0
    word_of_row = np.empty(leaves, np.int64)
    label_of_row = np.empty(num_vertices, np.int64)
    for r in range(num_vertices):
        if r < leaves:
            word_of_row[r] = word[vertex[r]]
        label_of_row[r] = label[vertex[r]]
    return fault, level_ptr, pieces, take, untake, child_row, word_of_row, label_of_row, row_of


@njit(cache=True)
def _find_levels(child_ptr, child, word):  # type: ignore[no-untyped-def]
    num_vertices = len(child_ptr) - 1
    parent = np.full(num_vertices, -1, np.int64)
    level = np.zeros(num_vertices, np.int64)
    waiting = np.zeros(num_vertices, np.int64)
    ready = np.empty(num_vertices, np.int64)
    count = 0
    fault = 0
    for v in range(num_vertices):
        begin, end = child_ptr[v], child_ptr[v + 1]
        waiting[v] = end - begin
        if end == begin:
            ready[count] = v
            count += 1
            if word[v] < 0:
                fault = 3
        elif end - begin != 2:
            fault = 1
        elif word[v] >= 0:
            fault = 4
        for e in range(begin, end):
            if child[e] < 0:
                return parent, level, 1
            if parent[child[e]] >= 0:
                return parent, level, 2
            parent[child[e]] = v
    done = 0
    while done < count:
        v = ready[done]
        done += 1
        above = parent[v]
        if above >= 0:
            level[above] = max(level[above], level[v] + 1)
            waiting[above] -= 1
            if waiting[above] == 0:
                ready[count] = above
                count += 1
    if count < num_vertices:
        fault = 5
    return parent, level, fault


def children_first(trees: GraphBatch) -> Iterator[int]:
    """Yield every vertex after its children."""
    done = {-1}
    stack = list(range(trees.num_vertices))
    while stack:
        v = stack[-1]
        kids = trees.child[trees.child_ptr[v] : trees.child_ptr[v + 1]].tolist()
        missing = [kid for kid in kids if kid not in done]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if v not in done:
            done.add(v)
            yield v
