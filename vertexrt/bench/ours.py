"""vertexrt as a contender."""

import math

import numpy as np

import vertexrt as vrt
from vertexrt.bench.contender import Arrays, Contender


class Ours(Contender):
    """A compiled vertex function, timed through its public interface.

    Args:
        net: compiled with a loss that is divided by the number of graphs.
        output: the push that inference returns.
    """

    def __init__(self, net: vrt.Network, output: str) -> None:
        self.net = net
        self.output = output
        self._optimizer = vrt.SGD(lr=0.0)
        self._loss = math.nan

    def train(self, batch: vrt.GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD."""
        self._optimizer.lr = lr
        self._loss = self.net.step(batch, self._optimizer)

    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""
        wait = getattr(self.net, "sync", None)
        return self._loss if wait is None else float(wait())  # a GPU's step is a step behind

    def infer(self, batch: vrt.GraphBatch) -> np.ndarray:
        """Return the output of every vertex in the order of the batch."""
        return self.net.forward(batch, outputs=(self.output,))[self.output]

    def sync(self) -> None:
        """Wait, on a device that runs ahead of the host."""
        wait = getattr(self.net, "sync", None)  # the CPU has nothing to wait for
        if wait is not None:
            wait()

    def parameters(self) -> Arrays:
        """Return copies of the parameters by name."""
        return {name: np.array(value) for name, value in self.net.parameters.items()}

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""
        self.net.set_parameters(values)
