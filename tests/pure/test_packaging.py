"""A wheel holds every file that the package reads."""

import tomllib
from pathlib import Path

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
