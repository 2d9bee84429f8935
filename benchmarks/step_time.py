"""Where the time of a step on a GPU goes: the host's part, and the device's by kind of kernel.

`python -m benchmarks.step_time --suite tree-lstm --batch 1,256` prints a table. Device times are
those of PyTorch's profiler, which sees every kernel of the process.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.bench.peers.options import Options
from vertexrt.bench.peers.suites import make_suite
from vertexrt.engine.device_model import DeviceModel

ROUNDS = 40  # minibatches, after as many to warm up
PROFILED = 10
LIBRARY = ("gemm", "gemv", "splitKreduce", "Kernel2")
SUMS = ("sum_columns", "add_partial_sums", "sum_segment")


def kinds_of_kernels(net: vrt.Network) -> dict[str, str]:
    """Name the kind of every generated kernel."""
    found = {}
    for variant in net._model.variants.values():
        for name, source in variant.ready().executable.sources.items():  # type: ignore[union-attr]
            if "product_tile" in source:
                found[name] = "products, ours"
            elif any(word in source for word in SUMS):
                found[name] = "sums over rows"
            else:
                found[name] = "rows (gather, cell, scatter)"
    return found


def kind_of(name: str, generated: dict[str, str]) -> str:
    """Name the kind of a kernel or copy."""
    if name in generated:
        return generated[name]
    if name.startswith(("update_", "sum_squares", "finish_step")):
        return "loss and update"
    if name.startswith("Mem"):
        return "copies"
    return "products, cuBLAS" if any(word in name for word in LIBRARY) else "other"


def device_times(run: Callable[[], None], net: vrt.Network) -> dict[str, tuple[float, float]]:
    """Return microseconds and launches a step of each kind."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        net.sync()
        torch.cuda.synchronize()
    generated = kinds_of_kernels(net)
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, float] = defaultdict(float)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kind = kind_of(event.name, generated)
            times[kind] += event.device_time / PROFILED
            counts[kind] += 1 / PROFILED
    return {kind: (times[kind], counts[kind]) for kind in sorted(times, key=lambda k: -times[k])}


def timed(owner: Any, name: str, into: list[float]) -> Callable[..., Any]:
    """Wrap a function of a module or class so that its times are noted; return the original."""
    original = getattr(owner, name)

    def wrapper(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = original(*arguments, **options)
        into.append(time.perf_counter() - start)
        return result

    setattr(owner, name, wrapper)
    return original  # type: ignore[no-any-return]


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
    prepare = timed(DeviceModel, "prepare", prepared)
    launch = timed(session, "launch", launched)
    run()
    DeviceModel.prepare = prepare  # type: ignore[method-assign]
    session.launch = launch
    by_kind = device_times(lambda: run(PROFILED), net)
    print(f"{mode}, batch {size}: {statistics.median(whole):.0f} us a step")
    print(f"  host: prepare {statistics.median(prepared) * 1e6:8.0f} us")
    print(f"  host: launch  {statistics.median(launched) * 1e6:8.0f} us")
    print(f"  device, busy  {sum(t for t, _ in by_kind.values()):8.0f} us")
    for kind, (microseconds, count) in by_kind.items():
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
