"""Autodiff: every op on the way to a parameter or a pull has a vjp, or the function is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.runs import Way, assert_loss_gradients, assert_output_gradients
from vertexrt.errors import PlanError
from vertexrt.ir.autodiff import differentiate
from vertexrt.ir.builder import Builder
from vertexrt.ir.ops import OPS, ROWS
from vertexrt.ir.program import Program

MADE_BY_DF = {"nll_grad", "embed_grad", "outer", "sum_rows"}


class Around(vrt.VertexFunction):
    """A chain around one expression of a number and a vector that depend on parameters."""

    def __init__(self, body: Callable[[Around, Any, Any], Any]) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.body = body
        self.w = vrt.Parameter((3,), init=vrt.init.normal(0.7))
        self.u = vrt.Parameter((3, 3))
        self.s = vrt.Parameter((), init=vrt.init.ones)

    def forward(self) -> None:
        x = self.pull("x", shape=(3,)) + self.gather(0).h
        y = self.body(self, vrt.sum(self.w * x) + self.s, x)
        self.scatter(h=vrt.tanh(y))
        self.push("out", y)
        self.push("loss", vrt.sum(y * y))


def chain() -> vrt.GraphBatch:
    x = np.random.default_rng(4).normal(size=(4, 3))
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(4, {"x": x})])


@pytest.mark.parametrize(
    "body",
    [
        lambda f, s, x: x * 0.0 + s,  # simplified to the number, spread over a vector
        lambda f, s, x: s - x * 0.0,
        lambda f, s, x: (x * 0.0 + 1.0) * s,
        lambda f, s, x: s / (x * 0.0 + 1.0),
        lambda f, s, x: vrt.where(x * 0.0 + 1.0, s, x),
        lambda f, s, x: x * 0.0 + f.s,
        lambda f, s, x: vrt.concat((x * 0.0 + s)[1:], s * x[:1]),
        lambda f, s, x: x.builder.emit("matmul", f.u, x * s, transpose=True),
    ],
)
def test_what_runs_before_autodiff_makes_only_ops_with_a_vjp(body: Any) -> None:
    net = Way().compile(Around(body))
    assert_output_gradients(net, chain())
    assert_loss_gradients(net, chain())


def test_only_what_df_makes_has_no_vjp() -> None:
    inside = {row.name for row in ROWS if row.role not in ("leaf", "effect")}
    assert {row.name for row in ROWS if row.name in inside and row.vjp is None} == MADE_BY_DF


def logits_of_a_gradient(pulled: bool) -> Program:
    """Return F with an op that has no vjp between its push and a pull, or a parameter."""
    b = Builder(OPS)
    logits = b.emit("pull", name="x", shape=(4,), dtype="float")
    if not pulled:
        logits = logits * b.emit("param", name="w", shape=(4,))
    label = b.emit("pull", name="label", shape=(), dtype="int")
    d = b.emit("nll_grad", logits, label, b.emit("logsumexp", logits), b.const(1.0))
    b.emit("push", b.emit("reduce_sum", d), name="loss", shape=())
    return Program("F", tuple(b.nodes))


@pytest.mark.parametrize("pulled", [False, True])
def test_autodiff_refuses_an_op_without_a_vjp(pulled: bool) -> None:
    with pytest.raises(PlanError, match=r"a gradient comes to %\d+ = nll_grad.* an op with a vjp"):
        differentiate(logits_of_a_gradient(pulled), {"loss"}, {"x"})


def test_an_op_without_a_vjp_may_stand_where_no_gradient_is_wanted() -> None:
    program = logits_of_a_gradient(pulled=True)
    assert not differentiate(program, {"loss"}).find("pull_grad")
