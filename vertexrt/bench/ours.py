"""vertexrt as a contender."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.bench.contender import Arrays, Contender
from vertexrt.engine.executor import Evaluation


@dataclass(frozen=True, slots=True)
class Output:
    """A push that may still be computed; NumPy takes it for an array."""

    evaluation: Evaluation
    name: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Wait for it."""
        return np.asarray(self.evaluation.result()[self.name], dtype)


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
        self._last: Evaluation | None = None

    def train(self, batch: vrt.GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD."""
        self._optimizer.lr = lr
        self._loss = self.net.step(batch, self._optimizer)

    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""
        loss = self.net.sync()  # a GPU's step is a step behind
        return self._loss if math.isnan(loss) else loss

    def infer(self, batch: vrt.GraphBatch) -> Any:
        """Return the output of every vertex in the order of the batch, an array once synced."""
        self._last = self.net.submit(batch, (self.output,))
        return Output(self._last, self.output)

    def sync(self) -> None:
        """Wait, on a device that runs ahead of the host."""
        if self._last is not None:  # those before it are over when it is
            self._last.result()
        self.net.sync()

    def parameters(self) -> Arrays:
        """Return copies of the parameters by name."""
        return {name: np.array(value) for name, value in self.net.parameters.items()}

    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""
        self.net.set_parameters(values)
