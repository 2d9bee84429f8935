"""Say why a step was refused: which op made the first number that is not finite, and where.

A batch runs again on the `reference` backend, with a kernel of its own for each node, and with the
parameters of the step, which have not changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from vertexrt.engine.batched import Part, RunMemory, bind, calls_of
from vertexrt.engine.inputs import vertex_name
from vertexrt.engine.model import CompiledModel, prepare
from vertexrt.engine.update import Update, first_bad, refused_update
from vertexrt.engine.variant import Use, make_variant
from vertexrt.errors import message
from vertexrt.graph import GraphBatch
from vertexrt.ir.autodiff import DERIVED
from vertexrt.ir.program import Node
from vertexrt.kernels.backend import WatchedExecutable, host_backend
from vertexrt.scheduler.balance import Share, divide

Array = np.ndarray[Any, Any]


class Attempt(NamedTuple):
    """A step, as it was run.

    Attributes:
        scale: factor on the loss.
        seed: 32 random bits.
        parts: how many shares the batch had.
        update: what was to be done with the gradients; None for an optimizer's own update.
    """

    use: Use
    batch: GraphBatch
    scale: float
    seed: int
    parts: int
    update: Update | None


@dataclass(slots=True)
class Origins:
    """The first values of F and of dF that are not finite, in words; the gradients that follow."""

    gradients: Array
    first: str = ""
    of_f: str = ""
    of_df: str = ""


def refused_loss(model: CompiledModel, attempt: Attempt, loss: float) -> str:
    """Return the error text for a loss that is not finite.

    It names the first op, in execution order, whose value is not finite while its vertex's inputs
    were, and that vertex.
    """
    bad = first_bad(model.store, model.store.values)
    if bad:
        return message(
            "loss",
            f"the loss is {loss}: parameter {bad[0]!r} is not finite at {bad[1]}",
            "finite parameters",
            "go back to the last good checkpoint and lower the learning rate",
        )
    origins = find_origins(model, attempt)
    if origins.first:
        return message(
            "loss",
            f"the loss is {loss}: the first value that is not finite is made by {origins.first}",
            "a finite loss; no parameter was changed",
            "lower the learning rate, clip the gradient norm, or guard that expression",
        )
    return message(
        "loss",
        f"the loss is {loss}, though every value is finite in {model.store.dtype} on `reference`",
        "a finite sum",
        "use dtype='float64' or a smaller loss",
    )


def refused_step(model: CompiledModel, attempt: Attempt, norm: float, gradients_known: bool) -> str:
    """Return the error text for a step whose loss was finite, and that was refused.

    Args:
        norm: of the gradients, where they were to be clipped.
        gradients_known: the store has those of the step; else they are made again.
    """
    store = model.store
    if not gradients_known:
        store.gradients[:] = find_origins(model, attempt).gradients
    bad = first_bad(store, store.gradients)
    if bad:
        name, at, number = bad
        origins = find_origins(model, attempt)
        got = f"the gradient of {name!r} is {number} at {at}, though the loss is finite"
        if origins.of_df:
            got += f": the first value of dF that is not finite is made by {origins.of_df}"
        if origins.of_f:
            got += f"; in F, {origins.of_f} made one before, which the loss does not depend on"
        return message(
            "gradient",
            got,
            "finite gradients; nothing was changed",
            "guard the operand of that expression, not its result (where(m, sqrt(where(m, x, 1)), "
            "0)), clip the gradient norm, or use dtype='float64'",
        )
    assert attempt.update is not None
    return refused_update(store, attempt.update, norm)


def find_origins(model: CompiledModel, attempt: Attempt) -> Origins:
    """Run a step again but for its update, and look at every value."""
    passes = replace(model.passes, loop=True, fuse=False)  # a step is a node
    about = host_backend("reference", model.store.dtype), model.param_names, passes
    variant = make_variant(model.function, attempt.use, *about, policy=model.policy)
    origins = Origins(np.zeros_like(model.store.gradients))
    for share in divide(Share(attempt.batch), attempt.parts):
        run = prepare(variant, share, model.policy, model.store.dtype)
        executable = cast("WatchedExecutable", variant.ready().executable)

        def watch(node: Node, value: Array, rows: Array, whole: Array = share.vertices) -> None:
            bad = np.flatnonzero(~np.isfinite(value).all(axis=1))
            if not len(bad):
                return
            whose = "a value of all vertices"
            if len(value) == len(rows):
                whose = vertex_name(attempt.batch, int(whole[rows[bad[0]]]))
            derived = node.where.startswith(DERIVED)
            where = f", {'in' if derived else 'at'} {node.where}" if node.where else ""
            text = f"{node.op} of {whose}{where}"
            origins.first = origins.first or text
            if derived:
                origins.of_df = origins.of_df or text
            else:
                origins.of_f = origins.of_f or text

        executable.watch = watch
        part = Part(loss_scale=attempt.scale, random_seed=attempt.seed)
        memory = RunMemory(origins.gradients)
        calls, _, _ = calls_of(bind(run, model.store, memory, model.param_at, part))
        with np.errstate(all="ignore"):
            for call in calls:
                call()
    return origins
