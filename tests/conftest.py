"""Settings of all tests: the IR is verified after every pass, as VERTEXRT_CHECK=1 asks for."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vertexrt.config import config

os.environ.setdefault("VERTEXRT_CHECK", "1")

# Compilers make objects by the million, and most of them stay. Looking for cycles among them after
# every 700 new ones took 5.5 s of 75 s, and takes 2.1 s so.
gc.set_threshold(50_000, 20, 100)


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give an empty cache folder of this process, as VERTEXRT_CACHE does."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VERTEXRT_CACHE", str(folder))
    config.cache_clear()
    yield folder
    monkeypatch.undo()
    config.cache_clear()
