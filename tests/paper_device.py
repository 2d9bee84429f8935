"""A GPU on paper: kernels are written and never compiled, steps are launched and nothing runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.shim_device import ShimDevice
from vertexrt.api.network import Network
from vertexrt.engine.device_model import DeviceModel
from vertexrt.engine.variant import Passes
from vertexrt.kernels.cuda.backend import CudaBackend
from vertexrt.kernels.cuda.device import Array, Calls

SOME_ADDRESS = 64


class PaperDevice(ShimDevice):
    """A device whose kernels do nothing."""

    def __init__(self, processors: int = 4) -> None:
        self.limit, self._used, self.precision = 1 << 40, 0, "float32"
        self.calls = Calls(0, 0, 0, 0, 0)
        self.processors, self.shared_bytes = processors, 227 << 10

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Give every function some address."""
        return defaultdict(lambda: SOME_ADDRESS)

    def launch_all(
        self, function: int, blocks: int, shared: int, arguments: Array, cluster: int
    ) -> int:
        """Do nothing."""
        return 0


def on_paper(
    function: Any,
    processors: int,
    *,
    policy: str = "frontier",
    passes: Passes | None = None,
    of_device: int = 4,
) -> Network:
    """Compile for the persistent engine of a GPU on paper."""
    chosen = passes or Passes()
    backend = CudaBackend(PaperDevice(of_device), "float32", chosen.hold, chosen.gradients)
    model = DeviceModel(
        function.trace(),
        backend,
        "float32",
        policy,
        chosen,
        "persistent",
        (processors,),
    )
    return Network(model, 0, "graph")
