"""Parts of parameters: the same network with each part declared as a parameter of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_comparisons import WAYS
from tests.messages import text_of
from tests.runs import DRAWS, Way, assert_loss_gradients, assert_same, evaluate, train
from tests.shim import build as shim
from vertexrt.errors import TraceError

H, ROWS = 4, 7


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    if "shim" in request.param and not shim.available():
        pytest.skip("no C++ compiler")
    return WAYS[request.param]


class Whole(vrt.VertexFunction):
    """Rows, matrices, other shapes; parts for one vector and for several, and wholes too."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": H})
        self.w, self.table = vrt.Parameter((3 * H, H)), vrt.Parameter((ROWS, H))
        self.c, self.v = vrt.Parameter((2, H, H)), vrt.Parameter((H * H,))
        self.b, self.d = vrt.Parameter((2, H)), vrt.Parameter((2, 3, H // 2))
        self.r = vrt.Parameter((H,))

    def forward(self) -> None:
        self.compute(
            (self.w[:H], self.w[H : 2 * H], self.w[2 * H :]),
            (self.c[0], self.c[1]),
            self.c.reshape(2 * H, H) @ self.pull("x", shape=(H,)),
            self.v.reshape(H, H),
            (self.b[0], self.b[-1]),
            vrt.embed(self.table, self.pull("i")) + self.table[1:3][self.pull("i") % 2],
            lambda h: vrt.nn.block_diagonal(self.d, h),
            (self.r, self.r.reshape(1, H)),  # all elements, as they are and as a matrix
        )

    def compute(
        self, w: Any, c: Any, both: Any, v: Any, b: Any, looked: Any, blocks: Any, r: Any
    ) -> None:
        x, first, second = self.pull("x", shape=(H,)), self.gather(0).h, self.gather(1).h
        y = w[0] @ first + w[1] @ first + w[2].T @ second + w[0] @ x + b[0]
        z = c[0] @ y + c[1].T @ x + v @ second + b[1] + both[:H] * both[H:]
        h = vrt.tanh(z + looked + vrt.tanh(r[0]) * (r[1] @ y)[0])
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h) + vrt.sum(blocks(h) ** 2))


class Apart(Whole):
    """Each part by itself; the table is divided by the rows that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.ws = [vrt.Parameter((H, H)) for _ in range(3)]
        self.cs = [vrt.Parameter((H, H)) for _ in range(2)]
        self.vs, self.bs = vrt.Parameter((H, H)), [vrt.Parameter((H,)) for _ in range(2)]
        self.pair = vrt.Parameter((2, H))
        self.r, self.row = vrt.Parameter((H,)), vrt.Parameter((1, H))
        self.ds = [vrt.Parameter((3, H // 2)) for _ in range(2)]

    def forward(self) -> None:
        x, i = self.pull("x", shape=(H,)), self.pull("i")
        looked = vrt.embed(self.table, i) + vrt.embed(self.pair, i % 2)
        both = vrt.concat(self.cs[0] @ x, self.cs[1] @ x)

        def blocks(h: Any) -> Any:
            return vrt.concat(self.ds[0] @ h[: H // 2], self.ds[1] @ h[H // 2 :])

        r = self.r, self.row
        self.compute(self.ws, self.cs, both, self.vs, self.bs, looked, blocks, r)


def batch() -> vrt.GraphBatch:
    children: list[list[int]] = [[], [], [0, 1], [2], [3, 2], []]
    x = np.random.default_rng(0).normal(size=(6, H))
    pulls = {"x": x, "i": np.array([0, 1, -1, 5, 2, 3])}
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(children, pulls)])


PLACES: dict[str, tuple[str, Any]] = {
    **{f"ws.{k}": ("w", np.s_[k * H : (k + 1) * H]) for k in range(3)},
    **{f"cs.{k}": ("c", k) for k in range(2)},
    **{f"bs.{k}": ("b", k) for k in range(2)},
    **{f"ds.{k}": ("d", k) for k in range(2)},
    "vs": ("v", np.s_[:]),
    "r": ("r", np.s_[:]),
    "row": ("r", np.s_[:]),
    "pair": ("table", np.s_[1:3]),
    "table": ("table", np.s_[:]),
}


def test_parts_are_parameters_in_place(way: Way) -> None:
    net, apart = way.compile(Whole()), Way().compile(Apart())
    for name, (whole, at) in PLACES.items():
        given = net.parameters[whole][at]
        apart.parameters[name] = given.reshape(apart.parameters[name].shape)
    got, want = train(net, batch()), train(apart, batch())
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-12)
    assert set(got.parameters) == {"w", "table", "c", "v", "b", "d", "r"}
    expected = {name: np.zeros(value.shape) for name, value in got.parameters.items()}
    for name, (whole, at) in PLACES.items():
        gradient = want.parameters[name]
        expected[whole][at] += gradient.reshape(expected[whole][at].shape)
    for name, gradient in expected.items():
        np.testing.assert_allclose(got.parameters[name], gradient, rtol=1e-9, atol=1e-12)
    assert_same(got, train(Way().compile(Whole()), batch()), 1e-10)


def test_gradients_of_parts_agree_with_differences() -> None:
    assert_loss_gradients(Way().compile(Whole()), batch())


def test_users_see_whole_parameters(tmp_path: Path) -> None:
    net = Way().compile(Whole())
    vrt.save_checkpoint(tmp_path / "net.safetensors", net)
    other = Way().compile(Whole(), seed=8)
    other.parameters.update(vrt.load_checkpoint(tmp_path / "net.safetensors").parameters)
    for name, value in net.parameters.items():
        np.testing.assert_array_equal(other.parameters[name], value)
    assert net.parameters["c"].shape == (2, H, H)
    wrong = vrt.InputGraph.from_children([[]], {"x": np.zeros((1, H)), "i": np.array([ROWS])})
    said = text_of(vrt.errors.VertexrtError, lambda: net(vrt.GraphBatch.from_graphs([wrong])))
    assert "the rows of 'table'" in said


def test_all_parts_for_one_vector_are_one_product() -> None:
    class Gates(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"h": H})
            self.w = vrt.Parameter((2 * H, H))

        def forward(self) -> None:
            before = self.gather(0).h
            h = vrt.sigmoid(self.w[:H] @ before) * vrt.tanh(self.w[H:] @ before + 1.0)
            self.scatter(h=h)
            self.push("loss", vrt.sum(h))

    nodes = Way().compile(Gates()).program.nodes
    assert [node.type.shape for node in nodes if node.op == "matmul"] == [(2 * H,)]


def test_a_frozen_parameter_has_frozen_parts() -> None:
    class Frozen(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"h": H})
            self.w, self.b = vrt.Parameter((2 * H, H), trainable=False), vrt.Parameter((H,))

        def forward(self) -> None:
            x = self.w[:H] @ (self.gather(0).h + self.b)
            self.scatter(h=vrt.tanh(x))
            self.push("loss", vrt.sum(self.w[H:] @ x + self.w[:H] @ self.b))

    net = Way().compile(Frozen())
    graph = vrt.InputGraph.chain(3, {})
    found = evaluate(net, vrt.GraphBatch.from_graphs([graph]))
    assert set(found.parameters) == {"b"}


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


def test_functions_of_a_network_share_a_parameter_and_its_parts() -> None:
    """Their masks for a graph are their own."""
    size, edges = 4, [(0, 1), (1, 2), (2, 3)]
    x = {"x": np.random.default_rng(1).normal(size=(size, H))}
    relations = {
        ("left", "before", "left"): edges,
        ("right", "before", "right"): [(b, a) for a, b in edges],
    }
    graph = vrt.InputGraph.from_types(
        {"left": size, "right": size}, relations, {"left": x, "right": x}
    )
    batch, net = vrt.GraphBatch.from_graphs([graph] * 3), Way().compile(Directions())
    net.load_state({"random": DRAWS})
    masks = net.record(batch).outputs["mask"].reshape(3, 2, size, H)
    assert (masks == masks[:, :, :1]).all()
    assert (masks[:, 0] != masks[:, 1]).any()
    assert list(net.parameters) == ["left.w"]
    loss = vrt.GraphBatch.from_graphs([graph])
    assert_same(train(net, loss), train(Way(threads=2).compile(Directions()), loss), 1e-10)


class Misread(vrt.VertexFunction):
    """Reads parts of a parameter as it is told."""

    def __init__(self, read: Any) -> None:
        super().__init__(state={})
        self.read = read
        self.w = vrt.Parameter((2 * H, H))

    def forward(self) -> None:
        self.push("loss", self.read(self.w, self.pull("x", shape=(H,))))


MISREAD = [
    (lambda w, x: vrt.sum(w[:3] @ x) + vrt.sum(w[2:] @ x), "rows 0 to 3 of 'w'"),
    (lambda w, x: vrt.sum(w[:4] @ x) + vrt.sum(w.reshape(16, 2) @ x[:2]), "as [4, 4] and as [16,"),
]


@pytest.mark.parametrize(("read", "part"), MISREAD)
def test_what_cannot_be_divided_says_so(read: Any, part: str) -> None:
    text = text_of(TraceError, lambda: vrt.compile(Misread(read), device="reference"))
    assert text.startswith("[parts] ")
    assert part in text
    assert "test_parts.py:" in text
