"""Settings of all tests: the IR is verified after every pass, as VERTEXRT_CHECK=1 asks for."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import scipy.linalg  # noqa: F401 (loads all BLAS libraries)
from threadpoolctl import threadpool_limits

from tests.devices import require
from vertexrt.cache.folders import folders
from vertexrt.config import config

os.environ.setdefault("VERTEXRT_CHECK", "1")

# Two processes share the cores: a second thread of BLAS, which waits in a loop for work, took four
# fifths of the CPU seconds of a test of products. Commands in processes of their own have theirs.
threadpool_limits(1)

# Compilers make objects by the million, and most of them stay. Looking for cycles among them after
# every 700 new ones took 5.5 s of 75 s, and takes 2.1 s so.
gc.set_threshold(50_000, 20, 100)

# Files that come first. The host's own code takes 45 s to compile: one process does it in the first
# file while the other runs those that compile nothing, or in folders of their own; else both did.
FIRST = (
    "test_agreement.py",
    "test_update_rules.py",
    "test_data_sets.py",
    "test_oracle.py",
    "test_cli_lines.py",
    "test_layers.py",
    "test_data_brackets.py",
    "test_cli_run_folder.py",
    "test_structure.py",
    "test_cache.py",
    "test_kept_code.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of FIRST in front, in its order; the others stay in theirs."""
    place = {name: k for k, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(FIRST)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
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
