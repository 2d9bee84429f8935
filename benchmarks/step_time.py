"""Where the time of a step on a GPU goes: the host's part, and the device's by kind of kernel.

`python -m benchmarks.step_time --suite tree-lstm --batch 1,256` prints a table. Device times are
those of PyTorch's profiler, which sees every kernel of the process.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np

import vertexrt as vrt
from benchmarks.peers.options import Options
from benchmarks.peers.suites import make_suite
from vertexrt.bench.breakdown.device_time import PROFILED, device_times, timed
from vertexrt.engine.device_model import DeviceModel

ROUNDS = 40  # minibatches, after as many to warm up


def measure(net: vrt.Network, pool: vrt.GraphBatch, output: str, mode: str, size: int) -> None:
    """Print where a step's time goes."""
    import vertexrt.kernels.cuda.session as session

    rng = np.random.default_rng(0)
    batches = [pool.take(rng.integers(0, pool.num_graphs, size)) for _ in range(ROUNDS)]
    optimizer = vrt.SGD(0.01)

    def one(batch: vrt.GraphBatch) -> None:
        if mode == "train":
            net.step(batch, optimizer)
        else:
            net.forward(batch, outputs=[output])

    def run(count: int = ROUNDS) -> None:
        for batch in batches[:count]:
            one(batch)
        net.sync()

    run()
    whole = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        whole.append((time.perf_counter() - start) / ROUNDS * 1e6)
    prepared: list[float] = []
    launched: list[float] = []
    prepare, launch = DeviceModel.prepare, session.launch
    DeviceModel.prepare = timed(prepare, prepared)  # type: ignore[method-assign]
    session.launch = timed(launch, launched)
    run()
    DeviceModel.prepare = prepare  # type: ignore[method-assign]
    session.launch = launch
    by_kind = device_times(lambda: run(PROFILED), net)
    print(f"{mode}, batch {size}: {statistics.median(whole):.0f} us a step")
    print(f"  host: prepare {statistics.median(prepared) * 1e6:8.0f} us")
    print(f"  host: launch  {statistics.median(launched) * 1e6:8.0f} us")
    print(f"  device, busy  {sum(t for t, _ in by_kind.values()):8.0f} us")
    for kind, (microseconds, count) in sorted(by_kind.items(), key=lambda item: -item[1][0]):
        print(f"    {kind:30}{microseconds:8.1f} us {count:7.1f} launches")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_time", description=__doc__)
    parser.add_argument("--suite", choices=Options().suite, default="tree-lstm")
    parser.add_argument("--batch", default="1,256", metavar="N,N,...")
    options = parser.parse_args(arguments)
    suite = make_suite(options.suite, Options())
    net = vrt.compile(suite.function, device="cuda")
    print(f"{suite.name}: {suite.description}")
    for mode in ("train", "infer"):
        for size in options.batch.split(","):
            measure(net, suite.pool, suite.output, mode, int(size))


if __name__ == "__main__":
    main()
