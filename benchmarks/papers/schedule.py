"""What scheduling costs: against the size of the graphs, and against the batch size (Cavs, fig. 9).

Scheduling is all that is done anew for a minibatch before its first kernel: reading kinds and
levels, finding identical vertices, ordering tasks, writing the launch table, planning the memory.
Trees of a given number of leaves are those of Tree-FC; batch sizes are of the command's own job.
"""

import time
from dataclasses import replace

import vertexrt as vrt
from vertexrt.bench.measure import LR, MICROSECONDS, Draw, timed, within
from vertexrt.bench.record import Entry, Key, make_entry
from vertexrt.bench.run import Bench, Job, Setting, make_job

GRAPHS = 16  # of a minibatch of trees of one size
STEPS = (5, 60)
WARM = 3


def run(bench: Bench) -> list[Entry]:
    """Time scheduling and whole steps."""
    options = bench.options
    seconds = options.seconds / (len(options.leaf_counts) + len(options.batch_sizes))
    found = []
    for leaves in options.leaf_counts:
        job = make_job("tree-fc", leaves=leaves)
        key = bench.key(part="schedule", against="leaves", leaves=leaves, batch_size=GRAPHS)
        found += _one(bench, key | {"model": job.model}, job, GRAPHS, seconds)
    for batch_size in options.batch_sizes:
        key = bench.key(part="schedule", against="batch size", batch_size=batch_size)
        found += _one(bench, key, bench.job, batch_size, seconds)
    return found


def _one(bench: Bench, key: Key, job: Job, batch_size: int, seconds: float) -> list[Entry]:
    net = replace(bench, job=job).compile(Setting(engine="batched"))
    draw, optimizer = Draw(job.pool, batch_size), vrt.SGD(lr=LR)
    for ids in draw.take(WARM):
        net.step(job.pool.take(ids), optimizer)
    net.sync()
    scheduling: list[float] = []
    whole: list[float] = []
    with timed(net.executor.model, "prepare") as noted:
        for _ in within(seconds, *STEPS):
            (ids,) = draw.take(1)
            noted.clear()
            begin = time.perf_counter()
            net.step(job.pool.take(ids), optimizer)
            net.sync()
            whole.append((time.perf_counter() - begin) * MICROSECONDS)
            scheduling.append(sum(noted) * MICROSECONDS)
    shares = [100.0 * a / b for a, b in zip(scheduling, whole, strict=True)]
    return [
        make_entry({**key, "variant": variant}, values, unit, "lower")
        for variant, values, unit in (
            ("schedule", scheduling, "us a step"),
            ("step", whole, "us a step"),
            ("share", shares, "% of a step"),
        )
    ]
