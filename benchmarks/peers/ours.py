"""vertexrt as a contender."""

import numpy as np

import vertexrt as vrt
from benchmarks.peers.contender import Arrays, Contender


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

    def train(self, batch: vrt.GraphBatch, lr: float) -> float:
        """Run forward, backward and one update of plain SGD; return the loss."""
        self._optimizer.lr = lr
        return self.net.step(batch, self._optimizer)

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
