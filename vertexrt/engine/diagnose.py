"""Find where a loss that is not finite comes from: run the batch again, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.engine.batched import Worker, make_jobs, prepare
from vertexrt.engine.inputs import vertex_name
from vertexrt.engine.model import CompiledModel
from vertexrt.engine.variant import Use, make_variant
from vertexrt.errors import message
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Node
from vertexrt.scheduler.balance import share_out

Array = np.ndarray[Any, Any]


class _Found(Exception):
    """Ends the run at the first value that is not finite."""


def find_not_finite(
    model: CompiledModel,
    use: Use,
    batch: GraphBatch,
    loss: float,
    scale: float,
    seed: int,
    parts: int,
) -> str:
    """Return the error text for a loss that is not finite.

    The batch runs again on the `reference` backend with the parameters of the step (they have not
    changed), in as many shares; the text names the first op, in execution order, whose value is not
    finite while its vertex's inputs were, and that vertex.
    """
    from vertexrt.kernels.reference.backend import ReferenceBackend, ReferenceExecutable

    for name in model.store.names:
        bad = np.argwhere(~np.isfinite(model.store.value(name)))
        if len(bad):
            return message(
                "loss",
                f"the loss is {loss}: parameter {name!r} is not finite at {bad[0].tolist()}",
                "finite parameters",
                "go back to the last good checkpoint and lower the learning rate",
            )
    variant = make_variant(model.function, use, ReferenceBackend(), model.param_names, model.passes)
    for share in share_out(batch, parts):
        run = prepare(variant, share, model.policy, model.store.dtype)
        found: list[str] = []

        def watch(
            node: Node,
            value: Array,
            vertices: Array,
            whole: Array = share.vertices,
            found: list[str] = found,
        ) -> None:
            bad = np.flatnonzero(~np.isfinite(value).all(axis=1))
            if not len(bad):
                return
            where = f", at {node.where}" if node.where else ""
            if len(value) == len(vertices):
                who = vertex_name(batch, int(whole[vertices[bad[0]]]))
            else:
                who = "a value of all vertices"
            found.append(f"{node.op} of {who}{where}")
            raise _Found

        executable = variant.ready().executable
        assert isinstance(executable, ReferenceExecutable)
        executable.watch = watch
        worker = Worker(np.zeros_like(model.store.gradients))
        try:
            (call,) = make_jobs(
                run,
                model.store,
                worker,
                model.param_at,
                loss_scale=scale,
                random_seed=seed,
            ).calls
            call()
        except _Found:
            return message(
                "loss",
                f"the loss is {loss}: the first value that is not finite is made by {found[0]}",
                "a finite loss; no parameter was changed",
                "lower the learning rate, clip the gradient norm, or guard that expression",
            )
    return message(
        "loss",
        f"the loss is {loss}, though every value is finite in {model.store.dtype} on `reference`",
        "a finite sum",
        "use dtype='float64' or a smaller loss",
    )
