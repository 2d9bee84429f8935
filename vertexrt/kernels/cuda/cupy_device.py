"""A CUDA device through CuPy."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

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
from vertexrt.kernels.cuda.device import (
    CUBLAS_CODES,
    CUBLAS_NO_MEMORY,
    CUDA_NO_MEMORY,
    Ahead,
    Allocation,
    Array,
    Calls,
    LaunchStruct,
    address_of,
    in_a_child,
    launch_error,
    no_memory,
)
from vertexrt.kernels.cuda.driver import launch_configured, order_streams
from vertexrt.kernels.cuda.nccl import FIRST, NcclLink, new_number, own_gpu

CUBLAS_HOST_POINTERS = 0
WORKSPACES = {9: 32 << 20, 8: 4 << 20}  # bytes that cuBLAS takes, from a compute capability on
FAST_TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32
IN_CACHE = 0.5  # seconds in which kernels that were compiled before are there
# Bytes of a kernel's arguments: before and from CUDA 12.1 on, of the compiler and of the driver.
FEW_ARGUMENTS, MANY_ARGUMENTS, MANY_FROM = 4096, 32764, 12010
# CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, ..._NON_PORTABLE_CLUSTER_SIZE_ALLOWED
MOST_SHARED, LARGE_CLUSTERS = 8, 14
LARGEST_CLUSTER = 16  # blocks of a cluster
COOPERATIVE, CLUSTER = 2, 4  # CUlaunchAttributeID

P = ParamSpec("P")
T = TypeVar("T")
_processes: set[int] = set()  # that have used a GPU: this one, or those it was forked from


def named(method: Callable[P, T]) -> Callable[P, T]:
    """Let a method of a device raise DeviceError where CuPy, CUDA or cuBLAS raise their own."""

    @wraps(method)
    def call(*given: P.args, **options: P.kwargs) -> T:
        device: Any = given[0]
        try:
            return method(*given, **options)
        except device.errors as error:
            status = getattr(error, "status", CUDA_NO_MEMORY)  # CuPy's own is about memory alone
            blas = type(error).__name__ == "CUBLASError"
            if status in (CUBLAS_NO_MEMORY if blas else (CUDA_NO_MEMORY,)):
                raise no_memory(f"what CUDA sets up ({error})") from None
            raise DeviceError.at(
                "cuda",
                str(error),
                "calls that CUDA takes, and kernels that end",
                "report this as a bug; restart Python",
            ) from None

    return call


class CupyDevice:
    """A CUDA device through CuPy.

    Args:
        precision: of products: float32, tf32, or bf16, which is the persistent engine's alone.
    Raises: DeviceError, when CuPy or a usable device is missing.
    """

    @named
    def __init__(self, precision: str = "float32") -> None:
        self.errors: tuple[type[Exception], ...] = ()  # of CuPy, once there is one
        if _processes and os.getpid() not in _processes:
            raise in_a_child()
        self.precision = precision
        self.cupy = import_cupy()
        self.errors = _errors_of(self.cupy)
        runtime = self.cupy.cuda.runtime
        self._runtime = runtime
        _processes.add(os.getpid())
        own = own_gpu(os.environ, int(runtime.getDeviceCount()))
        if own is not None:
            self.cupy.cuda.Device(own).use()
        self.number = int(self.cupy.cuda.Device().id)
        properties = runtime.getDeviceProperties(self.number)
        self.name = properties["name"].decode()
        major, minor = properties["major"], properties["minor"]
        if major < 8:
            raise DeviceError.at(
                "cuda",
                f"{self.name} has compute capability {major}.{minor}",
                "8.0 or more (Ampere)",
                "use device='cpu'",
            )
        self.compute_capability = (major, minor)
        self.arch = "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"
        self.warp_groups = (major, minor) == (9, 0)
        self._cuda = int(runtime.runtimeGetVersion()) // 1000
        self._modules: list[Any] = []  # each compiled and loaded once
        self._known: dict[str, int] = {}
        self._ahead: dict[str, Future[Cubin]] = {}
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self._copies = self.cupy.cuda.Stream(non_blocking=True)  # of `upload_ahead`
        self._now = self.stream.ptr  # the stream that is in use
        self._used: Any = None  # the stream of a caller that is in use: it lives as long
        self._caller: Any = None  # the one that was asked for last
        self.processors = int(properties["multiProcessorCount"])
        self.shared_bytes = int(properties["sharedMemPerBlockOptin"])
        self._between = self.cupy.cuda.Event(disable_timing=True)  # streams wait for it at once
        self._ready: set[int] = set()  # functions whose shared memory is set
        # What the driver is given to launch a function: to make it takes longer than the call.
        self._launches: dict[tuple[int, ...], tuple[int, int, int]] = {}
        self._owners: list[Any] = []  # of what is known by its address
        self._workspaces: dict[int, Allocation] = {}  # of handles of cuBLAS
        self._captures = True  # until that failed
        self.calls = self._calls(precision, self.stream)
        self._more: list[Calls] = []  # on other streams

    def _calls(self, precision: str, stream: Any) -> Calls:
        from cupy_backends.cuda.libs import cublas

        handle = cublas.create()
        cublas.setPointerMode(handle, CUBLAS_HOST_POINTERS)
        cublas.setMathMode(handle, 0)  # CUBLAS_DEFAULT_MATH: no TF32
        cublas.setStream(handle, stream.ptr)
        compute = FAST_TF32 if precision == "tf32" else 0
        blas = _blas()
        return Calls(
            _address(driver().cuLaunchKernel),
            _address(blas.cublasGemmEx if compute else blas.cublasSgemm_v2),
            _address(blas.cublasDgemm_v2),
            handle,
            stream.ptr,
            compute,
            _address(driver().cuEventRecord),
            _address(driver().cuStreamWaitEvent),
        )

    def _let_multiply(self, handle: int, stream: int) -> None:
        """Let cuBLAS compute on a stream, in memory of ours, if it has some."""
        from cupy_backends.cuda.libs import cublas

        cublas.setStream(handle, stream)  # takes back the memory
        workspace = self._workspaces.get(handle)
        if workspace is not None:
            pointer, size = ctypes.c_void_p, ctypes.c_size_t(workspace.size)
            given = pointer(handle), pointer(workspace.address), size
            code = _blas().cublasSetWorkspace_v2(*given)
            self.check(code and code + CUBLAS_CODES)

    @named
    def lanes(self, streams: int) -> Sequence[Calls]:
        """Make streams that wait for no other by themselves."""
        while len(self._more) < streams - 1:
            stream = self.cupy.cuda.Stream(non_blocking=True)
            self._owners.append(stream)
            self._more.append(self._calls(self.precision, stream))
        return [self.calls, *self._more[: streams - 1]]

    @named
    def events(self, count: int) -> Array:
        """Make events that do not time."""
        made = [self.cupy.cuda.Event(disable_timing=True) for _ in range(count)]
        self._owners += made
        return np.array([event.ptr for event in made], np.int64)

    # Modules.

    def argument_bytes(self) -> int:
        """Return how many bytes a kernel can be given."""
        major, minor = load_nvrtc(self._cuda).version()
        known = min(1000 * major + 10 * minor, int(self._runtime.driverGetVersion()))
        return MANY_ARGUMENTS if known >= MANY_FROM else FEW_ARGUMENTS

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Compile modules side by side, each once."""
        prefix, start = real.name, f"{real.name} "
        new = [s for s in dict.fromkeys(sources) if prefix + s not in self._known]
        for source, cubin in zip(new, self._compiled(new, real), strict=True):
            module = self._loaded(cubin)
            self._modules.append(module)
            self._known[prefix + source] = 1
            for name in cubin.usage:
                self._known[start + name] = module.get_function(name).ptr
        known = self._known.items()
        return {key.removeprefix(start): at for key, at in known if key.startswith(start)}

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = tuple) -> Spilled:
        """Compile the module of a persistent kernel, and others beside it."""
        (cubin,) = self._compiled([source], real, ahead)
        return spilled_of(cubin) if real == np.float32 else ALL_FIT

    def _compiled(
        self, sources: Sequence[str], real: np.dtype[Any], ahead: Ahead = tuple
    ) -> list[Cubin]:
        """Compile modules side by side; see `spills`."""
        # Doubles are for checks: a GPU takes many times as long for them as it is, spilled or not.
        slow = real != np.float32
        defines = {"VRT_REAL": "double"} if slow else {}

        def one(source: str) -> Cubin:
            may_spill = slow or ONE_BLOCK in source
            return compile_in_registers(source, self.arch, defines, self._cuda, may_spill)

        pool = ThreadPoolExecutor(8)
        begun, self._ahead = self._ahead, {}
        asked = [begun.get(real.name + s) or pool.submit(one, s) for s in sources]
        if usable_threads() > 1 and wait(asked, timeout=IN_CACHE).not_done:
            self._ahead = {real.name + s: pool.submit(one, s) for s in ahead()}
        pool.shutdown(wait=False)
        return [each.result() for each in asked]

    def _loaded(self, cubin: Cubin) -> Any:
        module = self.cupy.cuda.function.Module()
        try:
            module.load(cubin.content)
        except self.cupy.cuda.driver.CUDADriverError as error:
            if getattr(error, "status", 0) == CUDA_NO_MEMORY:
                raise no_memory("a kernel's code") from None
            raise DeviceError.at(
                "cuda",
                f"the driver does not take code for {self.arch}: {error}",
                f"a driver for CUDA {self._cuda} or newer",
                f"update the driver, or report this as a bug with {cubin.path}",
            ) from None
        return module

    # Launches.

    def launch_all(self, function: int, blocks: int, arguments: LaunchStruct, cluster: int) -> int:
        """Launch cooperatively: the driver refuses what could not run at once."""
        given = function, blocks, cluster, self._now
        launch = self._launches.get(given)
        if launch is None:
            code = self._prepare(function, self.shared_bytes)
            if code:
                return code
            config = launch_config(blocks, self.shared_bytes, cluster, self._now)
            self._owners.append(config)
            address = _address(driver().cuLaunchKernelEx)
            launch = self._launches[given] = address, ctypes.addressof(config), function
        return launch_configured(*launch, arguments.extra)

    def _prepare(self, function: int, shared: int) -> int:
        """Let a function have so much shared memory."""
        if function in self._ready:
            return 0
        attributes = [(MOST_SHARED, shared)]
        if self.compute_capability >= (9, 0):
            attributes.append((LARGE_CLUSTERS, 1))
        for attribute, value in attributes:
            code = driver().cuFuncSetAttribute(ctypes.c_void_p(function), attribute, value)
            if code:
                return int(code)
        self._ready.add(function)
        return 0

    def allow_shared(self, function: int, size: int) -> None:
        """Set an attribute of the function."""
        self.check(self._prepare(function, size))

    @property
    def has_clusters(self) -> bool:
        """Whether it is a Hopper GPU or a later one."""
        return self.compute_capability >= (9, 0)

    def clusters(self, function: int, size: int) -> int:
        """Ask the driver."""
        if not self.has_clusters or not 1 < size <= LARGEST_CLUSTER:
            return 0
        if self._prepare(function, self.shared_bytes):
            return 0
        blocks = self.processors // size * size
        config = launch_config(blocks, self.shared_bytes, size, self._now)
        config.attributes = ctypes.pointer(config.attributes[1])
        config.count = 1
        found = ctypes.c_int()
        ask = driver().cuOccupancyMaxActiveClusters
        code = ask(ctypes.byref(found), ctypes.c_void_p(function), ctypes.byref(config))
        return 0 if code else min(found.value, self.processors // size)

    def allocate(self, size: int) -> Allocation:
        """Allocate from CuPy's pool."""
        try:
            memory = self.cupy.cuda.alloc(max(size, 16))
        except self.cupy.cuda.memory.OutOfMemoryError:
            self.cupy.get_default_memory_pool().free_all_blocks()
            try:
                memory = self.cupy.cuda.alloc(max(size, 16))
            except self.cupy.cuda.memory.OutOfMemoryError:
                raise MemoryError(size) from None
        return Allocation(memory.ptr, size, memory)

    @named
    def free_bytes(self) -> int:
        """Ask the device, and add what the pool holds."""
        free, _ = self._runtime.memGetInfo()
        return int(free) + int(self.cupy.get_default_memory_pool().free_bytes())

    @named
    def pinned(self, size: int) -> Array:
        """Allocate page-locked memory."""
        memory = self.cupy.cuda.alloc_pinned_memory(size)
        return np.frombuffer(memory, np.uint8, size)

    @named
    def upload(self, to: int, source: Array) -> None:
        """Copy without waiting."""
        self._runtime.memcpyAsync(to, address_of(source), source.nbytes, 1, self._now)

    @named
    def upload_ahead(self, to: int, source: Array) -> None:
        """Copy on a stream of its own, which the one in use waits for."""
        copies = self._copies.ptr
        self._runtime.memcpyAsync(to, address_of(source), source.nbytes, 1, copies)
        self._order(copies, self._now)

    @named
    def download(self, to: Array, source: int) -> None:
        """Copy without waiting."""
        self._runtime.memcpyAsync(address_of(to), source, to.nbytes, 2, self._now)

    @named
    def clear(self, to: int, size: int, byte: int = 0) -> None:
        """Set without waiting."""
        if size:
            self._runtime.memsetAsync(to, byte, size, self._now)

    @named
    def capture(self, ask: Callable[[], None]) -> Callable[[], None] | None:
        """Capture a CUDA graph, on the device's own stream: those of callers may refuse it."""
        if self._now != self.stream.ptr or not self._captures:
            return None
        major = max(each for each in WORKSPACES if each <= self.compute_capability[0])
        for calls in (self.calls, *self._more):
            if calls.handle not in self._workspaces:
                try:  # as much as cuBLAS takes itself, which it cannot in a graph
                    self._workspaces[calls.handle] = self.allocate(WORKSPACES[major])
                except MemoryError:
                    self._captures = False
                    return None
                self._let_multiply(calls.handle, calls.stream)
        runtime, stream = self._runtime, self.stream
        stream.begin_capture(runtime.streamCaptureModeRelaxed)
        try:
            ask()
        except BaseException:
            with suppress(runtime.CUDARuntimeError):
                stream.end_capture()
            raise
        try:
            graph = stream.end_capture()
        except runtime.CUDARuntimeError:  # something that cannot be captured, nor later
            self._captures = False
            return None

        @named
        def launch(device: CupyDevice) -> None:
            runtime.graphLaunch(graph.graphExec, device._now)

        return partial(launch, self)

    @named
    def record(self, event: Any = None) -> Any:
        """Record an event that does not time."""
        if event is None:
            event = self.cupy.cuda.Event(disable_timing=True)
        self._runtime.eventRecord(event.ptr, self._now)
        return event

    @named
    def wait(self, event: Any) -> None:
        """Wait for an event, or raise DeviceError for what went wrong before it."""
        event.synchronize()

    @named
    def has_come(self, event: Any) -> bool:
        """Ask the driver."""
        return bool(event.done)

    @named
    def place(self) -> str:
        """Name the machine as it was booted, and the GPU's place on its bus."""
        if not self._nccl().available:
            return ""
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {self._runtime.deviceGetPCIBusId(self.number)}"

    def new_link(self) -> Array:
        """Ask NCCL for an id."""
        return new_number(self._nccl())

    @named
    def link(self, number: Array, rank: int, size: int) -> NcclLink:
        """Make a communicator of NCCL on the main stream; any thread may."""
        with self.cupy.cuda.Device(self.number):
            memory = self.cupy.cuda.alloc(FIRST * (size + 1)), self.pinned(8)
            return NcclLink(self._nccl(), number, (rank, size), self.stream.ptr, *memory)

    def _nccl(self) -> Any:
        return importlib.import_module("cupy.cuda.nccl")  # optional, as CuPy is

    def arrays(self) -> Any:
        """Return CuPy."""
        return self.cupy

    @named
    def array(self, memory: Allocation, dtype: np.dtype[Any]) -> Any:
        """Return an array of CuPy."""
        cuda = self.cupy.cuda
        held = cuda.UnownedMemory(memory.address, memory.size, memory.owner)
        count = memory.size // dtype.itemsize
        return self.cupy.ndarray((count,), dtype, cuda.MemoryPointer(held, 0))

    @named
    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, int]:
        """Allocate for CuPy's current stream."""
        found = self.cupy.empty(shape, dtype)
        return found, int(found.data.ptr)

    def use(self, stream: int | None = None) -> None:
        """Let it wait on the device for what was asked for until now."""
        after = self.stream.ptr if stream is None else stream
        if after != self._now:
            self._order(self._now, after)
            self._let_multiply(self.calls.handle, after)
            self._used = None if stream is None else self._caller
            self._now, self.calls = after, replace(self.calls, stream=after)

    def follow_caller(self, stream: int | None = None) -> None:
        """Wait for it on the device, not on the host."""
        self._order(self.caller() if stream is None else stream, self._now)

    def lead_caller(self, stream: int | None = None) -> None:
        """Let it wait on the device."""
        self._order(self._now, self.caller() if stream is None else stream)

    def _order(self, before: int, after: int) -> None:
        """Let a stream come after what another has; one of them is in order by itself."""
        if before == after:
            return
        calls, event = self.calls, self._between.ptr
        self.check(order_streams(calls.record, calls.wait, event, before, after))

    def caller(self) -> int:
        """Return the address of CuPy's current stream, which lives as long as it is in use."""
        self._caller = self.cupy.cuda.get_current_stream()
        return int(self._caller.ptr)

    def check(self, code: int, launch: int = -1, step: int = -1) -> None:
        """Name an error of the driver or of cuBLAS."""
        if code:
            raise launch_error(code, launch, step)


def _address(function: Any) -> int:
    """Return the address of a function of a library."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _errors_of(cupy: Any) -> tuple[type[Exception], ...]:
    """Return what CuPy and what it calls raise."""
    from cupy_backends.cuda.libs import cublas

    cuda = cupy.cuda
    return (
        cuda.runtime.CUDARuntimeError,
        cuda.driver.CUDADriverError,
        cuda.memory.OutOfMemoryError,
        cublas.CUBLASError,
    )


@cache
def _blas() -> ctypes.CDLL:
    """Return cuBLAS, which CuPy has loaded."""
    return ctypes.CDLL(_loaded_library("libcublas.so"))


def _loaded_library(name: str) -> str:
    """Return the path of a library that this process has loaded."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rpartition(" ")[2].strip()
            if f"/{name}" in path:
                return path
    raise DeviceError.at(
        "cuda", f"{name} is not loaded", "cuBLAS in addition to CuPy", "reinstall CuPy"
    )


def import_cupy() -> Any:
    """Import CuPy and look for a device.

    Raises: DeviceError, when one of them is missing; the text says which.
    """
    try:
        import cupy
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        raise DeviceError.at(
            "cuda",
            "CuPy is not installed" if missing else f"CuPy does not load: {first_line(error)}",
            "CuPy for the CUDA version of the driver",
            "pip install -e '.[cuda13]' in the checkout (or [cuda12]), or use device='cpu'",
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError.at(
            "cuda",
            f"no usable GPU: {first_line(error)}",
            "a CUDA device, and a driver as new as CuPy's CUDA",
            "update the driver, install the other of the extras cuda12 and cuda13, "
            "or use device='cpu'",
        ) from None
    if count == 0:
        raise DeviceError.at("cuda", "no GPU", "a CUDA device", "use device='cpu', or 'auto'")
    return cupy


def first_line(error: Exception) -> str:
    """Return the first line of an error's text that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line.strip("=")), type(error).__name__)


@cache
def driver() -> ctypes.CDLL:
    """Return the CUDA driver, which CuPy has loaded."""
    return ctypes.CDLL("libcuda.so.1")


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and up to 64 bytes of value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int * 16),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


def launch_config(blocks: int, shared: int, cluster: int, stream: int) -> LaunchConfig:
    """Return how to launch blocks of 256 threads together.

    Args:
        shared: bytes of each block; cluster: blocks of one, 1 for none.
    """
    config = LaunchConfig(blocks, 1, 1, 256, 1, 1, shared, stream)
    attributes = (LaunchAttribute * 2)(
        LaunchAttribute(COOPERATIVE, 0, (1,)), LaunchAttribute(CLUSTER, 0, (cluster, 1, 1))
    )
    config.attributes = ctypes.cast(attributes, ctypes.POINTER(LaunchAttribute))
    config.count = 2 if cluster > 1 else 1
    return config
