"""Where the time of a persistent kernel goes: instructions and waits, from its own time stamps.

`python -m benchmarks.persistent_time --batch 1,16 --processors 8` trains a Tree-LSTM on a GPU and
prints, for each op of the scripts, the mean over processors of what a step runs and waits.
"""

import argparse
from collections import defaultdict
from typing import Any, cast

import numpy as np

import vertexrt as vrt
from vertexrt.bench.peers.options import Options
from vertexrt.bench.peers.suites import make_suite
from vertexrt.engine.device_model import DeviceModel
from vertexrt.kernels.cuda.orders import OP, N

WARM, WATCHED = 12, 8  # minibatches
Array = np.ndarray[Any, Any]


def measure(net: vrt.Network, pool: vrt.GraphBatch, size: int) -> None:
    """Print the table of one batch size."""
    rng = np.random.default_rng(0)
    batches = [pool.take(rng.integers(0, pool.num_graphs, size)) for _ in range(WARM + WATCHED)]
    optimizer = vrt.SGD(0.0)
    for batch in batches[:WARM]:
        net.step(batch, optimizer)
    net.sync()
    launch = cast("DeviceModel", net._model).one_launch
    processors = launch.session.device.processors
    spans = []
    table: dict[tuple[bool, int], Array] = defaultdict(lambda: np.zeros(4))
    for batch in batches[WARM:]:
        launch.watch()
        net.step(batch, optimizer)
        net.sync()
        longest, script = 0.0, launch.script
        for own in launch.seen():
            last = 1 + int(np.flatnonzero(own[1:, 0] == -1)[0])
            nanoseconds = float(own[last, 2] - own[0, 2])
            rate = nanoseconds / max(1.0, float(own[last, 1] - own[0, 1])) / 1e3
            longest = max(longest, nanoseconds / 1e3)
            for instruction, start, waited, end in own[1:last].tolist():
                row = script[instruction]
                table[instruction >= launch.common, int(row[OP])] += (
                    1.0,
                    (waited - start) * rate,
                    (end - waited) * rate,
                    float(row[N]),
                )
        spans.append(longest)
    launch.stamps = None
    print(f"batch {size}: the kernel takes {np.median(spans):.0f} us a step; mean of a processor:")
    for (on_path, op), (count, wait, run, rows) in sorted(table.items()):
        each = WATCHED * processors
        print(
            f"  {'path' if on_path else 'beside':6} op {op:3}: {count / each:6.2f} x, "
            f"wait {wait / each:6.1f} us, run {run / each:6.1f} us, "
            f"{rows / max(count, 1):7.1f} rows"
        )


def main() -> None:
    """Compile once, then print a table for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", default="1,16", help="sizes, such as 1,16")
    parser.add_argument("--processors", type=int, help="of a group")
    given = parser.parse_args()
    suite = make_suite("tree-lstm", Options())
    net = vrt.compile(
        suite.function, device="cuda", engine="persistent", processors=given.processors
    )
    for size in map(int, given.batch.split(",")):
        measure(net, suite.pool, size)


if __name__ == "__main__":
    main()
