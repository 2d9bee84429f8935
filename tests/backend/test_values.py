"""What vertex functions compute: every op of random functions, and what these do not draw.

Functions and features are judged by the oracle of `tests.fuzz`; special numbers by NumPy.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import erf, expit

import vertexrt as vrt
from tests.agreement import Feature, holds, rows
from tests.declared import Declared
from tests.devices import SHIM_AND_GPU
from tests.fuzz.campaign import Settings, drawn, run_functions
from tests.fuzz.function import source
from tests.messages import refused
from tests.runs import DRAWS, Way
from tests.strategies import one_graph
from vertexrt.engine.variant import Passes

H = 4
WORDS = re.compile(
    r"(?:vrt|self)\.[.\w]+\(|axis='\w+'|initial|trainable"
    r"| (?:[-+*/%@<>]|//|\*\*|[<>=!]=) |\[\d*:\d*\]"
)
PARTS = 6


@functools.cache
def covering() -> list[int]:
    """Choose seeds whose functions, short ones first, have all that those of any have."""
    texts = {seed: source(drawn(seed, 5)[0]) for seed in range(200)}
    found = {seed: set(WORDS.findall(re.sub(r"\d+", "0", text))) for seed, text in texts.items()}
    left, chosen = set[str]().union(*found.values()), list[int]()
    while left:
        chosen.append(max(found, key=lambda seed: len(found[seed] & left) / len(texts[seed])))
        left -= found[chosen[-1]]
    return chosen


@pytest.mark.parametrize("device", ["cpu", "shim"])
@pytest.mark.parametrize("part", range(PARTS))
def test_functions_of_every_op(part: int, device: str) -> None:
    for seed in covering()[part::PARTS]:
        findings = run_functions(seed, Settings(device, per=1, most=5)).findings
        assert not findings, f"seed {seed}: {findings[0].text}\n{findings[0].script}"


def batch(
    lists: list[list[int]], edges: dict[str, Any] | None = None, **pulls: Any
) -> vrt.GraphBatch:
    """Return a batch of one graph."""
    return one_graph(lists, pulls, edges or {})


class OnEdgesAndInProducts(Declared, state={"h": 8}, b=(8,), w=(2, 8)):
    """A parameter that is an operand of a product per vertex and read on every edge."""

    def forward(self) -> None:
        a = vrt.sum(vrt.sum(self.gather_all().h + self.b))
        self.scatter(h=self.b)
        self.push("loss", a + vrt.losses.squared_error(self.w @ self.b, 0.3))


class Pulls(Declared, arity=1, state={"h": 3}, w=(3,)):
    """A sum of what is pulled, weighted."""

    def forward(self) -> None:
        h = vrt.tanh(self.pull("x", (3,)) * self.w + self.gather(0).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


class MaxOfConstant(Declared, state={"h": 4}, w=(4, 4)):
    """A maximum over children that is a constant where a pull is absent."""

    def forward(self) -> None:
        x = self.pull("x", (4,))
        self.scatter(h=x)
        best = vrt.max(vrt.sigmoid(self.gather_all().h * (self.w @ x)))
        self.push("best", best)
        self.push("loss", vrt.sum(best))


class SharedLogits(Declared, arity=2, state={}, b=(7,)):
    """Logits that are a parameter: their gradient is a row a vertex all the same."""

    def forward(self) -> None:
        self.push("loss", vrt.losses.cross_entropy(self.b, self.pull("label")))


class LogOfChildren(Declared, arity=2, state={"h": 3}, w=(3,), u=(2, 3)):
    """What an empty slot makes is not finite: log(0) per edge, multiplied and added to."""

    def forward(self) -> None:
        kids = self.gather_all().h
        each = vrt.log(kids * (self.w * self.w))
        self.scatter(h=1.5 + vrt.sigmoid(self.pull("x", (3,)) + self.gather(0).h))
        self.push("y", vrt.sum(vrt.tanh(self.u @ each)))
        self.push("loss", vrt.sum(vrt.sum(each)))


class Step(vrt.VertexFunction):
    """A step of a chain that multiplies by parts of a matrix, or by all of it."""

    def __init__(self, parts: bool) -> None:
        super().__init__(state={"h": H})
        self.parts, self.w = parts, vrt.Parameter((2 * H, H))

    def forward(self) -> None:
        x, before = self.pull("x", shape=(H,)), self.gather("before").h
        if self.parts:
            y, z = self.w[:H] @ before, self.w[H:] @ x
        else:
            y, z = vrt.split(self.w @ (before + x), 2)
        mask = self.push("mask", vrt.random.dropout(vrt.ones(H), 0.5, per="graph"))
        h = vrt.tanh(y * mask + z + x)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class Directions(vrt.Model):
    """Both directions of a chain share a matrix, of which one reads parts."""

    def __init__(self) -> None:
        self.left, self.right = Step(True), Step(False)
        self.right.w = self.left.w


def directions() -> vrt.GraphBatch:
    """Return three chains, each of which is read in both directions."""
    size, edges = 4, [(0, 1), (1, 2), (2, 3)]
    x = {"x": np.random.default_rng(1).normal(size=(size, H))}
    relations = {
        ("left", "before", "left"): edges,
        ("right", "before", "right"): [(b, a) for a, b in edges],
    }
    sizes = {"left": size, "right": size}
    graph = vrt.InputGraph.from_types(sizes, relations, {"left": x, "right": x})
    return vrt.GraphBatch.from_graphs([graph] * 3)


HOST = [Way(), Way("cpu")]
SEGMENTS = [
    Way(device, engine="persistent", processors=2, threads=threads, passes=Passes(segment=segment))
    for device, threads, segment in (
        ("reference", 1, False),
        ("reference", 2, True),
        ("cpu", 1, True),
        ("cpu", 2, False),
    )
]
NORMAL = np.random.default_rng(1).normal(size=(6, H))
HALVES = vrt.Rows(np.ones((1, H)), np.array([0, 0, -1], np.int32))
FEATURES = {
    "a parameter on edges and in a product": Feature(
        OnEdgesAndInProducts,
        lambda: vrt.GraphBatch.concat([batch([[], [0, 0]]), batch([[1], []])]),
        [Way(threads=2), Way("cpu", threads=2), *SEGMENTS],
    ),
    # The memory of the first share was planned when the variant knew fewer kinds and tensors.
    "a second share with other kinds": Feature(
        Pulls,
        lambda: vrt.GraphBatch.from_arrays(
            [0, 2, 4],
            [0, 0, 1, 1, 2],
            [0, 2],
            {"x": vrt.Rows(NORMAL[:, :3], np.array([-1, -1, 1, 3], np.int32))},
        ),
        [Way(threads=2), Way(threads=2, engine="persistent", processors=1)],
    ),
    "the largest of a constant": Feature(
        MaxOfConstant, lambda: batch([[], [], [0, 1]], x=HALVES), HOST
    ),
    "logits that all vertices share": Feature(
        SharedLogits, lambda: batch([[], [], []], label=[3, 5, -1]), SEGMENTS
    ),
    # Gradients of parameters do not count empty slots.
    "not finite in an empty slot": Feature(
        LogOfChildren,
        lambda: batch([[], [], [0, 1], [-1, 1], [2, -1]], x=NORMAL[:5, :3]),
        HOST,
    ),
    "parts and a whole": Feature(Directions, directions, [Way(threads=2), Way("cpu")], Way()),
}


@pytest.mark.parametrize(("name", "way"), rows(FEATURES))
def test_every_way_agrees(name: str, way: Way) -> None:
    holds(FEATURES[name], way)


def test_functions_of_a_network_draw_masks_of_their_own() -> None:
    """For each graph one, of a parameter that they share and its parts."""
    net = Way().compile(Directions())
    net.load_state({"random": DRAWS})
    masks = net.record(directions()).outputs["mask"].reshape(3, 2, -1, H)
    assert (masks == masks[:, :, :1]).all()
    assert (masks[:, 0] != masks[:, 1]).any()
    assert list(net.parameters) == ["left.w"]


class Gates(Declared, arity=1, state={"h": H}, w=(2 * H, H)):
    def forward(self) -> None:
        before = self.gather(0).h
        h = vrt.sigmoid(self.w[:H] @ before) * vrt.tanh(self.w[H:] @ before + 1.0)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


def test_all_parts_for_one_vector_are_one_product() -> None:
    nodes = Way().compile(Gates()).program.nodes
    assert [node.type.shape for node in nodes if node.op == "matmul"] == [(2 * H,)]


# Numbers of NumPy, of special size, and none.

INF, NAN = np.inf, np.nan


class Given(vrt.VertexFunction):
    """Hands on a row `x` times ones, and pushes what a body makes."""

    def __init__(self, body: Callable[[Any], Any], size: int) -> None:
        super().__init__(state={"s": size})
        self.body, self.size = body, size
        self.b, self.w = vrt.Parameter((size,), vrt.init.ones), vrt.Parameter((2 * H, H))

    def forward(self) -> None:
        self.x = self.pull("x", shape=(self.size,))
        self.scatter(s=self.x * self.b)
        self.push("out", self.body(self))


def pushed(
    body: Callable[[Any], Any], device: str, x: list[list[float]], lists: Any = None, **pulls: Any
) -> Any:
    """Compute in float32, of vertices without children where there are no lists."""
    net = vrt.compile(Given(body, len(x[0])), device=device)
    children = [[] for _ in x] if lists is None else lists
    return net(batch(children, x=np.array(x, np.float32), **pulls))["out"]


def numbers(two: Any) -> Callable[[Any], Any]:
    """Use a number on either side of an operator, as an operand, and beside integers."""
    return lambda f: (
        two * f.b
        + f.b * two
        + (two - f.b) / two
        + vrt.maximum(f.b, two)
        + (two == f.b * two) * (f.b < two) * (two > f.b)
        + (f.pull_index("k") == two)
        + (two == f.pull_index("k"))
    )


def masked(f: Any) -> Any:
    kids = f.gather_all().s
    return vrt.sum(vrt.softmax(kids[0], axis="children") * kids[1])


OF_NUMPY = [np.float32(2), np.float64(2), np.int64(2), np.array(2.0), np.uint8(2), 2, True + 1]
THIRD = [[], [], [0, 1]]
VALUES: dict[str, tuple[Any, ...]] = {  # a body, rows, children, what the last vertices push
    **{type(n).__name__: (numbers(n), [[1.0]], None, [9.5]) for n in OF_NUMPY},
    "no number": (lambda f: (f.x == f.x) + 2.0 * (f.x * f.b != f.b), [[NAN]], None, [2.0]),
    # Pulled or computed (issue 52).
    **{
        f"element {k}": (
            lambda f: vrt.stack(f.x[f.pull_index("k")], f.x[f.pull_index("k") + 0]),
            [[1.0, 2.0, 3.0, 4.0]],
            None,
            [want, want],
            k,
        )
        for k, want in ((0, 1.0), (3, 4.0), (4, 0.0), (1000, 0.0), (-1, 0.0))
    },
    # The reference gave zero for an infinity, as for a vertex without children.
    **{
        f"the largest of {a} and {b}": (
            lambda f: vrt.max(f.gather_all().s),
            [[a], [b], [0.0]],
            THIRD,
            [max(a, b)],
        )
        for a, b in ((INF, 1.0), (-INF, -INF), (1.0, -INF), (-2.0, -1.0))
    },
    "a masked child": (masked, [[0.0, 1.0], [-INF, 3e38], [0.0, 0.0]], THIRD, [1.0]),
    # Scores far from zero: what an empty slot reads, zero, is far above or below them.
    **{
        f"scores of {level}": (
            lambda f: vrt.logsumexp(f.gather_all().s, axis="children"),
            [[level], [level], [0.0]],
            [[], [], [-1, 0, 1]],
            [level + np.log(2.0)],
        )
        for level in (1e4, -1e4)
    },
}


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("name", VALUES)
def test_values(name: str, device: str) -> None:
    body, x, lists, want, *k = VALUES[name]
    found = pushed(body, device, x, lists, k=np.full(len(x), *(k or [2])))
    np.testing.assert_allclose(found[-1], want, rtol=1e-6)


@pytest.mark.parametrize("level", [1e4, -1e4])
def test_large_scores_have_finite_gradients(level: float) -> None:
    def halves(f: Any) -> Any:
        return vrt.sum(vrt.softmax(f.gather_all().s, axis="children") * f.x + 1.0)

    run = (
        Way()
        .compile(Given(halves, 1))
        .record(batch([[], [], [-1, 0, 1]], x=np.array([[level], [level], [0.0]])))
    )
    np.testing.assert_allclose(run.outputs["out"][2], [2.0], rtol=1e-12)
    gradients = run.backward({"out": np.ones((3, 1))})
    assert np.isfinite(gradients.parameters["b"]).all()


def test_hashes_are_those_of_identity() -> None:
    parameter = vrt.Parameter((H,))
    assert {parameter: 1}[parameter] == 1
    found: list[Any] = []
    body = Given(lambda f: found.extend(({f.b * 1.0, f.b * 1.0}, {f.b, f.b})) or f.b, H)
    body.trace()
    assert [len(s) for s in found] == [2, 1]


REFUSED = {  # a text, and of what body and pull
    "PullError: [pull] 'k' of vertex 0 of graph 0 is 4; 0 to 3, the classes, or -1 for none; "
    "correct the data or declare more.": (lambda f: vrt.losses.cross_entropy(f.x, f.pull("k")), 4),
    "PullError: [pull] 'k' of vertex 0 of graph 0 is 8; 0 to 7, the rows of 'w', or -1 for none; "
    "correct the data or declare more.": (lambda f: vrt.embed(f.w, f.pull("k")), 8),
    "TraceError: [parts] rows 0 to 3 of 'w', of which others are read by themselves, at "
    "test_values.py:...; parts that are equal or apart, or all rows; multiply by the smaller "
    "parts, and join the products by vrt.concat.": (
        lambda f: vrt.sum(f.w[:3] @ f.x) + vrt.sum(f.w[2:] @ f.x),
        0,
    ),
    "TraceError: [parts] 'w' is read as [4, 4] and as [16, 2], at test_values.py:...; rows of one "
    "length, where parts of a parameter are read or it is reshaped; declare two parameters.": (
        lambda f: vrt.sum(f.w[:4] @ f.x) + vrt.sum(f.w.reshape(16, 2) @ f.x[:2]),
        0,
    ),
}


@pytest.mark.parametrize("wanted", REFUSED)
def test_what_is_refused(wanted: str) -> None:
    body, k = REFUSED[wanted]
    refused(lambda: pushed(body, "reference", [[0.0] * H], k=np.array([k])), wanted)


Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

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
    "sin": (vrt.sin, np.sin),
    "cos": (vrt.cos, np.cos),
    "erf": (vrt.erf, erf),
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
    with np.errstate(all="ignore"):
        given = [x.astype(dtype) for x in operands]
    pulls = {f"x{k}": x for k, x in enumerate(given)}
    net = Way(device, dtype=dtype).compile(Special(table, len(given)))
    found = net(batch([[] for _ in given[0]], **pulls))
    limits = np.finfo(dtype)
    for name, (_, formula) in table.items():
        with np.errstate(all="ignore"):
            wanted = np.asarray(formula(*(x.astype(np.float64) for x in given)), float).astype(
                dtype
            )
        # A GPU's sigmoid is made of ex2.approx, whose argument is rounded: 4.7 eps at -15 (H200).
        units = 8 if name == "sigmoid" and device == "cuda" else 4
        np.testing.assert_allclose(
            found[name], wanted, rtol=units * limits.eps, atol=limits.tiny, err_msg=name
        )


def test_the_cpus_own_exponential() -> None:
    """Of whole vectors: within a few units of the last place, and both ends of its range."""
    spans = [np.linspace(a, b, 6400) for a, b in ((-87.3, -80), (-10, 10), (80, 88.72))]
    x = np.concatenate([*spans, np.resize([-1000.0, -INF, 88.73, 1000.0, INF], 64)])
    rows_of_x = x.astype(np.float32).reshape(-1, 64)

    def found(function: Callable[[Any], Any]) -> Array:
        return np.asarray(pushed(lambda f: function(f.x), "cpu", rows_of_x))

    exact = np.exp(rows_of_x[:-1].astype(np.float64))
    assert (np.abs(found(vrt.exp)[:-1] - exact) / exact).max() < 3e-7
    below = rows_of_x[-1] < 0.0
    for function, low, high in (
        (vrt.exp, 0.0, INF),
        (vrt.sigmoid, 0.0, 1.0),
        (vrt.tanh, -1.0, 1.0),
    ):
        np.testing.assert_array_equal(found(function)[-1], np.where(below, low, high))
