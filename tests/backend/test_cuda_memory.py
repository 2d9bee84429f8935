"""What a device has no room for, or refuses, is said; training goes on with what it takes."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_cuda import tree_lstm, trees
from tests.devices import shim
from tests.shim_device import ShimDevice, put_in_place
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.session import DeviceArena

pytestmark = shim
PLENTY = 1 << 30


def compiled(monkeypatch: pytest.MonkeyPatch, device: str, limit: int = PLENTY) -> vrt.Network:
    """Compile in float64, on a device with so many bytes if it is `cuda`."""
    put_in_place(monkeypatch, limit=limit)
    return vrt.compile(tree_lstm(), device=device, engine="batched", dtype="float64", seed=3)


def leave(net: vrt.Network, size: int) -> ShimDevice:
    """Let a network's device have so many bytes left."""
    device: ShimDevice = net.executor.session.device  # type: ignore[attr-defined]
    device.limit += size - device.free_bytes()
    return device


def test_auto_takes_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(monkeypatch, "auto").device == "cuda"


def test_a_batch_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text says how many graphs fit; after it, training goes on as if nothing had been."""
    here, there = (compiled(monkeypatch, device) for device in ("cuda", "reference"))
    limit = leave(here, 200_000).limit
    optimizers = [vrt.Adagrad(0.05) for _ in range(2)]
    for each, optimizer in zip((here, there), optimizers, strict=True):
        each.step(trees(3, 1), optimizer)
    with pytest.raises(DeviceError) as raised:
        here.step(trees(400), optimizers[0])
    found = re.fullmatch(
        r"\[cuda\] a batch of 400 graphs needs ([\d.]+) MiB; ([\d.]+) KiB are free; take batches "
        r"of about (\d+) graphs\.",
        str(raised.value),
    )
    assert found, raised.value
    needed, free, fits = float(found[1]) * 2**20, float(found[2]) * 2**10, int(found[3])
    assert 0 < free < limit < needed
    assert fits == pytest.approx(400 * free / needed, rel=0.1)
    for each, optimizer in zip((here, there), optimizers, strict=True):
        for k in (2, 3):
            each.step(trees(3, k), optimizer)
    losses = [n.step(trees(fits // 2), o) for n, o in zip((here, there), optimizers, strict=True)]
    assert losses[0] == pytest.approx(float(losses[1]), rel=1e-10)


def test_a_graph_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    net = compiled(monkeypatch, "cuda")
    leave(net, 500)
    with pytest.raises(
        DeviceError, match=r"a batch of 1 graph needs .* are free; take device='cpu'\."
    ):
        net(trees(1, 5))


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (9_000, r"\[cuda\] parameters take 18\.0 KiB; 8\.8 KiB are free; take a smaller model, or"),
        (27_000, r"\[cuda\] gradients take .*; take a smaller model, or device='cpu'\."),
    ],
)
def test_a_model_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, limit: int, text: str) -> None:
    with pytest.raises(DeviceError, match=text):
        compiled(monkeypatch, "cuda", limit)


def test_moments_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another optimizer, without moments, may still have room."""
    net = compiled(monkeypatch, "cuda")
    adam, plain = vrt.Adam(0.01), vrt.SGD(0.1)
    net.step(trees(1, 5), plain)
    leave(net, 36_000)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"\[cuda\] moments take .*; take SGD, or a smaller"):
            net.step(trees(1, 5), adam)
    assert adam.steps == 0
    assert np.isfinite(float(net.step(trees(1, 5), plain)))


def test_a_launch_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What such a step has left in the gradients is cleared before the next."""
    here, there = (compiled(monkeypatch, device) for device in ("cuda", "reference"))
    optimizers = [vrt.SGD(0.1), vrt.SGD(0.1)]
    device = here.executor.session.device  # type: ignore[attr-defined]
    good, asked = device.calls, 0

    def launch(*arguments: int) -> int:
        nonlocal asked
        asked += 1
        return int(real(*arguments)) if asked < 25 else 701

    words = [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *words)
    real, failing = kind(good.launch), kind(launch)
    here.step(trees(3, 1), optimizers[0])
    device.calls = replace(good, launch=ctypes.cast(failing, ctypes.c_void_p).value)
    with pytest.raises(DeviceError, match=r"\[cuda\] error 701 at launch [1-9]\d*, step \d+;"):
        here.step(trees(3, 2), optimizers[0])
    device.calls = good
    found = here.step(trees(3, 3), optimizers[0])
    for k in (1, 3):
        want = there.step(trees(3, k), optimizers[1])
    assert found == pytest.approx(float(want), rel=1e-10)
    assert optimizers[0].steps == 2
    for name, value in there.parameters.items():
        assert np.allclose(here.parameters[name], value, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize(("engine", "processors"), [("batched", None), ("persistent", 2)])
def test_memory_that_a_run_has_not_written_holds_no_number(
    monkeypatch: pytest.MonkeyPatch, engine: str, processors: int | None
) -> None:
    """Under VERTEXRT_CHECK=1, also where an earlier run has left numbers."""
    put_in_place(monkeypatch, limit=PLENTY)
    net = vrt.compile(
        tree_lstm(), device="cuda", engine=engine, processors=processors, dtype="float64", seed=3
    )
    net.step(trees(6, 1), vrt.SGD(0.1))
    session = net.executor.session  # type: ignore[attr-defined]
    many, end = DeviceArena(session), session.arena.size // 8
    before = np.isfinite(many[0:end]).sum()
    net(trees(1, 1))
    left = np.isfinite(many[0:end])
    assert not left[end // 2 :].any()
    assert 0 < left.sum() < before // 8


class LateDevice(ShimDevice):
    """A device that has read an upload only when an event behind it has been waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[np.ndarray] = []  # what the device may still read, from `arrived` on
        self.arrived, self.fails = 0, False

    def upload(self, to: int, source: np.ndarray) -> None:
        waiting = self.uploads[self.arrived :]
        assert not any(np.shares_memory(source, each) for each in waiting), "used too soon"
        self.uploads.append(source)
        super().upload(to, source)

    def record(self, event: Any = None) -> int:
        return len(self.uploads)

    def wait(self, event: Any) -> None:
        self.arrived = max(self.arrived, event or 0)

    def check(self, code: int, launch: int = -1, step: int = -1) -> None:
        if self.fails:
            raise DeviceError("a launch that fails")
        super().check(code, launch, step)


def test_a_buffer_waits_for_its_upload_also_if_the_launch_behind_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a failed run uploads may still be under way; the buffer it leaves from is in use."""
    device = LateDevice()
    put_in_place(monkeypatch, lambda: device)
    net, batch = vrt.compile(tree_lstm(), device="cuda", dtype="float64", seed=3), trees(3, 1)
    expected = net(batch)["logits"]
    for _ in range(3):
        net(batch)
    for device.fails in (False, True, False, True, True, False, False):
        if device.fails:
            with pytest.raises(DeviceError, match="a launch that fails"):
                net(batch)
        else:
            found = net(batch)
    assert np.array_equal(found["logits"], expected)
