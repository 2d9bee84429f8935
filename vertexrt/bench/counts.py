"""Count what a step runs: evidence, in addition to its time, that a switch changes something."""

from __future__ import annotations

from vertexrt.api.network import Network
from vertexrt.engine.explain import flops
from vertexrt.engine.explain_host import kernel_calls
from vertexrt.engine.variant import Use
from vertexrt.graph import GraphBatch

TRAINING = Use(frozenset({"loss"}), loss=True)
Counts = dict[str, float]


def count(net: Network, batch: GraphBatch) -> Counts:
    """Count what a minibatch takes, over all its shares.

    Returns: tasks; rows (merged vertices once); launches of task programs; calls of compiled code
        for forward and backward; groups (fused loops) and products (GEMM calls) of these launches;
        instructions and waits of the scripts; flops of products; arena_bytes. On a GPU also
        kernels and library (products of cuBLAS), where it is batched, and streams, their launches
        outside the main one, and waits for others, where there are several; where it is persistent
        unheld_bytes of weights, which a processor reads from memory for each product.
    """
    model, explanation = net.executor.model, net.executor.explanation()
    itemsize = model.store.dtype.itemsize
    total: Counts = {}
    for run in model.prepare(TRAINING, batch):
        found: Counts = {
            "tasks": run.schedule.num_tasks,
            "rows": len(run.schedule.order),
            "launches": len(run.table),
            "flops": flops(run, forward=True) + flops(run, forward=False),
            "arena_bytes": run.plan.total * itemsize,
        }
        found["groups"], found["products"] = kernel_calls(run)
        found |= explanation.counts(run)
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + value
    return total
