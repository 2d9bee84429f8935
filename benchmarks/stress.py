"""Launch persistent kernels again and again, and look at every result.

    python -m benchmarks.stress [--launches 100000] [--hidden 64] [--processors 8]

Minibatches of SST of mixed sizes are trained on and evaluated, in a few orders. The losses of an
order, the parameters after its last step and the outputs of each minibatch must have the bits of
the first time.
"""

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np

import vertexrt as vrt
from vertexrt import data, models

SIZES = (1, 2, 3, 5, 8, 16, 40)
KINDS = 12  # minibatches of each size
ORDERS = 4  # of the minibatches
RATE = 1e-3
EVERY = 5000  # launches between two lines


def main() -> int:
    """Launch, compare, and print how it goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--processors", type=int, default=8, help="of a group")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data", default="sst")
    given = parser.parse_args()
    dataset = data.load(given.data, format="trees")
    size, pool = given.hidden, dataset.splits["train"]
    function = models.get("tree-lstm").build(dataset, hidden=size, embed=size, dropout=0.0)
    net = vrt.compile(
        function, device=given.device, engine="persistent", processors=given.processors
    )
    start = {name: np.array(value) for name, value in net.parameters.items()}
    rng = np.random.default_rng(0)
    batches = [
        pool.take(rng.integers(0, pool.num_graphs, size)) for size in SIZES for _ in range(KINDS)
    ]
    orders = [rng.permutation(len(batches)).tolist() for _ in range(ORDERS)]
    trained = [train(net, [batches[k] for k in order], start) for order in orders]
    net.set_parameters(start)
    evaluated = evaluate(net, batches)
    begin, launches, wrong = time.perf_counter(), 0, 0
    while launches < given.launches:
        before = launches
        for order, expected in zip(orders, trained, strict=True):
            wrong += different(train(net, [batches[k] for k in order], start), expected)
            net.set_parameters(start)
            found = evaluate(net, [batches[k] for k in order])
            wrong += different(found, [evaluated[k] for k in order])
            launches += 2 * len(order)
        if launches // EVERY > before // EVERY:
            seconds = time.perf_counter() - begin
            print(f"{launches:,} launches in {seconds:.0f} s, {wrong} wrong", flush=True)
    return 1 if wrong else 0


def train(
    net: vrt.Network, batches: Sequence[vrt.GraphBatch], start: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Train from given parameters; return the losses, and the parameters after the last step."""
    net.set_parameters(start)
    optimizer = vrt.SGD(RATE, clip_norm=1e30)
    losses = [net.step(batch, optimizer) for batch in batches]
    losses = [*losses[1:], net.sync()]  # a step returns the loss of the one before
    return [np.array(losses), *(np.array(value) for value in net.parameters.values())]


def evaluate(net: vrt.Network, batches: Sequence[vrt.GraphBatch]) -> list[np.ndarray]:
    """Return the outputs of minibatches; the last is launched before the first is waited for."""
    waiting = [net.submit(batch, ("logits",)) for batch in batches]
    return [evaluation.result()["logits"] for evaluation in waiting]


def different(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> int:
    """Count the arrays that do not have the bits of the first time."""
    pairs = zip(found, expected, strict=True)
    return sum(not np.array_equal(a, b, equal_nan=True) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
