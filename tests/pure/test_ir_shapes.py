"""The shape rule of every row of the op table: what it takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from vertexrt.ir.builder import ShapeError
from vertexrt.ir.ops import OPS, ROWS
from vertexrt.ir.program import Domain, Type


def vertex(*shape: int) -> Type:
    return Type(shape)


def edge(*shape: int) -> Type:
    return Type(shape, "float", Domain.EDGE)


def param(*shape: int) -> Type:
    return Type(shape, "float", Domain.PARAM)


INT = Type((), "int")
TWO, THREE = vertex(2), vertex(3)

# Op -> operand types and attributes that it takes, and the type that it gives.
ACCEPTED: list[tuple[str, tuple[Type, ...], dict[str, Any], Type]] = [
    ("const", (), {"value": 1.0, "shape": (2,)}, param(2)),
    ("param", (), {"shape": (3, 2)}, param(3, 2)),
    ("pull", (), {"shape": (2, 3), "dtype": "float"}, vertex(2, 3)),
    ("pull", (), {"shape": (), "dtype": "int"}, INT),
    ("edge_pull", (), {"shape": (2,), "dtype": "float"}, edge(2)),
    ("gather", (), {"shape": (2,)}, TWO),
    ("gather_all", (), {"shape": (2,)}, edge(2)),
    ("add", (TWO, vertex()), {}, TWO),
    ("add", (param(2), param(2)), {}, TWO),
    ("mul", (edge(2), param()), {}, edge(2)),
    ("equal", (INT, INT), {}, vertex()),
    ("greater", (TWO, param()), {}, TWO),
    ("where", (vertex(), TWO, param()), {}, TWO),
    ("slice", (THREE,), {"start": 1, "shape": (2,)}, TWO),
    ("slice", (edge(3),), {"start": 2, "shape": ()}, edge()),
    ("concat", (TWO, THREE, param(1)), {"shape": (6,)}, vertex(6)),
    ("concat", (TWO, TWO), {"shape": (2, 2)}, vertex(2, 2)),
    ("spread", (vertex(),), {"shape": (4,)}, vertex(4)),
    ("to_edges", (TWO,), {}, edge(2)),
    ("segment_sum", (edge(2),), {}, TWO),
    ("segment_max", (edge(),), {}, vertex()),
    ("reduce_sum", (edge(2),), {}, edge()),
    ("reduce_max", (param(2),), {}, vertex()),
    ("logsumexp", (TWO,), {}, vertex()),
    ("nll", (THREE, INT, vertex()), {}, vertex()),
    ("nll_grad", (THREE, INT, vertex(), vertex()), {}, THREE),
    ("nll_grad", (param(3), INT, vertex(), param()), {}, THREE),
    ("embed", (param(7, 3), INT), {}, THREE),
    ("embed_grad", (INT, THREE), {"shape": (7, 3)}, param(7, 3)),
    ("matmul", (param(3, 2), TWO), {"transpose": False}, THREE),
    ("matmul", (param(3, 2), THREE), {"transpose": True}, TWO),
    ("matmul", (param(3, 2), edge(4, 2)), {"transpose": False}, edge(4, 3)),
    ("outer", (THREE, TWO), {}, param(3, 2)),
    ("outer", (edge(4, 3), edge(4, 2)), {}, param(3, 2)),
    ("sum_rows", (edge(2),), {}, param(2)),
    ("scatter", (TWO,), {"field": "h"}, Type((), "none")),
    ("push", (param(2),), {"name": "x"}, Type((), "none", Domain.PARAM)),
]

# Op -> operand types that it refuses, and what it says that it expected.
REFUSED: list[tuple[str, tuple[Type, ...], dict[str, Any], str]] = [
    ("add", (TWO, THREE), {}, "equal shapes, or a scalar with any shape"),
    ("mul", (TWO, INT), {}, "real operands"),
    ("real", (TWO,), {}, "an integer"),
    ("dropout_by", (TWO, TWO), {}, "an integer to draw by"),
    ("equal", (TWO, INT), {}, "real operands"),
    ("slice", (THREE,), {"start": 2, "shape": (2,)}, "elements 2..3 inside the operand"),
    ("slice", (TWO,), {"start": 0, "shape": (4,)}, "elements 0..3 inside the operand"),
    ("slice", (TWO,), {"start": 1, "shape": (0,)}, "at least one element"),
    ("concat", (TWO, THREE), {"shape": (4,)}, "of sizes that add up to the shape"),
    ("concat", (), {"shape": (4,)}, "at least one operand"),
    ("spread", (TWO,), {"shape": (4,)}, "a number to repeat"),
    ("to_edges", (edge(2),), {}, "a value per vertex"),
    ("segment_sum", (TWO,), {}, "a value per child, from gather_all"),
    ("segment_max", (vertex(),), {}, "a value per child, from gather_all"),
    ("reduce_sum", (vertex(),), {}, "a vector"),
    ("reduce_max", (INT,), {}, "real operands"),
    ("logsumexp", (vertex(),), {}, "a vector"),
    ("nll", (vertex(2, 2), INT, vertex()), {}, r"logits of shape \[C\]"),
    ("nll", (TWO, vertex(), vertex()), {}, "an integer label per vertex"),
    ("nll", (edge(2), INT, edge()), {}, "logits per vertex"),
    ("embed", (TWO, INT), {}, r"a parameter of shape \[N, E\]"),
    ("embed", (param(7, 3), vertex()), {}, "an integer pull as the index"),
    ("matmul", (TWO, TWO), {"transpose": False}, r"a parameter of shape \[M, N\]"),
    ("matmul", (param(3, 2), THREE), {"transpose": False}, r"a right operand of shape \[2\]"),
    ("matmul", (param(3, 2), TWO), {"transpose": True}, r"a right operand of shape \[3\]"),
    ("outer", (vertex(), TWO), {}, "two vectors"),
    ("outer", (vertex(4, 2), vertex(3, 2)), {}, "two stacks of as many rows"),
    ("sum_rows", (INT,), {}, "real operands"),
    ("push", (INT,), {"name": "x"}, "real operands"),
]

# These take what they are given: leaves by declaration, effects, and what autodiff makes itself.
NOT_ASKED = {"nll_grad", "embed_grad"}


@pytest.mark.parametrize(("name", "types", "attrs", "expected"), ACCEPTED)
def test_shape_rule_accepts(
    name: str, types: tuple[Type, ...], attrs: dict[str, Any], expected: Type
) -> None:
    assert OPS[name].shape(types, attrs) == expected


@pytest.mark.parametrize(("name", "types", "attrs", "text"), REFUSED)
def test_shape_rule_refuses(
    name: str, types: tuple[Type, ...], attrs: dict[str, Any], text: str
) -> None:
    with pytest.raises(ShapeError, match=text):
        OPS[name].shape(types, attrs)


def test_every_rule_that_can_refuse_is_seen_to() -> None:
    refused = {OPS[name].shape for name, *_ in REFUSED}
    for row in ROWS:
        asked = row.role != "leaf" and row.name not in NOT_ASKED
        assert row.shape in refused or not asked, row.name
