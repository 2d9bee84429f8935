"""Passes that simplify, and that place; of others `test_decided.py` has what they decide."""

from __future__ import annotations

from typing import Any

import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.messages import table
from vertexrt.ir.builder import Builder
from vertexrt.ir.ops import OPS
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.simplify import ZERO_IF_ZERO, for_use, simplify
from vertexrt.ir.program import Node, Program, Stage
from vertexrt.ir.verify import verify

# Simplify.


def simplified(code: str) -> tuple[Node, ...]:
    """Build F around one pushed value, which a code emits; simplify it and return the nodes."""
    b = Builder(OPS)
    names: dict[str, Any] = {"emit": b.emit, "const": b.const}
    for name in "xy":
        names[name] = b.emit("pull", name=name, shape=(4,), dtype="float")
    names["i"] = b.emit("pull", name="i", shape=(), dtype="int")
    names["o"] = b.const(0.0, (4,))
    out = eval(code, names)
    b.emit("push", out, name="out", shape=out.shape)
    return verify(simplify(Program("F", tuple(b.nodes)))).nodes


SIMPLIFIED = table(__file__, "SIMPLIFIED")


@pytest.mark.parametrize("code", SIMPLIFIED)
def test_simplify_leaves(code: str) -> None:
    assert " ".join(n.op for n in simplified(code)) == SIMPLIFIED[code]


# Op -> it with a zero `o` [4] where it is zero with it; others take it alone.
ZEROS = table(__file__, "ZEROS")


@pytest.mark.parametrize("op", ZERO_IF_ZERO)
def test_zeros_are_propagated(op: str) -> None:
    """Each op of the table goes as soon as its operand is zero."""
    zero, push = simplified(ZEROS.get(op, f'emit("{op}", o)'))
    assert (zero.op, zero["value"], push.op) == ("const", 0.0, "push")
    assert zero.type.shape == push["shape"]


def test_inference_has_no_dropout() -> None:
    program = FUNCTIONS["dropout"][0]().trace()
    assert len(program.find("dropout")) == 4
    assert not for_use(program, False).find("dropout")


# Specialise, and place: products of a program, and of kinds of its vertices.


class Gates(vrt.VertexFunction):
    """Gates of a product of the input; one of them may be pushed."""

    def __init__(self, pushes: bool) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.pushes, self.w = pushes, vrt.Parameter((6, 2))

    def forward(self) -> None:
        a, b = vrt.split(self.w @ self.pull("x", (2,)), 2)
        if self.pushes:
            self.push("b", b)
        self.scatter(h=self.push("h", vrt.tanh(a * self.gather(0).h + b)))


@pytest.mark.parametrize("pushes", [False, True])
def test_the_path_takes_the_parts_of_what_comes_before_it_if_nothing_else_reads_them(
    pushes: bool,
) -> None:
    program = place(Gates(pushes).trace())
    stages = {n.op: n.stage for n in program.nodes}
    assert stages["matmul"] == Stage.EAGER
    assert stages["slice"] == (Stage.EAGER if pushes else Stage.PATH)
