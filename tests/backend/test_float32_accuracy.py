"""float32 is float32: gradients stay close to float64 however many terms are added up."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import require
from tests.shim_device import put_in_place

BOUND = 2e-6  # of the norm of each gradient


class Classifier(vrt.VertexFunction):
    """A recurrence with a softmax over many classes."""

    def __init__(self, classes: int, hidden: int) -> None:
        super().__init__(arity=1, state={"h": hidden})
        self.u = vrt.Parameter((hidden, hidden))
        self.b = vrt.Parameter((hidden,))
        self.v = vrt.Parameter((classes, hidden))

    def forward(self) -> None:
        h = vrt.tanh(self.u @ self.gather(0).h + self.b + self.pull("x", self.b.shape))
        self.scatter(h=h)
        self.push("loss", vrt.losses.cross_entropy(self.v @ h, self.pull("label")))


class Deep(vrt.VertexFunction):
    """A product of great depth, of positive numbers."""

    def __init__(self, deep: int, wide: int) -> None:
        super().__init__(state={})
        self.w = vrt.Parameter((wide, deep))

    def forward(self) -> None:
        y = self.w @ self.pull("x", self.w.shape[1:])
        self.push("loss", vrt.sum(y * y))


class Fan(vrt.VertexFunction):
    """Sums over the children, one way and the other, and over all vertices."""

    def __init__(self, hidden: int) -> None:
        super().__init__(state={"h": hidden})
        self.e = vrt.Parameter((3, hidden))
        self.u = vrt.Parameter((hidden, hidden))
        self.b = vrt.Parameter((hidden,))

    def forward(self) -> None:
        each = vrt.sigmoid(self.u @ self.gather_all().h)
        x = vrt.embed(self.e, self.pull("word")) + self.b
        h = vrt.sigmoid(x + vrt.sum(each) * self.pull("scale"))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class ManyParents(vrt.VertexFunction):
    """Parents that read one child through a slot: their gradients add up."""

    def __init__(self, hidden: int) -> None:
        super().__init__(arity=1, state={"h": hidden})
        self.b = vrt.Parameter((hidden,))

    def forward(self) -> None:
        h = vrt.sigmoid(self.b + self.pull("scale") * self.gather(0).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h) * self.pull("scale"))


def chains(count: int, length: int, classes: int, hidden: int) -> vrt.GraphBatch:
    rng = np.random.default_rng(0)
    return vrt.GraphBatch.from_graphs(
        [
            vrt.InputGraph.chain(
                length,
                {
                    "x": rng.standard_normal((length, hidden)) + 1.0,
                    "label": np.minimum(rng.integers(0, classes, length), rng.integers(0, classes)),
                },
            )
            for _ in range(count)
        ]
    )


def fan(leaves: int) -> vrt.GraphBatch:
    """One vertex with many children, which all have a second parent."""
    rng = np.random.default_rng(0)
    lists = [[] for _ in range(leaves)] + [list(range(leaves))] * 2
    pulls = {
        "word": rng.integers(0, 3, leaves + 2),
        "scale": np.full(leaves + 2, 2.0 / leaves),
    }
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(lists, pulls)])


class Kept:
    """An optimizer that keeps the gradients and changes nothing."""

    def update(self, store) -> None:  # type: ignore[no-untyped-def]
        self.gradients = {n: store.gradient(n).astype(np.float64) for n in store.names}


def gradients(function: vrt.VertexFunction, batch: vrt.GraphBatch, **options: object) -> dict:
    net = vrt.compile(function, seed=3, **options)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    low = 0.1 if isinstance(function, Deep) else -0.3
    net.parameters.update(
        {n: rng.uniform(low, 0.3, p.shape).astype(np.float32) for n, p in net.parameters.items()}
    )
    kept = Kept()
    net.step(batch, kept)  # type: ignore[arg-type]
    return kept.gradients


def check(function: vrt.VertexFunction, batch: vrt.GraphBatch, **options: object) -> None:
    exact = gradients(function, batch, device="reference", dtype="float64")
    for name, found in gradients(function, batch, **options).items():
        off = np.linalg.norm(found - exact[name]) / np.linalg.norm(exact[name])
        assert off < BOUND, f"{name}: {off:.1e}"


HOST = [("reference", "batched"), ("cpu", "batched"), ("cpu", "persistent")]
GPU = [
    pytest.param("cuda", "batched", marks=pytest.mark.gpu),
    pytest.param("cuda", "persistent", marks=pytest.mark.gpu),
]


@pytest.mark.parametrize(("device", "engine"), [*HOST, *GPU])
@pytest.mark.parametrize("classes", [10_000, 40_000])
def test_many_classes(device: str, engine: str, classes: int) -> None:
    require(device)
    batch = chains(2, 20, classes, 16)
    check(Classifier(classes, 16), batch, device=device, engine=engine, dtype="float32")


@pytest.mark.parametrize(("device", "engine"), [*HOST, *GPU])
def test_many_vertices(device: str, engine: str) -> None:
    require(device)
    check(Classifier(3, 4), chains(2500, 20, 3, 4), device=device, engine=engine, dtype="float32")


@pytest.mark.parametrize(("device", "engine"), [*HOST, *GPU])
def test_many_children(device: str, engine: str) -> None:
    require(device)
    check(Fan(8), fan(50_000), device=device, engine=engine, dtype="float32")


@pytest.mark.parametrize("engine", ["batched", "persistent"])
def test_many_parents(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    parents = 50_000  # nearly the same, or they would be merged: each addition is off the same way
    scale = np.random.default_rng(0).uniform(1.0, 1.001, parents + 1)
    graph = vrt.InputGraph.from_children([[], *[[0]] * parents], {"scale": scale})
    batch = vrt.GraphBatch.from_graphs([graph])
    processors = 1 if engine == "persistent" else None
    options = {"engine": engine, "processors": processors, "dtype": "float32"}
    check(ManyParents(8), batch, device="cuda", **options)


def positive(rows: int, deep: int) -> vrt.GraphBatch:
    x = np.random.default_rng(0).uniform(0.5, 1.0, (rows, deep))
    return vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[]] * rows, {"x": x})])


@pytest.mark.parametrize(("device", "engine"), [*HOST, *GPU])
def test_a_deep_product(device: str, engine: str) -> None:
    require(device)
    check(Deep(40_000, 8), positive(40, 40_000), device=device, engine=engine, dtype="float32")


def test_matrix_units_that_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By units that cut off what they add, as a GPU's do."""
    put_in_place(monkeypatch, seed=1)
    options = {"engine": "persistent", "processors": 1, "dtype": "float32"}
    check(Deep(1024, 9), positive(150, 1024), device="cuda", **options)
