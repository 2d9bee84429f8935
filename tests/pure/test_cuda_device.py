"""What is missing for `device="cuda"` is said in one line, and `auto` takes the CPU then."""

from __future__ import annotations

import ctypes
import itertools
import re
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.pure.test_cuda_compile import INDEXED_ARRAY
from tests.shim_streams import RECORD, WAIT
from vertexrt.engine.variant import Passes
from vertexrt.errors import DeviceError, UsageError
from vertexrt.kernels.cuda.compile import ALL_FIT, ONE_BLOCK, load_nvrtc
from vertexrt.kernels.cuda.compile_for_gpu import usable
from vertexrt.kernels.cuda.cupy_device import CupyDevice, import_cupy
from vertexrt.kernels.cuda.device import Calls, launch_error
from vertexrt.kernels.cuda.persistent import LITTLE_SPILLED
from vertexrt.models import TreeFC


class CUDARuntimeError(RuntimeError):
    """As CuPy's."""


class CUDADriverError(RuntimeError):
    """As CuPy's."""


class CUBLASError(RuntimeError):
    """As CuPy's."""


class OutOfMemoryError(MemoryError):
    """As CuPy's."""


def with_status(error: Any, status: int) -> Any:
    error.status = status
    return error


ORDER: list[tuple[str, int]] = []  # the streams that were asked for an event, and to wait for one
EVENTS = [
    RECORD(lambda event, stream: ORDER.append(("record", stream or 0)) or 0),
    WAIT(lambda stream, event, flags: ORDER.append(("wait", stream or 0)) or 0),
]


def fake_cupy(
    monkeypatch: pytest.MonkeyPatch,
    count: int = 1,
    error: str = "",
    capability: tuple[int, int] = (9, 0),
    version: int = 13000,
    driver: int = 13000,
) -> ModuleType:
    """Put a module in CuPy's place.

    Args:
        count: of devices; error: text of the one that counting them raises.
        capability: of the device; version: of CUDA, as CuPy was built for; driver: the newest
            that the driver knows.
    """

    def device_count() -> int:
        if error:
            raise CUDARuntimeError(error)
        return count

    major, minor = capability
    properties = {
        "name": b"Fake GPU",
        "major": major,
        "minor": minor,
        "multiProcessorCount": 4,
        "sharedMemPerBlockOptin": 227 << 10,
    }
    cupy: Any = ModuleType("cupy")
    cupy.__spec__ = ModuleSpec("cupy", None)
    cupy.cuda = SimpleNamespace(
        runtime=SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=device_count,
            getDeviceProperties=lambda number: properties,
            runtimeGetVersion=lambda: version,
            driverGetVersion=lambda: driver,
        ),
        driver=SimpleNamespace(CUDADriverError=CUDADriverError),
        memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        Device=lambda: SimpleNamespace(id=0, compute_capability=f"{major}{minor}"),
        Stream=lambda non_blocking: SimpleNamespace(ptr=next(address)),
        Event=lambda disable_timing: SimpleNamespace(ptr=next(address)),
    )
    address = itertools.count(64)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    cublas = SimpleNamespace(
        setStream=lambda handle, stream: ORDER.append(("cublas", stream)), CUBLASError=CUBLASError
    )
    for name in ("cupy_backends", "cupy_backends.cuda"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", SimpleNamespace(cublas=cublas))

    def calls(self: Any, precision: str, stream: Any) -> Calls:
        record, wait = (ctypes.cast(call, ctypes.c_void_p).value or 0 for call in EVENTS)
        return Calls(0, 0, 0, stream.ptr, stream.ptr, record=record, wait=wait)

    monkeypatch.setattr(CupyDevice, "_calls", calls)
    return cupy


def compiled(**options: Any) -> vrt.Network:
    return vrt.compile(TreeFC(vocab=4, hidden=4), **options)


def refused(**options: Any) -> str:
    """Return why a model is not compiled for a GPU."""
    with pytest.raises((DeviceError, UsageError)) as raised:
        compiled(**options)
    return str(raised.value)


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert refused(device="cuda") == (
        "[cuda] CuPy is not installed; CuPy for the CUDA version of the driver; "
        "pip install -e '.[cuda13]' in the checkout (or [cuda12]), or use device='cpu'."
    )
    assert not usable()
    assert compiled(device="auto").device == "cpu"
    assert compiled().device == "cpu"


def test_cupy_that_does_not_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "=====\\nlibcudart.so.13: cannot open shared object file\\nmore"
    (tmp_path / "cupy.py").write_text(f"raise ImportError('{text}')\n")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    got = refused(device="cuda")
    assert got.startswith("[cuda] CuPy does not load: libcudart.so.13: cannot open shared object")
    assert "\n" not in got


# Of a module in CuPy's place -> why it is not used.
UNUSABLE: list[tuple[dict[str, Any], str]] = [
    (
        {"error": "cudaErrorInsufficientDriver: CUDA driver version is insufficient"},
        "no usable GPU: cudaErrorInsufficientDriver: CUDA driver version is insufficient; a CUDA "
        "device, and a driver as new as CuPy's CUDA; update the driver, install the other of the "
        "extras cuda12 and cuda13, or use device='cpu'.",
    ),
    ({"count": 0}, "no GPU; a CUDA device; use device='cpu', or 'auto'."),
    (
        {"capability": (7, 5)},
        "Fake GPU has compute capability 7.5; 8.0 or more (Ampere); use device='cpu'.",
    ),
]


@pytest.mark.parametrize(("given", "text"), UNUSABLE)
def test_a_gpu_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], text: str
) -> None:
    fake_cupy(monkeypatch, **given)
    assert refused(device="cuda") == f"[cuda] {text}"
    assert not usable()
    assert compiled(device="auto").device == "cpu"


def test_streams_and_events_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream has calls of its own, and with them a handle of cuBLAS; the first is the main."""
    fake_cupy(monkeypatch)
    device = CupyDevice()
    assert device.lanes(1) == [device.calls]
    three = list(device.lanes(3))
    assert three[0] == device.calls
    assert len(set(three)) == 3
    assert device.lanes(2) == three[:2]
    assert device.lanes(3) == three
    streams = [each.stream for each in three]
    assert len({*device.events(4).tolist(), *device.events(2).tolist(), *streams}) == 9


def test_streams_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes on another stream waits for the one before; in order by itself, for nothing."""
    fake_cupy(monkeypatch)
    device = CupyDevice()
    own = device.calls.stream

    def asked(run: Callable[[], None]) -> list[tuple[str, int]]:
        ORDER.clear()
        run()
        return list(ORDER)

    def after(before: int, now: int) -> list[tuple[str, int]]:
        return [("record", before), ("wait", now)]

    assert asked(device.use) == []
    assert asked(lambda: device.follow_caller(0)) == after(0, own)
    assert asked(lambda: device.use(0)) == [*after(own, 0), ("cublas", 0)]
    assert device.calls.stream == 0
    assert device.lanes(2)[0] == device.calls
    for run in (device.use, device.follow_caller, device.lead_caller):
        assert asked(lambda run=run: run(0)) == []  # type: ignore[misc]
    assert asked(lambda: device.lead_caller(9)) == after(0, 9)
    assert asked(lambda: device.use(9)) == [*after(0, 9), ("cublas", 9)]
    assert asked(device.use) == [*after(9, own), ("cublas", own)]


def test_a_new_gpu_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, arch in (((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((10, 3), "sm_103")):
        fake_cupy(monkeypatch, capability=capability)
        assert usable()
        assert import_cupy().cuda.runtime.getDeviceCount() == 1
        assert CupyDevice().arch == arch


@pytest.mark.parametrize(("driver", "expected"), [(12000, 4096), (12010, 32764), (13000, 32764)])
def test_newer_drivers_take_more_arguments(
    monkeypatch: pytest.MonkeyPatch, driver: int, expected: int
) -> None:
    fake_cupy(monkeypatch, driver=driver)
    assert CupyDevice().argument_bytes() == expected


def test_a_driver_that_refuses_code(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy: Any = fake_cupy(monkeypatch)

    class Module:
        def load(self, content: bytes) -> None:
            raise CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image")

    cupy.cuda.function = SimpleNamespace(Module=Module)
    try:
        load_nvrtc(13)
    except DeviceError as error:
        pytest.skip(str(error))
    source = '#include "vertexrt.cuh"\nstruct Args { int n; };\nVRT_KERNEL(nothing, Args, 32) {}\n'
    with pytest.raises(DeviceError) as raised:
        CupyDevice().load([source], np.dtype("float32"))
    assert str(raised.value).startswith(
        "[cuda] the driver does not take code for sm_90a: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel "
        "image; a driver for CUDA 13 or newer; update the driver, or report this as a bug with "
    )
    assert str(raised.value).endswith(".cubin.")


def test_what_a_persistent_kernel_spills_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy(monkeypatch)
    try:
        load_nvrtc(13)
    except DeviceError as error:
        pytest.skip(str(error))
    device, real = CupyDevice(), np.dtype("float32")
    fitting = f"{ONE_BLOCK}\n{INDEXED_ARRAY.replace('512', '4').replace('511', '3')}"
    size, text = device.spills(ONE_BLOCK + INDEXED_ARRAY, real, lambda: [fitting])
    assert size == 2048
    assert text.startswith("[cuda] kernel indexed has 2048 bytes of stack")
    assert device.spills(fitting, real).bytes <= LITTLE_SPILLED
    slow = device.spills(ONE_BLOCK + INDEXED_ARRAY, np.dtype("float64"))
    assert slow == ALL_FIT, "whatever it spills"
    with pytest.raises(DeviceError, match="kernel indexed has 2048 bytes of stack"):
        device.load([INDEXED_ARRAY], real)


@pytest.mark.parametrize(
    ("code", "launch", "text"),
    [
        (1, 3, r"CUDA error 1 \(invalid value\) at launch 3, step 1; .*; report this as a bug."),
        (700, 3, r"CUDA error 700 \(illegal address\) at launch 3, .*; restart Python, since"),
        (10014, 0, "cuBLAS status 14 at launch 0, step 1; a launch that the device takes;"),
        (701, -1, r"CUDA error 701 \(too many resources\) at the end of the step;"),
        (2, 3, "no memory is left for launch 3, step 1; .*; take smaller batches, or end other"),
        (10003, 3, "no memory is left for launch 3, step 1;"),
    ],
)
def test_errors_of_launches_are_named(code: int, launch: int, text: str) -> None:
    got = str(launch_error(code, launch, 1))
    assert re.match(r"\[cuda\] " + text, got), got
    assert got.endswith(".")


NO_MEMORY = [
    with_status(CUDARuntimeError("cudaErrorMemoryAllocation: out of memory"), 2),
    with_status(CUDADriverError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), 2),
    with_status(CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED"), 1),
    with_status(CUBLASError("CUBLAS_STATUS_ALLOC_FAILED"), 3),
    OutOfMemoryError("Out of memory allocating 8 bytes"),
]
OTHER = [
    with_status(CUDARuntimeError("cudaErrorIllegalAddress: an illegal access"), 700),
    with_status(CUBLASError("CUBLAS_STATUS_EXECUTION_FAILED"), 13),
]
CALLS = {
    "memcpyAsync": "device.upload(0, np.zeros(8, np.uint8))",
    "memsetAsync": "device.clear(0, 8)",
    "eventRecord": "device.record(SimpleNamespace(ptr=0))",
    "memGetInfo": "device.free_bytes()",
}


@pytest.mark.parametrize("error", [*NO_MEMORY, *OTHER], ids=str)
@pytest.mark.parametrize("name", ["compile", *CALLS])
def test_errors_of_libraries_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    """Issue 52: out of memory at compile ended in a bare CUBLASError."""
    cupy: Any = fake_cupy(monkeypatch)

    def fails(*given: object) -> None:
        raise error

    if name == "compile":
        monkeypatch.setattr(CupyDevice, "_calls", fails)
        got = refused(device="cuda")
    else:
        device = CupyDevice()
        setattr(cupy.cuda.runtime, name, fails)
        with pytest.raises(DeviceError) as raised:
            eval(CALLS[name], {**globals(), "device": device})
        got = str(raised.value)
    if error in NO_MEMORY:
        assert got == (
            f"[cuda] no memory is left for what CUDA sets up ({error}); a little room in addition "
            "to what this process holds; take smaller batches, or end other processes on the "
            "device."
        )
    else:
        assert got == (
            f"[cuda] {error}; calls that CUDA takes, and kernels that end; report this as a bug; "
            "restart Python."
        )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"device": "cuda", "processors": 2, "engine": "batched"},
            "[compile] processors is 2 with engine='batched' on a GPU; processors with "
            "engine='persistent' or 'auto'; leave processors out.",
        ),
        (
            {"device": "cpu", "precision": "tf32"},
            "[compile] precision is 'tf32' with device='cpu', dtype float32; device='cuda' and "
            "float32; leave precision out.",
        ),
        (
            {"device": "cuda", "precision": "bf16", "dtype": "float64"},
            "[compile] precision is 'bf16' with device='cuda', dtype float64; device='cuda' and "
            "float32; leave precision out.",
        ),
        (
            {"device": "cuda", "precision": "bf16", "engine": "batched"},
            "[compile] precision is 'bf16' with engine='batched' on a GPU; engine='persistent', "
            "since rounding operands for cuBLAS costs more than it saves; take precision='tf32', "
            "or engine='persistent'.",
        ),
        (
            {"tune": True, "engine": "batched"},
            "[compile] tune is True with engine='batched'; True with engine='auto', or False; "
            "leave tune out.",
        ),
        *(
            (
                {"device": device, "passes": Passes(streams=streams), **more},
                f"[compile] Passes({text}",
            )  # type: ignore[arg-type]
            for device, streams, more, text in (
                ("cpu", 2, {}, "streams=2) with device='cpu'"),
                ("cuda", 2, {"engine": "persistent"}, "streams=2) with engine='persistent'"),
                ("cpu", 0, {}, "streams=0); 1 to 8"),
                ("cpu", 9, {}, "streams=9); 1 to 8"),
                ("cpu", "2", {}, "streams='2'); of type int"),
            )
        ),
        ({"tune": 1}, "[compile] tune is 1 with engine='auto'; True with engine='auto', or False;"),
        (
            {"device": "cuda", "precision": "tf23"},
            "[compile] precision is 'tf23'; one of float32, tf32, bf16; choose one of these. "
            "Nearest: 'tf32'",
        ),
        (
            {"device": "cude"},
            "[device] device is 'cude'; one of auto, cpu, cuda, reference; choose one of these. "
            "Nearest: 'cuda'",
        ),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], text: str) -> None:
    assert refused(**options).startswith(text)
