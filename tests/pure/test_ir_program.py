"""Autodiff, the printers (golden texts) and the verifier."""

from __future__ import annotations

from dataclasses import replace

import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.messages import table
from vertexrt.errors import PlanError
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.passes.place import place
from vertexrt.ir.passes.simplify import simplify
from vertexrt.ir.pretty import format_program
from vertexrt.ir.program import Program, Stage, Type
from vertexrt.ir.verify import verify


class Tiny(Declared, arity=1, state={"h": 2}, table=(7, 2), w=(2, 2)):
    """One product, one child."""

    def forward(self) -> None:
        x = vrt.embed(self.table, self.pull("word"))
        h = vrt.tanh(self.w @ self.gather(0).h + x)
        self.scatter(h=h)
        self.push("loss", vrt.losses.cross_entropy(h, self.pull("label")))


WITH_GRADIENT = table(__file__, "GOLDEN", "\n")["F and dF, placed"]


def test_golden_text_of_f_and_df_placed() -> None:
    placed = place(simplify(differentiate(Tiny().trace(), {"loss"})))
    assert format_program(placed, stages=True) == WITH_GRADIENT


# The verifier.


def broken(k: int, **changes: object) -> Program:
    """Return Tiny with something changed at node %k."""
    program = Tiny().trace()
    nodes = list(program.nodes)
    nodes[k] = replace(nodes[k], **changes)  # type: ignore[arg-type]
    return program.with_nodes(nodes)


BROKEN = table(__file__, "BROKEN")


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_program_is_refused(code: str) -> None:
    with pytest.raises(PlanError, match=BROKEN[code]) as error:
        verify(eval(f"broken({code})", {"broken": broken, "Type": Type}), "test")
    first, *shown = str(error.value).splitlines()
    assert first.startswith("[test] node %")
    assert [line[:2] for line in shown].count("> ") == 1


def test_a_stage_may_not_read_a_later_one() -> None:
    program = place(Tiny().trace())
    nodes = list(program.nodes)
    nodes[2] = replace(nodes[2], stage=Stage.LAZY)
    late = program.with_nodes(nodes)
    verify(late, "test")
    with pytest.raises(PlanError, match="node %6: runs in stage PATH and reads a later one"):
        verify(late, "test", placed=True)


def test_the_error_shows_the_neighbours() -> None:
    with pytest.raises(PlanError) as error:
        verify(broken(6, inputs=(5,)), "test")
    lines = str(error.value).splitlines()[1:]
    assert [line[:2] for line in lines] == ["  ", "  ", "> ", "  ", "  "]
    assert lines[2] == "> %6 = add(%5) : float[2]"
