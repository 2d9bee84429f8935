"""Turn labelled trees into pyramids over their words, for time-delay networks.

A level has one vertex less than the one below it: vertex i reads vertices i and i + 1 of that. The
apex has the label of the tree.
Source: Waibel et al. 1989; TD-RNN and TD-LSTM of VPPS (Khorasani et al., MICRO 2018).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vertexrt.graph import GraphBatch

IntArray = npt.NDArray[np.integer]


def pyramids(trees: GraphBatch) -> GraphBatch:
    """Build the pyramid of each tree.

    Args:
        trees: with pulls "word" (leaves, from left to right) and "label" (roots).
    Returns: pulls "word" (lowest level) and "label" (apex), int32.
    """
    word, label = (np.asarray(trees.pulls[name]) for name in ("word", "label"))
    graphs = trees.graph_of[word >= 0]
    lengths = np.bincount(graphs, minlength=trees.num_graphs)
    sizes = lengths * (lengths + 1) // 2
    graph_ptr = np.concatenate([[0], np.cumsum(sizes)])
    children = [_children(int(n)) + first for n, first in zip(lengths, graph_ptr[:-1], strict=True)]
    at_leaf = np.arange(len(graphs)) + np.repeat(
        graph_ptr[:-1] - np.cumsum(lengths) + lengths, lengths
    )
    leaf = np.zeros(graph_ptr[-1], np.bool_)
    leaf[at_leaf] = True
    pulled = {name: np.full(len(leaf), -1, np.int32) for name in ("word", "label")}
    pulled["word"][at_leaf] = word[word >= 0]
    pulled["label"][graph_ptr[1:] - 1] = label[trees.graph_ptr[1:] - 1]
    child_ptr = np.concatenate([[0], np.cumsum(np.where(leaf, 0, 2))])
    return GraphBatch.from_arrays(graph_ptr, child_ptr, np.concatenate(children), pulled)


def _children(words: int) -> IntArray:
    """Return both children of each vertex above the lowest level, level after level."""
    levels = np.arange(words, 1, -1)
    first = np.cumsum(levels) - levels
    left = np.concatenate(
        [np.arange(at, at + n - 1) for at, n in zip(first, levels, strict=True)] or [levels]
    )
    return np.stack([left, left + 1], axis=1).ravel()
