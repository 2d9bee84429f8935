"""A GPU on paper: kernels are written and never compiled, steps are launched and nothing runs."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.shim_device import ARGUMENT_BYTES, ShimDevice
from tests.shim_streams import GEMM, LAUNCH, RECORD, WAIT
from vertexrt.api.network import Network
from vertexrt.engine.variant import CompileOptions, Passes
from vertexrt.kernels.cuda.compile import ALL_FIT, Spilled
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.device import Ahead, Calls, LaunchStruct

SOME_ADDRESS = 64
DO_NOTHING = [kind(lambda *_: 0) for kind in (LAUNCH, GEMM, GEMM, RECORD, WAIT)]


class PaperDevice(ShimDevice):
    """A device whose kernels do nothing."""

    def __init__(
        self,
        processors: int = 4,
        clusters: int | None = None,
        argument_bytes: int = ARGUMENT_BYTES,
    ) -> None:
        self._clusters = clusters
        self.limit, self._used, self._events, self.precision = 1 << 40, 0, 0, "float32"
        self.warp_groups = True
        self.queues = None
        launch, gemm32, gemm64, record, wait = (
            ctypes.cast(call, ctypes.c_void_p).value or 0 for call in DO_NOTHING
        )
        self.calls = Calls(launch, gemm32, gemm64, 0, 0, record=record, wait=wait)
        self.processors, self.shared_bytes = processors, 227 << 10
        self._argument_bytes = argument_bytes

    def lanes(self, streams: int) -> Sequence[Calls]:
        """Return streams on which nothing runs."""
        return [self.calls] * streams

    def argument_bytes(self) -> int:
        """Take as much as was said."""
        return self._argument_bytes

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Give every function some address."""
        return defaultdict(lambda: SOME_ADDRESS)

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = tuple) -> Spilled:
        """Have registers for all values."""
        return ALL_FIT

    @property
    def has_clusters(self) -> bool:
        """As a Hopper GPU, unless no clusters run."""
        return self._clusters != 0

    def clusters(self, function: int, size: int) -> int:
        """Let as many clusters run as was said."""
        given = self._clusters
        return super().clusters(function, size) if given is None else given

    def capture(self, ask: Callable[[], None]) -> Callable[[], None]:
        """Note nothing."""
        ask()
        return lambda: None

    def launch_all(self, function: int, blocks: int, arguments: LaunchStruct, cluster: int) -> int:
        """Do nothing."""
        return 0


def on_paper(
    function: Any,
    processors: int | None,
    *,
    policy: str = "frontier",
    passes: Passes | None = None,
    of_device: int = 4,
    engine: str = "persistent",
    clusters: int | None = None,
    device: PaperDevice | None = None,
) -> Network:
    """Compile for a GPU on paper.

    Args:
        device: in place of one of so many processors and clusters.
        processors: of a group of the persistent engine; None lets the model choose.
        clusters: that run at once; as many as there are processors for by default.
    """
    options = CompileOptions(
        np.dtype("float32"), policy, passes or Passes(), "float32", engine, 1, processors
    )
    device = device or PaperDevice(of_device, clusters)
    executor = compile_on(device, function.trace(), options)
    return Network(executor, 0, "mean_graphs")
