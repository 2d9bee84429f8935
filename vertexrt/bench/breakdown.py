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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.bench.measure import LR, MICROSECONDS, Draw, Samples, take_steps, timed, within
from vertexrt.bench.record import Key, make_entry
from vertexrt.bench.run import Bench, Setting, opened
from vertexrt.engine.variant import Variant
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
SETTINGS = {"fused": Setting(segment=False), "op by op": Setting(segment=False, fuse=False)}
MOVES = (
    "gather",
    "gather_all",
    "gather_parents",
    "concat",
    "slice",
    "embed",
    "spread",
    "to_edges",
    "repeat",
)
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
    nets = {name: bench.compile(setting) for name, setting in SETTINGS.items()}
    seconds = bench.options.seconds / (len(bench.options.batch_sizes) * len(nets))
    optimizer = vrt.SGD(lr=LR)
    for batch_size in bench.options.batch_sizes:
        for name, net in nets.items():
            draw = Draw(bench.job.pool, batch_size)
            for ids in draw.take(3):
                one_step(net, draw.pool, ids, optimizer)  # compiles
            samples: Samples = defaultdict(list)
            for _ in within(seconds, *STEPS):
                (ids,) = draw.take(1)
                found = one_step(net, draw.pool, ids, optimizer)
                for part in (*PARTS, "whole"):
                    samples[part].append(found.get(part, 0.0) * MICROSECONDS)
                samples["untraced"].append(take_steps(net, draw, 1))
            yield _key(bench, batch_size, "persistent", name), samples


def _key(bench: Bench, batch_size: int, engine: str, setting: str) -> Key:
    return bench.key(batch_size=batch_size, part="time", engine=engine, setting=setting)


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
    kinds, groups = kinds_of_instructions(variants[-1]), timeline.records
    found: dict[str, float] = defaultdict(float)
    for stamps in groups:  # of each the mean of its processors, of all groups the mean
        scale = 1.0 / (stamps.cycles_per_second * len(stamps.script) * len(groups))
        waited, ran = np.moveaxis(np.diff(stamps.times) * scale, -1, 0)
        for op, took in zip(stamps.script[..., OP].flat, ran.flat, strict=True):
            found[kinds[op]] += float(took)
        # from the start of the first instruction to the end of all
        whole = float((stamps.times[:, -1, 2] - stamps.times[:, 0, 0]).sum()) * scale
        found["waits"] += float(waited.sum())
        found["between kernels"] += whole - float(waited.sum() + ran.sum())
    scripts = sum(found.values())
    found |= {"assemble": assembled, "schedule": sum(prepared), "update": sum(updated)}
    found["host"] = step - found["schedule"] - found["update"] - scripts
    found["whole"] = step + assembled
    return found


def kinds_of_instructions(variant: Variant) -> list[str]:
    """Return the part that each segment counts to, by `op`."""
    found = []
    for task in segment_tasks(variant.tasks, variant.processors == 1, variant.passes.segment):
        nodes = task.task.program.nodes
        for segment in task.segments:
            kinds = set()
            for step in segment.steps:
                if isinstance(step, Product):
                    kinds.add("products")
                    continue
                own = [nodes[k] for k in step.nodes if not is_free(nodes[k])]
                work = {node.op for node in own if OPS[node.op].role != "effect"}
                kind = "moves" if work.isdisjoint(SUMS_OF_ROWS) else "sums over rows"
                kinds.add(kind if work <= {*MOVES, *SUMS_OF_ROWS} else "elementwise")
            found.append(kinds.pop() if len(kinds) == 1 else "elementwise")
    return found


def _measure_device(bench: Bench) -> list[tuple[Key, Samples]]:
    """Time both engines at each batch size.

    All is timed before the profiler starts for the first time: part of it stays for good. From then
    on samples are of what the device does, and of the part of a step in which it is idle.
    """
    profiled = importlib.util.find_spec("torch") is not None
    if not profiled:
        bench.record.missing.append({"name": "times of kernels", "because": NO_PROFILER})
    found, left = [], []
    for engine in ("batched", "persistent"):
        net = bench.compile(Setting(engine=engine))
        for size in bench.options.batch_sizes:
            draw = Draw(bench.job.pool, size)
            samples = sample_host(net, draw)
            found.append((_key(bench, size, engine, engine), samples))
            left.append((net, draw, samples))
    for net, draw, samples in left if profiled else ():
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
    variants = net.executor.model.variants.values()
    sources: dict[str, str] = {}  # of the batched engine's kernels
    for variant in variants:
        sources |= getattr(variant.ready().executable, "sources", {})
    times: dict[str, float] = defaultdict(float)  # by kind
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[kind_of(event.name, sources)] += event.device_time / PROFILED
    return times


def quiet(profile: Callable[..., Any]) -> dict[str, bool]:
    """Return options with which PyTorch's profiler does not warn of cycles; there is only one.

    Without `acc_events`, which PyTorch 2.4 does not have, 2.11 says that events of earlier cycles
    are lost, though no cycle is earlier.
    """
    return {"acc_events": True} if "acc_events" in inspect.signature(profile).parameters else {}


def kind_of(name: str, sources: Mapping[str, str]) -> str:
    """Name the kind of a kernel or copy.

    Args:
        sources: CUDA text of the kernels that were generated for the batched engine, by name.
    """
    if name in sources:
        if "product_tile" in sources[name]:
            return "products, ours"
        sums = any(word in sources[name] for word in SUMS)
        return "sums over rows" if sums else "elementwise, gather, scatter"
    if name.startswith("k_"):  # what else is generated is a step's only kernel
        return "the persistent kernel"
    if name.startswith(("update_", "check_", "sum_squares", "finish_step")):
        return "loss and update"
    if name.startswith("Mem"):
        return "copies"
    return "products, cuBLAS" if any(word in name for word in LIBRARY) else "other"
