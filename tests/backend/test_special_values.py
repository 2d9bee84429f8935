"""Functions of zeros, infinities, nan, numbers without all digits, and both sides of overflow.

NumPy says in float64 what they are; what has no float32 is rounded to it (issue 52).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, require
from tests.runs import Way

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

INF, NAN = np.inf, np.nan
SIZES = [0.0, 1e-45, 1e-39, 1e-30, 1e-10, 0.5, 1.0, 2.5, 15.0, 20.0, 87.0, 88.0, 88.7, 88.73, 95.0]
SIZES += [
    103.5,
    104.0,
    150.0,
    176.0,
    300.0,
    709.7,
    710.0,
    745.0,
    746.0,
    2.0**24 + 1,
    3e38,
    INF,
    NAN,
]
ONE = [np.array([sign * size for size in SIZES for sign in (1, -1)])]
FEW = [0.0, -0.0, 1.0, -1.0, 2.5, 1e-45, 3e38, -3e38, INF, -INF, NAN]
TWO = [np.repeat(FEW, len(FEW)), np.tile(FEW, len(FEW))]

OF_ONE: dict[str, tuple[Function, Function]] = {
    "sigmoid": (vrt.sigmoid, expit),
    "tanh": (vrt.tanh, np.tanh),
    "relu": (vrt.relu, lambda x: np.maximum(x, 0.0)),
    "exp": (vrt.exp, np.exp),
    "log": (vrt.log, np.log),
    "sqrt": (vrt.sqrt, np.sqrt),
    "abs": (vrt.abs, np.abs),
    "floor": (vrt.floor, np.floor),
    "softplus": (vrt.nn.softplus, lambda x: np.logaddexp(0.0, x)),
    "leaky_relu": (vrt.nn.leaky_relu, lambda x: np.where(x >= 0.0, x, 0.01 * x)),
    "clip": (lambda x: vrt.clip(x, -1.0, 2.0), lambda x: np.clip(x, -1.0, 2.0)),
    "negative": (lambda x: -x, np.negative),
    "square": (lambda x: x * x, np.square),
    "no number": (lambda x: x != x, np.isnan),
    "straight_through": (lambda x: vrt.straight_through(x, x < 30.0), lambda x: x < 30.0),
    "stop_gradient": (vrt.stop_gradient, lambda x: x),
}
OF_TWO: dict[str, tuple[Function, Function]] = {
    "add": (lambda x, y: x + y, np.add),
    "sub": (lambda x, y: x - y, np.subtract),
    "mul": (lambda x, y: x * y, np.multiply),
    "div": (lambda x, y: x / y, np.divide),
    "maximum": (vrt.maximum, np.maximum),
    "minimum": (vrt.minimum, np.minimum),
    "where": (lambda x, y: vrt.where(x, y, 1.0), lambda x, y: np.where(x != 0.0, y, 1.0)),
    "greater_equal": (lambda x, y: x >= y, np.greater_equal),
    "greater": (lambda x, y: x > y, np.greater),
    "equal": (lambda x, y: x == y, np.equal),
    "not_equal": (lambda x, y: x != y, np.not_equal),
    "sum": (lambda x, y: vrt.sum(vrt.stack(x, y)), np.add),
    "max": (lambda x, y: vrt.max(vrt.stack(x, y)), np.maximum),
    "argmax": (lambda x, y: vrt.argmax(vrt.stack(x, y)) + 0.0, lambda x, y: y > x),
    "logsumexp": (lambda x, y: vrt.logsumexp(vrt.stack(x, y)), np.logaddexp),
    "softmax": (
        lambda x, y: vrt.softmax(vrt.stack(x, y))[0],
        lambda x, y: np.exp(x - np.logaddexp(x, y)),
    ),
}


class Special(vrt.VertexFunction):
    """Push functions of what is pulled."""

    def __init__(self, table: dict[str, tuple[Function, Function]], operands: int) -> None:
        super().__init__(state={"h": 1})
        self.table, self.operands = table, operands

    def forward(self) -> None:
        pulled = [self.pull(f"x{k}", shape=(), dtype="float") for k in range(self.operands)]
        self.scatter(h=vrt.stack(pulled[0]))
        for name, (function, _) in self.table.items():
            self.push(name, function(*pulled))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("device", ["reference", "cpu", *SHIM_AND_GPU])
@pytest.mark.parametrize(("table", "operands"), [(OF_ONE, ONE), (OF_TWO, TWO)], ids=["one", "two"])
def test_functions_of_special_numbers(
    table: dict[str, tuple[Function, Function]], operands: list[Array], device: str, dtype: Any
) -> None:
    require(device)
    with np.errstate(all="ignore"):
        rows = [x.astype(dtype) for x in operands]
    pulls = {f"x{k}": x for k, x in enumerate(rows)}
    graphs = [vrt.InputGraph.from_children([[] for _ in rows[0]], pulls)]
    net = Way(device, dtype=dtype).compile(Special(table, len(rows)))
    found = net(vrt.GraphBatch.from_graphs(graphs))
    limits = np.finfo(dtype)
    for name, (_, formula) in table.items():
        with np.errstate(all="ignore"):
            wanted = np.asarray(formula(*(x.astype(np.float64) for x in rows)), float).astype(dtype)
        # A GPU's sigmoid is made of ex2.approx, whose argument is rounded: 4.7 eps at -15 (H200).
        units = 8 if name == "sigmoid" and device == "cuda" else 4
        np.testing.assert_allclose(
            found[name], wanted, rtol=units * limits.eps, atol=limits.tiny, err_msg=name
        )


class Attention(vrt.VertexFunction):
    """Weigh what children hold by a softmax of their scores."""

    def __init__(self) -> None:
        super().__init__(arity=None, state={"h": 1, "score": 1})

    def forward(self) -> None:
        kids = self.gather_all()
        weighed = vrt.sum(vrt.softmax(kids.score, axis="children") * kids.h)
        self.push("h", weighed)
        self.scatter(h=self.pull("x", shape=(1,)), score=self.pull("score", shape=(1,)))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_masked_child_has_no_weight(device: str) -> None:
    pulls = {"x": np.array([[1.0], [3e38], [0.0]]), "score": np.array([[0.0], [-INF], [0.0]])}
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], pulls)
    net = vrt.compile(Attention(), device=device)
    assert net(vrt.GraphBatch.from_graphs([graph]))["h"][2] == 1.0
