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
from vertexrt.kernels.cuda.orders import COLUMNS, OP, N
from vertexrt.kernels.cuda.session import MOST_STAMPS, Session

WARM, WATCHED = 12, 8  # minibatches
WORDS = 4  # of a stamp, see `Stamps` of persistent.cuh
Array = np.ndarray[Any, Any]


def watch(net: vrt.Network, batch: vrt.GraphBatch, optimizer: vrt.SGD) -> tuple[Array, Array, int]:
    """Run one step; return stamps [processors, MOST_STAMPS, 4], the script, and its common part."""
    session = cast("DeviceModel", net._model).session
    seen: list[Array] = []
    original = Session._stage

    def stage(self: Session, *arguments: Any) -> Any:
        seen.extend(arguments[4])  # script, sections, counters
        return original(self, *arguments)

    size = session.device.processors * MOST_STAMPS * WORDS
    assert session.stamps is not None
    session.device.clear(session.stamps.address, 8 * size)
    Session._stage = stage  # type: ignore[assignment, method-assign]
    try:
        net.step(batch, optimizer)
        net.sync()
    finally:
        Session._stage = original  # type: ignore[method-assign]
    stamps = np.empty(size, np.int64)
    session.download(stamps, session.stamps.address)
    script, sections, _ = seen
    return stamps.reshape(-1, MOST_STAMPS, WORDS), script.reshape(-1, COLUMNS), int(sections[0])


def measure(net: vrt.Network, pool: vrt.GraphBatch, size: int) -> None:
    """Print the table of one batch size."""
    rng = np.random.default_rng(0)
    batches = [pool.take(rng.integers(0, pool.num_graphs, size)) for _ in range(WARM + WATCHED)]
    optimizer = vrt.SGD(0.0)
    for batch in batches[:WARM]:
        net.step(batch, optimizer)
    net.sync()
    session = cast("DeviceModel", net._model).session
    processors = session.device.processors
    session.stamps = session._take(processors * MOST_STAMPS * WORDS * 8, "stamps")
    spans = []
    table: dict[tuple[bool, int], Array] = defaultdict(lambda: np.zeros(4))
    for batch in batches[WARM:]:
        stamps, script, common = watch(net, batch, optimizer)
        longest = 0.0
        for own in stamps:
            last = 1 + int(np.flatnonzero(own[1:, 0] == -1)[0])
            nanoseconds = float(own[last, 2] - own[0, 2])
            rate = nanoseconds / max(1.0, float(own[last, 1] - own[0, 1])) / 1e3
            longest = max(longest, nanoseconds / 1e3)
            for instruction, start, waited, end in own[1:last].tolist():
                row = script[instruction]
                table[instruction >= common, int(row[OP])] += (
                    1.0,
                    (waited - start) * rate,
                    (end - waited) * rate,
                    float(row[N]),
                )
        spans.append(longest)
    session.stamps = None
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
