"""The benchmark of requests checks what it times, on a CPU and, by the shim, as on a GPU."""

from __future__ import annotations

import time

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.lstm_inference import Recurrent
from benchmarks.requests import TimedDevice, check, main, report, subject_of, ways_of
from tests.devices import gpu, require, shim
from tests.shim_device import put_in_place

HIDDEN = 8


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu"),
        pytest.param("shim", marks=shim),
        pytest.param("cuda", marks=gpu),
    ],
)
def test_it_prints_every_way(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=1)
    device = "cuda" if device == "shim" else device
    main(["--device", device, "--hidden", str(HIDDEN), "--rounds", "1"])
    text = capsys.readouterr().out
    ways = ["graphs", "batch", "plan", "plan, last step"]
    if device == "cuda":
        ways += ["plan, arrays of the host", "batch, on the device"]
        assert "us over it" in text
    for way in ways:
        assert f"h    {HIDDEN} {way:25}" in text


def test_a_wrong_result_ends_it() -> None:
    net = vrt.compile(Recurrent(HIDDEN), device="cpu", threads=1)
    subject = subject_of(net, HIDDEN)
    ways = ways_of(subject)
    check(subject, ways)
    ways["wrong"] = lambda k: ways["plan"](k) + np.float32(1e-3)
    with pytest.raises(AssertionError, match="wrong: off by"):
        check(subject, ways)


def test_the_kernels_time_is_found_only_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    report(vrt.compile(Recurrent(HIDDEN), device="cpu", threads=1), HIDDEN, 1)
    assert "kernel" not in capsys.readouterr().out


class Slow:
    """A device whose launches, and what is asked of it for products, take PIECE seconds each."""

    PIECE = 0.003

    def arrays(self) -> object:
        return self

    @property
    def calls(self) -> str:
        time.sleep(self.PIECE)
        return "calls"

    def launch_all(self) -> int:
        time.sleep(self.PIECE)
        return 0


def test_a_request_of_several_launches_is_timed_with_the_products_between_them() -> None:
    device = TimedDevice(Slow())
    for _ in range(2):
        assert device.calls == "calls"
        for _ in range(2):
            assert device.launch_all() == 0
            assert device.calls == "calls"
        device.end_request()
    took = device.microseconds()
    assert took.shape == (2,)
    assert (took >= 4e6 * Slow.PIECE).all()  # not the products behind the last launch
