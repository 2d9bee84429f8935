"""The form that all texts of errors have, and tables of what is written and what is said of it."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from vertexrt.errors import VertexrtError

FORM = re.compile(r"\[[^\]]+\] .+; .+; .+", re.S)


def refused(call: Callable[[], object], wanted: str) -> VertexrtError:
    """Return the error of a call, which must be what is wanted.

    Args:
        wanted: class and text, as a traceback ends; `...` stands for anything, as in doctest.
    """
    with pytest.raises(VertexrtError) as error:
        call()
    found = f"{type(error.value).__name__}: {error.value}"
    assert FORM.fullmatch(str(error.value)), found
    fits = doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS)
    assert fits, found
    return error.value


def text_of(kind: type[VertexrtError], call: Callable[[], object]) -> str:
    """Return the text of an error of a class."""
    error = refused(call, "...")
    assert isinstance(error, kind)
    return str(error)


def table(file: str, name: str, between: str = " ") -> dict[str, str]:
    """Return a table of a test file, from the text beside it: what is written, what is said of it.

    The first is a line, the second the lines below it, which are indented; `#` begins a comment.

    Args:
        between: what joins these lines.
    """
    text = Path(file).with_suffix(".txt").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    written = ""
    for line in text.partition(f"== {name}\n")[2].partition("\n== ")[0].split("\n"):
        if line.startswith("    "):
            found[written].append(line[4:])
        elif line and not line.startswith("#"):
            assert line not in found, f"{line!r} twice in {name}"
            written = line
            found[written] = []
    assert found, f"no table {name} beside {file}"
    return {written: between.join(said) for written, said in found.items()}
