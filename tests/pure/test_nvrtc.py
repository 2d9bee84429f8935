"""Which NVRTC compiles kernels: that of CuPy's version of CUDA, wherever it is installed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.pure.test_cuda_device import fake_cupy
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda import compile as compiler
from vertexrt.kernels.cuda.compile import load_nvrtc
from vertexrt.kernels.cuda.cupy_device import CupyDevice


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Let libraries of the installed packages be there, the system's not; list what is opened."""
    names: list[str] = []
    functions = {"nvrtcGetErrorString": SimpleNamespace(restype=None)}

    def load(name: str) -> Any:
        if "/" not in name:
            raise OSError(name)
        names.append(str(Path(name).relative_to(tmp_path)))
        return SimpleNamespace(**functions)

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "nvidia"
    package.mkdir()
    (package / "__init__.py").touch()
    load_nvrtc.cache_clear()
    yield names
    load_nvrtc.cache_clear()


def install(folder: Path, *names: str) -> None:
    """Put empty libraries into packages."""
    for name in names:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()


NVRTC_13, NVRTC_12 = "nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"


def test_nvrtc_is_of_the_version_of_cupy(opened: list[str], tmp_path: Path) -> None:
    """A driver for CUDA 12 does not take what the compiler of CUDA 13 makes."""
    install(tmp_path, NVRTC_13, NVRTC_12)
    for cuda in (13, 12, compiler.ANY):
        load_nvrtc(cuda)
    assert opened == [NVRTC_13, NVRTC_12, NVRTC_13]


def test_what_nvrtc_does_not_find_beside_it_is_loaded_first(
    opened: list[str], tmp_path: Path
) -> None:
    builtins = "nvidia/cu13/lib/libnvrtc-builtins.so.13.0"
    install(tmp_path, NVRTC_13)
    (tmp_path / builtins).touch()
    load_nvrtc(13)
    assert opened == [builtins, NVRTC_13]


@pytest.mark.usefixtures("opened", "cache_folder")
def test_nvrtc_of_another_version_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(tmp_path, NVRTC_13)
    fake_cupy(monkeypatch, version=12090)
    with pytest.raises(DeviceError) as raised:
        CupyDevice().load(["nothing"], np.dtype("float32"))
    assert str(raised.value) == (
        "[cuda] the compiler for kernels, NVRTC, is there as libnvrtc.so.13 only; libnvrtc.so.12, "
        "for CuPy's CUDA 12; pip install -e '.[cuda12]' in the checkout, or CuPy for the other "
        "version."
    )


@pytest.mark.usefixtures("opened")
def test_no_nvrtc_beside_cupy() -> None:
    with pytest.raises(DeviceError) as raised:
        load_nvrtc(12)
    assert str(raised.value) == (
        "[cuda] the compiler for kernels, NVRTC, is not installed; libnvrtc.so of CUDA 12; "
        "pip install -e '.[cuda12]' in the checkout."
    )
