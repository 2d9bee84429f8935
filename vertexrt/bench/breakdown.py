"""`vertexrt bench breakdown`: where the time of a training step goes.

As Cavs' tables of time by kind of work, and figure 10 of VPPS; `device_time.py` is that of a GPU,
here it is the host's, from time stamps of every kernel.

The persistent engine notes the processor's clock around every instruction. With an instruction a
kernel (`Passes(segment=False)`) that is the time of each fused loop and each product; they are the
same kernels that the batched engine calls. What a processor does not spend in instructions is told
apart by the clock of the host. All parts are of the same steps, so they add up to the step; what
the stamps cost shows next to `untraced`, the same network without them, in turn with it on other
minibatches.

Where `fuse` is off, each op is a kernel, so that moves of memory show, as in Cavs; where it is on,
they are parts of the fused loops.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import vertexrt as vrt
from vertexrt.bench import device_time
from vertexrt.bench.measure import LR, MICROSECONDS, Draw, Samples, take_steps, timed
from vertexrt.bench.record import Key, make_entry
from vertexrt.bench.run import Bench, Job, JobOptions, opened
from vertexrt.engine.trace import GroupRecord as Stamps
from vertexrt.engine.variant import Passes, Variant
from vertexrt.graph import GraphBatch
from vertexrt.ir.ops import OPS, SUMS_OF_ROWS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
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


def run(options: JobOptions, command: list[str], job: Job | None = None) -> Path:
    """Measure, print the table, write the JSON file; return its path.

    Args:
        options: `seconds` are for all batch sizes together.
        job: F and its graphs; by default the options' model on its data.
    """
    with opened("breakdown", options, command, job) as bench:
        parts_of = device_time.measure_steps if bench.device == "cuda" else measure_steps
        found = [
            make_entry({**key, "variant": name}, microseconds, "us a step", "lower")
            for key, samples in parts_of(bench)
            for name, microseconds in samples.items()
        ]
        bench.keep("", found)
    return bench.path


def measure_steps(bench: Bench) -> Iterator[tuple[Key, Samples]]:
    """Time the parts at each batch size, with ops fused and each by itself."""
    nets = {name: bench.compile("persistent", passes=p) for name, p in SETTINGS.items()}
    seconds = bench.options.seconds / (len(bench.options.batch_sizes) * len(nets))
    for batch_size in bench.options.batch_sizes:
        for name, net in nets.items():
            samples = _sample(net, Draw(bench.job.pool, batch_size), seconds)
            yield bench.time_key("persistent", name, batch_size), samples


def _sample(net: vrt.Network, draw: Draw, seconds: float) -> Samples:
    """Return samples of each part, of the whole and of steps without stamps, in microseconds."""
    optimizer = vrt.SGD(lr=LR)
    for ids in draw.take(3):
        one_step(net, draw.pool, ids, optimizer)  # compiles
    samples: Samples = {part: [] for part in (*PARTS, "whole", "untraced")}
    end = time.perf_counter() + seconds
    done = 0
    while done < STEPS[0] or (done < STEPS[1] and time.perf_counter() < end):
        (ids,) = draw.take(1)
        found = one_step(net, draw.pool, ids, optimizer)
        for part in (*PARTS, "whole"):
            samples[part].append(found.get(part, 0.0) * MICROSECONDS)
        samples["untraced"].append(take_steps(net, draw, 1))
        done += 1
    return samples


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
        timed(model.backend, "update") as updated,
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
    tasks = segment_tasks(variant.tasks, variant.processors == 1, variant.passes.segment)
    segments = [(t.task, s.steps) for t in tasks for s in t.segments]
    kinds = [{_kind_of_step(task, step) for step in steps} for task, steps in segments]
    return [each.pop() if len(each) == 1 else "elementwise" for each in kinds]


def _kind_of_step(task: TaskProgram, step: Group | Product) -> str:
    if isinstance(step, Product):
        return "products"
    nodes = [task.program.nodes[k] for k in step.nodes]
    work = {n.op for n in nodes if not is_free(n) and OPS[n.op].role != "effect"}
    if work <= set(MOVES) | set(SUMS_OF_ROWS):
        return "sums over rows" if work & set(SUMS_OF_ROWS) else "moves"
    return "elementwise"


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
