"""Bytes of weights that products ask for in a step (VPPS, Table I); counted, not timed.

    batched      sum over launches, and over the products in each, of the bytes of the weight
    persistent   the same over instructions; where the processors of a group split the units of a
                 task, each loads its share of the rows, else each loads all of them
    held         every weight once for each product that names it: what is left where weights stay
                 on chip for a step and are loaded when its two sides begin

On a GPU the weights of the path alone are counted: loaded once a side of the path by each
processor, of which each group has a copy, or by each launch where a side runs in turn.

Only operands of products count: `w @ x` and its transposed form in the backward pass. Sums that
make the gradients of weights write as many bytes as the weight has, once a step. A weight that
stays in a cache between two launches is counted again: the figures are of what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import vertexrt as vrt
from vertexrt.bench.measure import TRAINING
from vertexrt.bench.record import Entry, make_entry
from vertexrt.bench.run import Bench, Setting, first_graphs
from vertexrt.engine.batched import Run, scripts_of
from vertexrt.ir.passes.fuse import Group, Product, TaskProgram
from vertexrt.ir.passes.segment import Split, segment_tasks
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.explain import loaded_elements
from vertexrt.kernels.cuda.persistent_launch import write_launch
from vertexrt.kernels.layout import PROGRAM as LAUNCHED
from vertexrt.kernels.layout import ROWS as LAUNCHED_ROWS
from vertexrt.script.isa import OP, ROWS

Step = Group | Product


# name -> engine, policy, processors of a group; these are of a CPU: a GPU has the same tasks
WAYS = {
    "batched, one vertex a task": ("batched", "serial", None),
    "batched": ("batched", "frontier", None),
    "persistent, group of 4": ("persistent", "frontier", 4),
}
HELD = "held on chip for a step"
ON_DEVICE = {
    "persistent kernel": Setting(),
    "persistent kernel, weights in memory": Setting(hold=False),
}


def run(bench: Bench) -> list[Entry]:
    """Count for each batch size, over the first graphs of the data."""
    found = []
    for batch_size in bench.options.batch_sizes:
        batch = first_graphs(bench.job, batch_size)
        for name, count in _ways(bench, batch).items():
            key = bench.key(part="weights", batch_size=batch_size, variant=name)
            found.append(make_entry(key, [count / 1e6], "MB a step", "lower"))
    return found


def _ways(bench: Bench, batch: vrt.GraphBatch) -> dict[str, float]:
    function = bench.job.make(bench.options.hidden)
    found = {}
    for name, (engine, policy, processors) in WAYS.items():
        net = vrt.compile(
            function,
            device="cpu",
            engine=engine,
            policy=policy,
            threads=processors or 1,
            processors=processors,
        )
        (one,) = net.executor.model.prepare(TRAINING, batch)
        itemsize = net.executor.model.store.dtype.itemsize
        found[name] = loaded_bytes(one, itemsize)
        if name == "batched":
            found[HELD] = held_bytes(one, itemsize)
    for name, setting in ON_DEVICE.items() if bench.device == "cuda" else ():
        net = bench.compile(setting)
        (one,) = net.executor.model.prepare(TRAINING, batch)
        found[name] = device_bytes(net, one)
    return found


def weight_elements(task: TaskProgram, steps: Iterable[Step]) -> int:
    """Count the elements of the weights that the products among some steps read."""
    nodes = task.program.nodes
    found = 0
    for step in steps:
        if isinstance(step, Product) and nodes[step.node].op == "matmul":
            found += nodes[nodes[step.node].inputs[0]].type.size
    return found


def loaded_bytes(run: Run, itemsize: int) -> float:
    """Count the bytes of weights that the products of a step ask for.

    Args:
        run: of one share of a minibatch, on a device whose processors are the host's.
        itemsize: bytes of an element.
    """
    if not run.configuration.persistent:
        each = [weight_elements(task, task.steps) for task in run.variant.tasks]
        rows = run.layout.table[run.layout.table[:, LAUNCHED_ROWS] > 0]
        return float(sum(each[int(p)] for p in rows[:, LAUNCHED])) * itemsize
    variant, processors = run.variant, run.configuration.processors
    tasks = segment_tasks(variant.tasks, variant.processors == 1, variant.passes.segment)
    shares = [
        weight_elements(t.task, s.steps) / (processors if s.split == Split.UNITS else 1)
        for t in tasks
        for s in t.segments
    ]
    words = scripts_of(run, run.layout.table).words
    ops = words[words[:, :, ROWS] > 0][:, OP]
    return float(sum(shares[op] for op in ops.tolist())) * itemsize


def held_bytes(run: Run, itemsize: int) -> float:
    """Count the bytes where each task program that runs loads its weights once a step."""
    used = {int(row[LAUNCHED]) for row in run.layout.table if row[LAUNCHED_ROWS] > 0}
    tasks = run.variant.tasks
    read: set[tuple[str, bool]] = set()
    total = 0
    for p in used:
        nodes = tasks[p].program.nodes
        for step in tasks[p].steps:
            if not isinstance(step, Product) or nodes[step.node].op != "matmul":
                continue
            weight = nodes[nodes[step.node].inputs[0]]
            way = (weight["name"], bool(nodes[step.node]["transpose"]))
            if way not in read:
                read.add(way)
                total += weight.type.size
    return float(total) * itemsize


def device_bytes(net: vrt.Network, run: Run) -> float:
    """Count the bytes of the path's weights that a launch of a GPU's persistent engine loads."""
    executor = cast("CudaExecutor", net.executor)
    table = run.layout.table
    written = write_launch(run, table, executor.persistent_launch, False, run.variant.use.backward)
    writer, tasks = written.executable.writer, run.variant.tasks
    held = sum(loaded_elements(side.held, written.groups) for side in writer.sides)
    in_turn = [
        weight_elements(tasks[p], tasks[p].steps)
        for p, rows in table[:, [LAUNCHED, LAUNCHED_ROWS]].tolist()
        if rows > 0 and tasks[p].phase in writer.in_turn
    ]
    return float(held + sum(in_turn)) * writer.itemsize
