"""Every row of the op table: code, gradients by differences, values by the oracle.

The cases are small vertex functions, one for each op; that none is missing is itself a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.fuzz import oracle
from tests.fuzz.compare import difference
from tests.fuzz.evaluate import OracleRun, PulledRows
from tests.runs import (
    Way,
    assert_loss_gradients,
    assert_output_gradients,
    cotangents,
    evaluate,
    use_of,
)
from tests.strategies import CLASSES, MARK, WORDS, pulls_for
from vertexrt.engine.variant import Passes
from vertexrt.ir.builder import Op
from vertexrt.ir.expressions import CUDA, evaluate_arrays, translate
from vertexrt.ir.ops import OPS, ROWS
from vertexrt.lower.lowering import lower
from vertexrt.lower.verify import verify

H = 4

Body = Callable[[Any, Any], Any]  # vertexrt or the oracle, and the function


def case(vrt: Any, body: Body, arity: int | None = 2) -> Any:
    """Make a vertex function around one expression, with vertexrt or with the oracle."""

    class Case(vrt.VertexFunction):
        """Parameters to write the expression with, and state to gather."""

        def __init__(self) -> None:
            super().__init__(arity=arity, state={"h": H})
            self.embedding = vrt.Parameter((WORDS, H))
            self.w = vrt.Parameter((H, H))
            self.v = vrt.Parameter((CLASSES, H))
            self.b = vrt.Parameter((H,))
            self.s = vrt.Parameter(())

        def forward(self) -> None:
            out = body(vrt, self)
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

        @property
        def logits(self) -> Any:
            return self.v @ self.h

    return Case()


# Op -> an expression that has it in F or in dF. H rows of state, MARK elements in a real pull.
CASES: dict[str, Body] = {
    "const": lambda vrt, f: f.b * 2.0,
    "arange": lambda vrt, f: (f.h + f.b)[vrt.argmax(f.h * f.b)] * f.b,
    "param": lambda vrt, f: f.b * f.s,
    "pull": lambda vrt, f: vrt.sum(f.mark) * f.b,
    "edge_pull": lambda vrt, f: vrt.sum(f.kids * f.edge("weight")) * f.b,
    "gather": lambda vrt, f: f.gather(1).h * f.b,
    "gather_all": lambda vrt, f: vrt.sum(f.kids) * f.b,
    "present": lambda vrt, f: f.present(1) * f.b,
    "has_pull": lambda vrt, f: f.mark * f.present("mark"),
    "degree": lambda vrt, f: vrt.mean(f.kids * f.b),
    "has_child": lambda vrt, f: vrt.sum(vrt.tanh(f.kids + f.b)),
    "loss_scale": lambda vrt, f: f.h * f.b,
    "weight": lambda vrt, f: f.w @ f.word + f.h * f.b,
    "seed": lambda vrt, f: f.b * f.b,
    "gather_parents": lambda vrt, f: vrt.sigmoid(f.h),
    "stored": lambda vrt, f: f.w @ f.word + f.h,
    "real": lambda vrt, f: f.logits[f.pull("label")] * f.b,
    "add": lambda vrt, f: f.h + f.s,
    "sub": lambda vrt, f: f.s - f.h,
    "mul": lambda vrt, f: f.h * f.b,
    "div": lambda vrt, f: f.h / (2.0 + f.b * f.b),
    "neg": lambda vrt, f: -f.h,
    "maximum": lambda vrt, f: vrt.maximum(f.h, f.b * f.s),
    "minimum": lambda vrt, f: vrt.minimum(f.h, f.b * f.s),
    "greater_equal": lambda vrt, f: vrt.maximum(f.h, f.b),
    "equal": lambda vrt, f: vrt.max(f.kids + f.b),
    "greater": lambda vrt, f: (f.h > f.b) * f.h + (f.h < f.s) * f.b,
    "not_equal": lambda vrt, f: (f.h != 0.0) * f.b,
    "straight_through": lambda vrt, f: vrt.sum(vrt.softmax(f.kids + f.b, axis="children") * f.b),
    "where": lambda vrt, f: vrt.where(f.present(0), f.h * f.b, f.b * f.b),
    "sigmoid": lambda vrt, f: vrt.sigmoid(f.h + f.b),
    "tanh": lambda vrt, f: vrt.tanh(f.h + f.b),
    "relu": lambda vrt, f: vrt.relu(f.h + f.b),
    "abs": lambda vrt, f: vrt.abs(f.h + f.b),
    "floor": lambda vrt, f: (3.0 * f.h) // 0.5 * f.b + f.h % 0.25,
    "softplus": lambda vrt, f: vrt.nn.softplus(f.h + f.b),
    "exp": lambda vrt, f: vrt.exp(f.h - f.b),
    "log": lambda vrt, f: vrt.log(1.5 + f.h * f.h),
    "sqrt": lambda vrt, f: vrt.sqrt(1.5 + f.h * f.h),
    "dropout": lambda vrt, f: vrt.random.dropout(f.h + f.b, 0.4),
    "dropout_by": lambda vrt, f: vrt.random.dropout(f.h + f.b, 0.4, per="graph"),
    "uniform": lambda vrt, f: vrt.clip(vrt.random.uniform(H), 0.25, 0.25) * f.h + f.b,
    "slice": lambda vrt, f: (f.h + f.b)[1:3],
    "concat": lambda vrt, f: vrt.concat(f.h[:1], f.b, f.mark),
    "to_edges": lambda vrt, f: vrt.sum(vrt.sigmoid(f.kids + (f.w @ f.word))),
    "reduce_sum": lambda vrt, f: vrt.sum(f.h * f.b),
    "reduce_max": lambda vrt, f: vrt.max(f.h + f.b),
    "spread": lambda vrt, f: vrt.sum(f.h) * f.b,
    "logsumexp": lambda vrt, f: vrt.logsumexp(f.h + f.b),
    "nll": lambda vrt, f: vrt.losses.cross_entropy(f.logits, f.pull("label")),
    "nll_grad": lambda vrt, f: vrt.losses.cross_entropy(f.v @ f.word, f.pull("label")),
    "segment_sum": lambda vrt, f: vrt.sum(f.kids * f.b),
    "segment_max": lambda vrt, f: vrt.max(vrt.sigmoid(f.kids * f.b)),
    "embed": lambda vrt, f: f.word * f.b,
    "embed_grad": lambda vrt, f: f.word,
    "matmul": lambda vrt, f: f.w @ (f.h + f.b),
    "outer": lambda vrt, f: f.w @ f.word,
    "sum_rows": lambda vrt, f: f.s * f.b,
    "scatter": lambda vrt, f: f.h,
    "push": lambda vrt, f: f.h,
    "scatter_child": lambda vrt, f: f.h * f.h,
    "scatter_children": lambda vrt, f: vrt.sum(f.kids * f.kids),
    "param_grad": lambda vrt, f: f.b,
    "keep": lambda vrt, f: f.w @ f.word + f.h,
    "pull_grad": lambda vrt, f: f.mark * f.s,
}


def batch() -> vrt.GraphBatch:
    """Two graphs with every kind of vertex: leaves, empty slots, a child twice, many parents."""
    lists = [[], [], [0, 1], [-1, 2], [3, -1], [4, 4], [5, 0], []]
    chain: list[list[int]] = [[], [0], [1]]
    return vrt.GraphBatch.from_graphs(
        [
            vrt.InputGraph.from_children(lists, pulls_for(len(lists), 8), weights(10)),
            vrt.InputGraph.from_children(chain, pulls_for(len(chain), 9), weights(2)),
        ]
    )


def weights(edges: int) -> dict[str, Any]:
    """Draw what edges pull."""
    return {"weight": np.random.default_rng(edges).standard_normal(edges)}


USES = ("gradients", "training", "inference")


def test_every_op_has_a_case() -> None:
    assert list(CASES) == [row.name for row in ROWS]
    assert len(OPS) == len(ROWS)


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_differences(name: str) -> None:
    """The op is in the task programs, these can be lowered, and gradients are right."""
    met: set[str] = set()
    for passes in (Passes(), Passes(specialise=False)):  # which folds presence, for one
        net = Way(passes=passes).compile(case(vrt, CASES[name]))
        if passes.specialise:
            assert_output_gradients(net, batch())
            assert_loss_gradients(net, batch())
        else:
            evaluate(net, batch())
        model = Way(passes=passes).model(case(vrt, CASES[name]))
        for use in USES if passes.specialise else ("gradients",):
            (run,) = model.prepare(use_of(use, model.function), batch())
            for task in run.variant.tasks:
                met |= {node.op for node in task.program.nodes}
                verify(lower(task, run.variant.binding))
    assert name in met


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_oracle(name: str) -> None:
    """Which shares no code with the package: the reference runs what all devices run."""
    net, whole = Way().compile(case(vrt, CASES[name])), batch()
    run = OracleRun(case(oracle, CASES[name]), children(whole), pulled(whole), net.parameters)
    outputs = net(whole)
    found = [difference(outputs[n], run.push(n), "float64", n) for n in run.pushes]
    if not name.startswith("dropout"):  # of which the oracle knows inference
        got = evaluate(net, whole)
        want = run.gradients(cotangents({n: value.shape for n, value in got.outputs.items()}))
        for mine, theirs in ((got.parameters, want.parameters), (got.pulled, want.pulled)):
            found += [difference(mine[n], theirs[n], "float64", n) for n in mine]
    assert not any(found), found


def children(whole: vrt.GraphBatch) -> list[list[int]]:
    """Return the slots of each vertex."""
    return [part.tolist() for part in np.split(whole.child, whole.child_ptr[1:-1])]


def pulled(whole: vrt.GraphBatch) -> dict[str, PulledRows]:
    """Return the pulls of a batch, as the oracle takes them."""
    found = {}
    for name, pull in (*whole.pulls.items(), *whole.edge_pulls.items()):
        if isinstance(pull, vrt.Rows):
            found[name] = PulledRows(pull.table, pull.index)
        elif pull.dtype.kind == "i":
            found[name] = PulledRows(None, pull)
        else:
            found[name] = PulledRows(pull, np.arange(len(pull), dtype=np.int32))
    return found


@pytest.mark.parametrize("row", [row for row in ROWS if row.scalar], ids=lambda row: row.name)
def test_scalar_expressions_are_rendered(row: Op) -> None:
    assert row.scalar is not None
    operands = [f"a{k}" for k in range(row.arity)]
    given = {f"x{k}": operand for k, operand in enumerate(operands)}
    text = translate(row.scalar, given | {"draw": "drawn"}, CUDA)
    names = set(re.findall(r"\b[a-z]\w*", text))
    read = operands[:1] if row.draws else operands
    assert set(read[row.name == "straight_through" :]) <= names
    assert not names & {"x0", "x1", "x2", "draw"}


FORMULAS: dict[str, Callable[..., Any]] = {
    "real": lambda x: x,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "greater": np.greater,
    "not_equal": np.not_equal,
    "straight_through": lambda x, value: value,
    "where": lambda mask, x, y: np.where(mask != 0, x, y),
    "sigmoid": lambda x: 0.5 * (1.0 + np.tanh(0.5 * x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
    "abs": np.abs,
    "floor": np.floor,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
}


SCALARS = {row.name: row for row in ROWS if row.scalar and not row.draws}


@pytest.mark.parametrize("row", SCALARS.values(), ids=SCALARS)
def test_scalar_expressions_mean_what_their_names_say(row: Op) -> None:
    rng = np.random.default_rng(3)
    operands = [np.abs(rng.standard_normal(50)).round(1) for _ in range(row.arity)]
    if row.name not in ("log", "sqrt", "div"):
        operands = [x - 0.7 for x in operands]
    elif row.name != "sqrt":
        operands = [x + 0.1 for x in operands]
    assert row.scalar is not None
    got = evaluate_arrays(row.scalar, {f"x{k}": x for k, x in enumerate(operands)})
    np.testing.assert_allclose(got, FORMULAS[row.name](*operands), rtol=1e-14)
