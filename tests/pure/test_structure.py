"""The package stays small, and its files stay out of knots.

`tokens.toml` says how many tokens of code each folder may have. `exceptions.toml` names the knots
of today: a new one fails here, and so does a line of the list that is no longer needed.
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
    Function,
    cycles,
    definitions,
    file_name,
    functions,
    imports,
    module_name,
)
from tests.tokens import LIMITS, ROOT, count

LISTED: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "exceptions.toml").read_text(encoding="utf-8")
)

SLACK = 500  # tokens that a limit may be above what is there

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


@pytest.mark.parametrize("top", LIMITS)
def test_folders_are_within_their_tokens(top: str) -> None:
    found, limits = count(ROOT / top), Counter(LIMITS[top])
    assert set(found) == set(limits)
    above = found - limits
    assert not above, f"more than tokens.toml allows: {dict(above)}; see `python -m tests.tokens`"
    unused = {each: n for each, n in (limits - found).items() if n > SLACK}
    assert not unused, f"lower these limits of tokens.toml: {unused}"
