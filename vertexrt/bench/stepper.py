"""A network that is trained, as a contender: what it is compared by comes from the step itself."""

from __future__ import annotations

import numpy as np

import vertexrt as vrt
from vertexrt.bench.counts import Counts, count
from vertexrt.bench.ours import Ours
from vertexrt.graph import GraphBatch


class Stepper(Ours):
    """Compared by the loss of every vertex, so that nothing is compiled but what is timed.

    Args:
        waits: each step is waited for.
    """

    def __init__(self, net: vrt.Network, waits: bool = False) -> None:
        super().__init__(net, "loss")
        self.waits = waits

    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run a step, and wait for it where the setting says so."""
        super().train(batch, lr)
        if self.waits:
            self.net.sync()

    def counts(self, batch: GraphBatch) -> Counts:
        """Count what a step runs, and how often the host waits for it where it need not."""
        return count(self.net, batch) | {"host_waits": float(self.waits)}

    def infer(self, batch: GraphBatch) -> np.ndarray:
        """Return the loss of every vertex, from a step that changes nothing."""
        self.net.step(batch, vrt.SGD(lr=0.0), outputs=("loss",))
        return self.net.outputs["loss"]
