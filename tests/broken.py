"""Broken on purpose: what a verifier accepts is changed, and it must say where and why it is wrong.

Tables of tests say what changes, as statements of NumPy about `words`, and how the text begins.
`accepted` changes every integer by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from vertexrt.errors import PlanError

Array = np.ndarray[Any, Any]
Check = Callable[[Array], None]


def refused(check: Check, words: Array, code: str, names: Mapping[str, Any], text: str) -> None:
    """Assert that words are refused once they are changed.

    Args:
        code: changes `words`; names: that it uses.
        text: how the error begins, a regex; all end alike.
    """
    words = words.copy()
    exec(code, {**names, "words": words})
    end = r".*; report this as a bug; engine='batched' goes on\.$"
    with pytest.raises(PlanError, match=rf"^\[script\] {text}{end}"):
        check(words)


def accepted(
    check: Check,
    words: Array,
    columns: Sequence[str],
    may_change: Callable[[Array, str, int], bool],
) -> list[tuple[tuple[int, ...], str, int]]:
    """Return the instructions of which a column may be one less, or one more, and must not be.

    Args:
        words: [..., columns], right.
        may_change: tells whether it says nothing; given the instruction, column and amount.
    """
    check(words)
    found = []
    for place in np.ndindex(words.shape[:-1]):
        for k, name in enumerate(columns):
            for amount in (-1, 1):
                if may_change(words[place], name, amount):
                    continue
                changed = words.copy()
                changed[(*place, k)] += amount
                try:
                    check(changed)
                except PlanError:
                    continue
                found.append((place, name, amount))
    return found
