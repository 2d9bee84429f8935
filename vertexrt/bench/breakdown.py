"""`vertexrt bench breakdown`: where the time of a training step goes.

As Cavs' tables of time by kind of work, and figure 10 of VPPS.

On a CPU, from time stamps of every kernel. The persistent engine notes the processor's clock around
every instruction. With an instruction a kernel (`Passes(segment=False)`) that is the time of each
fused loop and each product; they are the same kernels that the batched engine calls. What a
processor does not spend in instructions is told apart by the clock of the host. All parts are of
the same steps, so they add up to the step; what the stamps cost shows next to `untraced`, the same
network without them, in turn with it on other minibatches. Where `fuse` is off, each op is a
kernel, so that moves of memory show, as in Cavs; where it is on, they are parts of the fused loops.

On a GPU, the host's parts, and the device's by kind of kernel. Device times are those of PyTorch's
profiler, which sees every kernel of the process; without PyTorch only the host's parts are
measured. `gaps` are what is left of a step when the device is not busy: it waits for the host or
for a launch.
"""

import importlib.util
import inspect
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.bench.measure import LR, MICROSECONDS, Draw, Samples, take_steps, timed
from vertexrt.bench.record import Key, make_entry
from vertexrt.bench.run import Bench, opened
from vertexrt.engine.trace import GroupRecord as Stamps
from vertexrt.engine.variant import Passes, Variant
from vertexrt.graph import GraphBatch
from vertexrt.ir.ops import OPS, SUMS_OF_ROWS
from vertexrt.ir.passes.fuse import Product
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.ir.passes.store import is_free
from vertexrt.script.isa import OP

PARTS = (
    "assemble",
    "schedule",
    "products",
    "elementwise",
    "moves",
    "sums over rows",
    "update",
    "waits",
    "between kernels",
    "host",
)
SETTINGS = {
    "fused": Passes(segment=False),
    "op by op": Passes(segment=False, fuse=False),
}
MOVES = ("gather", "gather_all", "gather_parents", "concat", "slice", "embed", "spread", "to_edges")
STEPS = (5, 60)  # that are looked at, at least and at most

# Of a GPU.
TOGETHER = 40  # steps of a sample of a GPU, after as many to warm up
PROFILED = 10  # of a sample of the profiler
ROUNDS = 5
LIBRARY = ("gemm", "gemv", "splitKreduce", "Kernel2")  # in the names of cuBLAS's kernels
SUMS = ("sum_columns", "add_partial_sums", "sum_segment")
NO_PROFILER = (
    "PyTorch, whose profiler reads the device's times, is not installed; "
    'install the extra with `pip install -e ".[torch]"`'
)


def run(options: Namespace, command: list[str]) -> Path:
    """Measure, print the table, write the JSON file; return its path.

    Args:
        options: `seconds` are for all batch sizes together.
    """
    with opened("breakdown", options, command) as bench:
        parts_of = _measure_device if bench.device == "cuda" else _measure_host
        found = [
            make_entry({**key, "variant": name}, microseconds, "us a step", "lower")
            for key, samples in parts_of(bench)
            for name, microseconds in samples.items()
        ]
        bench.keep("", found)
    return bench.path


def _measure_host(bench: Bench) -> Iterator[tuple[Key, Samples]]:
    """Time each part, the whole and steps without stamps, with ops fused and each by itself."""
    nets = {name: bench.compile("persistent", passes=p) for name, p in SETTINGS.items()}
    seconds = bench.options.seconds / (len(bench.options.batch_sizes) * len(nets))
    optimizer = vrt.SGD(lr=LR)
    for batch_size in bench.options.batch_sizes:
        for name, net in nets.items():
            draw = Draw(bench.job.pool, batch_size)
            for ids in draw.take(3):
                one_step(net, draw.pool, ids, optimizer)  # compiles
            samples: Samples = defaultdict(list)
            end = time.perf_counter() + seconds
            done = 0
            while done < STEPS[0] or (done < STEPS[1] and time.perf_counter() < end):
                (ids,) = draw.take(1)
                found = one_step(net, draw.pool, ids, optimizer)
                for part in (*PARTS, "whole"):
                    samples[part].append(found.get(part, 0.0) * MICROSECONDS)
                samples["untraced"].append(take_steps(net, draw, 1))
                done += 1
            key = {"part": "time", "engine": "persistent", "setting": name}
            yield bench.key(batch_size=batch_size, **key), samples


def one_step(
    net: vrt.Network, pool: GraphBatch, ids: np.ndarray, optimizer: vrt.Optimizer
) -> dict[str, float]:
    """Run a step with time stamps; return the seconds of each part, and of the whole."""
    begin = time.perf_counter()
    batch = pool.take(ids)
    assembled = time.perf_counter() - begin
    model = net.executor.model
    with (
        timed(model, "prepare") as prepared,
        timed(model.backend, "apply_update") as updated,
        net.trace() as timeline,
    ):
        begin = time.perf_counter()
        net.step(batch, optimizer)
        step = time.perf_counter() - begin
    variants = [v for (use, n), v in model.variants.items() if n and use.loss]
    kinds = kinds_of_instructions(variants[-1])
    groups = [split(stamps, kinds) for stamps in timeline.records]
    names = {name for group in groups for name in group}
    found = {name: sum(g.get(name, 0.0) for g in groups) / len(groups) for name in names}
    found["assemble"] = assembled
    found["schedule"], found["update"] = sum(prepared), sum(updated)
    found["whole"] = step + assembled
    found["host"] = step - found["schedule"] - found["update"] - found.pop("scripts")
    return found


def kinds_of_instructions(variant: Variant) -> list[str]:
    """Return the part that each segment counts to, by `op`."""
    found = []
    for task in segment_tasks(variant.tasks, variant.processors == 1, variant.passes.segment):
        for segment in task.segments:
            kinds = set()
            for step in segment.steps:
                if isinstance(step, Product):
                    kinds.add("products")
                    continue
                nodes = [task.task.program.nodes[k] for k in step.nodes]
                work = {n.op for n in nodes if not is_free(n) and OPS[n.op].role != "effect"}
                kind = "sums over rows" if work & {*SUMS_OF_ROWS} else "moves"
                kinds.add(kind if work <= {*MOVES, *SUMS_OF_ROWS} else "elementwise")
            found.append(kinds.pop() if len(kinds) == 1 else "elementwise")
    return found


def split(stamps: Stamps, kinds: list[str]) -> dict[str, float]:
    """Add up the seconds of each part over a script, mean of the processors.

    Args:
        stamps: of one group and one step; kinds: of `kinds_of_instructions`.
    Returns: also `scripts`, from the start of the first instruction to the end of all.
    """
    waited = stamps.times[..., 1] - stamps.times[..., 0]
    ran = stamps.times[..., 2] - stamps.times[..., 1]
    whole = stamps.times[:, -1, 2] - stamps.times[:, 0, 0]
    cycles: dict[str, float] = defaultdict(float)
    for op, took in zip(stamps.script[..., OP].flat, ran.flat, strict=True):
        cycles[kinds[op]] += took
    cycles["waits"] += waited.sum()
    cycles["scripts"] += whole.sum()
    cycles["between kernels"] += whole.sum() - waited.sum() - ran.sum()
    cycles_per_second = stamps.cycles_per_second * len(stamps.script)
    return {part: float(spent) / cycles_per_second for part, spent in cycles.items()}


def _measure_device(bench: Bench) -> list[tuple[Key, Samples]]:
    """Time both engines at each batch size.

    All is timed before the profiler starts for the first time: part of it stays for good. From then
    on samples are of what the device does, and of the part of a step in which it is idle.
    """
    profiler = importlib.util.find_spec("torch") is not None
    if not profiler:
        bench.record.missing.append({"name": "times of kernels", "because": NO_PROFILER})
    found, left = [], []
    for engine in ("batched", "persistent"):
        net = bench.compile(engine)
        for size in bench.options.batch_sizes:
            samples = sample_host(net, Draw(bench.job.pool, size))
            key = {"part": "time", "engine": engine, "setting": engine}
            found.append((bench.key(batch_size=size, **key), samples))
            left.append((net, Draw(bench.job.pool, size), samples))
    for net, draw, samples in left if profiler else ():
        for whole in samples["whole"].copy():
            times = _profile(net, draw)
            busy = sum(times.values())
            times |= {"device, busy": busy, "gaps": max(whole - busy, 0.0)}
            for kind, microseconds in times.items():
                samples[kind].append(microseconds)
    return found


def sample_host(
    net: vrt.Network, draw: Draw, steps: int = TOGETHER, rounds: int = ROUNDS
) -> Samples:
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
