"""CUDA sources are short, laid out as `.clang-format` says, and take what the host gives."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vertexrt.kernels.cuda import structs
from vertexrt.kernels.cuda.compile import FOLDER

MOST_LINES, MOST_COLUMNS = 500, 100
SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".cuh", ".cu"))


def test_there_are_sources() -> None:
    assert {path.suffix for path in SOURCES} == {".cuh", ".cu"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_sources_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").split("\n")
    assert len(lines) <= MOST_LINES
    wrong = [k for k, line in enumerate(lines, 1) if line != line.rstrip() or "\t" in line]
    assert not wrong, f"lines {wrong} of {path.name} have tabs or end with spaces"
    long = [k for k, line in enumerate(lines, 1) if len(line) > MOST_COLUMNS]
    assert not long, f"lines {long} of {path.name} have more than {MOST_COLUMNS} columns"


def test_sources_are_formatted() -> None:
    beside = Path(sys.executable).with_name("clang-format")
    tool = str(beside) if beside.exists() else shutil.which("clang-format")
    if tool is None:
        pytest.skip("clang-format is not installed; pip install -e '.[dev]'")
    command = [tool, "--dry-run", "--Werror", *map(str, SOURCES)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[:2000]


def test_structs_that_the_host_packs_are_declared_once() -> None:
    shared = set(re.findall(r"^struct (\w+) \{$", structs.header(), re.MULTILINE))
    assert "Orders" in shared
    for path in SOURCES:
        declared = re.findall(r"^struct (\w+) \{", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert shared.isdisjoint(declared), path.name
