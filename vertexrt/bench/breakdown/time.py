"""Where the time of a step goes on the host: from time stamps of every kernel.

The persistent engine notes the processor's clock around every instruction. With an instruction a
kernel (`Passes(segment=False)`) that is the time of each fused loop and each product; they are the
same kernels that the batched engine calls. What a processor does not spend in instructions is told
apart by the clock of the host. All parts are of the same steps, so they add up to the step; what
the stamps cost shows beside `untraced`, the same network without them, in turn with it.

Where `fuse` is off, each op is a kernel, so that moves of memory show, as in Cavs; where it is on,
they are parts of the fused loops.
"""

from __future__ import annotations

import time
from collections import defaultdict

import numpy as np

import vertexrt as vrt
from vertexrt.bench.breakdown.options import Bench
from vertexrt.bench.measure import LR, Draw
from vertexrt.bench.record import make_entry
from vertexrt.engine.trace import Record as Stamps
from vertexrt.engine.trace import Timeline
from vertexrt.engine.variant import Passes, Variant
from vertexrt.graph import GraphBatch
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.ir.passes.store import is_free
from vertexrt.script.isa import PROGRAM, SEGMENT

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
SUMS = ("sum_rows", "embed_grad")
STEPS = (5, 60)  # that are looked at, at least and at most
MICROSECONDS = 1e6


def kind_of_step(task: TaskProgram, step: Group | Product) -> str:
    """Name the part of the time that a kernel counts to."""
    if isinstance(step, Product):
        return "products"
    nodes = [task.program.nodes[k] for k in step.nodes]
    work = {n.op for n in nodes if not is_free(n) and OPS[n.op].role != "effect"}
    if work <= set(MOVES) | set(SUMS):
        return "sums over rows" if work & set(SUMS) else "moves"
    return "elementwise"


def kinds_of_instructions(variant: Variant) -> list[list[str]]:
    """Return the part of each segment of each program."""
    tasks = segment_tasks(variant.tasks, variant.processors == 1, variant.passes.segment)
    return [[_kind_of_segment(t.task, s.steps) for s in t.segments] for t in tasks]


def _kind_of_segment(task: TaskProgram, steps: tuple[Group | Product, ...]) -> str:
    kinds = {kind_of_step(task, step) for step in steps}
    return kinds.pop() if len(kinds) == 1 else "elementwise"


def split(stamps: Stamps, kinds: list[list[str]]) -> dict[str, float]:
    """Add up the seconds of each part over a script, mean of the processors.

    Args:
        stamps: of one group and one step; kinds: of `kinds_of_instructions`.
    Returns: also `scripts`, from the start of the first instruction to the end of all.
    """
    found: dict[str, float] = defaultdict(float)
    each = 1.0 / (stamps.cycles_per_second * len(stamps.words))
    for words, times in zip(stamps.words, stamps.times, strict=True):
        count = len(words)
        waited = times[:, 1] - times[:, 0]
        ran = times[:, 2] - times[:, 1]
        for k in range(count):
            found[kinds[int(words[k, PROGRAM])][int(words[k, SEGMENT])]] += float(ran[k]) * each
        found["update"] += float(ran[count:].sum()) * each
        found["waits"] += float(waited.sum()) * each
        whole = float(times[-1, 2] - times[0, 0]) * each
        found["scripts"] += whole
        found["between kernels"] += whole - float(waited.sum() + ran.sum()) * each
    return dict(found)


def one_step(
    net: vrt.Network, pool: GraphBatch, ids: np.ndarray, optimizer: vrt.Optimizer
) -> dict[str, float]:
    """Run a step with time stamps; return the seconds of each part, and of the whole."""
    model = net._model
    prepared: list[float] = []
    original = model.prepare

    def prepare(use, batch):  # type: ignore[no-untyped-def]
        begin = time.perf_counter()
        runs = original(use, batch)
        prepared.append(time.perf_counter() - begin)
        return runs

    begin = time.perf_counter()
    batch = pool.take(ids)
    assembled = time.perf_counter()
    model.prepare = prepare  # type: ignore[method-assign]
    try:
        with net.trace() as timeline:
            start = time.perf_counter()
            net.step(batch, optimizer)
            end = time.perf_counter()
    finally:
        model.prepare = original  # type: ignore[method-assign]
    found = _mean_of_groups(net, timeline)
    found["assemble"] = assembled - begin
    found["schedule"] = sum(prepared)
    found["whole"] = end - start + found["assemble"]
    found["host"] = end - start - found["schedule"] - found.pop("scripts")
    return found


def _mean_of_groups(net: vrt.Network, timeline: Timeline) -> dict[str, float]:
    variants = [v for (use, n), v in net._model.variants.items() if n and use.loss]
    kinds = kinds_of_instructions(variants[-1])
    groups = [split(stamps, kinds) for stamps in timeline.records]
    names = {name for group in groups for name in group}
    return {name: sum(g.get(name, 0.0) for g in groups) / len(groups) for name in names}


def run(bench: Bench) -> None:
    """Time the parts at each batch size, with ops fused and each by itself."""
    nets = {name: bench.compile("persistent", passes=p) for name, p in SETTINGS.items()}
    seconds = bench.options.seconds / (len(bench.options.batch_sizes) * len(nets))
    for batch_size in bench.options.batch_sizes:
        for name, net in nets.items():
            _one_setting(bench, name, net, batch_size, seconds)


def _one_setting(
    bench: Bench, name: str, net: vrt.Network, batch_size: int, seconds: float
) -> None:
    pool, optimizer = bench.job.pool, vrt.SGD(lr=LR)
    draw = Draw(pool, batch_size)
    for ids in draw.take(3):  # compiles both forms of the driver
        net.step(pool.take(ids), optimizer)
        one_step(net, pool, ids, optimizer)
    samples: dict[str, list[float]] = {part: [] for part in (*PARTS, "whole", "untraced")}
    end = time.perf_counter() + seconds
    while len(samples["whole"]) < STEPS[0] or (
        len(samples["whole"]) < STEPS[1] and time.perf_counter() < end
    ):
        (ids,) = draw.take(1)
        begin = time.perf_counter()
        net.step(pool.take(ids), optimizer)
        samples["untraced"].append((time.perf_counter() - begin) * MICROSECONDS)
        found = one_step(net, pool, ids, optimizer)
        for part in (*PARTS, "whole"):
            samples[part].append(found.get(part, 0.0) * MICROSECONDS)
    key = bench.key("time", engine="persistent", setting=name, batch_size=batch_size)
    for part, values in samples.items():
        bench.record.entries.append(
            make_entry({**key, "variant": part}, values, "us a step", "lower")
        )
