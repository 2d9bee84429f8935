"""Data moves one way: an import inside vertexrt that the layer table does not allow fails the test.

Imports are read with `ast`, so those inside functions, under TYPE_CHECKING and by
`importlib.import_module("...")` count as well. Nothing is imported to find them.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.messages import table
from tests.package_source import FILES, MODULES, PACKAGE, ROOT, imports, module_name

OUTSIDE = ("tests", "benchmarks")  # never imported by the package
GROUPS = table(__file__, "GROUPS")


def named(text: str) -> Iterator[str]:
    """Yield the layers that a line names, by themselves or as a group."""
    for word in text.split():
        if word in GROUPS:
            yield from named(GROUPS[word])
        else:
            yield "" if word == PACKAGE else word


LAYERS = {
    name.replace(PACKAGE, ""): (*named(text),) for name, text in table(__file__, "LAYERS").items()
}

# What `import vertexrt` must leave alone: it stays quick, and works without a GPU.
HEAVY = ("llvmlite", "scipy", "networkx", "cupy", "matplotlib", "mpi4py", "torch")


def layer_of(module: str) -> str | None:
    """Return the layer of a module of the package; None when the table has no row for it."""
    inside = module.removeprefix(PACKAGE).removeprefix(".")
    while inside and inside not in LAYERS:
        inside = inside.rpartition(".")[0]
        if f"{inside}.*" in LAYERS:
            return f"{inside}.*"
    return inside if inside or module == PACKAGE else None


def forbidden(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return one line of text for every import that the table does not allow."""
    own = layer_of(module)
    if own is None:
        return [f"{module} has no row in LAYERS"]
    found = []
    for line, target in imports(source, module, is_package, MODULES):
        top = target.partition(".")[0]
        if top in OUTSIDE:
            found.append(f"{module}:{line} imports {target}; nothing in the package may")
        if top != PACKAGE:
            continue
        layer = layer_of(target)
        if layer is None:
            found.append(f"{module}:{line} imports {target}; it has no row in LAYERS")
        elif layer != own and layer not in LAYERS[own]:
            allowed = ", ".join(name or PACKAGE for name in LAYERS[own]) or "nothing"
            found.append(f"{module}:{line} imports {target}; {own or PACKAGE} may import {allowed}")
    return found


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_table(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert forbidden(source, module_name(path), path.name == "__init__.py") == []


def test_table_has_no_cycle() -> None:
    placed: set[str] = set()
    for layer, allowed in LAYERS.items():
        assert placed.issuperset(allowed), f"'{layer}' may import a layer that stands below it"
        placed.add(layer)


def test_import_vertexrt_is_light() -> None:
    code = f"""
import sys
import vertexrt
vertexrt.GraphBatch.from_graphs([vertexrt.InputGraph.chain(4)])
print(sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_public_names_are_loaded_when_they_are_asked_for() -> None:
    """Loading NumPy takes a third of a second, in which the command line must answer Ctrl-C."""
    code = "import sys, vertexrt; print('numpy' in sys.modules, vertexrt.Adam.__name__)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout == "False Adam\n"
    import vertexrt

    assert sorted(vertexrt._HOMES) == sorted(set(vertexrt.__all__) - {"__version__"})
    assert all(getattr(vertexrt, name) is not None for name in vertexrt.__all__)


WRONG = (
    "from vertexrt.engine import run",
    "from .. import engine",
    "def f():\n    from vertexrt.api import Parameter",
    "import importlib\nimportlib.import_module('vertexrt.cli')",
    "from vertexrt.unheard import x",
    "import benchmarks.engines",
)


def test_a_wrong_arrow_is_found() -> None:
    for source in WRONG:
        assert len(forbidden(source, "vertexrt.ir.ops")) == 1
    assert not forbidden("from ..errors import x\nfrom vertexrt_like import x", "vertexrt.ir.ops")


def test_nothing_in_the_package_runs_a_module_of_the_tests_or_benchmarks() -> None:
    """As an import would be: by `python -m NAME`, for instance."""
    outside = re.compile(rf"({'|'.join(OUTSIDE)})(\.\w+)*")
    found = [
        f"{module_name(path)}:{node.lineno} names {node.value}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and outside.fullmatch(node.value)
    ]
    assert found == []
