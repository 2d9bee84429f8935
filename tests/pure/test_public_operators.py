"""Operators on what a forward computes with: odd operands give errors of ours."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.pure.test_public_calls import ODD, WithBody, attempt, values

BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.mod, operator.floordiv, operator.and_, operator.or_),
]
UNARY: list[Callable[[Any], object]] = [
    *(operator.neg, abs, float, int, len, bool, list, operator.invert, operator.index),
    *(np.asarray, np.tanh, np.sum, repr, str, hash),
]


@pytest.mark.filterwarnings("ignore")
def test_operators_on_what_a_forward_computes_with() -> None:
    def body(f: Any) -> None:
        made = values(f)
        for apply, x, y in itertools.product(BINARY, made, [*made, *ODD]):
            attempt(apply, x, y)
            attempt(apply, y, x)
        for apply, x in itertools.product(UNARY, made):
            attempt(apply, x)
        for x, key in itertools.product(made, ODD):
            attempt(operator.getitem, x, key)
            attempt(operator.contains, x, key)

    WithBody(body).trace()
