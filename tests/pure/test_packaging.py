"""A wheel holds every file that the package reads, and two builds give the same bytes."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_an_editable_install_is_a_path() -> None:
    """Of an import hook, which setuptools makes without this, type checkers know nothing."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["build-system"]["build-backend"] == "setuptools.build_meta"
    assert settings["tool"]["setuptools"]["package-dir"] == {"": "."}
    assert (ROOT / "vertexrt" / "py.typed").is_file()


def test_a_source_distribution_can_be_tested() -> None:
    lines = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    grafted = {line.split()[1] for line in lines if line.startswith("graft ")}
    assert grafted >= {"tests", "docs", "benchmarks"}
    assert all((ROOT / folder).is_dir() for folder in grafted)


def test_every_file_of_the_package_is_in_a_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["*"]
    files = [
        path
        for path in (ROOT / "vertexrt").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    left_out = [
        path for path in files if path.suffix != ".py" and not any(map(path.match, patterns))
    ]
    assert not left_out
    assert {path.suffix for path in files} >= {".cu", ".cuh"}
    assert all((path.parent / "__init__.py").exists() for path in files)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a source distribution is not built again")
def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("build")
    pytest.importorskip("setuptools", minversion="77")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(ROOT / ".ci" / "build"), str(tmp_path), "--no-isolation"]
    run = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    wheel, source = (next(tmp_path.glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "vertexrt/hub.py" in names
    assert all(name.startswith("vertexrt") for name in names)
    with tarfile.open(source) as packed:
        members = packed.getmembers()
    assert len({member.mtime for member in members}) == 1
    assert {member.uid for member in members} == {0}
    assert f"{source.name.removesuffix('.tar.gz')}/tests/pure/test_packaging.py" in {
        member.name for member in members
    }
