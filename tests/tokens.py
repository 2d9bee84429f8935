"""Count tokens of code by folder: how much there is to understand, whatever the lines are.

`python -m tests.tokens` prints the counts beside what `tests/pure/tokens.toml` allows.
Comments, docstrings and blank lines count nothing; a string of several lines counts by its words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from tests.package_source import ROOT

LIMITS: dict[str, dict[str, Any]] = tomllib.loads(
    (ROOT / "tests/pure/tokens.toml").read_text(encoding="utf-8")
)
PYTHON, DEVICE = (".py", ".pyi"), (".cu", ".cuh", ".h", ".c", ".cpp")
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
DEVICE_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
DEVICE_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|'
    r"'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|\.?\d[\w.]*"
    r"|<<=|>>=|->|::|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|>>|\S"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def python_tokens(source: str) -> int:
    """Count the tokens of a Python text without its docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return sum(
        len(token.string.split()) if token.start[0] != token.end[0] else 1
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT
        if token.type != tokenize.STRING or token.start[0] not in docstrings
    )


def device_tokens(source: str) -> int:
    """Count the tokens of a text in C++, CUDA or LLVM IR."""
    return len(DEVICE_TOKEN.findall(DEVICE_COMMENT.sub(" ", source)))


def folder(path: Path, top: Path) -> str:
    """Name the folder that a file counts in: `kernels` has one for each device."""
    parts = path.relative_to(top).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] == ("kernels",) else 1]) or "."


def count(top: Path) -> Counter[str]:
    """Count the tokens below a folder, by the folders in it."""
    found: Counter[str] = Counter()
    for path in sorted(top.rglob("*")):
        if path.suffix in PYTHON + DEVICE:
            counted = python_tokens if path.suffix in PYTHON else device_tokens
            found[folder(path, top)] += counted(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Print the counts."""
    for name, limits in LIMITS.items():
        found = count(ROOT / name)
        for each, tokens in found.most_common():
            print(f"{name + '/' + each:<32}{tokens:>9}{limits.get(each, 0):>9}")
        print(f"{name:<32}{found.total():>9}{sum(limits.values()):>9}\n")


if __name__ == "__main__":
    main()
