"""Where the time of a step goes on a GPU: the host's parts, and the device's by kind of kernel.

Device times are those of PyTorch's profiler, which sees every kernel of the process; without
PyTorch only the host's parts are measured. `gaps` are what is left of a step when the device is not
busy: it waits for the host or for a launch.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import vertexrt as vrt
from vertexrt.bench.breakdown.options import Bench
from vertexrt.bench.measure import LR, Draw
from vertexrt.bench.record import Key, make_entry
from vertexrt.graph import GraphBatch

STEPS = 40  # of a sample, after as many to warm up
PROFILED = 10  # of a sample of the profiler
ROUNDS = 5
MICROSECONDS = 1e6
LIBRARY = ("gemm", "gemv", "splitKreduce", "Kernel2")  # in the names of cuBLAS's kernels
SUMS = ("sum_columns", "add_partial_sums", "sum_segment")
NO_PROFILER = (
    "PyTorch, whose profiler reads the device's times, is not installed; "
    'install the extra with `pip install -e ".[torch]"`'
)


def kinds_of_kernels(net: vrt.Network) -> dict[str, str]:
    """Name the kind of every generated kernel of the batched engine."""
    found: dict[str, str] = {}
    for variant in net._model.variants.values():
        executable = variant.ready().executable
        for name, source in getattr(executable, "sources", {}).items():
            if "product_tile" in source:
                found[name] = "products, ours"
            elif any(word in source for word in SUMS):
                found[name] = "sums over rows"
            else:
                found[name] = "elementwise, gather, scatter"
    return found


def kind_of(name: str, generated: dict[str, str]) -> str:
    """Name the kind of a kernel or copy."""
    if name.startswith("k_"):  # of those that are generated, the others are a step's only one
        return generated.get(name, "the persistent kernel")
    if name.startswith(("update_", "check_", "sum_squares", "finish_step")):
        return "loss and update"
    if name.startswith("Mem"):
        return "copies"
    return "products, cuBLAS" if any(word in name for word in LIBRARY) else "other"


def quiet(profile: Callable[..., Any]) -> dict[str, bool]:
    """Return options with which PyTorch's profiler does not warn of cycles; there is only one.

    Without `acc_events`, which PyTorch 2.4 does not have, 2.11 says that events of earlier cycles
    are lost, though no cycle is earlier.
    """
    return {"acc_events": True} if "acc_events" in inspect.signature(profile).parameters else {}


def device_times(run: Callable[[], object], net: vrt.Network) -> dict[str, tuple[float, float]]:
    """Return microseconds and launches a step of each kind of kernel, over PROFILED steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], **quiet(profile)) as profiler:
        run()
        net.sync()
        torch.cuda.synchronize()
    generated = kinds_of_kernels(net)
    times: dict[str, float] = defaultdict(float)
    launches: dict[str, float] = defaultdict(float)
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kind = kind_of(event.name, generated)
            times[kind] += event.device_time / PROFILED
            launches[kind] += 1 / PROFILED
    return {kind: (times[kind], launches[kind]) for kind in times}


def run(bench: Bench) -> None:
    """Time both engines at each batch size.

    All is timed before the profiler starts for the first time: part of it stays for good.
    """
    profiler = importlib.util.find_spec("torch") is not None
    if not profiler:
        bench.record.missing.append({"name": "times of kernels", "because": NO_PROFILER})
    found: list[tuple[Key, vrt.Network, int, dict[str, list[float]]]] = []
    for engine in ("batched", "persistent"):
        net = bench.compile(engine)
        for batch_size in bench.options.batch_sizes:
            key = bench.key("time", engine=engine, setting=engine, batch_size=batch_size)
            found.append((key, net, batch_size, _host(bench, net, batch_size)))
    for key, net, batch_size, samples in found:
        if profiler:
            samples |= _device(bench, net, batch_size, samples["untraced"])
        for part, values in samples.items():
            entry = make_entry({**key, "variant": part}, values, "us a step", "lower")
            bench.record.entries.append(entry)


def _steps(bench: Bench, net: vrt.Network, batch_size: int) -> Callable[[int], float]:
    """Return a function that runs so many steps, and returns microseconds a step."""
    pool, optimizer = bench.job.pool, vrt.SGD(lr=LR)
    draw = Draw(pool, batch_size)

    def steps(count: int) -> float:
        ids = draw.take(count)
        begin = time.perf_counter()
        for graphs in ids:
            batch: GraphBatch = pool.take(graphs)
            net.step(batch, optimizer)
        net.sync()
        return (time.perf_counter() - begin) / count * MICROSECONDS

    return steps


def _host(bench: Bench, net: vrt.Network, batch_size: int) -> dict[str, list[float]]:
    """Sample a step, and what of it the host takes to schedule it and to launch it."""
    session: Any = importlib.import_module("vertexrt.kernels.cuda.session")
    model: Any = net._model
    one_launch = net._executor.one_launch  # type: ignore[attr-defined]
    steps = _steps(bench, net, batch_size)
    prepared: list[float] = []
    launched: list[float] = []
    steps(STEPS)
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        samples["untraced"].append(steps(STEPS))
        original = session.launch
        model.prepare = timed(type(model).prepare.__get__(model), prepared)
        session.launch = timed(original, launched)  # of the batched engine
        one_launch.run = timed(type(one_launch).run.__get__(one_launch), launched)
        try:
            samples["whole"].append(steps(STEPS))
        finally:
            del model.prepare, one_launch.run
            session.launch = original
        samples["host: schedule"].append(sum(prepared) / STEPS * MICROSECONDS)
        samples["host: launches"].append(sum(launched) / STEPS * MICROSECONDS)
        prepared.clear()
        launched.clear()
    return samples


def _device(
    bench: Bench, net: vrt.Network, batch_size: int, untraced: list[float]
) -> dict[str, list[float]]:
    """Sample what the device does, and what is left of a step that nobody watches."""
    steps = _steps(bench, net, batch_size)
    samples: dict[str, list[float]] = defaultdict(list)
    for whole in untraced:
        found = device_times(lambda: steps(PROFILED), net)
        busy = sum(microseconds for microseconds, _ in found.values())
        for kind, (microseconds, _) in found.items():
            samples[kind].append(microseconds)
        samples["device, busy"].append(busy)
        samples["gaps"].append(max(whole - busy, 0.0))
    return samples


def timed(original: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    """Wrap a function so that its seconds are noted."""

    def wrapper(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        result = original(*arguments, **options)
        into.append(time.perf_counter() - begin)
        return result

    return wrapper
