"""Steps of several GPUs on real ones: with one there, with two, and over NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_parallel_devices import ADAM, SHARES, train
from tests.backend.test_parallel_step import assert_same_bits
from tests.devices import gpu
from tests.processes import together
from tests.shim_link import ThreadLink
from tests.train.cli_runs import ROOT
from tests.train.test_parallel_cli import free_port
from vertexrt.kernels.cuda.cupy_device import CupyDevice, import_cupy
from vertexrt.kernels.cuda.device import Array
from vertexrt.parallel import ProcessGroup

pytestmark = gpu


@pytest.fixture
def two_gpus() -> None:
    count = import_cupy().cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"{count} GPU, and two are needed")
    if find_spec("torch") is None:
        pytest.skip("PyTorch is not installed, whose gloo finds the processes")


def require_nccl() -> None:
    import_cupy()
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("CuPy finds no NCCL")


def test_nccl_of_one_process_hands_on_bytes() -> None:
    require_nccl()
    device = CupyDevice()
    link = device.link(device.new_link(), 0, 1)
    source, to = device.allocate(4096), device.allocate(4096)
    for byte, memory in ((7, source), (0, to)):
        device.clear(memory.address, 4096, byte)
    for _ in range(3):
        link.exchange([(0, (source.address, 4096))], [(0, (to.address, 4096))])
    found = device.pinned(4096)
    device.download(found, to.address)
    event = device.record()
    device.wait(event)
    assert device.has_come(event)
    assert link.failure() == ""
    assert (found == 7).all()
    assert len(device.place()) > 40
    link.abort()
    assert link.failure() != ""


class ByThreads(CupyDevice):
    """A GPU that is linked to itself, in other threads: NCCL refuses one GPU for two."""

    numbers = iter(range(-2, -1000, -1))

    def place(self) -> str:
        return f"{id(self)}"

    def new_link(self) -> Array:
        return np.full(129, next(self.numbers), np.int16)

    def link(self, number: Array, rank: int, size: int) -> Any:
        def read(address: int, size: int) -> bytes:
            found = self.pinned(size)
            self.download(found, address)
            self.wait(self.record())
            return found.tobytes()

        def write(address: int, content: bytes) -> None:
            source = self.pinned(len(content))
            source[:] = np.frombuffer(content, np.uint8)
            self.upload(address, source)
            self.wait(self.record())

        flag = self.pinned(8).view(np.int64)
        flag[:] = 0
        return ThreadLink(int(number[0]), (rank, size), (read, write), flag=flag)


@pytest.mark.parametrize(
    ("model", "optimizer", "rates", "options"),
    [
        ("tree-lstm", *ADAM, {"engine": "persistent"}),
        ("tree-lstm", "SGD", {"lr": 0.1}, {}),
        ("lstm-lm", *ADAM, {}),
        ("lstm-lm", "SGD", {"lr": 0.1}, {"engine": "persistent"}),
    ],
    ids=str,
)
def test_threads_on_one_gpu_give_the_same_bits(
    model: str, optimizer: str, rates: dict[str, float], options: dict[str, Any]
) -> None:
    def run(group: ProcessGroup | None) -> Any:
        return train(model, group, getattr(vrt, optimizer)(**rates), ByThreads(), **options)

    one, alone = run(ProcessGroup(shares=SHARES)), run(None)
    assert np.allclose(one.losses, alone.losses, rtol=1e-4)
    for found in together(2, lambda c: run(ProcessGroup(c, SHARES))):
        assert_same_bits(found, one)


def start(size: int, *words: str) -> list[subprocess.Popen[str]]:
    """Start processes as torchrun does."""
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port())}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu_process", *words],
            cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def outputs(processes: list[subprocess.Popen[str]]) -> list[str]:
    return [process.communicate(timeout=180)[0] for process in processes]


def test_two_gpus_give_the_bits_of_one(two_gpus: None, tmp_path: Path) -> None:
    require_nccl()
    for size in (1, 2):
        processes = start(size, str(tmp_path / str(size)), "cuda")
        texts = outputs(processes)
        assert [process.returncode for process in processes] == [0] * size, texts
        assert "host's memory" not in "".join(texts), "NCCL links them"
    one, *others = (np.load(tmp_path / f"{name}.npz") for name in ("1.0", "2.0", "2.1"))
    for other in others:
        for name in one.files:
            assert np.array_equal(one[name], other[name]), name


@pytest.mark.parametrize("exchange", [3, 4])
def test_a_process_that_ends_in_an_exchange_is_named(
    two_gpus: None, tmp_path: Path, exchange: int
) -> None:
    """Two are a step: it ends in either of the second step."""
    require_nccl()
    first, last = start(2, str(tmp_path / "lost"), "cuda", str(exchange))
    text, _ = outputs([first, last])
    assert (first.returncode, last.returncode) == (3, 1), text
    assert "process 1 of 2 has ended" in text
    assert float(text.rpartition("after ")[2].split()[0]) < 10.0
