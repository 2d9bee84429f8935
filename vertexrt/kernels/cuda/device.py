"""The device as the session sees it: memory, copies, modules, and the addresses to call.

`Device` is what a session needs; `cupy_device.CupyDevice` is a real one. The tests have another,
whose memory is NumPy's and whose kernels run on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.compile import Spilled

Array = np.ndarray[Any, Any]
CUBLAS_CODES = 10_000  # what the driver's loop adds to a status of cuBLAS
CUDA_NO_MEMORY = 2  # cudaErrorMemoryAllocation, and the driver's
# Of cuBLAS: that it is not initialised, as where its handle finds no memory, and ALLOC_FAILED.
CUBLAS_NO_MEMORY = (1, 3)
OUT_OF_MEMORY = (CUDA_NO_MEMORY, *(CUBLAS_CODES + status for status in CUBLAS_NO_MEMORY))
LINK = 129  # of NCCL: what its number is made of, and its 128 bytes
Span = tuple[int, int]  # an address, and how many bytes there
Ahead = Callable[[], Sequence[str]]  # gives sources that may be asked for next
Message = tuple[int, Span]  # a process, and the bytes that it gets, or from where they come to
BUFFER_POINTER, BUFFER_SIZE, SIZE, TOLD = 1, 2, 5, 6  # of `extra` of the driver; after it a size
CUDA_ERRORS = {
    1: "invalid value",
    400: "invalid handle",
    700: "illegal address",
    701: "too many resources",
    716: "misaligned address",
    719: "launch failed",
}


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory of a device, by default none; freed with its `owner`."""

    address: int = 0
    size: int = 0
    owner: Any = None


@dataclass(frozen=True, slots=True)
class Calls:
    """Addresses that the driver calls, and the handles that it passes."""

    launch: int
    gemm32: int
    gemm64: int
    handle: int
    stream: int
    compute: int = 0  # where not 0, gemm32 is cublasGemmEx with this compute type
    record: int = 0  # cuEventRecord and cuStreamWaitEvent, where there are several streams
    wait: int = 0


def address_of(array: Array) -> int:
    """Return where a contiguous array that may be written to lies: `array.ctypes.data`, sooner."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array.data)) if array.nbytes else 0


class LaunchStruct:
    """The struct that a kernel takes, and what the driver is told of it.

    Args:
        parts: bytes of the struct, one after the other; of whole words.
    Attributes:
        words: int64 [*], of the struct; what is written to them counts at the next launch.
        extra: address of what the driver is told, `extra` of its calls; it comes before the words.
    """

    def __init__(self, *parts: bytes | memoryview) -> None:
        whole = np.frombuffer(bytearray().join((bytes(8 * TOLD), *parts)), np.int64)
        self.words, self.extra = whole[TOLD:], address_of(whole)
        at, size = self.extra + 8 * TOLD, self.extra + 8 * SIZE
        whole[:TOLD] = (BUFFER_POINTER, at, BUFFER_SIZE, size, 0, self.words.nbytes)


class Link(Protocol):
    """One end of what connects the devices of a group of processes: NCCL's communicator.

    Attributes:
        stopped: address of an int64 of the host, which kernels may read: 1 from `abort` on.
    """

    stopped: int

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        """Send bytes to processes and get bytes from them, in the order of the device's stream.

        It is only asked for; all processes ask alike.
        """

    def failure(self) -> str:
        """Return what has gone wrong; "" while nothing has."""

    def abort(self) -> None:
        """End what was asked for and has not come; the link is of no use afterwards."""


class Device(Protocol):
    """Where kernels run; everything is in the order of one stream, the main one: see `use`.

    Launches on other streams (`lanes`) come after and before what their events say.
    """

    name: str
    precision: str  # of products of float32
    calls: Calls
    processors: int  # multiprocessors
    warp_groups: bool  # its matrix units multiply for four warps together (Hopper)
    shared_bytes: int  # of shared memory that a block can have

    def lanes(self, streams: int) -> Sequence[Calls]:
        """Return what to call on each of so many streams; the first is `calls`.

        Each has a handle of cuBLAS of its own, so that products at once do not share memory.
        """

    def events(self, count: int) -> Array:
        """Return new events of the driver: int64 [count]."""

    def launch_all(self, function: int, blocks: int, arguments: LaunchStruct, cluster: int) -> int:
        """Launch blocks of 256 threads that all run at once; return an error of the driver.

        Each has all the dynamic shared memory that it can have.

        Args:
            arguments: the struct that the kernel takes.
            cluster: blocks of a cluster; 1 for none.
        """

    @property
    def has_clusters(self) -> bool:
        """Whether blocks may be thread-block clusters."""

    def clusters(self, function: int, size: int) -> int:
        """Return how many clusters of so many blocks run at once; 0 where there are none."""

    def argument_bytes(self) -> int:
        """Return how many bytes a kernel can be given."""

    def allow_shared(self, function: int, size: int) -> None:
        """Let blocks of a function have so many bytes of dynamic shared memory."""

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Compile modules; return the functions of all their kernels by name.

        Raises: DeviceError, when one does not compile or spills registers; that of a persistent
            kernel may, see `spills`.
        """

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = tuple) -> Spilled:
        """Compile the module of a persistent kernel, and say which values do not fit in registers.

        Args:
            ahead: gives modules that the next call may ask for: they compile meanwhile, if there is
                a processor for them and the first one takes a while.
        Raises: DeviceError, when it does not compile.
        """

    def allocate(self, size: int) -> Allocation:
        """Return so many bytes.

        Raises: MemoryError, when there are not as many.
        """

    def free_bytes(self) -> int:
        """Count the bytes that could be allocated."""

    def pinned(self, size: int) -> Array:
        """Return bytes of the host from which copies run during the host's work: uint8 [size]."""

    def upload(self, to: int, source: Array) -> None:
        """Copy from pinned memory, which must stay as it is until an event after it."""

    def upload_ahead(self, to: int, source: Array) -> None:
        """Do the same while earlier launches run, of which none uses what lies there.

        What is asked for from now on comes after it.
        """

    def download(self, to: Array, source: int) -> None:
        """Copy to pinned memory; valid after an event after it."""

    def clear(self, to: int, size: int, byte: int = 0) -> None:
        """Set bytes to zero, or to something else."""

    def capture(self, ask: Callable[[], None]) -> Callable[[], None] | None:
        """Note what would be asked for on the main stream, instead of asking for it.

        Args:
            ask: launches; what it allocates or copies is not noted.
        Returns: what asks for all of it at once; None, where it cannot be noted.
        Raises: as `ask` does.
        """

    def record(self, event: Any = None) -> Any:
        """Return an event: everything asked for so far; one that came is used again, if given."""

    def wait(self, event: Any) -> None:
        """Wait until an event has come."""

    def has_come(self, event: Any) -> bool:
        """Tell whether an event has come, without waiting for it."""

    def place(self) -> str:
        """Name this device as no other is, on any machine; "" where there are no links."""

    def new_link(self) -> Array:
        """Return what the processes of a group need to link their devices: int16 [LINK]."""

    def link(self, number: Array, rank: int, size: int) -> Link:
        """Link this device to those of the other processes, which call it too, and wait for them.

        It exchanges in the order of the device's own stream.

        Args:
            number: what `new_link` has returned in one process.
        Raises: DeviceError, when the devices cannot be linked.
        """

    def arrays(self) -> Any:
        """Return the module, with NumPy's names, whose arrays lie in this memory.

        What its functions do is in the order of its current stream: the caller's.
        """

    def array(self, memory: Allocation, dtype: np.dtype[Any]) -> Any:
        """Return memory as an array of one axis, which keeps it alive."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, int]:
        """Return a new array of the caller's and its address, a multiple of 16; C order."""

    def caller(self) -> int:
        """Return the address of the stream that is the caller's now."""

    def use(self, stream: int | None = None) -> None:
        """Let another stream be the main one, after what the one until now has.

        Args:
            stream: address of a caller's; by default the device's own.
        """

    def follow_caller(self, stream: int | None = None) -> None:
        """Let what is asked for from now on come after what the caller's stream has.

        Args:
            stream: address of that; by default it is the current one of `arrays`.
        """

    def lead_caller(self, stream: int | None = None) -> None:
        """Let what the caller's stream gets from now on come after everything asked for here.

        Args:
            stream: as of `follow_caller`.
        """

    def check(self, code: int, launch: int = -1, step: int = -1) -> None:
        """Raise DeviceError for what the driver returned, if it is an error."""


def in_a_child() -> DeviceError:
    """Return what is raised where a forked child uses the GPU of its parent: it cannot."""
    return DeviceError.at(
        "cuda",
        "a forked child of a process that uses the GPU",
        "a process of its own: CUDA does not live through a fork",
        "start it by spawn: multiprocessing.get_context('spawn'), or for a DataLoader "
        "multiprocessing_context='spawn', and compile the network there",
    )


class InAChild:
    """The lock of a model in a forked child: a GPU of the parent's cannot be used there."""

    def __enter__(self) -> None:
        raise in_a_child()

    def __exit__(self, *_: object) -> None:
        """Give back what is never taken."""

    def acquire(self) -> None:
        """Let the child fork again."""

    release = acquire


def no_memory(what: str) -> DeviceError:
    """Return what is raised where something small finds no memory on the device."""
    return DeviceError.at(
        "cuda",
        f"no memory is left for {what}",
        "a little room in addition to what this process holds",
        "take smaller batches, or end other processes on the device",
    )


def launch_error(code: int, launch: int, step: int) -> DeviceError:
    """Describe what the driver returned, or cuBLAS plus CUBLAS_CODES, for a launch.

    Args:
        launch, step: of the launch table and of its program; -1 at the end of a step.
    """
    where = f"launch {launch}, step {step}" if launch >= 0 else "the end of the step"
    if code in OUT_OF_MEMORY:
        return no_memory(where)
    what = f"cuBLAS status {code - CUBLAS_CODES}" if code >= CUBLAS_CODES else f"CUDA error {code}"
    name = f" ({CUDA_ERRORS[code]})" if code in CUDA_ERRORS else ""
    again = "; restart Python, since the device does not go on after it" if code >= 700 else ""
    return DeviceError.at(
        "cuda",
        f"{what}{name} at {where}",
        "a launch that the device takes",
        f"report this as a bug{again}",
    )
