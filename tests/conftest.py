"""Settings of all tests: the IR is verified after every pass, as VERTEXRT_CHECK=1 asks for."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import scipy.linalg  # noqa: F401 (loads all BLAS libraries)
from threadpoolctl import threadpool_limits

from tests.devices import NEEDED, require
from tests.runs import Way
from vertexrt.cache.folders import folders
from vertexrt.config import config
from vertexrt.native.load import machine

os.environ.setdefault("VERTEXRT_CHECK", "1")

# Two processes share the cores: a second thread of BLAS, which waits in a loop for work, took four
# fifths of the CPU seconds of a test of products. Commands in processes of their own have theirs.
threadpool_limits(1)

# Compilers make objects by the million, and most of them stay. Looking for cycles among them after
# every 700 new ones took 5.5 s of 75 s, and takes 2.1 s so.
gc.set_threshold(50_000, 20, 100)

# Files whose subject is what LLVM makes of a text: bits that are the same however rows are shared
# out, sums in vector lanes, loops of threads; and command lines, of which some have processes of
# their own. Other files run code without LLVM's passes, which are two thirds of the time to compile
# it. The cache keeps the two apart.
OPTIMISED = {
    "train",
    "test_agreement.py",
    "test_batches_again.py",
    "test_cpu_products.py",
    "test_float32_accuracy.py",
    "test_fuzz.py",
    "test_native.py",
    "test_parallel_devices.py",
    "test_persistent.py",
    "test_repeatability.py",
    "test_threads.py",
    "test_values.py",
}
WITHOUT_PASSES = mock.patch("vertexrt.native.load.SPEED_LEVEL", 0)
started: list[object] = []


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name ways in the names of tests."""
    return str(val) if isinstance(val, Way) else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what a test needs for what it runs on."""
    callspec = getattr(item, "callspec", None)
    for name in ("device", "kind", "name", "place", "way") if callspec else ():
        given = callspec.params.get(name)
        if mark := NEEDED.get(getattr(given, "device", given)):
            item.add_marker(mark)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Compile as the file of the test wants it; skip what needs a GPU where there is none."""
    if bool(started) == bool(OPTIMISED.intersection(item.path.parts)):
        if started:
            WITHOUT_PASSES.stop()
            started.clear()
        else:
            started.append(WITHOUT_PASSES.start())
        machine.cache_clear()
    if item.get_closest_marker("gpu"):
        require("cuda")


@pytest.fixture
def choices_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a cache folder without choices, in which compiled code is that of all tests."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    for kind in ("llvm", "cuda"):
        shared = folders(kind).write
        if shared is not None:
            (folder / kind).symlink_to(shared)
    yield from _use(folder, monkeypatch)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty cache folder of this process, as VERTEXRT_CACHE does."""
    yield from _use(tmp_path / "cache", monkeypatch)


def _use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("VERTEXRT_CACHE", str(folder))
    config.cache_clear()
    yield folder
    monkeypatch.undo()
    config.cache_clear()
