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
CASES = {
    "param const push scatter seed loss_scale param_grad": "f.b * 2.0",
    "sum_rows mul": "f.b * f.s",
    "gather gather_parents scatter_child stored": "f.gather(1).h * f.b",
    "pull pull_grad reduce_sum spread": "vrt.sum(f.mark) * f.b",
    "edge_pull": 'vrt.sum(f.kids * f.edge("weight")) * f.b',
    "gather_all scatter_children segment_sum": "vrt.sum(f.kids * f.kids) * f.b",
    "degree": "vrt.mean(f.kids * f.b)",
    "has_child": "vrt.sum(vrt.tanh(f.kids + f.b))",
    "to_edges": "vrt.sum(vrt.sigmoid(f.kids + (f.w @ f.word)))",
    "segment_max": "vrt.max(vrt.sigmoid(f.kids * f.b))",
    "straight_through": 'vrt.sum(vrt.softmax(f.kids + f.b, axis="children") * f.b)',
    "present": "f.present(1) * f.b",
    "has_pull": 'f.mark * f.present("mark")',
    "embed embed_grad": "f.word * f.b",
    "weight outer keep": "f.w @ f.word + f.h",
    "matmul": "f.w @ (f.h + f.b)",
    "arange": "(f.h + f.b)[vrt.argmax(f.h * f.b)] * f.b",
    "real": '(f.v @ f.h)[f.pull("label")] * f.b',
    "nll nll_grad": 'vrt.losses.cross_entropy(f.v @ f.h, f.pull("label"))',
    "logsumexp": "vrt.logsumexp(f.h + f.b)",
    "reduce_max equal": "vrt.max(f.h + f.b)",
    "add": "f.h + f.s",
    "sub neg": "f.s - f.h",
    "div": "f.h / (2.0 + f.b * f.b)",
    "maximum greater_equal": "vrt.maximum(f.h, f.b * f.s)",
    "minimum": "vrt.minimum(f.h, f.b * f.s)",
    "greater": "(f.h > f.b) * f.h + (f.h < f.s) * f.b",
    "not_equal": "(f.h != 0.0) * f.b",
    "where": "vrt.where(f.present(0), f.h * f.b, f.b * f.b)",
    "sigmoid": "vrt.sigmoid(f.h + f.b)",
    "tanh": "vrt.tanh(f.h + f.b)",
    "relu": "vrt.relu(f.h + f.b)",
    "abs": "vrt.abs(f.h + f.b)",
    "floor": "(3.0 * f.h) // 0.5 * f.b + f.h % 0.25",
    "softplus": "vrt.nn.softplus(f.h + f.b)",
    "exp": "vrt.exp(f.h - f.b)",
    "log": "vrt.log(1.5 + f.h * f.h)",
    "sqrt": "vrt.sqrt(1.5 + f.h * f.h)",
    "dropout": "vrt.random.dropout(f.h + f.b, 0.4)",
    "dropout_by": 'vrt.random.dropout(f.h + f.b, 0.4, per="graph")',
    "uniform": "vrt.clip(vrt.random.uniform(H), 0.25, 0.25) * f.h + f.b",
    "slice": "(f.h + f.b)[1:3]",
    "concat": "vrt.concat(f.h[:1], f.b, f.mark)",
}
# Forms that are simplified before autodiff, which may leave only ops with a vjp.
SIMPLIFIED = {
    "a number is spread": "f.h * 0.0 + vrt.sum(f.b * f.h)",
    "a number less nothing": "vrt.sum(f.b * f.h) - f.h * 0.0",
    "ones times a number": "(f.h * 0.0 + 1.0) * vrt.sum(f.b * f.h)",
    "a number by ones": "vrt.sum(f.b * f.h) / (f.h * 0.0 + 1.0)",
    "always the first": "vrt.where(f.h * 0.0 + 1.0, vrt.sum(f.b * f.h), f.h)",
    "a parameter is spread": "f.h * 0.0 + f.s",
    "parts": "vrt.concat((f.h * 0.0 + vrt.sum(f.b * f.h))[1:], (f.s * f.h)[:1])",
    "a transpose": "f.w.T @ (f.h * f.s)",
}


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
    assert ops in SIMPLIFIED or set(ops.split()) <= met


# An op, the types of its operands and its attributes -> the type that its rule gives; of vertices
# and real where nothing else is said.
ACCEPTED = {
    "const() value=1.0 shape=2,": "param float[2]",
    "param() shape=3,2": "param float[3,2]",
    "pull() shape=2,3 dtype='float'": "float[2,3]",
    "pull() shape=() dtype='int'": "int[]",
    "edge_pull() shape=2, dtype='float'": "edge float[2]",
    "gather() shape=2,": "float[2]",
    "gather_all() shape=2,": "edge float[2]",
    "add([2], [])": "float[2]",
    "add(param[2], param[2])": "float[2]",
    "mul(edge[2], param[])": "edge float[2]",
    "equal(int[], int[])": "float[]",
    "greater([2], param[])": "float[2]",
    "where([], [2], param[])": "float[2]",
    "slice([3]) start=1 shape=2,": "float[2]",
    "slice(edge[3]) start=2 shape=()": "edge float[]",
    "concat([2], [3], param[1]) shape=6,": "float[6]",
    "concat([2], [2]) shape=2,2": "float[2,2]",
    "spread([]) shape=4,": "float[4]",
    "to_edges([2])": "edge float[2]",
    "segment_sum(edge[2])": "float[2]",
    "segment_max(edge[])": "float[]",
    "reduce_sum(edge[2])": "edge float[]",
    "reduce_max(param[2])": "float[]",
    "logsumexp([2])": "float[]",
    "nll([3], int[], [])": "float[]",
    "nll_grad([3], int[], [], [])": "float[3]",
    "nll_grad(param[3], int[], [], param[])": "float[3]",
    "embed(param[7,3], int[])": "float[3]",
    "embed_grad(int[], [3]) shape=7,3": "param float[7,3]",
    "matmul(param[3,2], [2]) transpose=False": "float[3]",
    "matmul(param[3,2], [3]) transpose=True": "float[2]",
    "matmul(param[3,2], edge[4,2]) transpose=False": "edge float[4,3]",
    "outer([3], [2])": "param float[3,2]",
    "outer(edge[4,3], edge[4,2])": "param float[3,2]",
    "sum_rows(edge[2])": "param float[2]",
    "scatter([2]) field='h'": "none[]",
    "push(param[2]) name='x'": "param none[]",
}

# The same -> what the rule says that it expected.
REFUSED = {
    "add([2], [3])": "equal shapes, or a scalar with any shape",
    "mul([2], int[])": "real operands",
    "real([2])": "an integer",
    "dropout_by([2], [2])": "an integer to draw by",
    "equal([2], int[])": "real operands",
    "slice([3]) start=2 shape=2,": "elements 2..3 inside the operand",
    "slice([2]) start=0 shape=4,": "elements 0..3 inside the operand",
    "slice([2]) start=1 shape=0,": "at least one element",
    "concat([2], [3]) shape=4,": "of sizes that add up to the shape",
    "concat() shape=4,": "at least one operand",
    "spread([2]) shape=4,": "a number to repeat",
    "to_edges(edge[2])": "a value per vertex",
    "segment_sum([2])": "a value per child, from gather_all",
    "segment_max([])": "a value per child, from gather_all",
    "reduce_sum([])": "a vector",
    "reduce_max(int[])": "real operands",
    "logsumexp([])": "a vector",
    "nll([2,2], int[], [])": r"logits of shape \[C\]",
    "nll([2], [], [])": "an integer label per vertex",
    "nll(edge[2], int[], edge[])": "logits per vertex",
    "embed([2], int[])": r"a parameter of shape \[N, E\]",
    "embed(param[7,3], [])": "an integer pull as the index",
    "matmul([2], [2]) transpose=False": r"a parameter of shape \[M, N\]",
    "matmul(param[3,2], [3]) transpose=False": r"a right operand of shape \[2\]",
    "matmul(param[3,2], [2]) transpose=True": r"a right operand of shape \[3\]",
    "outer([], [2])": "two vectors",
    "outer([4,2], [3,2])": "two stacks of as many rows",
    "sum_rows(int[])": "real operands",
    "push(int[]) name='x'": "real operands",
}

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
