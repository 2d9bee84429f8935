"""The form that all texts of errors have."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable

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
