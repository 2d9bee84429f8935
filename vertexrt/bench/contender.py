"""What takes turns in a comparison."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from vertexrt import GraphBatch

Arrays = dict[str, np.ndarray]


class Contender(ABC):
    """A model that trains and evaluates minibatches, whose schedule it builds each time anew.

    On a GPU `train` and `infer` may return before the work is done; `sync` waits for it.
    """

    @abstractmethod
    def train(self, batch: GraphBatch, lr: float) -> None:
        """Run forward, backward and one update of plain SGD."""

    @abstractmethod
    def loss(self) -> float:
        """Wait for the last `train` and return its loss."""

    @abstractmethod
    def infer(self, batch: GraphBatch) -> Any:
        """Return the output of every vertex in the order of the batch, in host memory once synced.

        `numpy.asarray` takes the result.
        """

    @abstractmethod
    def sync(self) -> None:
        """Wait until everything that was asked for is done."""

    @abstractmethod
    def parameters(self) -> Arrays:
        """Return copies of the parameters, by the names and layouts of the vertex function."""

    @abstractmethod
    def set_parameters(self, values: Arrays) -> None:
        """Copy values into the parameters."""
