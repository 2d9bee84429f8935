"""Kernels compiled for a GPU and loaded by CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from vertexrt.config import usable_threads
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.compile import (
    ALL_FIT,
    ONE_BLOCK,
    Cubin,
    Spilled,
    compile_in_registers,
    load_nvrtc,
    spilled_of,
)
from vertexrt.kernels.cuda.device import CUDA_NO_MEMORY, Ahead, no_memory, none_ahead

IN_CACHE = 0.5  # seconds in which kernels that were compiled before are there
# Bytes of a kernel's arguments: before and from CUDA 12.1 on, of the compiler and of the driver.
FEW_ARGUMENTS, MANY_ARGUMENTS, MANY_FROM = 4096, 32764, 12010


class CupyModules:
    """The modules of a device, each compiled and loaded once.

    Args:
        arch: for which they are compiled.
    """

    def __init__(self, cupy: Any, arch: str) -> None:
        self._cupy, self._arch = cupy, arch
        self._cuda = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
        self._modules: list[Any] = []
        self._known: dict[str, int] = {}
        self._ahead: dict[str, Future[Cubin]] = {}

    def argument_bytes(self) -> int:
        """Return how many bytes a kernel can be given."""
        major, minor = load_nvrtc(self._cuda).version()
        driver = int(self._cupy.cuda.runtime.driverGetVersion())
        known = min(1000 * major + 10 * minor, driver)
        return MANY_ARGUMENTS if known >= MANY_FROM else FEW_ARGUMENTS

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Compile modules side by side, each once."""
        prefix = real.name
        new = [s for s in dict.fromkeys(sources) if prefix + s not in self._known]
        found: dict[str, int] = {}
        for source, cubin in zip(new, self._compiled(new, real), strict=True):
            module = self._loaded(cubin)
            self._modules.append(module)
            self._known[prefix + source] = 1
            for name in cubin.usage:
                self._known[f"{prefix} {name}"] = module.get_function(name).ptr
        for key, value in self._known.items():
            if key.startswith(f"{prefix} "):
                found[key.removeprefix(f"{prefix} ")] = value
        return found

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = none_ahead) -> Spilled:
        """Compile the module of a persistent kernel, and others beside it."""
        (cubin,) = self._compiled([source], real, ahead)
        return spilled_of(cubin) if real == np.float32 else ALL_FIT

    def _compiled(
        self, sources: Sequence[str], real: np.dtype[Any], ahead: Ahead = none_ahead
    ) -> list[Cubin]:
        """Compile modules side by side; see `spills`."""
        defines = {} if real == np.float32 else {"VRT_REAL": "double"}

        # Doubles are for checks: a GPU takes many times as long for them as it is, spilled or not.
        slow = real != np.float32

        def one(source: str) -> Cubin:
            may_spill = slow or ONE_BLOCK in source
            return compile_in_registers(source, self._arch, defines, self._cuda, may_spill)

        pool = ThreadPoolExecutor(8)
        begun, self._ahead = self._ahead, {}
        asked = [begun.get(real.name + s) or pool.submit(one, s) for s in sources]
        if usable_threads() > 1 and wait(asked, timeout=IN_CACHE).not_done:
            self._ahead = {real.name + s: pool.submit(one, s) for s in ahead()}
        pool.shutdown(wait=False)
        return [each.result() for each in asked]

    def _loaded(self, cubin: Cubin) -> Any:
        module = self._cupy.cuda.function.Module()
        try:
            module.load(cubin.content)
        except self._cupy.cuda.driver.CUDADriverError as error:
            if getattr(error, "status", 0) == CUDA_NO_MEMORY:
                raise no_memory("a kernel's code") from None
            raise DeviceError.at(
                "cuda",
                f"the driver does not take code for {self._arch}: {error}",
                f"a driver for CUDA {self._cuda} or newer",
                f"update the driver, or report this as a bug with {cubin.path}",
            ) from None
        return module
