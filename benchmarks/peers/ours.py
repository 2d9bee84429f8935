"""vertexrt as a contender whose inference is timed, too."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.bench.measure import Stepper


@dataclass(frozen=True, slots=True)
class Output:
    """A push that may still be computed; NumPy takes it for an array."""

    outputs: vrt.types.Outputs
    name: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Wait for it."""
        return np.asarray(self.outputs[self.name], dtype)


class Ours(Stepper):
    """A compiled vertex function, timed through its public interface.

    Args:
        net: compiled with a loss that is divided by the number of graphs.
        output: the push that inference returns.
    """

    def __init__(self, net: vrt.Network, output: str) -> None:
        super().__init__(net)
        self.output = output
        self._last: vrt.types.Outputs | None = None

    def infer(self, batch: vrt.GraphBatch) -> Any:
        """Return the output of every vertex in the order of the batch, an array once synced."""
        self._last = self.net(batch, outputs=(self.output,))
        return Output(self._last, self.output)

    def sync(self) -> None:
        """Wait, on a device that runs ahead of the host."""
        if self._last is not None:  # those before it are over when it is
            self._last.settle()
        self.net.sync()
