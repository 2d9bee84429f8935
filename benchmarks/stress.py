"""Launch persistent kernels again and again, and look at every result.

    python -m benchmarks.stress [--launches 100000] [--hidden 64] [--processors 8]

Minibatches of SST of mixed sizes are trained on with a learning rate of 0 and evaluated. The loss,
the norm of the gradients and the outputs of each launch must have the bits of the first time.
"""

import argparse
import sys
import time
from typing import Any, cast

import numpy as np

import vertexrt as vrt
from vertexrt import data, models
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.step_end import LOSS, NORM

SIZES = (1, 2, 3, 5, 8, 16, 40)
KINDS = 12  # minibatches of each size
EVERY = 5000  # launches between two lines


def main() -> int:
    """Launch, compare, and print how it goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=100_000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--processors", type=int, default=8, help="of a group")
    given = parser.parse_args()
    dataset = data.load("sst", task="sentiment")
    size, pool = given.hidden, dataset.splits["train"]
    function = models.get("tree-lstm").build(dataset, hidden=size, embed=size, dropout=0.0)
    net = vrt.compile(function, device="cuda", engine="persistent", processors=given.processors)
    rng = np.random.default_rng(0)
    batches = [
        pool.take(rng.integers(0, pool.num_graphs, size)) for size in SIZES for _ in range(KINDS)
    ]
    executor = cast("CudaExecutor", net._executor)
    landed: list[tuple[float, float]] = []
    land = executor._land

    def watched_land() -> None:
        found = executor._flights[0].found
        executor.session.device.wait(executor._flights[0].event)
        landed.append((float(found[LOSS]), float(found[NORM])))
        land()

    executor._land = watched_land  # type: ignore[method-assign]
    optimizer = vrt.SGD(0.0, clip_norm=1e30)
    first_step: dict[int, tuple[float, float]] = {}
    first_output: dict[int, Any] = {}
    start, launches, wrong = time.perf_counter(), 0, 0
    while launches < given.launches:
        order = rng.permutation(len(batches))
        landed.clear()
        for k in order:
            net.step(batches[k], optimizer)
        net.sync()
        for k, found in zip(order.tolist(), landed, strict=True):
            wrong += found != first_step.setdefault(k, found)
        waiting = [(k, net.submit(batches[k], ("logits",))) for k in order.tolist()]
        for k, evaluation in waiting:
            got = evaluation.result()["logits"]
            wrong += not np.array_equal(got, first_output.setdefault(k, got))
        before, launches = launches, launches + 2 * len(order)
        if launches // EVERY > before // EVERY:
            seconds = time.perf_counter() - start
            print(f"{launches:,} launches in {seconds:.0f} s, {wrong} wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
