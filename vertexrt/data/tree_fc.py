"""Complete trees for Tree-FC, the synthetic benchmark of TensorFlow Fold and of Cavs.

Every tree has the same number of leaves. A leaf pulls a word, and the root a number to learn: the
sum of hidden scores of the words under it.
Source: Looks et al., Deep Learning with Dynamic Computation Graphs (ICLR 2017); Cavs (Xu et al.,
ATC 2018), where only the speed is of interest; the target is ours.
"""

import numpy as np

from vertexrt.data.dataset import UNKNOWN, Dataset, Vocabulary
from vertexrt.graph import GraphBatch, InputGraph, Rows

LEAVES = 256
WORDS = 100
SPLITS = {"train": 512, "dev": 64, "test": 64}


def tree_fc_dataset(*, leaves: int | None = None, seed: int = 0) -> Dataset:
    """Make complete binary trees.

    Args:
        leaves: of every tree; a power of 2, None for 256.
        seed: the same seed gives the same words, scores and targets.
    Returns: pulls "word" (leaves only, int32, -1 elsewhere) and "target" (float32 [1] at the
        root): the sum of the scores of the leaves' words, over the square root of their number.
        A score is drawn from a standard normal distribution, so a target is of the order of 1.
    Raises: GraphError, when `leaves` is not a power of 2.
    """
    leaves = LEAVES if leaves is None else leaves
    vocabulary = Vocabulary((UNKNOWN, *(f"w{n}" for n in range(1, WORDS + 1))))
    one = GraphBatch.from_graphs([InputGraph.complete_tree(leaves)])
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(len(vocabulary))
    splits = {}
    for split, count in SPLITS.items():
        shape = one.take(np.zeros(count, np.int32))
        word = np.full((count, one.num_vertices), -1, np.int32)
        word[:, :leaves] = rng.integers(1, len(vocabulary), (count, leaves))
        target = scores[word[:, :leaves]].sum(axis=1, keepdims=True) / np.sqrt(leaves)
        at_root = np.full(shape.num_vertices, -1, np.int32)
        at_root[shape.graph_ptr[1:] - 1] = np.arange(count)
        pulls = {"word": word.ravel(), "target": Rows(target.astype(np.float32), at_root)}
        splits[split] = GraphBatch.from_arrays(shape.graph_ptr, shape.child_ptr, shape.child, pulls)
    description = f"complete binary trees of {leaves} leaves"
    return Dataset("generated", "tree-fc", splits, {"word": vocabulary}, 0, description)
