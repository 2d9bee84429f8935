"""float32 is float32: gradients stay close to float64 however many terms are added up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.devices import shim
from tests.runs import train
from tests.shim_device import put_in_place
from tests.strategies import one_graph

BOUND = 2e-6  # of the norm of each gradient
MANY = 50_000


class Classifier(Declared, arity=1, state={"h": 16}, u=(16, 16), b=(16,), v=(40_000, 16)):
    """A recurrence with a softmax over many classes."""

    def forward(self) -> None:
        h = vrt.tanh(self.u @ self.gather(0).h + self.b + self.pull("x", self.b.shape))
        self.scatter(h=h)
        self.push("loss", vrt.losses.cross_entropy(self.v @ h, self.pull("label")))


class OfFew(Classifier, arity=1, state={"h": 4}, u=(4, 4), b=(4,), v=(3, 4)):
    """The same over few."""


class Deep(Declared, state={}, w=(8, 40_000)):
    """A product of great depth, of positive numbers."""

    def forward(self) -> None:
        y = self.w @ self.pull("x", self.w.shape[1:])
        self.push("loss", vrt.sum(y * y))


class LessDeep(Deep, state={}, w=(9, 1024)):
    """The same, for units that cut off what they add, as a GPU's do."""


class Fan(Declared, state={"h": 8}, e=(3, 8), u=(8, 8), b=(8,)):
    """Sums over the children, one way and the other, and over all vertices."""

    def forward(self) -> None:
        each = vrt.sigmoid(self.u @ self.gather_all().h)
        x = vrt.embed(self.e, self.pull("word")) + self.b
        h = vrt.sigmoid(x + vrt.sum(each) * self.pull("scale"))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class ManyParents(Declared, arity=1, state={"h": 8}, b=(8,)):
    """Parents that read one child through a slot: their gradients add up."""

    def forward(self) -> None:
        h = vrt.sigmoid(self.b + self.pull("scale") * self.gather(0).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h) * self.pull("scale"))


def chains(count: int, classes: int, hidden: int) -> vrt.GraphBatch:
    rng, found = np.random.default_rng(0), []
    for _ in range(count):
        x = rng.standard_normal((20, hidden)) + 1.0
        label = np.minimum(rng.integers(0, classes, 20), rng.integers(0, classes))
        found.append(vrt.InputGraph.chain(20, {"x": x, "label": label}))
    return vrt.GraphBatch.from_graphs(found)


def one(children: list[list[int]], low: float, high: float, *columns: int) -> vrt.GraphBatch:
    """Return a graph whose vertices have numbers from a range, and words."""
    rng, n = np.random.default_rng(0), len(children)
    pulls = {
        "word": rng.integers(0, 3, n),
        "scale": rng.uniform(low, high, n),
        "x": rng.uniform(low, high, (n, *columns)),
    }
    return one_graph(children, pulls)


SUBJECTS: dict[type[Declared], Callable[[], vrt.GraphBatch]] = {
    Classifier: lambda: chains(2, 40_000, 16),
    OfFew: lambda: chains(2500, 3, 4),
    # One vertex with many children, which all have a second parent.
    Fan: lambda: one([[]] * MANY + [[*range(MANY)]] * 2, 2.0 / MANY, 2.0 / MANY),
    Deep: lambda: one([[]] * 40, 0.5, 1.0, 40_000),
    # Nearly the same, or they would be merged: each addition is off the same way.
    ManyParents: lambda: one([[], *[[0]] * MANY], 1.0, 1.001),
    LessDeep: lambda: one([[]] * 150, 0.5, 1.0, 1024),
}
WAYS = [("reference", "batched"), *product(("cpu", "cuda"), ("batched", "persistent"))]
ON_SHIM = [(ManyParents, "batched"), (ManyParents, "persistent"), (LessDeep, "persistent")]


def check(make: type[Declared], **options: object) -> None:
    batch, found = SUBJECTS[make](), []
    low = 0.1 if issubclass(make, Deep) else -0.3
    for given in (options | {"dtype": "float32"}, {"device": "reference", "dtype": "float64"}):
        net = vrt.compile(make(), seed=3, **given)  # type: ignore[arg-type]
        rng = np.random.default_rng(1)
        net.parameters.update(
            {n: rng.uniform(low, 0.3, p.shape).astype("f4") for n, p in net.parameters.items()}
        )
        found.append(train(net, batch).parameters)
    for name, exact in found[1].items():
        off = np.linalg.norm(found[0][name] - exact) / np.linalg.norm(exact)
        assert off < BOUND, f"{name}: {off:.1e}"


@pytest.mark.parametrize(("device", "engine"), WAYS)
@pytest.mark.parametrize("make", [Classifier, OfFew, Fan, Deep])
def test_gradients_of_many_terms(make: type[Declared], device: str, engine: str) -> None:
    check(make, device=device, engine=engine)


@shim
@pytest.mark.parametrize(("make", "engine"), ON_SHIM)
def test_they_are_close_on_the_shim(
    make: type[Declared], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch, seed=1)
    processors = 1 if engine == "persistent" else None
    check(make, device="cuda", engine=engine, processors=processors)
