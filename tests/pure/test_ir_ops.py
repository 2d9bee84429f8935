"""Every row of the op table: values and gradients by the oracle and by differences, and shapes.

The cases are small vertex functions, whose keys are ops that they have in F or in dF; that no op is
missing is itself a test. Shape rules are rows of text, in the words of the printer.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import agree
from tests.messages import table
from tests.runs import Way
from tests.strategies import CLASSES, MARK, WORDS, pulls_for
from vertexrt.engine.variant import Passes
from vertexrt.errors import PlanError
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.builder import Builder, ShapeError
from vertexrt.ir.ops import OPS, ROWS
from vertexrt.ir.program import Domain, Program, Type
from vertexrt.lower.lowering import lower
from vertexrt.lower.verify import verify

H = 4


class Case(vrt.VertexFunction):
    """Parameters to write one expression with, and state to gather."""

    def __init__(self, code: str) -> None:
        super().__init__(arity=2, state={"h": H})
        self.code = code
        shapes = (WORDS, H), (H, H), (CLASSES, H), (H,), ()
        self.embedding, self.w, self.v, self.b, self.s = map(vrt.Parameter, shapes)

    def forward(self) -> None:
        out = eval(self.code, {"vrt": vrt, "f": self, "H": H})
        fits = out.shape in ((), (H,))
        h = vrt.tanh(out + self.b) if fits else vrt.tanh(self.b * vrt.sum(out))
        self.scatter(h=h)
        self.push("out", out)
        self.push("loss", vrt.sum(h))

    @property
    def h(self) -> Any:
        """The state of the first child and half of the second's."""
        return self.gather(0).h + 0.5 * self.gather(1).h

    @property
    def kids(self) -> Any:
        return self.gather_all().h

    @property
    def word(self) -> Any:
        return vrt.embed(self.embedding, self.pull("word"))

    @property
    def mark(self) -> Any:
        return self.pull("mark", shape=(MARK,))


# Ops -> an expression that has them in F or in dF. H rows of state, MARK elements in a real pull.
CASES = table(__file__, "CASES")
# Forms that are simplified before autodiff, which may leave only ops with a vjp.
SIMPLIFIED = table(__file__, "SIMPLIFIED")


def batch() -> vrt.GraphBatch:
    """Two graphs with every kind of vertex: leaves, empty slots, a child twice, many parents."""
    lists = [[], [], [0, 1], [-1, 2], [3, -1], [4, 4], [5, 0], []]
    chain: list[list[int]] = [[], [0], [1]]
    graphs = []
    for k, (each, edges) in enumerate(((lists, 10), (chain, 2))):
        weights = {"weight": np.random.default_rng(edges).standard_normal(edges)}
        graphs.append(vrt.InputGraph.from_children(each, pulls_for(len(each), 8 + k), weights))
    return vrt.GraphBatch.from_graphs(graphs)


def test_every_op_has_a_case() -> None:
    assert {name for key in CASES for name in key.split()} == {row.name for row in ROWS}
    assert len(OPS) == len(ROWS)


@pytest.mark.parametrize("ops", [*CASES, *SIMPLIFIED])
def test_values_and_gradients_are_those_of_the_oracle(ops: str) -> None:
    """Which knows inference alone of dropout. The ops are in programs that can be lowered."""
    code, met = (CASES | SIMPLIFIED)[ops], set[str]()
    for way in (Way(), Way(passes=Passes(specialise=False))):  # which folds presence, for one
        judge = way if ops.startswith("dropout") else None
        net = agree(lambda: Case(code), batch(), way, judge)
        net(batch())
        for variant in net.executor.model.variants.values():
            for task in variant.tasks:
                met |= {node.op for node in task.program.nodes}
                verify(lower(task, variant.binding))
    assert ops in SIMPLIFIED or set(ops.split()) <= met | {"training"}  # which is a constant then


# An op, the types of its operands and its attributes -> the type that its rule gives; of vertices
# and real where nothing else is said.
ACCEPTED = table(__file__, "ACCEPTED")

# The same -> what the rule says that it expected.
REFUSED = table(__file__, "REFUSED")

# These take what they are given: leaves by declaration, effects, and what autodiff makes itself.
NOT_ASKED = {"nll_grad", "embed_grad"}


def result_of(call: str) -> Type:
    """Apply the shape rule of an op to types and attributes that are written as text."""
    name, operands, attributes = re.split(r"[()]", call, maxsplit=2)
    types = [
        Type(
            tuple(map(int, re.findall(r"\d+", axes))),
            "int" if word == "int" else "float",
            {"edge": Domain.EDGE, "param": Domain.PARAM}.get(word, Domain.VERTEX),
        )
        for word, axes in re.findall(r"(\w*)\[([\d,]*)\]", operands)
    ]
    attrs = {key: eval(value) for key, value in re.findall(r"(\w+)=(\S+)", attributes)}
    return OPS[name].shape(types, attrs)


@pytest.mark.parametrize("call", ACCEPTED)
def test_shape_rule_accepts(call: str) -> None:
    assert str(result_of(call)) == ACCEPTED[call]


@pytest.mark.parametrize("call", REFUSED)
def test_shape_rule_refuses(call: str) -> None:
    with pytest.raises(ShapeError, match=REFUSED[call]):
        result_of(call)


def test_every_rule_that_can_refuse_is_seen_to() -> None:
    refused = {OPS[call.partition("(")[0]].shape for call in REFUSED}
    for row in ROWS:
        asked = row.role != "leaf" and row.name not in NOT_ASKED
        assert row.shape in refused or not asked, row.name


def test_only_what_df_makes_has_no_vjp() -> None:
    inside = [row for row in ROWS if row.role not in ("leaf", "effect")]
    without = {row.name for row in inside if row.vjp is None}
    assert without == {"nll_grad", "embed_grad", "outer", "sum_rows"}


@pytest.mark.parametrize("pulled", [False, True])
def test_autodiff_refuses_an_op_without_a_vjp(pulled: bool) -> None:
    """Between a push and a parameter, or a pull whose gradient is wanted."""
    b = Builder(OPS)
    logits = b.emit("pull", name="x", shape=(4,), dtype="float")
    if not pulled:
        logits = logits * b.emit("param", name="w", shape=(4,))
    label = b.emit("pull", name="label", shape=(), dtype="int")
    d = b.emit("nll_grad", logits, label, b.emit("logsumexp", logits), b.const(1.0))
    b.emit("push", b.emit("reduce_sum", d), name="loss", shape=())
    program = Program("F", tuple(b.nodes))
    with pytest.raises(PlanError, match=r"a gradient comes to %\d+ = nll_grad.* an op with a vjp"):
        differentiate(program, {"loss"}, {"x"})
    if pulled:
        assert not differentiate(program, {"loss"}).find("pull_grad")
