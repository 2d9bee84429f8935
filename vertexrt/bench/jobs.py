"""What an ablation or a breakdown runs: a model of the catalogue on a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vertexrt import data, models
from vertexrt.api.vertex_function import VertexFunction
from vertexrt.errors import UsageError, message
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Program

SMOOTH = ("tree-lstm", "lstm-lm")


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the command lines of an ablation and a breakdown have in common.

    Attributes:
        data: data set or folder; None for the model's own.
        leaves: of a tree of tree-fc.
        threads: None for all cores.
        out: folder for the results.
    """

    model: str
    data: str | None
    leaves: int | None
    device: str
    threads: int | None
    batch_sizes: tuple[int, ...]
    hidden: int
    seconds: float
    out: str


@dataclass(frozen=True, slots=True)
class Job:
    """A model and the graphs that minibatches are drawn from.

    Attributes:
        make: builds F for a hidden size; nothing in it is random but the initial parameters.
        output: the push that inference returns for every vertex.
        description: what it computes, and on what.
        kinked: F is not smooth.
    """

    model: str
    make: Callable[[int], VertexFunction]
    pool: GraphBatch
    output: str
    description: str
    kinked: bool


def make_job(model: str, source: str | None = None, leaves: int | None = None) -> Job:
    """Load the data of a model.

    Args:
        source: data set or folder; by default the model's own.
        leaves: of each tree of tree-fc.
    Raises: UsageError, DataError, as `models.get` and `data.load` do.
    """
    spec = models.get(model)
    dataset = data.load(source or spec.train["data"], task=spec.task, leaves=leaves)
    pool = dataset.splits["train"]

    def make(hidden: int) -> VertexFunction:
        wanted = {"hidden": hidden, "embed": hidden, "dropout": 0.0}
        return spec.build(dataset, **{n: v for n, v in wanted.items() if n in spec.options})

    output = next(name for name in _pushes(make(1).trace()) if name != "loss")
    sizes = pool.sizes()
    description = (
        f"{model}, {dataset.name}: {pool.num_graphs:,} graphs of {int(np.min(sizes))} to "
        f"{int(np.max(sizes))} vertices, {float(sizes.mean()):.1f} on average, "
        f"{len(dataset.vocabulary):,} words; a step is forward, backward and SGD"
    )
    return Job(model, make, pool, output, description, kinked=model not in SMOOTH)


def _pushes(program: Program) -> list[str]:
    return [n["name"] for n in program.nodes if n.op == "push"]


def require_graphs(job: Job, batch_size: int) -> None:
    """Raise UsageError where a minibatch would have more graphs than there are."""
    if batch_size > job.pool.num_graphs:
        raise UsageError(
            message(
                "--batch-sizes",
                f"got {batch_size}",
                f"at most {job.pool.num_graphs:,}, the graphs of {job.model}'s data",
                "Take smaller ones",
            )
        )


def first_graphs(job: Job, count: int) -> GraphBatch:
    """Return the first graphs of the pool, fewer where it has not as many."""
    return job.pool.take(np.arange(min(count, job.pool.num_graphs)))
