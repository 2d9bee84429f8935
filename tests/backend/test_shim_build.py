"""The shim compiles a module once, and says what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.backend.test_cuda_shim import HEAD, sum_kernel
from tests.shim import build as shim
from vertexrt.errors import DeviceError


@pytest.mark.usefixtures("cache_folder")
def test_a_module_is_compiled_once() -> None:
    source = HEAD + sum_kernel("total")
    path = shim.library(source, [])
    written = path.stat().st_mtime_ns
    assert shim.library(source, []) == path
    assert path.stat().st_mtime_ns == written
    path.write_bytes(b"not a library")
    assert shim.library(source, []) == path
    assert path.read_bytes().startswith(b"\x7fELF")
    with pytest.raises(DeviceError) as raised:
        shim.library(HEAD + "int f() { return unheard; }", [])
    text = str(raised.value)
    assert text.startswith("[cuda shim] a kernel does not compile: kernels.cu:4:18: error: ")
    assert "unheard" in text


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    shim.compiler_command.cache_clear()
    try:
        assert not shim.available()
        with pytest.raises(DeviceError) as raised:
            shim.library("", [])
    finally:
        monkeypatch.undo()
        shim.compiler_command.cache_clear()
    assert str(raised.value) == (
        "[cuda shim] no C++ compiler is found; g++ or c++ on the PATH, or its name in CXX; "
        "install one, such as g++."
    )
