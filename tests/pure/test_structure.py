"""The package stays small in each of its parts; what is too large is listed, and lists only shrink.

`exceptions.toml` names every exception of today. A new one fails here, and so does a line of the
list that is no longer needed.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.package_source import (
    FILES,
    MODULES,
    PACKAGE,
    ROOT,
    Function,
    cycles,
    definitions,
    file_name,
    functions,
    imports,
    module_name,
)

LISTED: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "exceptions.toml").read_text(encoding="utf-8")
)

LINES = 60  # of a function, at most
PARAMETERS = 7
COMPLEXITY = 9
FILE_LINES = 400
DEVICE_LINES = 300  # of a file in C++ or CUDA
DEVICE_FILES = (".cuh", ".cu", ".h", ".cpp")

# Imported where they are used: not everybody has them, or they take long to import.
OPTIONAL = ("cupy", "cupy_backends", "dynet", "matplotlib", "mpi4py", "torch")
SLOW = ("networkx", "scipy", "threadpoolctl", "tqdm")

SOURCES = {path: path.read_text(encoding="utf-8") for path in FILES}
FUNCTIONS = [each for path in FILES for each in functions(SOURCES[path], file_name(path))]


def assert_listed(section: str, found: Iterable[str]) -> None:
    """Assert that a section of the list has what was found, nothing less and nothing more."""
    listed, names = set(LISTED[section]), set(found)
    assert names <= listed, f"new, [{section}] may not grow: {sorted(names - listed)}"
    assert listed <= names, f"no longer needed in [{section}]: {sorted(listed - names)}"


def test_every_exception_has_a_reason() -> None:
    for name, section in LISTED.items():
        if name != "complex-functions":
            assert all(isinstance(why, str) and len(why) > 3 for why in section.values()), name


def test_no_file_imports_itself_around_others() -> None:
    imported = {
        module_name(path): {
            target
            for _, target in imports(text, module_name(path), path.name == "__init__.py", MODULES)
            if target in MODULES
        }
        for path, text in SOURCES.items()
    }
    around = [" ".join(cycle).replace(f"{PACKAGE}.", "") for cycle in cycles(imported)]
    assert_listed("cycles", around)


def inside(function: Function) -> bool:
    """Tell whether a function imports what it could import at the top of its file."""
    return any(name.partition(".")[0] not in OPTIONAL + SLOW for name in function.imports)


def test_imports_in_functions_have_a_reason() -> None:
    assert_listed("imports-in-functions", (each.name for each in FUNCTIONS if inside(each)))


def test_no_class_name_occurs_twice() -> None:
    count = Counter(
        name.rpartition(".")[2]
        for text in SOURCES.values()
        for name, node in definitions(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    )
    assert_listed("class-names", (name for name, times in count.items() if times > 1))


def test_functions_are_short() -> None:
    assert_listed("long-functions", (each.name for each in FUNCTIONS if each.lines > LINES))


def test_functions_take_few_parameters() -> None:
    many = (each.name for each in FUNCTIONS if each.parameters > PARAMETERS)
    assert_listed("many-parameters", many)


def test_functions_branch_little() -> None:
    """Counted by file, and written down exactly, so that a count goes down with the code."""
    found = Counter(each.name.split()[0] for each in FUNCTIONS if each.complexity > COMPLEXITY)
    listed = Counter(LISTED["complex-functions"])
    more, less = found - listed, listed - found
    names = [each.name for each in FUNCTIONS if each.complexity > COMPLEXITY]
    grown = {file: [name for name in names if name.startswith(f"{file} ")] for file in more}
    assert not more, f"[complex-functions] may not grow: {grown}"
    assert not less, f"[complex-functions] has too many for {dict(less)}"


def test_files_are_short() -> None:
    found = [
        file_name(path)
        for path in sorted((ROOT / PACKAGE).rglob("*"))
        if path.suffix == ".py" or path.suffix in DEVICE_FILES
        if len(path.read_text(encoding="utf-8").splitlines())
        > (FILE_LINES if path.suffix == ".py" else DEVICE_LINES)
    ]
    assert_listed("long-files", found)


# What finds them.

SOURCE = '''
class A:
    def method(self, a, *b, c=1, **d):
        """Do."""
        import torch.nn
        def inner(x):
            from vertexrt.ir import ops
            return [y for y in x if y] or x and 1
        assert a
        return inner
'''


def test_a_function_is_measured() -> None:
    method, inner = functions(SOURCE, "file.py")
    assert method == Function("file.py A.method", 8, 4, 6, ("torch.nn", "vertexrt.ir")), (
        "in it, too, is what is inside"
    )
    assert inner == Function("file.py A.method.inner", 3, 1, 5, ("vertexrt.ir",))
    assert inside(inner)
    assert not inside(Function("", 1, 1, 1, ("torch.nn", "cupy")))


def test_a_cycle_is_found() -> None:
    imported = {"a": {"b", "x"}, "b": {"c"}, "c": {"a"}, "d": {"a", "d"}, "e": {"d"}}
    assert cycles(imported) == [["a", "b", "c"], ["d"]]


def test_the_list_may_neither_grow_nor_keep_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LISTED, "class-names", {"A": "to be renamed"})
    assert_listed("class-names", ["A"])
    with pytest.raises(AssertionError, match=r"may not grow: \['B'\]"):
        assert_listed("class-names", ["A", "B"])
    with pytest.raises(AssertionError, match=r"no longer needed in \[class-names\]: \['A'\]"):
        assert_listed("class-names", [])
