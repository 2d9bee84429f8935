"""Count what a step runs: evidence, beside its time, that a switch changes something."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from vertexrt.api.network import Network
from vertexrt.bench.weights import device_bytes, loaded_bytes, scripts_of
from vertexrt.engine.batched import Run
from vertexrt.engine.explain import flops
from vertexrt.engine.explain_host import kernel_calls
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch
from vertexrt.ir.passes.fuse import Group
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.kernels.layout import LaunchByLaunch
from vertexrt.script.isa import NONE, OP, WAIT

if TYPE_CHECKING:
    from vertexrt.engine.device_model import DeviceModel

TRAINING = Use(frozenset({"loss"}), loss=True)
Counts = dict[str, float]


def count(net: Network, batch: GraphBatch, use: Use = TRAINING) -> Counts:
    """Count what a minibatch takes, over all its shares.

    Returns: tasks; rows (merged vertices once); launches of task programs; calls of compiled code
        for forward and backward; groups (fused loops) and products (GEMM calls) that are executed;
        instructions and waits of the scripts; flops of products; arena_bytes. On a GPU also
        kernels and library (products of cuBLAS), where it is batched, and streams, their launches
        beside the main one, and waits for others, where there are several; where it is persistent
        weight_bytes that products ask for.
    """
    model = net._model
    itemsize = model.store.dtype.itemsize
    total: Counts = {}
    for run in model.prepare(use, batch):
        found = _of_run(run, itemsize)
        if run.variant.backend.name == "cuda":
            of_device = _of_launch if run.configuration.persistent else _of_streams
            found |= of_device(cast("DeviceModel", model), run)
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _of_run(run: Run, itemsize: int) -> Counts:
    launches = len(run.table)
    groups, products = kernel_calls(run)
    found: Counts = {
        "tasks": run.schedule.num_tasks,
        "rows": len(run.schedule.order),
        "launches": launches,
        "calls": 1,
        "groups": groups,
        "products": products,
        "flops": flops(run, forward=True) + flops(run, forward=False),
        "arena_bytes": run.plan.total * itemsize,
    }
    if run.variant.backend.name == "cuda":
        if not run.configuration.persistent:
            from vertexrt.kernels.cuda.describe import count_launches

            variant = run.variant
            kernels, library = count_launches(variant.tasks, variant.binding, itemsize, run.table)
            found |= {"kernels": kernels, "library": library}
        return found
    found["weight_bytes"] = loaded_bytes(run, itemsize)
    if run.configuration.persistent:
        found |= _of_scripts(run)
    elif isinstance(run.ready.executable, LaunchByLaunch):
        found["calls"] = launches
    return found


def _of_launch(model: DeviceModel, run: Run) -> Counts:
    """Count what the one launch of a GPU's persistent engine runs, over all groups."""
    from vertexrt.engine.device_scripts import write_launch

    executable, path, written = write_launch(
        run, run.table, model.one_launch, False, run.variant.use.backward
    )
    return {
        "kernels": 1,
        "instructions": len(written.script),
        "waits": int(np.count_nonzero(written.script[:, WAIT] != NONE)),
        "weight_bytes": device_bytes(model, executable, path, written),
    }


def _of_streams(model: DeviceModel, run: Run) -> Counts:
    """Count what several streams of a GPU share."""
    from vertexrt.engine.device_scripts import inputs_of
    from vertexrt.engine.device_streams import order_of

    order = order_of(run, run.table, model.session, inputs_of(run))
    if order is None:
        return {}
    launches = order.of_streams()
    return {
        "streams": int(np.count_nonzero(launches)),
        "beside": int(launches[1:].sum()),
        "waits": len(order.waits),
    }


def _of_scripts(run: Run) -> Counts:
    variant, processors = run.variant, run.configuration.processors
    tasks = segment_tasks(variant.tasks, variant.processors == 1, variant.passes.segment)
    words = scripts_of(run).words
    flat = words.reshape(-1, words.shape[-1])
    segments = [s for t in tasks for s in t.segments]
    groups = products = 0
    for op in flat[:, OP].tolist():
        steps = segments[op].steps
        mine = sum(isinstance(step, Group) for step in steps)
        groups += mine
        products += len(steps) - mine
    return {
        "calls": processors,
        "groups": groups,
        "products": products,
        "instructions": len(flat),
        "waits": int(cast("int", np.count_nonzero(flat[:, WAIT] != NONE))),
    }
