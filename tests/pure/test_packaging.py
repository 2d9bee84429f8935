"""A wheel holds every file that the package reads."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
