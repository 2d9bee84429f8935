"""What a training step costs on a CPU, for ranking the ways to run it.

Seconds of one core of a 2-core Xeon (float32, hidden size 256); only their order matters. What
sharing costs is what ranks best the ways that `benchmarks.choosing` measured with two threads
(`benchmarks/results/choosing_cpu.txt`). Tiles of a task's rows are no way of their own: they were
up to 1.4 times as slow as whole tasks, and nowhere faster.
"""

from __future__ import annotations

from vertexrt.kernels.ways import INSTRUCTION, MULTIPLY_ADD, Configuration, Work
from vertexrt.scheduler.batch_shape import BatchShape

EXCHANGE = 0.9e-6  # to signal and to notice, for each processor of the group
STEP = 50e-6  # what a step costs once
THREAD, THREAD_IN_TRAINING = 50e-6, 800e-6  # what each further thread costs once
SHARED = 0.1  # of the path: what processors that share tasks do twice, or in narrower products
FEW_ROWS = 7e-11  # of a weight: what a product takes in addition to its rows, however few


class HostCosts:
    """What backends have in common that run on threads of the host."""

    apart = frozenset(("embed_grad",))  # rows of one word are far between
    shares_graphs = False
    most_scratch = 8 << 20

    def ways(self, threads: int, processors: int | None) -> list[Configuration]:
        """List the ways to use some threads, as workers or as groups: all of them, or one.

        Args:
            processors: of a group; None for any number.
        """
        found = [Configuration(False, threads)]
        if processors is not None:
            return [*found, Configuration(True, max(threads // processors, 1), processors)]
        for count in range(1, threads + 1):
            if threads % count == 0:
                found.append(Configuration(True, threads // count, count))
        if threads > 1:
            found.append(Configuration(False, 1))
        return found

    def seconds(self, way: Configuration, work: Work, batch: BatchShape) -> float:
        """Predict the seconds of a step, or of an evaluation."""
        groups, processors = min(way.groups, batch.graphs), way.processors
        threads, rows = groups * processors, batch.inner / batch.levels / groups  # of a task
        level = INSTRUCTION + (work.row + work.edge) * (rows * MULTIPLY_ADD + FEW_ROWS) / processors
        if processors > 1:
            level = level * (1 + SHARED) + EXCHANGE * processors
        path = batch.levels * (2 if work.trains else 1) * level
        gradients = batch.inner * work.row + batch.edges * work.edge if work.trains else 0.0
        wide = batch.vertices * work.apart * (3 if work.trains else 1) + gradients
        thread = THREAD_IN_TRAINING if work.trains else THREAD
        return STEP + thread * (threads - 1) + path + wide * MULTIPLY_ADD / threads

    def written_for(self, processors: int) -> int:
        """Return 1 or 2: several are told how many they are."""
        return min(processors, 2)
