"""Count what a step runs: evidence, beside its time, that a switch changes something.

What belongs to a GPU is imported late: only where there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from vertexrt.api.network import Network
from vertexrt.engine.batched import Run
from vertexrt.engine.explain import flops
from vertexrt.engine.explain_host import kernel_calls
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch
from vertexrt.kernels.layout import LaunchByLaunch
from vertexrt.script.assemble import Scripts, assemble
from vertexrt.script.isa import NONE, WAIT

if TYPE_CHECKING:
    from vertexrt.kernels.cuda.device_executor import CudaExecutor

TRAINING = Use(frozenset({"loss"}), loss=True)
Counts = dict[str, float]


def count(net: Network, batch: GraphBatch, use: Use = TRAINING) -> Counts:
    """Count what a minibatch takes, over all its shares.

    Returns: tasks; rows (merged vertices once); launches of task programs; calls of compiled code
        for forward and backward; groups (fused loops) and products (GEMM calls) of these launches;
        instructions and waits of the scripts; flops of products; arena_bytes. On a GPU also
        kernels and library (products of cuBLAS), where it is batched, and streams, their launches
        beside the main one, and waits for others, where there are several; where it is persistent
        unheld_bytes of weights, which a processor reads from memory for each product.
    """
    model = net.executor.model
    itemsize = model.store.dtype.itemsize
    total: Counts = {}
    for run in model.prepare(use, batch):
        found: Counts = {
            "tasks": run.schedule.num_tasks,
            "rows": len(run.schedule.order),
            "launches": len(run.table),
            "calls": 1,
            "flops": flops(run, forward=True) + flops(run, forward=False),
            "arena_bytes": run.plan.total * itemsize,
        }
        found["groups"], found["products"] = kernel_calls(run)
        persistent = run.configuration.persistent
        if run.variant.backend.name == "cuda":
            of_device = _of_launch if persistent else _of_streams
            found |= of_device(cast("CudaExecutor", net.executor), run)
        elif persistent:
            found |= _of_scripts(run)
        elif isinstance(run.ready.executable, LaunchByLaunch):
            found["calls"] = len(run.table)
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _of_launch(executor: CudaExecutor, run: Run) -> Counts:
    """Count what the one launch of a GPU's persistent engine runs, over all groups."""
    from vertexrt.kernels.cuda.device_scripts import write_launch

    executable, _, written = write_launch(
        run, run.table, executor.one_launch, False, run.variant.use.backward
    )
    return {
        "kernels": 1,
        "instructions": len(written.script),
        "waits": int(np.count_nonzero(written.script[:, WAIT] != NONE)),
        "unheld_bytes": executable.weights_in_memory,
    }


def _of_streams(executor: CudaExecutor, run: Run) -> Counts:
    """Count what a GPU's batched engine launches, and what several streams share."""
    from vertexrt.kernels.cuda.describe import count_launches
    from vertexrt.kernels.cuda.device_scripts import inputs_of
    from vertexrt.kernels.cuda.device_streams import order_of

    tasks, itemsize = run.variant.tasks, executor.model.store.dtype.itemsize
    kernels, library = count_launches(tasks, run.variant.binding, itemsize, run.table)
    found: Counts = {"kernels": kernels, "library": library}
    order = order_of(run, run.table, executor.session, inputs_of(run))
    if order is not None:
        launches = order.of_streams()
        found["streams"] = int(np.count_nonzero(launches))
        found["beside"] = int(launches[1:].sum())
        found["waits"] = len(order.waits)
    return found


def scripts_of(run: Run) -> Scripts:
    """Assemble the scripts of a minibatch once more."""
    shape, s, chosen = run.ready.shape, run.schedule, run.configuration
    assert shape is not None, f"{chosen} has no scripts"
    return assemble(shape, run.table, s.edge_ptr, s.child_row, chosen.processors, chosen.tile)


def _of_scripts(run: Run) -> Counts:
    words = scripts_of(run).words
    flat = words.reshape(-1, words.shape[-1])
    return {
        "calls": run.configuration.processors,
        "instructions": len(flat),
        "waits": int(cast("int", np.count_nonzero(flat[:, WAIT] != NONE))),
    }
