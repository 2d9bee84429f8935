"""The CPU in place of a GPU: the same kernels and the same driver, over NumPy's memory."""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.device_rows import put_row
from tests.shim.build import build
from tests.shim_link import ThreadLink
from tests.shim_streams import ASKED, LAST, Queues
from vertexrt.errors import DeviceError, message
from vertexrt.kernels.cuda import compile_for_gpu
from vertexrt.kernels.cuda.compile import ALL_FIT, Spilled
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.device import (
    LINK,
    Ahead,
    Allocation,
    Array,
    Calls,
    Device,
    LaunchStruct,
)
from vertexrt.memory.aligned import aligned_zeros

LINK_NUMBERS = itertools.count()
ARGUMENT_BYTES = 32764  # of a kernel
NOTHING = """
#include "row_ops.cuh"
VRT_KERNEL(nothing, Args<1>, 32) {}
"""


class ShimDevice:
    """A device without a GPU.

    Args:
        seed: of the order in which threads run; 0 takes them in turn.
        limit: bytes of memory that it has.
        precision: of the persistent engine's products.
        order: in which streams run, where there are several: see `Queues`.
        lost: options of its links, see `ThreadLink`.
        warp_groups: it has the matrix units of Hopper.
    Attributes:
        links: to devices of other threads.
    """

    name = "the CPU, in place of a GPU"

    def __init__(
        self,
        seed: int = 0,
        limit: int = 1 << 40,
        processors: int = 4,
        precision: str = "float32",
        order: str | int = LAST,
        lost: Mapping[str, int] | None = None,
        warp_groups: bool = True,
    ) -> None:
        self.precision, self.warp_groups = precision, warp_groups
        self.links: list[ThreadLink] = []
        self._lost = lost or {}
        first = build(NOTHING)
        self.limit, self._used, self._events = limit, 0, 0
        self._seed = seed
        self.calls = Calls(first.launch, first.gemm32, first.gemm64, 0, 0)
        self.processors, self.shared_bytes = processors, 227 << 10
        self.queues: Queues | None = None  # one stream: everything is done at once
        self._order = order
        self._modules: list[Any] = [first]
        self._known: set[tuple[str, str]] = set()
        self._functions: dict[str, dict[str, int]] = {}

    def lanes(self, streams: int) -> Sequence[Calls]:
        """Return what to call on each of so many streams; with several, they are queues."""
        if self.queues is None and streams > 1:
            self._begin_queues()
        more = range(2, streams + 1)
        return [self.calls, *(replace(self.calls, handle=k, stream=k) for k in more)]

    def _begin_queues(self) -> None:
        self.queues = Queues(self._modules[0], self._order)
        launch, gemm32, gemm64, record, wait = self.queues.addresses()
        self.calls = Calls(launch, gemm32, gemm64, 1, 1, record=record, wait=wait)

    def events(self, count: int) -> Array:
        """Return numbers that nothing else has."""
        self._events += count
        return np.arange(self._events - count + 1, self._events + 1)

    def _ask(self, run: Callable[[], None]) -> None:
        """Do something behind what the main stream has, or at once where there is one stream."""
        if self.queues is None:
            run()
        else:
            self.queues.ask(1, lambda: run() is None)

    def _drain(self) -> None:
        if self.queues is not None:
            self.queues.drain()
            code, self.queues.failed = self.queues.failed, 0
            self.check(code)

    def launch_all(self, function: int, blocks: int, arguments: LaunchStruct, cluster: int) -> int:
        """Launch; all blocks take part, and each can reach the shared memory of all others."""
        pointer = ctypes.c_void_p
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_int, pointer, *[ctypes.c_uint] * 7, pointer, pointer, pointer
        )
        self._drain()
        launch = prototype(self._modules[0].launch)
        grid, shared = (blocks, 1, 1, 256, 1, 1), self.shared_bytes
        return int(launch(function, *grid, shared, None, None, arguments.extra))

    def argument_bytes(self) -> int:
        """Take what CUDA takes from 12.1 on."""
        return ARGUMENT_BYTES

    def allow_shared(self, function: int, size: int) -> None:
        """Do nothing: a launch says how much it takes."""

    @property
    def has_clusters(self) -> bool:
        """As a Hopper GPU."""
        return True

    def clusters(self, function: int, size: int) -> int:
        """Let as many clusters run as there are processors for."""
        return self.processors // size if size > 1 else 0

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = tuple) -> Spilled:
        """Leave registers to the C++ compiler."""
        return ALL_FIT

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

    def allocate(self, size: int) -> Allocation:
        """Allocate memory that holds no number, so that what was not written shows."""
        if size > self.free_bytes():
            raise MemoryError(size)
        owner = np.full(size // 8 + 4, np.nan)
        self._used += size
        weakref.finalize(owner, self._freed, size)
        address = owner.ctypes.data
        skip = -address % 16
        return Allocation(address + skip, size, owner)

    def _freed(self, size: int) -> None:
        self._used -= size

    def free_bytes(self) -> int:
        """Count what is left of the limit."""
        return self.limit - self._used

    def pinned(self, size: int) -> Array:
        """Allocate bytes."""
        return np.zeros(size, np.uint8)

    def upload(self, to: int, source: Array) -> None:
        """Copy from the array as it is then."""

        def copy() -> None:
            bytes_at(to, source.nbytes)[:] = source

        self._ask(copy)

    def upload_ahead(self, to: int, source: Array) -> None:
        """Copy at once, which is sooner than all that is in queues."""
        if self.queues is None:
            self.upload(to, source)
        else:
            bytes_at(to, source.nbytes)[:] = source

    def download(self, to: Array, source: int) -> None:
        """Copy what is there then."""

        def copy() -> None:
            to[:] = bytes_at(source, to.nbytes)

        self._ask(copy)

    def clear(self, to: int, size: int, byte: int = 0) -> None:
        """Set what is there then."""

        def clear() -> None:
            bytes_at(to, size)[:] = byte

        self._ask(clear)

    def capture(self, ask: Callable[[], None]) -> Callable[[], None] | None:
        """Note calls, with copies of their arguments."""
        if self.queues is not None:
            return None
        before, noted = self.calls, Queues(self._modules[0], ASKED)
        launch, gemm32, gemm64, record, wait = noted.addresses()
        self.calls = Calls(launch, gemm32, gemm64, 1, 1, record=record, wait=wait)
        try:
            ask()
        finally:
            self.calls = before

        def replay() -> None:
            for run in noted.noted():
                run()
            self.check(noted.failed)

        return replay

    def record(self, event: Any = None) -> Any:
        """Return nothing: whoever waits, waits for everything."""
        return None

    def wait(self, event: Any) -> None:
        """Do what was asked for."""
        self._drain()

    def has_come(self, event: Any) -> bool:
        """Do what was asked for; a link that is stuck holds it up."""
        self._drain()
        return not any(link.stuck for link in self.links)

    def place(self) -> str:
        """Return a number of its own."""
        return f"shim {id(self)}"

    def new_link(self) -> Array:
        """Return a number that no other link has."""
        return np.full(LINK, next(LINK_NUMBERS), np.int16)

    def link(self, number: Array, rank: int, size: int) -> ThreadLink:
        """Link to devices of other threads."""

        def read(address: int, size: int) -> bytes:
            self._drain()
            return bytes_at(address, size).tobytes()

        def write(address: int, content: bytes) -> None:
            bytes_at(address, len(content))[:] = np.frombuffer(content, np.uint8)

        memory = read, write
        self.links.append(ThreadLink(int(number[0]), (rank, size), memory, **self._lost))
        return self.links[-1]

    def arrays(self) -> Any:
        """Return NumPy: its memory is this one."""
        return np

    def array(self, memory: Allocation, dtype: np.dtype[Any]) -> Any:
        """Return memory as an array, which keeps its owner alive."""
        found = bytes_at(memory.address, memory.size).view(dtype)
        weakref.finalize(found, lambda owner: None, memory.owner)
        return found

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, int]:
        """Return an array that holds no number yet."""
        found = aligned_zeros(math.prod(shape), dtype).reshape(shape)
        found[...] = np.nan
        return found, found.ctypes.data

    def caller(self) -> int:
        """Return the address of none."""
        return 0

    def use(self, stream: int | None = None) -> None:
        """Do what was asked for."""
        self._drain()

    def follow_caller(self, stream: int | None = None) -> None:
        """Do what was asked for: the caller's stream does it at once."""
        self._drain()

    def lead_caller(self, stream: int | None = None) -> None:
        """Do what was asked for."""
        self._drain()

    def check(self, code: int, launch: int = -1, step: int = -1) -> None:
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


def put_in_place(
    monkeypatch: pytest.MonkeyPatch, make: Callable[..., Device] = ShimDevice, **options: Any
) -> None:
    """Let `device="cuda"` and `device="auto"` find a device that is no GPU.

    Args:
        options: of `make`.
    """
    put_row(
        monkeypatch,
        "cuda",
        compile_for_gpu,
        lambda traced, asked: compile_on(make(**options), traced, asked),
    )


def bytes_at(address: int, size: int) -> Array:
    """Return bytes at an address."""
    if size == 0:
        return np.zeros(0, np.uint8)
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
    return np.ctypeslib.as_array(pointer, (size,))
