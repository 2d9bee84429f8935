"""What an ablation or a breakdown runs: a model of the catalogue on a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vertexrt import data, models
from vertexrt.api.vertex_function import VertexFunction
from vertexrt.graph import GraphBatch

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
    """A vertex function and the graphs that minibatches are drawn from.

    Attributes:
        model: its name.
        make: builds F for a hidden size; nothing in it is random but the initial parameters.
        description: what it computes, and on what.
        kinked: F is not smooth.
    """

    model: str
    make: Callable[[int], VertexFunction]
    pool: GraphBatch
    description: str
    kinked: bool = False


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

    sizes = pool.sizes()
    description = (
        f"{model}, {dataset.name}: {pool.num_graphs:,} graphs of {int(np.min(sizes))} to "
        f"{int(np.max(sizes))} vertices, {float(sizes.mean()):.1f} on average, "
        f"{len(dataset.vocabulary):,} words; a step is forward, backward and SGD"
    )
    return Job(model, make, pool, description, kinked=model not in SMOOTH)


def first_graphs(job: Job, count: int) -> GraphBatch:
    """Return the first graphs of the pool, fewer where it has not as many."""
    return job.pool.take(np.arange(min(count, job.pool.num_graphs)))
