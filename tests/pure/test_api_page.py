"""docs/api.md is what its generator writes, has every public name, and runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import vertexrt as vrt

ROOT = Path(__file__).resolve().parents[2]

# Called by the engine, not by users.
WITHOUT_EXAMPLE = {
    "vrt.errors.VertexrtError.at",
    "vrt.errors.VertexrtError.moved",
}
# Classes of which users see objects that others make, or whose children they use; calls.
RETURNED = {
    "vrt.types.Checkpoint",
    "vrt.types.Gradients",
    "vrt.types.Loss",
    "vrt.Network",
    "vrt.Network.__call__",
    "vrt.types.Outputs",
    "vrt.types.Plan.__call__",
    "vrt.types.Record",
    "vrt.data.Dataset",
    "vrt.data.Embeddings",
    "vrt.data.Examples",
    "vrt.parallel.ProcessGroup",
}


@pytest.fixture(scope="module")
def make_api() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_its_generator_writes(make_api: ModuleType) -> None:
    written = make_api.PAGE.read_text(encoding="utf-8")
    assert written == make_api.page(), "run python docs/make_api.py"


def test_every_public_name_is_on_the_page(make_api: ModuleType) -> None:
    lines = set(make_api.PAGE.read_text(encoding="utf-8").split("\n"))
    modules = (*make_api.MODULES, "types")
    names = [f"vrt.{name}" for name in vrt.__all__ if name not in modules]
    for module in modules:
        names += [f"vrt.{module}.{name}" for name in getattr(vrt, module).__all__]
    missing = [name for name in names if f"### `{name}`" not in lines]
    assert not missing


def test_every_name_has_an_example(make_api: ModuleType) -> None:
    names = {entry.name for group in make_api.entries().values() for entry in group}
    shown = make_api.examples()
    assert names - set(shown) == WITHOUT_EXAMPLE
    assert set(shown) - names == {"given"}
    unnamed = {n for n in names & set(shown) if n.rpartition(".")[2] not in shown[n]}
    assert unnamed == RETURNED


def test_the_page_runs(
    make_api: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    page = make_api.PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.+?)```", page, flags=re.DOTALL)
    assert len(blocks) == len(set(make_api.examples().values()))
    names: dict[str, object] = {"__name__": "examples"}
    for number, block in enumerate(blocks):
        path = tmp_path / f"block_{number}.py"  # a file, so that messages can show its lines
        path.write_text(block, encoding="utf-8")
        exec(compile(block, str(path), "exec"), names)
