"""The form that all texts of errors have."""

from __future__ import annotations

import doctest
import re
from collections.abc import Callable

import pytest

from vertexrt.errors import VertexrtError

FORM = re.compile(r"\[[^\]]+\] .+; .+; .+", re.S)
FITS = doctest.OutputChecker()


def text_of(kind: type[VertexrtError], call: Callable[[], object]) -> str:
    """Return the text of an error, which must have the form of all errors."""
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    assert FORM.fullmatch(text), text
    return text


def refused(call: Callable[[], object], wanted: str) -> VertexrtError:
    """Return the error of a call, which must be what is wanted.

    Args:
        wanted: class and text, as a traceback ends; `...` stands for anything, as in doctest.
    """
    with pytest.raises(VertexrtError) as error:
        call()
    found = f"{type(error.value).__name__}: {error.value}"
    assert FORM.fullmatch(str(error.value)), found
    assert FITS.check_output(wanted, found, doctest.ELLIPSIS), found
    return error.value
