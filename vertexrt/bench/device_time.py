"""Where the time of a step goes on a GPU: the host's parts, and the device's by kind of kernel.

Device times are those of PyTorch's profiler, which sees every kernel of the process; without
PyTorch only the host's parts are measured. `gaps` are what is left of a step when the device is not
busy: it waits for the host or for a launch.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import vertexrt as vrt
from vertexrt.bench.measure import MICROSECONDS, Draw, Samples, take_steps, timed
from vertexrt.bench.record import Key
from vertexrt.bench.run import Bench

STEPS = 40  # of a sample, after as many to warm up
PROFILED = 10  # of a sample of the profiler
ROUNDS = 5
LIBRARY = ("gemm", "gemv", "splitKreduce", "Kernel2")  # in the names of cuBLAS's kernels
SUMS = ("sum_columns", "add_partial_sums", "sum_segment")
NO_PROFILER = (
    "PyTorch, whose profiler reads the device's times, is not installed; "
    'install the extra with `pip install -e ".[torch]"`'
)


def measure_steps(bench: Bench) -> list[tuple[Key, Samples]]:
    """Time both engines at each batch size.

    All is timed before the profiler starts for the first time: part of it stays for good.
    """
    profiler = importlib.util.find_spec("torch") is not None
    if not profiler:
        bench.record.missing.append({"name": "times of kernels", "because": NO_PROFILER})
    found, left = [], []
    for engine in ("batched", "persistent"):
        net = bench.compile(engine)
        for size in bench.options.batch_sizes:
            samples = sample_host(net, Draw(bench.job.pool, size))
            found.append((bench.time_key(engine, engine, size), samples))
            left.append((net, Draw(bench.job.pool, size), samples))
    for net, draw, samples in left if profiler else ():
        samples.update(_sample_device(net, draw, samples["whole"]))
    return found


def sample_host(net: vrt.Network, draw: Draw, steps: int = STEPS, rounds: int = ROUNDS) -> Samples:
    """Sample a step, and what of it the host takes to schedule it and to launch it."""
    take_steps(net, draw, steps)
    samples: Samples = defaultdict(list)
    for _ in range(rounds):
        with (
            timed(net.executor.model, "prepare") as prepared,
            timed(net.executor, "_launch") as launched,
        ):
            samples["whole"].append(take_steps(net, draw, steps))
        samples["host: schedule"].append(sum(prepared) / steps * MICROSECONDS)
        samples["host: scripts and launches"].append(sum(launched) / steps * MICROSECONDS)
    return samples


def _sample_device(net: vrt.Network, draw: Draw, steps: list[float]) -> Samples:
    """Sample what the device does, and the part of a step in which it is idle."""
    samples: Samples = defaultdict(list)
    for whole in steps:
        times = _profile(net, draw)
        busy = sum(times.values())
        times |= {"device, busy": busy, "gaps": max(whole - busy, 0.0)}
        for kind, microseconds in times.items():
            samples[kind].append(microseconds)
    return samples


def _profile(net: vrt.Network, draw: Draw) -> dict[str, float]:
    """Return the microseconds of each kind of kernel a step, over PROFILED steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], **quiet(profile)) as profiler:
        take_steps(net, draw, PROFILED)
        torch.cuda.synchronize()
    generated = kinds_of_kernels(net)
    times: dict[str, float] = defaultdict(float)  # by kind
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[kind_of(event.name, generated)] += event.device_time / PROFILED
    return times


def quiet(profile: Callable[..., Any]) -> dict[str, bool]:
    """Return options with which PyTorch's profiler does not warn of cycles; there is only one.

    Without `acc_events`, which PyTorch 2.4 does not have, 2.11 says that events of earlier cycles
    are lost, though no cycle is earlier.
    """
    return {"acc_events": True} if "acc_events" in inspect.signature(profile).parameters else {}


def kinds_of_kernels(net: vrt.Network) -> dict[str, str]:
    """Name the kind of every generated kernel of the batched engine."""
    found: dict[str, str] = {}
    for variant in net.executor.model.variants.values():
        for name, source in getattr(variant.ready().executable, "sources", {}).items():
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
