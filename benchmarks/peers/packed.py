"""The schedule of a batch of sentences: sorted by length, packed step by step.

The layout is that of `torch.nn.utils.rnn.PackedSequence`: step t holds one row for each sentence
that has more than t words, longest sentences first.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from vertexrt import GraphBatch


@dataclass(frozen=True, slots=True)
class Packed:
    """Hold the schedule of one batch.

    Attributes:
        widths: int64 [T], rows of each step; never rising.
        word, label: int64 [V], by row.
        before: int64 [V - K], for the rows from step 1 on, the row of the word before.
        row: int64 [V], the row of each vertex.
    """

    widths: np.ndarray
    word: np.ndarray
    label: np.ndarray
    before: np.ndarray
    row: np.ndarray


def build_packed(chains: GraphBatch) -> Packed:
    """Return the schedule of a batch of chains, each vertex the child of the next.

    Args:
        chains: with the pulls "word" and "label" at every vertex.
    Raises: ValueError, when the batch is not made of such chains.
    """
    pulls = chains.pulls
    order = np.argsort(-chains.sizes(), kind="stable")
    good, *arrays = _build(
        chains.graph_ptr, chains.child_ptr, chains.child, pulls["word"], pulls["label"], order
    )
    if not good:
        raise ValueError("the peers of LSTM take chains in order, with a word at every vertex")
    return Packed(*arrays)


@njit(cache=True)
def _build(graph_ptr, child_ptr, child, word, label, order):  # type: ignore[no-untyped-def]
    num_vertices = len(child_ptr) - 1
    steps = graph_ptr[order[0] + 1] - graph_ptr[order[0]]
    widths = np.zeros(steps, np.int64)
    good = True
    for k in order:
        first, end = graph_ptr[k], graph_ptr[k + 1]
        good = good and child_ptr[first + 1] == child_ptr[first]
        for v in range(first, end):
            widths[v - first] += 1
            good = good and word[v] >= 0
            if v > first:
                good = good and child_ptr[v + 1] - child_ptr[v] == 1
                good = good and child[child_ptr[v]] == v - 1
    first_row = np.zeros(steps + 1, np.int64)
    first_row[1:] = np.cumsum(widths)
    row = np.empty(num_vertices, np.int64)
    word_of_row = np.empty(num_vertices, np.int64)
    label_of_row = np.empty(num_vertices, np.int64)
    before = np.empty(num_vertices - len(order), np.int64)
    for rank, k in enumerate(order):
        first = graph_ptr[k]
        for step in range(graph_ptr[k + 1] - first):
            r = first_row[step] + rank
            row[first + step] = r
            word_of_row[r] = word[first + step]
            label_of_row[r] = label[first + step]
            if step:
                before[r - len(order)] = first_row[step - 1] + rank
    return good, widths, word_of_row, label_of_row, before, row
