"""Mistakes in F and in options: each text says what was got, what was expected and what to do."""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.messages import text_of
from vertexrt.errors import (
    DeviceError,
    TraceError,
    UsageError,
    VertexrtError,
)


class F(vrt.VertexFunction):
    """A vertex function whose forward is given."""

    def __init__(self, body: Callable[[Any], None], arity: int | None = 2) -> None:
        super().__init__(arity=arity, state={"c": 3, "h": 3})
        self.body = body
        self.w = vrt.Parameter((4, 3))
        self.b = vrt.Parameter((3,))
        self.t3 = vrt.Parameter((2, 3, 3))

    def forward(self) -> None:
        self.body(self)

    def done(self, value: Any = 0.0) -> None:
        """Scatter and push something, so that nothing else is missing."""
        self.scatter(c=self.b * 1.0, h=self.b * 1.0)
        self.push("out", value)


NAMES = {"math": math, "np": np, "operator": operator, "vrt": vrt, "F": F}

# What is written in forward() of `f`, and what is said of it; in brackets, where.
MISTAKES: dict[str, str] = {
    # scatter
    "f.scatter(c=f.b * 1.0)": "[scatter] fields ['c']",
    "f.scatter(c=f.b * 1.0, x=f.b)": "[scatter] the declared state ['c', 'h']",
    "f.scatter(c=f.w @ f.b, h=f.b * 1.0)": "[scatter] field 'c' has shape [4]",
    "f.scatter(c=f.b, h=0.5)": "[scatter] field 'h' has shape []",
    "(f.done(), f.done())": "[scatter] called a second time",
    'f.push("out", f.b)': "[scatter] forward() does not scatter",
    "f.scatter(c=f.gather_all().c, h=f.b)": "[scatter] 'c' is a value per child",
    # gather
    "f.gather(2)": "[gather] slot 2",
    "f.gather(-1)": "[gather] F declares slots 0..1",
    # push
    '(f.done(), f.push("out", f.b))': "[push] name 'out' a second time",
    'f.push("loss", f.b)': "[push] the loss has shape [3]",
    'f.push("each", f.gather_all().h)': "[push] 'each' is a value per child",
    "f.scatter(c=f.b * 1.0, h=f.b * 1.0)": "[push] forward() pushes nothing",
    # pull, present
    'f.pull("x", dtype="double")': "[pull] dtype 'double' of 'x'",
    'f.pull("x", dtype="int")': "[pull] pull_index and edge_index read integers",
    '(f.pull("x", shape=(2)), f.pull("x", shape=(3)))': "[pull] 'x' of shape [3]",
    '(f.pull("i") * 2.0, vrt.losses.cross_entropy(f.b * 1.0, f.pull("i")))': (
        "[pull] 'i' is used as a number and as an index"
    ),
    'f.present("x")': "[present] pull 'x'",
    "f.present(2)": "[present] slot 2",
    '[f.pull(f"p{k}") for k in range(31)]': "[pull] at most 30 names",
    # shapes
    'f.b + f.pull("x", shape=(4))': "[add] operands are param float[3], float[4]",
    'f.w @ f.pull("x", shape=(4))': "[matmul] a right operand of shape [3]",
    "f.w @ f.w": "[matmul] a right operand of shape [3]",
    "f.b @ f.b": "[matmul] a parameter of shape [M, N]",
    'f.b[f.pull("x", dtype="float")]': "[index] an integer pull, or a number that is",
    "f.b[f.b]": "[slice] of a value of shape",
    'vrt.argmax(f.pull("x"))': "[argmax] a vector",
    'vrt.losses.multi_margin_loss(f.pull("x"), f.pull("i"))': "[multi_margin_loss] a vector",
    'vrt.losses.hinge_loss(f.b, f.pull("x"))': "[hinge_loss] shapes [3] and []",
    'vrt.losses.cross_entropy(f.b, f.pull("i"), 2.0)': "[cross_entropy] label_smoothing is 2.0",
    'vrt.losses.cross_entropy(f.b, f.pull("i"), weights=[1, 2])': (
        "[cross_entropy] weights of shape [2]"
    ),
    'vrt.embed(f.b, f.pull("i"))': "[embed] a parameter of shape [N, E]",
    "vrt.embed(f.w, f.b)": "[embed] an integer pull as the index",
    "vrt.losses.cross_entropy(f.b, 1)": "[cross_entropy] an integer label per vertex",
    'vrt.losses.cross_entropy(f.w @ f.gather_all().h, f.pull("i"))': "[cross_entropy] per",
    'vrt.softmax(f.pull("x"))': "[softmax] a vector",
    'vrt.sum(f.pull("x"))': "[sum] a vector",
    # what a reduction goes over
    "vrt.softmax(f.gather_all().h)": "[softmax] a value per child",
    "vrt.softmax(f.gather_all().h[0])": "[softmax] write vrt.softmax(x, axis='children')",
    "vrt.log_softmax(f.gather_all().h)": "[log_softmax] axis='children' or axis=",
    "vrt.logsumexp(f.gather_all().h)": "[logsumexp] axis='children' or axis='elements'",
    'vrt.softmax(f.b, axis="children")': "[softmax] axis='children' of a value per vertex",
    'vrt.sum(f.b, axis="children")': "[sum] read the children by gather_all",
    'vrt.mean(f.b, axis="child")': "[mean] 'children' or 'elements'",
    "vrt.max(f.gather_all().h, axis=0)": "[max] axis=0",
    'vrt.sum(f.gather_all().h[0], axis="elements")': "[sum] a vector",
    # nothing is repeated to fit a target
    'vrt.losses.squared_error(f.b, f.pull("x"))': "[squared_error] shapes [3] and []",
    'vrt.losses.squared_error(f.pull("x"), f.b)': "[squared_error] shapes [] and [3]",
    "vrt.split(f.b, 2)": "[split] shape [3] in 2 parts",
    "vrt.concat(f.b, 1.0)": "[concat] operands of shapes [[3], []]",
    "f.b[3]": "[slice] element 3 of 3",
    "f.b[2:1]": "[slice] at least one element",
    "f.b[::2]": "[slice] a step-1 slice",
    "f.w[4]": "[slice] 4 of Parameter('w', (4, 3))",
    "f.w[::2]": "[slice] w[a:b], or w[k]",
    "f.w[2:2]": "[slice] some of 4 rows",
    "f.w.reshape(5, 3)": "[reshape] positive numbers whose product is 12",
    "f.w.reshape(2, 2, 3) + 1.0": "[Parameter] write w[k]",
    "f.w[0] @ f.b": "[matmul] a parameter of shape [M, N]",
    "vrt.nn.block_diagonal(f.w, f.b)": "[block_diagonal] shapes [4, 3] and [3]",
    # Python
    "f.done() if f.b * 1.0 else None": "[trace] the truth of a traced value",
    "f.b > 0.0 and f.b < 1.0": "[trace] multiply by a comparison",
    "max(f.b[0], f.b[1])": "[trace] vrt.maximum",
    "np.tanh(f.b)": "[numpy] np.tanh of a traced value",
    "np.concatenate([f.b, f.b])": "[numpy] write vrt.concat",
    "math.exp(f.b[0])": "[float] vrt.exp for math.exp",
    "len(f.b)": "[len] write x.shape[0]",
    "[x * 2.0 for x in f.b]": "[trace] vrt.split for parts",
    "operator.iadd(f.b, 1.0)": "[in-place arithmetic] write b = self.b + x",
    "operator.setitem(f.b * 1.0, 0, 1.0)": "values do not change",
    "(f.b * 1.0).sum()": "[trace] .sum of a traced value",
    "f.b.mean()": "[trace] values have a shape and no methods",
    "round(f.b[0])": "[round] vrt.floor",
    'f"{f.b[0]:.2f}"': "[format] there is no number yet",
    "f.b @ f.w": "[matmul] write w.T @ x",
    "(f.b * 1.0) @ f.w": "[matmul] write w.T @ x",
    "vrt.where(f.gather_all().h > 0.0, 1.0, f.w)": "[where] equal shapes",
    'f.gather_all().h + f.pull("x", shape=(2))': "[add] edge float[3], edge float[2]",
    'f.done(vrt.softmax(f.gather_all().h, axis="children"))': "[push] per child",
    '(f.b * 1.0) ** "3"': "[pow] exponent is a str",
    "f.b + np.ones(3)": "[trace] an operand is a ndarray",
    'f.b + "1"': "[trace] an operand is a str",
    "f.b + vrt.Parameter((3))": "[trace] a parameter of shape (3,) has no name",
    "vrt.random.dropout(f.b, 1.0)": "[dropout] p is 1.0",
    'vrt.random.dropout(f.b, 0.5, per="batch")': "[dropout] 'vertex' or 'graph'",
    "vrt.random.uniform(-1)": "[uniform] shape -1",
    "vrt.random.normal(3, f.gather_all().h, f.w)": "[mul] equal shapes",
    # other libraries, products, and the way that works (test_ways_to_multiply)
    "f.gather(0).x": "field 'x' at",
    "vrt.tanh(f.gather(0))": "write .c after gather()",
    "sum([f.gather(0)])": "a whole state is used as a value",
    "vrt.exp(f.w) @ f.b": "a left operand that is a traced value (Value(exp: float[4,3]))",
    "(f.b * 1.0) @ f.b": "vrt.sum(x * y) is the dot",
    "np.ones((4, 3)) @ f.b": "an operand is a ndarray",
    "[1.0] @ f.b": "make the matrix a vrt.Parameter",
    "f.b * np.ones(3)": (
        "self.c = vrt.Parameter(shape, lambda shape, random: array, trainable=False)"
    ),
    'f.b * float("-inf")': "such as -1e30",
    "(f.b > 0) & (f.b < 1)": "multiply the masks",
    "1 if f.b > 0 else 2": "multiply by a comparison",
    "f.b in [f.b * 1.0]": "objects are compared by `is`",
    'f.pull_index("i") == 0.5': "an integer pull and 0.5",
    "F(F.done).gather(0)": "F.gather in the forward() of another function",
    "np.sum(f.b)": "[numpy] np.sum of a traced value at mistake.py:1",
    "np.where(f.b > 0, f.b, 0)": "write vrt.where(mask, x, y).",
    "(f.b * 1.0).view(-1)": "values are of one vertex and have no batch",
    "(f.b * 1.0).detach()": "write vrt.stop_gradient(x).",
    "f.b[0].item()": "self.push(name, x), then net(batch)[name].",
    "f.w.data": "write net.parameters[name]",
    "vrt.sum([f.b, f.b])": "join them by vrt.concat(x, y)",
    "f.b + None": "an operand is a NoneType",
    "vrt.sum(f.b, axis=-1)": "or leave axis out: values",
    "vrt.sum(f.b[0])": "[sum] a number at",
    "vrt.softmax(f.b[0])": "[softmax] a number at",
    'vrt.losses.cross_entropy(f.pull("y"), f.b)': "[cross_entropy] operands are float[]",
    "vrt.random.normal(0, 1)": "[normal] shape 0 at",
    '(f.push("loss", f.b[0]), f.push("loss", f.b[1]))': (
        "add them, and push the sum: only 'loss' is minimised."
    ),
    "(f.w @ f.w) @ f.b": "a vector first: w1 @ (w2 @ x).",
    "vrt.tanh(f.w) @ f.b": "vrt.stack(*(vrt.dot(vrt.tanh(w[k]),",
    "(f.w * f.w) @ f.b": "compute with its rows, one by one",
    'f.t3[f.pull("k")] @ f.b': "sum((index == k) * (w[k] @ x)",
    'vrt.embed(f.t3, f.pull("k"))': "sum((index == k) *",
    "f.t3 @ f.b": "write w[k] @ x.",
    "vrt.embed(f.w, 3)": "a plain number at",
    "f.w.T + 1.0": "the transpose of Parameter('w', (4, 3)) at",
    "f.w @ f.w.T": "w.T @ x alone",
    "f.b[5]": "element 5 of 3 at",
    "f.w[0, 1]": "write w[k][j] for an element",
    "len(f.gather_all())": "counts children",
}

WITHOUT_LINE = ("forward() does not scatter", "forward() pushes nothing")  # no line is at fault


@pytest.mark.parametrize("code", MISTAKES)
def test_mistakes_in_forward(code: str) -> None:
    def body(f: F) -> None:
        eval(compile(code, "mistake.py", "eval"), {**NAMES, "f": f})

    text, part = text_of(TraceError, F(body).trace), MISTAKES[code]
    if part.startswith("["):
        where, _, part = part.partition("] ")
        assert text.startswith(f"{where}] ")
    assert part in text
    assert bool(re.search(r"at \w+\.py:\d+: ", text)) != (part in WITHOUT_LINE)


class Misfit(vrt.VertexFunction):
    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.w = vrt.Parameter((4, 3))

    def forward(self) -> None:
        before = self.gather(0)
        h = vrt.tanh(self.w @ before.h + before.h)  # the mistake
        self.scatter(h=h)
        self.push("h", h)


def test_a_shape_error_shows_the_users_line() -> None:
    line = inspect.getsourcelines(Misfit.forward)[1] + 2
    assert text_of(TraceError, lambda: vrt.compile(Misfit(), device="reference")) == (
        "[add] operands are float[4], float[3], at "
        f"test_errors_f.py:{line}: h = vrt.tanh(self.w @ before.h + before.h)  # the mistake; "
        "equal shapes, or a scalar with any shape; change that line."
    )


def test_gather_where_no_slot_is_declared() -> None:
    text = text_of(TraceError, F(lambda f: f.gather(0), arity=None).trace)
    assert "F declares no slots; declare a larger arity." in text


def test_declarations() -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: vrt.VertexFunction(state={"h": 0}),
            "[state] field 'h' has 0 elements; 1 or more;",
        ),
        (lambda: vrt.VertexFunction(state={"h": 2.0}), "[state] field 'h' has 2.0 elements;"),
        (lambda: vrt.VertexFunction(arity=0, state={}), "[arity] arity is 0; 1 to 32,"),
        (lambda: vrt.VertexFunction(arity=33, state={}), "[arity] arity is 33;"),
        (
            lambda: vrt.VertexFunction(state={"h": 2}, initial={"c": vrt.Parameter((2,))}),
            "[state] initial names field 'c'; fields are ['h'];",
        ),
        (lambda: vrt.Parameter((0, 3)), "[Parameter] shape is (0, 3); a tuple of positive"),
        (lambda: vrt.VertexFunction(state={}).trace(), "[trace] forward() is not written;"),
    ]
    for call, start in cases:
        assert text_of(TraceError, call).startswith(start)


def test_parameters_with_one_name() -> None:
    first, second = F(lambda f: f.done()), F(lambda f: f.done())
    assert set(first.parameters()) == {"w", "b", "t3"}
    second.v = first.w  # type: ignore[attr-defined]
    text = text_of(TraceError, second.parameters)
    assert text.startswith("[parameters] two parameters are called 'w': 'v' got its name before")


def test_outside_of_forward() -> None:
    parameter = vrt.Parameter((3,))
    calls = (lambda: parameter + 1.0, lambda: F(F.done).gather(0), lambda: F(F.done).pull("x"))
    for call in calls:
        assert text_of(TraceError, call).startswith("[trace] an operation of vertexrt runs outside")


def test_a_value_of_another_function() -> None:
    kept: list[Any] = []
    F(lambda f: (kept.append(f.b * 1.0), f.done())).trace()
    text = text_of(TraceError, F(lambda f: f.done(f.b + kept[0])).trace)
    assert text.startswith("[trace] a value of another vertex function is used here;")


# Options.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"policy": "fronteir"},
            UsageError,
            "[compile] policy is 'fronteir'; one of frontier, depth, agenda, serial; "
            "choose one of these. Nearest: 'frontier'.",
        ),
        ({"engine": "batch"}, UsageError, "choose one of these. Nearest: 'batched'."),
        (
            {"dtype": "float23"},
            UsageError,
            "[compile] dtype is 'float23'; one of float32, float64;",
        ),
        ({"dtype": "float16"}, UsageError, "[compile] dtype is 'float16'; one of float32,"),
        ({"dtype": np.int32}, UsageError, "[compile] dtype is 'int32'; one of float32, float64;"),
        ({"dtype": object()}, UsageError, "[compile] dtype is '<object"),
        ({"reduction": "mean"}, UsageError, "choose one of these. Nearest: 'mean_graphs'"),
        ({"policy": None}, UsageError, "[compile] policy is None; one of frontier,"),
        ({"threads": 0}, UsageError, "[compile] threads is 0; 1 to 1024;"),
        (
            {"device": "cpuu"},
            DeviceError,
            "[device] device is 'cpuu'; one of auto, cpu, cuda, reference; choose one of these. "
            "Nearest: 'cpu', 'cuda'.",
        ),
    ],
)
def test_unknown_options(options: dict[str, Any], error: type[VertexrtError], text: str) -> None:
    options = {"device": "reference", **options}
    assert text in text_of(error, lambda: vrt.compile(FUNCTIONS["tree-lstm"][0](), **options))
