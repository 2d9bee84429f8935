"""The form that all texts of errors have."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from vertexrt.errors import VertexrtError

FORM = re.compile(r"\[[^\]]+\] .+; .+; .+", re.S)


def text_of(kind: type[VertexrtError], call: Callable[[], object]) -> str:
    """Return the text of an error, which must have the form of all errors."""
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    assert FORM.fullmatch(text), text
    return text
