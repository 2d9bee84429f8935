"""What the command line of `python -m benchmarks.papers` says."""

from __future__ import annotations

from dataclasses import dataclass

from vertexrt.bench.run import JobOptions

ENGINES = ("batched", "persistent")


@dataclass(frozen=True, slots=True)
class Options(JobOptions):
    """The job, the parts, the sizes; `seconds` are for each part.

    Attributes:
        hidden_sizes: of the part throughput, at the middle one of the batch sizes.
        leaf_counts: of the trees of the part schedule, in minibatches of 16 graphs.
    """

    hidden_sizes: tuple[int, ...]
    leaf_counts: tuple[int, ...]
    parts: tuple[str, ...]
