"""What scheduling costs: against the size of the graphs, and against the batch size (Cavs, fig. 9).

Scheduling is all that is done anew for a minibatch before its first kernel: reading kinds and
levels, finding identical vertices, ordering tasks, writing the launch table, planning the memory.
Trees of a given number of leaves are those of Tree-FC; batch sizes are of the command's own job.
"""

from __future__ import annotations

import time
from typing import Any

import vertexrt as vrt
from vertexrt.bench.breakdown.options import Bench
from vertexrt.bench.jobs import Job, make_job
from vertexrt.bench.measure import LR, Draw
from vertexrt.bench.record import Key, make_entry

GRAPHS = 16  # of a minibatch of trees of one size
STEPS = (5, 60)
WARM = 3
MICROSECONDS = 1e6


def run(bench: Bench) -> None:
    """Time scheduling beside whole steps."""
    options = bench.options
    count = len(options.leaf_counts) + len(options.batch_sizes)
    seconds = options.seconds / count
    for leaves in options.leaf_counts:
        job = make_job("tree-fc", leaves=leaves)
        key: Key = {"part": "schedule", "model": "tree-fc", "hidden": options.hidden}
        key |= {"against": "leaves", "leaves": leaves, "batch_size": GRAPHS}
        _one(bench, key, job, GRAPHS, seconds)
    for batch_size in options.batch_sizes:
        key = bench.key("schedule", against="batch size", batch_size=batch_size)
        _one(bench, key, bench.job, batch_size, seconds)


def _one(bench: Bench, key: Key, job: Job, batch_size: int, seconds: float) -> None:
    net = bench.compile("batched", job=job)
    model = net._model
    original = model.prepare
    noted: list[float] = []

    def prepare(*arguments: Any) -> Any:
        begin = time.perf_counter()
        runs = original(*arguments)
        noted.append(time.perf_counter() - begin)
        return runs

    model.prepare = prepare  # type: ignore[method-assign, assignment]
    draw, optimizer = Draw(job.pool, batch_size), vrt.SGD(lr=LR)
    scheduling: list[float] = []
    whole: list[float] = []
    shares: list[float] = []
    for ids in draw.take(WARM):
        net.step(job.pool.take(ids), optimizer)
    net.sync()
    end = time.perf_counter() + seconds
    while len(whole) < STEPS[0] or (len(whole) < STEPS[1] and time.perf_counter() < end):
        (ids,) = draw.take(1)
        noted.clear()
        begin = time.perf_counter()
        net.step(job.pool.take(ids), optimizer)
        net.sync()
        took = time.perf_counter() - begin
        whole.append(took * MICROSECONDS)
        scheduling.append(sum(noted) * MICROSECONDS)
        shares.append(100.0 * sum(noted) / took)
    for variant, values, unit in (
        ("schedule", scheduling, "us a step"),
        ("step", whole, "us a step"),
        ("share", shares, "% of a step"),
    ):
        bench.record.entries.append(make_entry({**key, "variant": variant}, values, unit, "lower"))
