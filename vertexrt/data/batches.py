"""Cut the graphs of a split into minibatches."""

import numpy as np
import numpy.typing as npt

from vertexrt.errors import UsageError

IntArray = npt.NDArray[np.int32]


def minibatches(
    sizes: npt.NDArray[np.integer],
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    window: int = 1,
) -> list[IntArray]:
    """Return the graphs of each minibatch of an epoch; every graph is in exactly one.

    Args:
        sizes: [K], vertices of each graph (`GraphBatch.sizes()`).
        batch_size: graphs a minibatch; the last one may be smaller.
        seed, epoch: the same pair gives the same order.
        shuffle: False keeps the order of the graphs.
        window: minibatches over which graphs are sorted by size, so that graphs of like size come
            together and levels are fuller; 1 sorts nothing. The minibatches themselves are then
            shuffled anew.
    Returns: int32 arrays of graph numbers, for `GraphBatch.take`.
    Raises: UsageError, when `batch_size` or `window` is under 1.
    """
    for name, value in (("batch size", batch_size), ("window", window)):
        if value < 1:
            raise UsageError.at(
                "minibatches", f"a {name} of {value}", "expected 1 or more", "correct it"
            )
    rng = np.random.default_rng([seed, epoch])
    order = np.arange(len(sizes), dtype=np.int32)
    if shuffle:
        order = rng.permutation(order)
    if window > 1:
        for part in _cut(order, window * batch_size):
            part[:] = part[np.argsort(sizes[part], kind="stable")]
    batches = _cut(order, batch_size)
    if window > 1 and shuffle:
        batches = [batches[number] for number in rng.permutation(len(batches))]
    return batches


def _cut(order: IntArray, count: int) -> list[IntArray]:
    """Return views of so many elements each; the last one may be smaller."""
    return [order[at : at + count] for at in range(0, len(order), count)]
