"""Count what a step runs: evidence, in addition to its time, that a switch changes something."""

from __future__ import annotations

from typing import cast

import numpy as np

from vertexrt.api.network import Network
from vertexrt.engine.batched import Run
from vertexrt.engine.explain import flops
from vertexrt.engine.explain_host import kernel_calls
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch
from vertexrt.kernels.cuda.describe import count_launches
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.device_scripts import inputs_of, write_launch
from vertexrt.kernels.cuda.device_streams import order_of
from vertexrt.kernels.layout import LaunchByLaunch
from vertexrt.script.assemble import Scripts, assemble
from vertexrt.script.isa import NONE, WAIT

TRAINING = Use(frozenset({"loss"}), loss=True)
Counts = dict[str, float]


def count(net: Network, batch: GraphBatch) -> Counts:
    """Count what training on a minibatch takes, over all its shares.

    Returns: tasks; rows (merged vertices once); launches of task programs; calls of compiled code
        for forward and backward; groups (fused loops) and products (GEMM calls) of these launches;
        instructions and waits of the scripts; flops of products; arena_bytes. On a GPU also
        kernels and library (products of cuBLAS), where it is batched, and streams, their launches
        outside the main one, and waits for others, where there are several; where it is persistent
        unheld_bytes of weights, which a processor reads from memory for each product.
    """
    model = net.executor.model
    total: Counts = {}
    for run in model.prepare(TRAINING, batch):
        groups, products = kernel_calls(run)
        found: Counts = {
            "tasks": run.schedule.num_tasks,
            "rows": len(run.schedule.order),
            "launches": len(run.table),
            "calls": 1,
            "flops": flops(run, forward=True) + flops(run, forward=False),
            "arena_bytes": run.plan.total * model.store.dtype.itemsize,
            "groups": groups,
            "products": products,
        }
        found |= _of_engine(net, run)
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _of_engine(net: Network, run: Run) -> Counts:
    """Count what an engine has by itself."""
    persistent = run.configuration.persistent
    if run.variant.backend.name == "cuda":
        executor = cast("CudaExecutor", net.executor)
        return _of_launch(executor, run) if persistent else _of_streams(executor, run)
    if persistent:
        words = scripts_of(run).words
        found = _instructions(words.reshape(-1, words.shape[-1]))
        return found | {"calls": run.configuration.processors}
    return {"calls": len(run.table)} if isinstance(run.ready.executable, LaunchByLaunch) else {}


def _of_launch(executor: CudaExecutor, run: Run) -> Counts:
    """Count what the one launch of a GPU's persistent engine runs, over all groups."""
    executable, _, written = write_launch(
        run, run.table, executor.one_launch, False, run.variant.use.backward
    )
    found = _instructions(written.script)
    return found | {"kernels": 1, "unheld_bytes": executable.weights_in_memory}


def _of_streams(executor: CudaExecutor, run: Run) -> Counts:
    """Count what a GPU's batched engine launches, and what several streams share."""
    tasks, itemsize = run.variant.tasks, executor.model.store.dtype.itemsize
    kernels, library = count_launches(tasks, run.variant.binding, itemsize, run.table)
    found: Counts = {"kernels": kernels, "library": library}
    order = order_of(run, run.table, executor.session, inputs_of(run))
    if order is not None:
        launches = order.of_streams()
        found["streams"] = int(np.count_nonzero(launches))
        found["on_other_streams"] = int(launches[1:].sum())
        found["waits"] = len(order.waits)
    return found


def scripts_of(run: Run) -> Scripts:
    """Assemble the scripts of a minibatch once more."""
    shape, s, chosen = run.ready.shape, run.schedule, run.configuration
    assert shape is not None, f"{chosen} has no scripts"
    return assemble(shape, run.table, s.edge_ptr, s.child_row, chosen.processors, chosen.tile)


def _instructions(words: np.ndarray) -> Counts:
    """Count instructions [*, columns], and those that wait."""
    return {"instructions": len(words), "waits": int(np.sum(words[:, WAIT] != NONE))}
