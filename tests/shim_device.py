"""The CPU in place of a GPU: the same kernels and the same driver, over NumPy's memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from vertexrt.errors import DeviceError, message
from vertexrt.kernels.cuda import device as cuda_device
from vertexrt.kernels.cuda.device import Array, Calls, Memory
from vertexrt.kernels.cuda.shim.build import build

NOTHING = """
#include "row.cuh"
VRT_KERNEL(nothing, Args<1>, 32) {}
"""


class ShimDevice:
    """A device without a GPU.

    Args:
        seed: of the order in which threads run; 0 takes them in turn.
        limit: bytes of memory that it has.
        precision: of the persistent engine's products.
    """

    name = "the CPU, in place of a GPU"

    def __init__(
        self, seed: int = 0, limit: int = 1 << 40, processors: int = 4, precision: str = "float32"
    ) -> None:
        self.precision = precision
        first = build(NOTHING)
        self.limit, self._used = limit, 0
        self._seed = seed
        self.calls = Calls(first.launch, first.gemm32, first.gemm64, 0, 0)
        self.processors, self.shared_bytes = processors, 227 << 10
        self._modules: list[Any] = [first]
        self._known: set[tuple[str, str]] = set()
        self._functions: dict[str, dict[str, int]] = {}

    def launch_all(
        self, function: int, blocks: int, shared: int, arguments: Array, cluster: int
    ) -> int:
        """Launch; all blocks take part, and each can reach the shared memory of all others."""
        size = ctypes.c_size_t(arguments.nbytes)
        pointer = ctypes.c_void_p
        extra = (pointer * 5)(1, arguments.ctypes.data, 2, ctypes.addressof(size), 0)
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer
        )
        launch = prototype(self.calls.launch)
        return int(launch(function, blocks, 1, 1, 256, 1, 1, shared, None, None, extra))

    def clusters(self, function: int, size: int, shared: int) -> int:
        """Let as many clusters run as there are processors for."""
        return self.processors // size if size > 1 else 0

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Compile what is new as one module with the C++ compiler."""
        fresh = [s for s in dict.fromkeys(sources) if (real.name, s) not in self._known]
        if fresh:
            head = "" if real == np.float32 else "#define VRT_REAL double\n"
            module = build(head + "\n".join(fresh))
            module.seed(self._seed)
            self._modules.append(module)
            self._known |= {(real.name, s) for s in fresh}
            self._functions.setdefault(real.name, {}).update(module.functions)
        return self._functions[real.name]

    def allocate(self, size: int) -> Memory:
        """Allocate memory that holds no number, so that what was not written shows."""
        if size > self.free_bytes():
            raise MemoryError(size)
        owner = np.full(size // 8 + 4, np.nan)
        self._used += size
        weakref.finalize(owner, self._freed, size)
        address = owner.ctypes.data
        skip = -address % 16
        return Memory(address + skip, size, owner)

    def _freed(self, size: int) -> None:
        self._used -= size

    def free_bytes(self) -> int:
        """Count what is left of the limit."""
        return self.limit - self._used

    def pinned(self, size: int) -> Array:
        """Allocate bytes."""
        return np.zeros(size, np.uint8)

    def upload(self, to: int, source: Array) -> None:
        """Copy at once."""
        memory(to, source.nbytes)[:] = source

    def download(self, to: Array, source: int) -> None:
        """Copy at once."""
        to[:] = memory(source, to.nbytes)

    def clear(self, to: int, size: int) -> None:
        """Set at once."""
        memory(to, size)[:] = 0

    def record(self) -> Any:
        """Everything has been done."""
        return None

    def wait(self, event: Any) -> None:
        """Everything has been done."""

    def check(self, code: int, launch: int, step: int) -> None:
        """Name an error of the shim."""
        if code:
            raise DeviceError(
                message(
                    "cuda",
                    f"error {code} at launch {launch}, step {step}",
                    "a kernel that ends",
                    "see what the shim printed",
                )
            )


def put_in_place(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Let `device="cuda"` and `device="auto"` find a ShimDevice instead of a GPU."""
    monkeypatch.setattr(cuda_device, "CupyDevice", lambda precision: ShimDevice(**options))
    monkeypatch.setattr(cuda_device, "usable", lambda: True)


def memory(address: int, size: int) -> Array:
    """Return bytes at an address."""
    if size == 0:
        return np.zeros(0, np.uint8)
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(pointer, (size,))
