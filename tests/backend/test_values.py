"""What vertex functions compute: comparisons, integers, reductions, parts, special numbers.

Features are rows, judged by the oracle of `tests.fuzz`; functions of special numbers by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import vertexrt as vrt
from tests.agreement import Feature, holds, rows
from tests.devices import SHIM_AND_GPU, require
from tests.messages import text_of
from tests.runs import DRAWS, Way
from vertexrt.engine.variant import Passes
from vertexrt.errors import PullError, TraceError

H, ROWS = 4, 7
LISTS: list[list[int]] = [[], [], [0, 1], [2], [3, 2], []]
X = np.array(
    [
        *([2, -1, 0.5, 0.25], [1, 3, 0.5, 0], [-2, -3, -1, -4]),
        *([0.25, 0.5, 1, 1], [0, 0, 0, -1], [-1, -1, 4, 2]),
    ]
)
LABEL = np.array([3, -1, 0, 2, 1, 3])


def batch(
    lists: list[list[int]] = LISTS, edges: dict[str, Any] | None = None, **pulls: Any
) -> vrt.GraphBatch:
    """Return a batch of one graph."""
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(lists, pulls, edges or {})])


class Compared(vrt.VertexFunction):
    """All six comparisons: of reals, of parameters, of integer pulls; in `where` and in sums."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": H})
        self.rows = vrt.Parameter((5, H))
        self.u = vrt.Parameter((H, H))
        self.b = vrt.Parameter((H,))

    def forward(self) -> None:
        relation, other = self.pull_index("relation"), self.pull("other")
        x = self.pull("x", shape=(H,))
        looked = vrt.embed(self.rows, other)
        below = self.u @ (self.gather(0).h + self.gather(1).h)
        h = vrt.where(relation == 1, below + self.b, 0.5 * below + looked)
        h = h + (x > 0) * (self.b != x) * below + (relation >= 1) * looked
        h = h + 0.1 * (x < self.b) + 0.2 * (x <= 0.5) * (other != relation) + (x >= 1) * x
        h = vrt.tanh(h)
        self.scatter(h=h)
        either = -1.0 * (relation == other)
        self.push("integers", vrt.where(relation > 1, 1.0 * (other < 2), either))
        self.push("reals", (x == 0) + 2.0 * (x != 0) + 4.0 * (x < 0) + 8.0 * (x > 0))
        self.push("loss", vrt.sum(h * h))


class Indexed(vrt.VertexFunction):
    """Elements by pulls and by computed integers, per vertex and per child; losses of labels."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": H})
        self.table = vrt.Parameter((H + 1, H))
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


class OfEdges(vrt.VertexFunction):
    """Elements, rows and arithmetic by the integer of each edge."""

    def __init__(self) -> None:
        super().__init__(state={"h": H})
        self.table = vrt.Parameter((H + 1, H))

    def forward(self) -> None:
        kids, kind = self.gather_all().h, self.edge_index("kind")
        rows = vrt.embed(self.table[1:4], kind % 3) * vrt.embed(self.table, kind + 1)
        each = kids[kind] + (vrt.argmax(kids) == kind) * (kind // 2)
        h = 0.5 * self.pull("x", shape=(H,)) + vrt.sum(each * rows)
        self.scatter(h=h)
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class Averaged(vrt.VertexFunction):
    """The mean of what edges carry, of vertices without children too."""

    def __init__(self) -> None:
        super().__init__(state={})
        self.b = vrt.Parameter((2,))

    def forward(self) -> None:
        mean = self.push("mean", vrt.mean(self.edge("e", (2,))))
        self.push("loss", vrt.sum(mean * self.b))


class Attention(vrt.VertexFunction):
    """Attention by a number per child; both families of reductions over both.

    `vrt.softmax` of a value per child was over its elements once.
    """

    def __init__(self) -> None:
        super().__init__(state={"h": H})
        self.query = vrt.Parameter((1, H))
        self.u = vrt.Parameter((H, H))

    def forward(self) -> None:
        kids, x = self.gather_all(), self.pull("x", shape=(H,))
        weight = vrt.softmax((self.query @ kids.h)[0], axis="children")
        gates = vrt.softmax(self.u @ kids.h + x, axis="children")
        inner = vrt.softmax(kids.h * x, axis="elements")
        logs = vrt.log_softmax(kids.h, axis="children") + vrt.log_softmax(kids.h, axis="elements")
        h = vrt.tanh(x + vrt.sum(weight * kids.h) + vrt.sum(gates * kids.h) - vrt.sum(inner * logs))
        numbers = vrt.sum(kids.h, axis="elements") + vrt.max(kids.h, axis="elements")
        self.scatter(h=h)
        self.push("weight", vrt.sum(weight))
        self.push("gates", vrt.sum(gates))
        self.push("inner", vrt.sum(vrt.sum(inner, axis="elements")))
        self.push("log", vrt.logsumexp(self.u @ kids.h, axis="children"))
        self.push("numbers", vrt.sum(numbers * vrt.mean(kids.h, axis="elements")))
        self.push("each", vrt.sum(vrt.logsumexp(kids.h, axis="elements")))
        self.push("h", h)
        self.push("loss", vrt.sum(h * h))


class OnEdgesAndInProducts(vrt.VertexFunction):
    """A parameter that is an operand of a product per vertex and read on every edge."""

    def __init__(self) -> None:
        super().__init__(state={"h": 8})
        self.b = vrt.Parameter((8,))
        self.w = vrt.Parameter((2, 8))

    def forward(self) -> None:
        a = vrt.sum(vrt.sum(self.gather_all().h + self.b))
        self.scatter(h=self.b)
        self.push("loss", a + vrt.losses.squared_error(self.w @ self.b, 0.3))


class Pulls(vrt.VertexFunction):
    """A sum of what is pulled, weighted."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": 3})
        self.w = vrt.Parameter((3,))

    def forward(self) -> None:
        h = vrt.tanh(self.pull("x", (3,)) * self.w + self.gather(0).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h))


class MaxOfConstant(vrt.VertexFunction):
    """A maximum over children that is a constant where a pull is absent."""

    def __init__(self) -> None:
        super().__init__(state={"h": 4})
        self.w = vrt.Parameter((4, 4))

    def forward(self) -> None:
        x = self.pull("x", (4,))
        self.scatter(h=x)
        best = vrt.max(vrt.sigmoid(self.gather_all().h * (self.w @ x)))
        self.push("best", best)
        self.push("loss", vrt.sum(best))


class SharedLogits(vrt.VertexFunction):
    """Logits that are a parameter: their gradient is a row a vertex all the same."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={})
        self.b = vrt.Parameter((7,))

    def forward(self) -> None:
        self.push("loss", vrt.losses.cross_entropy(self.b, self.pull("label")))


class LogOfChildren(vrt.VertexFunction):
    """What an empty slot makes is not finite: log(0) per edge, multiplied and added to."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": 3})
        self.w = vrt.Parameter((3,))
        self.u = vrt.Parameter((2, 3))

    def forward(self) -> None:
        kids = self.gather_all().h
        each = vrt.log(kids * (self.w * self.w))
        self.scatter(h=1.5 + vrt.sigmoid(self.pull("x", (3,)) + self.gather(0).h))
        self.push("y", vrt.sum(vrt.tanh(self.u @ each)))
        self.push("loss", vrt.sum(vrt.sum(each)))


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


class Frozen(vrt.VertexFunction):
    """A frozen parameter has frozen parts."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": H})
        self.w, self.b = vrt.Parameter((2 * H, H), trainable=False), vrt.Parameter((H,))

    def forward(self) -> None:
        x = self.w[:H] @ (self.gather(0).h + self.b)
        self.scatter(h=vrt.tanh(x))
        self.push("loss", vrt.sum(self.w[H:] @ x + self.w[:H] @ self.b))


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


# Compiling takes seconds for each kind of vertex, and batches have six: one way specialises none.
WAYS = [
    Way(),
    Way(engine="persistent", processors=2, threads=2),
    Way("cpu"),
    Way("cpu", engine="persistent", processors=2, threads=2, passes=Passes(specialise=False)),
    Way("shim"),
    Way("shim", engine="persistent", processors=2),
]
PLAIN, COMPILED = Way(), Way("cpu")
SEGMENTS = [
    Way(device, engine="persistent", processors=2, threads=threads, passes=Passes(segment=segment))
    for device in ("reference", "cpu")
    for threads in (1, 2)
    for segment in (True, False)
]
NORMAL = np.random.default_rng(1).normal(size=(6, H))
HALVES = vrt.Rows(np.ones((1, H)), np.array([0, 0, -1], np.int32))
FEATURES = {
    "comparisons": Feature(
        Compared,
        lambda: batch(
            relation=np.array([1, -1, 0, 2, 1, 3]),
            other=np.array([4, 0, -1, 1, 1, 2]),
            x=np.array(
                [
                    *([0, -1, 2, 1], [1, 0, 0.5, 0], [-2, 3, 0, 0.5]),
                    *([0.25, 0.5, 1, 0], [0, 0, 0, 0], [-1, -1, 4, 1]),
                ]
            ),
        ),
        WAYS,
    ),
    "integers": Feature(Indexed, lambda: batch(label=LABEL, x=X), WAYS),
    "integers of edges": Feature(
        OfEdges, lambda: batch(edges={"kind": np.array([0, 3, 2, -1, 1])}, x=X), WAYS[:4]
    ),
    "a mean of edges": Feature(
        Averaged,
        lambda: batch([[], [], [0, 1]], {"e": np.array([[1.0, 2.0], [3.0, 6.0]])}),
        [PLAIN, COMPILED],
    ),
    # Vertices with none, one and several children, and an empty slot.
    "attention": Feature(
        Attention,
        lambda: batch(
            [[], [], [], [0, 1, 2], [3], [-1, 3, 4, 0], []],
            x=np.random.default_rng(4).standard_normal((7, H)),
        ),
        WAYS,
    ),
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
        MaxOfConstant, lambda: batch([[], [], [0, 1]], x=HALVES), [PLAIN, COMPILED]
    ),
    "logits that all vertices share": Feature(
        SharedLogits, lambda: batch([[], [], []], label=[3, 5, -1]), SEGMENTS
    ),
    # Gradients of parameters do not count empty slots.
    "not finite in an empty slot": Feature(
        LogOfChildren,
        lambda: batch([[], [], [0, 1], [-1, 1], [2, -1]], x=NORMAL[:5, :3]),
        [PLAIN, COMPILED],
    ),
    "parts": Feature(Whole, lambda: batch(x=NORMAL, i=np.array([0, 1, -1, 5, 2, 3])), WAYS),
    "frozen parts": Feature(Frozen, lambda: batch([[], [0], [1]]), [PLAIN, COMPILED]),
    "parts and a whole": Feature(Directions, directions, [Way(threads=2), COMPILED], PLAIN),
}


@pytest.mark.parametrize(("name", "way"), rows(FEATURES))
def test_every_way_agrees(name: str, way: Way) -> None:
    holds(FEATURES[name], way)


# Integers and parts.


def test_losses_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    f, has = torch.nn.functional, LABEL >= 0
    x, label = torch.tensor(X)[has], torch.tensor(LABEL)[has]
    weight = torch.tensor(WEIGHTS, dtype=torch.float64)
    found = Way().compile(Indexed())(batch(label=LABEL, x=X))
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
    with pytest.raises(PullError, match=r"'label' of vertex 0 of graph 0 is 4; 0 to 3, the"):
        Way().compile(Indexed())(batch([[]], label=np.array([4]), x=X[:1]))


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
    x = np.arange(1.0, 5 * H + 1).reshape(5, H)
    found = vrt.compile(Element(), device=device)(batch([[] for _ in k], x=x, k=k))
    for values in found.values():
        assert values.tolist() == [1.0, 8.0, 0.0, 0.0, 0.0]


def test_a_row_of_a_part_is_one_of_its_parameter() -> None:
    wrong = batch([[]], x=np.zeros((1, H)), i=np.array([ROWS]))
    with pytest.raises(PullError, match="the rows of 'table'"):
        Way().compile(Whole())(wrong)


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


def test_functions_of_a_network_draw_masks_of_their_own() -> None:
    """For each graph one, of a parameter that they share and its parts."""
    net = Way().compile(Directions())
    net.load_state({"random": DRAWS})
    masks = net.record(directions()).outputs["mask"].reshape(3, 2, -1, H)
    assert (masks == masks[:, :, :1]).all()
    assert (masks[:, 0] != masks[:, 1]).any()
    assert list(net.parameters) == ["left.w"]


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
    assert "test_values.py:" in text


# Numbers of NumPy, of special size, and none.


class Body(vrt.VertexFunction):
    """A vertex function whose forward is given, and pushes what it returns."""

    def __init__(self, body: Any) -> None:
        super().__init__(arity=1, state={"h": H})
        self.body = body
        self.b = vrt.Parameter((H,), init=vrt.init.ones)

    def forward(self) -> None:
        out = self.body(self)
        self.scatter(h=self.b * 1.0)
        self.push("out", out)


NUMBERS = [np.float32(2), np.float64(2), np.int64(2), np.array(2.0), np.uint8(2), 2, True + 1]


@pytest.mark.parametrize("two", NUMBERS, ids=lambda n: type(n).__name__)
def test_numbers_of_numpy_are_numbers(two: Any) -> None:
    """On either side of an operator, as operands of functions, and beside integers."""
    body = Body(
        lambda f: (
            two * f.b
            + f.b * two
            + (two - f.b) / two
            + vrt.maximum(f.b, two)
            + (two == f.b * two) * (f.b < two) * (two > f.b)
            + (f.pull_index("i") == two)
            + (two == f.pull_index("i"))
        )
    )
    out = vrt.compile(body, device="reference")(batch([[]], i=np.array([2])))
    np.testing.assert_array_equal(out["out"], np.full((1, H), 2 + 2 + 0.5 + 2 + 1 + 1 + 1.0))


def test_hashes_are_those_of_identity() -> None:
    parameter = vrt.Parameter((H,))
    assert {parameter: 1}[parameter] == 1
    assert parameter in [parameter]
    found: list[Any] = []
    Body(lambda f: found.extend(({f.b * 1.0, f.b * 1.0}, {f.b, f.b})) or f.b).trace()
    assert [len(s) for s in found] == [2, 1]


def test_a_number_that_is_not_a_number_is_unequal_to_itself() -> None:
    body = Body(lambda f: (f.gather(0).h == f.gather(0).h) + 2.0 * (f.b * f.pull("x") != f.b))
    out = vrt.compile(body, device="reference")(batch([[]], x=np.array([np.nan])))["out"]
    np.testing.assert_array_equal(out, np.full((1, H), 3.0))


class Scores(vrt.VertexFunction):
    """Attention whose scores are given, so that they can be as large as they like."""

    def __init__(self, reduce: Callable[[vrt.VertexFunction], object]) -> None:
        super().__init__(state={"s": 1})
        self.scale = vrt.Parameter((1,), init=vrt.init.ones)
        self.reduce = reduce

    def forward(self) -> None:
        self.scatter(s=self.pull("x", shape=(1,)) * self.scale)
        out = self.push("out", self.reduce(self))
        self.push("loss", vrt.sum(out))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_the_largest_may_be_infinite(device: str) -> None:
    """The reference gave zero for an infinity, as for a vertex without children."""
    x = np.array([[np.inf], [-np.inf], [1.0], [0.0], [0.0], [0.0]])
    net = vrt.compile(Scores(lambda f: vrt.max(f.gather_all().s)), device=device)
    out = net(batch([[], [], [], [0, 2], [1, -1], [1, 2]], x=x))["out"]
    np.testing.assert_array_equal(out[:, 0], [0.0, 0.0, 0.0, np.inf, -np.inf, 1.0])


@pytest.mark.parametrize("level", [1e4, -1e4])
def test_large_scores_and_empty_slots(level: float) -> None:
    """Scores far from zero: what an empty slot reads, zero, is far above or below them."""
    one = batch([[], [], [-1, 0, 1]], x=np.array([[level], [level], [0.0]]))

    def halves(f: vrt.VertexFunction) -> object:
        return vrt.sum(
            vrt.softmax(f.gather_all().s, axis="children") * f.pull("x", shape=(1,)) + 1.0
        )

    for reduce, want in (
        (halves, 2.0),
        (lambda f: vrt.logsumexp(f.gather_all().s, axis="children"), level + np.log(2.0)),
    ):
        net = vrt.compile(Scores(reduce), device="reference", dtype="float64")
        run = net.record(one)
        np.testing.assert_allclose(run.outputs["out"][2], [want], rtol=1e-12)
        gradients = run.backward({"out": np.ones((3, 1))})
        assert np.isfinite(gradients.parameters["scale"]).all()


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


class Masked(vrt.VertexFunction):
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
    net = vrt.compile(Masked(), device=device)
    assert net(batch([[], [], [0, 1]], **pulls))["h"][2] == 1.0


WIDTH = 64


class Exponential(vrt.VertexFunction):
    """Push exp, sigmoid and tanh of what is pulled."""

    def __init__(self) -> None:
        super().__init__(arity=None, state={"h": WIDTH})

    def forward(self) -> None:
        x = self.pull("x", shape=(WIDTH,), dtype="float")
        self.scatter(h=x)
        self.push("exp", vrt.exp(x))
        self.push("sigmoid", vrt.sigmoid(x))
        self.push("tanh", vrt.tanh(x))


def test_the_cpus_own_exponential() -> None:
    """Of whole vectors: within a few units of the last place, and both ends of its range."""
    spans = [np.linspace(a, b, 100 * WIDTH) for a, b in ((-87.3, -80), (-10, 10), (80, 88.72))]
    ends = np.resize([-1000.0, -np.inf, 88.73, 1000.0, np.inf], WIDTH)
    x = np.concatenate([*spans, ends]).astype(np.float32).reshape(-1, WIDTH)
    net = vrt.compile(Exponential(), device="cpu")
    found = net(batch([[] for _ in x], x=x))
    exact = np.exp(x[:-1].astype(np.float64))
    assert (np.abs(found["exp"][:-1] - exact) / exact).max() < 3e-7
    below = x[-1] < 0.0
    for name, low, high in (("exp", 0.0, np.inf), ("sigmoid", 0.0, 1.0), ("tanh", -1.0, 1.0)):
        np.testing.assert_array_equal(found[name][-1], np.where(below, low, high), err_msg=name)
