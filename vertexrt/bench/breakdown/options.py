"""What the command line of `vertexrt bench breakdown` says, and what its parts share."""

from __future__ import annotations

from dataclasses import dataclass

import vertexrt as vrt
from vertexrt.bench.jobs import Job, JobOptions
from vertexrt.bench.record import Key, Record
from vertexrt.engine.variant import Passes

ALL = Passes()
ENGINES = ("batched", "persistent")


@dataclass(frozen=True, slots=True)
class Options(JobOptions):
    """The job, the parts, the sizes; `seconds` are for each part.

    Attributes:
        hidden_sizes: of the part throughput, at the middle one of the batch sizes.
        leaf_counts: of the trees of the part schedule, in minibatches of `GRAPHS`.
    """

    hidden_sizes: tuple[int, ...]
    leaf_counts: tuple[int, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a part works with."""

    options: Options
    job: Job
    device: str
    threads: int
    record: Record

    def compile(
        self, engine: str, hidden: int | None = None, passes: Passes = ALL, job: Job | None = None
    ) -> vrt.Network:
        """Compile the model for an engine, with groups of one processor on the CPU."""
        one = engine == "persistent" and self.device != "cuda"
        return vrt.compile(
            (job or self.job).make(hidden or self.options.hidden),
            device=self.device,
            engine=engine,
            threads=self.threads,
            processors=1 if one else None,
            passes=passes,
            seed=1,
        )

    def key(self, part: str, **more: str | int) -> Key:
        """Return the key of a result."""
        return {"part": part, "model": self.job.model, "hidden": self.options.hidden, **more}
