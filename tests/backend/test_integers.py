"""Integers that a vertex pulls or computes: elements, arithmetic, argmax, losses of labels.

What is expected is written in NumPy, from the definitions, for every vertex by itself.
"""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_comparisons import WAYS
from tests.runs import Way, assert_loss_gradients, assert_same, train
from tests.shim import build as shim
from vertexrt.errors import PullError

H, ROWS = 4, 5


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    if "shim" in request.param and not shim.available():
        pytest.skip("no C++ compiler")
    return WAYS[request.param]


class Indexed(vrt.VertexFunction):
    """Elements by pulls and by computed integers, per vertex and per child; losses of labels."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": H})
        self.table = vrt.Parameter((ROWS, H))
        self.u = vrt.Parameter((H, H))

    def forward(self) -> None:
        label, x = self.pull("label"), self.pull("x", shape=(H,))
        kids = self.gather_all().h
        below = self.u @ vrt.sum(kids) + vrt.embed(self.table, vrt.argmax(x) + 1)
        each = vrt.sum(kids[label] + kids[vrt.argmax(kids)])  # a child's own largest element
        h = vrt.tanh(below + 0.5 * x + each)
        self.scatter(h=h)
        self.push("named", x[label])
        self.push("computed", x[(label * 3 + 1) % H])
        self.push("largest", vrt.argmax(x))
        self.push("hit", vrt.argmax(x) == label)
        self.push("arithmetic", (7 - label) // 2 + (label % 3) * label)
        self.push("label", label)
        self.push("smooth", vrt.losses.cross_entropy(x, label, label_smoothing=0.2))
        self.push("own", vrt.losses.cross_entropy(x, vrt.argmax(x)))
        self.push("margin", vrt.losses.multi_margin_loss(x, label, 0.5))
        self.push("binary", vrt.losses.binary_cross_entropy_with_logits(x, 0.25))
        self.push("hinge", vrt.losses.hinge_loss(x, -1.0))
        self.push("weighted", vrt.losses.cross_entropy(x, label, weights=WEIGHTS))
        self.push("both", vrt.losses.cross_entropy(x, label, 0.2, weights=WEIGHTS))
        loss = vrt.sum(h * h) + h[label] + vrt.losses.cross_entropy(h, label, 0.1)
        self.push("loss", loss + vrt.losses.cross_entropy(h, label, weights=WEIGHTS))


WEIGHTS = (0.5, 1, 2.0, 0)
LABEL = np.array([3, -1, 0, 2, 1, 3])
X = np.array(
    [
        *([2, -1, 0.5, 0.25], [1, 3, 0.5, 0], [-2, -3, -1, -4]),
        *([0.25, 0.5, 1, 1], [0, 0, 0, -1], [-1, -1, 4, 2]),
    ]
)


def batch() -> vrt.GraphBatch:
    children: list[list[int]] = [[], [], [0, 1], [2], [3, 2], []]
    pulls = {"label": LABEL, "x": X}
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(children, pulls)])


def expected() -> dict[str, np.ndarray]:
    has = LABEL >= 0
    row, log_p = np.arange(len(LABEL)), X - np.log(np.exp(X).sum(1, keepdims=True))
    named, computed = X[row, LABEL] * has, X[row, (LABEL * 3 + 1) % H]
    short = np.maximum(0.5 - named[:, None] + X, 0.0)
    short[row[has], LABEL[has]] = 0.0
    return {
        "named": named,
        "computed": computed,
        "largest": X.argmax(1),
        "hit": X.argmax(1) == LABEL,
        "arithmetic": (7 - LABEL) // 2 + (LABEL % 3) * LABEL,
        "label": LABEL,
        "smooth": -1.0 * has * (0.8 * log_p[row, LABEL] + 0.2 * log_p.mean(1)),
        "weighted": -1.0 * has * np.array(WEIGHTS)[LABEL] * log_p[row, LABEL],
        "own": -log_p.max(1),
        "margin": has * short.sum(1) / H,
        "binary": (np.log1p(np.exp(X)) - 0.25 * X).sum(1),
        "hinge": np.maximum(1.0 + X, 0.0).sum(1),
    }


def test_integers_name_elements_and_count(way: Way) -> None:
    net, oracle = way.compile(Indexed()), Way().compile(Indexed())
    got = train(net, batch())
    for name, want in expected().items():
        np.testing.assert_allclose(got.outputs[name], want, rtol=1e-12, atol=1e-14, err_msg=name)
    assert_same(got, train(oracle, batch()), 1e-10)


def test_gradients_go_to_the_named_elements() -> None:
    assert_loss_gradients(Way().compile(Indexed()), batch())


def test_values_of_edges_are_averaged_without_children() -> None:
    class Averaged(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(state={})
            self.b = vrt.Parameter((2,))

        def forward(self) -> None:
            mean = self.push("mean", vrt.mean(self.edge("e", (2,))))
            self.push("loss", vrt.sum(mean * self.b))

    given = {"e": np.array([[1.0, 2.0], [3.0, 6.0]])}
    graph = vrt.InputGraph.from_children([[], [], [0, 1]], {}, edge_pulls=given)
    found = Way().compile(Averaged())(vrt.GraphBatch.from_graphs([graph]))
    np.testing.assert_array_equal(found["mean"], [[0.0, 0.0], [0.0, 0.0], [2.0, 4.0]])


class OfEdges(vrt.VertexFunction):
    """Elements, rows and arithmetic by the integer of each edge."""

    def __init__(self) -> None:
        super().__init__(state={"h": H})
        self.table = vrt.Parameter((ROWS, H))

    def forward(self) -> None:
        kids, kind = self.gather_all().h, self.edge_index("kind")
        rows = vrt.embed(self.table[1:4], kind % 3) * vrt.embed(self.table, kind + 1)
        each = kids[kind] + (vrt.argmax(kids) == kind) * (kind // 2)
        h = 0.5 * self.pull("x", shape=(H,)) + vrt.sum(each * rows)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_integers_of_edges_name_elements_and_count(device: str) -> None:
    net, kinds = Way(device).compile(OfEdges()), np.array([0, 3, 2, -1, 1])
    children: list[list[int]] = [[], [], [0, 1], [2], [3, 2], []]
    graph = vrt.InputGraph.from_children(children, {"x": X}, edge_pulls={"kind": kinds})
    batch = vrt.GraphBatch.from_graphs([graph])
    table, states, edges = net.parameters["table"], [], iter(kinds)
    for x, below in zip(X, children, strict=True):
        h = 0.5 * x
        for child, kind in zip(below, edges, strict=False):
            state = states[child]
            each = (state[kind] if kind >= 0 else 0.0) + (state.argmax() == kind) * (kind // 2)
            h = h + each * table[1:4][kind % 3] * table[kind + 1]
        states.append(h)
    np.testing.assert_allclose(net(batch)["h"], states, rtol=1e-11)
    if device == "reference":
        assert_loss_gradients(net, batch)


def test_losses_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    f, has = torch.nn.functional, LABEL >= 0
    x, label = torch.tensor(X)[has], torch.tensor(LABEL)[has]
    weight = torch.tensor(WEIGHTS, dtype=torch.float64)
    found = Way().compile(Indexed())(batch())
    want = {
        "smooth": f.cross_entropy(x, label, reduction="none", label_smoothing=0.2),
        "weighted": f.cross_entropy(x, label, weight, reduction="none"),
        "both": f.cross_entropy(x, label, weight, reduction="none", label_smoothing=0.2),
        "margin": f.multi_margin_loss(x, label, margin=0.5, reduction="none"),
        "binary": f.binary_cross_entropy_with_logits(
            x, torch.full_like(x, 0.25), reduction="none"
        ).sum(1),
    }
    for name, value in want.items():
        np.testing.assert_allclose(found[name][has], value.numpy(), rtol=1e-12, err_msg=name)


def test_a_label_beyond_the_elements_is_refused() -> None:
    pulls = {"label": np.array([4]), "x": X[:1]}
    wrong = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[]], pulls)])
    with pytest.raises(PullError, match=r"'label' of vertex 0 of graph 0 is 4; 0 to 3, the"):
        Way().compile(Indexed())(wrong)


class Element(vrt.VertexFunction):
    """Read an element by a pull, and by the same number that is computed."""

    def __init__(self) -> None:
        super().__init__(state={})

    def forward(self) -> None:
        x, k = self.pull("x", shape=(H,)), self.pull_index("k")
        self.push("pulled", x[k])
        self.push("computed", x[k + 0])


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_an_index_that_names_no_element_reads_zero(device: str) -> None:
    """Pulled or computed (issue 52)."""
    k = np.array([0, H - 1, H, 1000, -1])
    pulls = {"x": np.arange(1.0, 5 * H + 1).reshape(5, H), "k": k}
    graph = vrt.InputGraph.from_children([[] for _ in k], pulls)
    found = vrt.compile(Element(), device=device)(vrt.GraphBatch.from_graphs([graph]))
    for values in found.values():
        assert values.tolist() == [1.0, 8.0, 0.0, 0.0, 0.0]
