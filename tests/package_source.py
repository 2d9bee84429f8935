"""The files of the package, read with `ast`: nothing is imported to look at it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "vertexrt"


def module_name(path: Path) -> str:
    """Name the module in a file: vertexrt/ir/ops.py is vertexrt.ir.ops."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted((ROOT / PACKAGE).rglob("*.py"))
MODULES = frozenset(module_name(path) for path in FILES)


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """Return the absolute name of what stands between `from` and `import`."""
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    drop = node.level - 1 if is_package else node.level
    if drop >= len(parts):
        raise ImportError(f"{module}:{node.lineno} imports from above the package")
    base = parts[: len(parts) - drop]
    return ".".join([*base, node.module] if node.module else base)


def imports(
    source: str, module: str, is_package: bool, modules: Collection[str]
) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) for every import in a source text.

    `from a import b` means the module a.b where there is one (`modules`), else a.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(node, module, is_package)
            for alias in node.names:
                member = f"{origin}.{alias.name}"
                yield node.lineno, member if member in modules else origin
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value
