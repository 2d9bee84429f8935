"""Tests use vertexrt as others do: what reaches inside is listed, and the list only shrinks.

Three ways to reach inside are found: to replace a name of the package while a test runs, to import
a name with a leading underscore, and to use such an attribute of an object that is not the test's
own. To replace what is outside of the package (a call of the operating system, the modules that are
installed) is a way to make a fault, and so is a row of a public table, such as that of devices:
neither is listed.
"""

from __future__ import annotations

import ast

from tests.package_source import PACKAGE, ROOT
from tests.pure.test_structure import assert_listed

REPLACE = ("setattr", "delattr")  # of pytest's monkeypatch
# Of a NamedTuple and of the module `os`: underscores that are public.
# Of tuples, of `os`, and of PyTorch's modules, which other libraries set.
PUBLIC = ("_replace", "_asdict", "_fields", "_make", "_exit", "_parameters")


def origins(tree: ast.AST) -> dict[str, str]:
    """Return what each imported name stands for: name -> dotted name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found[name] = alias.name if alias.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def is_outside(target: ast.expr, imported: dict[str, str]) -> bool:
    """Tell whether an object whose attributes are replaced is a module outside of the package."""
    names = ast.unparse(target).split(".")
    origin = imported.get(names[0], "")
    return bool(origin) and origin.partition(".")[0] not in (PACKAGE, "tests", "benchmarks")


def inside(source: str) -> set[str]:
    """Name what a test file replaces, imports or uses of the inside of the package."""
    tree = ast.parse(source)
    imported, found = origins(tree), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= _imported(node)
        elif isinstance(node, ast.Attribute):
            found |= _used(node, imported)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found |= _replaced(node, imported)
    return found


def _of_package(name: str, imported: dict[str, str]) -> bool:
    return imported.get(name, "").partition(".")[0] == PACKAGE


def _imported(node: ast.ImportFrom) -> set[str]:
    """Return the private names of an import."""
    of_package = (node.module or "").partition(".")[0] == PACKAGE
    return {a.name for a in node.names if of_package and a.name.startswith("_")}


def _used(node: ast.Attribute, imported: dict[str, str]) -> set[str]:
    """Return an attribute that is private, or that is set on what was imported."""
    name = node.value.id if isinstance(node.value, ast.Name) else ""
    private = node.attr.startswith("_") and not node.attr.startswith("__")
    ours = name not in imported or _of_package(name, imported)
    if private and ours and name not in ("self", "cls") and node.attr not in PUBLIC:
        return {f".{node.attr}"}
    if isinstance(node.ctx, ast.Store) and _of_package(name, imported):
        return {f"{name}.{node.attr}"}
    return set()


def _replaced(node: ast.Call, imported: dict[str, str]) -> set[str]:
    """Return what `monkeypatch.setattr` replaces."""
    assert isinstance(node.func, ast.Attribute)
    if node.func.attr not in REPLACE or not node.args:
        return set()
    target, *rest = node.args
    if isinstance(target, ast.Constant):
        return {str(target.value)} if str(target.value).startswith(f"{PACKAGE}.") else set()
    if is_outside(target, imported):
        return set()
    name = rest[0].value if isinstance(rest[0], ast.Constant) else "*"
    return {f"{ast.unparse(target)}.{name}"}


def test_tests_do_not_reach_inside() -> None:
    found = set()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = path.relative_to(ROOT / "tests").as_posix()
        found |= {f"{file} {name}" for name in inside(path.read_text(encoding="utf-8"))}
    assert_listed("inside", found)
