"""How far gradients are from float64's: where sums are deep, and with less precise products.

`python -m benchmarks.accuracy --device cuda` prints, for each job, engine and precision, the
largest error of a gradient, relative to its norm. `--trees` and `--text` name SST and PTB; else
data are generated. What tf32 and bf16 bring in speed: `vertexrt train --precision`.
"""

import argparse
from collections.abc import Iterator

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.peers.suites import make_suite
from vertexrt.cli.options import CommandOption, OneOf
from vertexrt.engine.devices import PRECISIONS
from vertexrt.engine.parameters import ParameterStore
from vertexrt.errors import VertexrtError

Job = tuple[str, vrt.VertexFunction, vrt.GraphBatch]
SUITES = (
    ("tree-lstm", 64, 256),
    ("tree-lstm", 256, 256),
    ("fixed-lstm", 64, 512),
    ("tree-fc", 4, 512),
)


class Classifier(vrt.VertexFunction):
    """A recurrence over words with a softmax over many classes."""

    def __init__(self, words: int, classes: int, hidden: int) -> None:
        super().__init__(arity=1, state={"h": hidden})
        self.e = vrt.Parameter((words, hidden))
        self.u = vrt.Parameter((hidden, hidden))
        self.b = vrt.Parameter((hidden,))
        self.v = vrt.Parameter((classes, hidden))

    def forward(self) -> None:
        """Compute one word."""
        x = vrt.embed(self.e, self.pull("word"))
        h = vrt.tanh(x + self.u @ self.gather(0).h + self.b)
        self.scatter(h=h)
        self.push("loss", vrt.losses.cross_entropy(self.v @ h, self.pull("label")))


class Capture:
    """An optimizer that keeps the gradients of a step and changes nothing."""

    steps = 0

    def __init__(self) -> None:
        self.gradients: dict[str, np.ndarray] = {}

    def update(self, store: ParameterStore) -> None:
        """Copy the gradients."""
        self.gradients = {name: store.gradient(name).copy() for name in store.names}


def sentences(count: int, words: int, classes: int) -> vrt.GraphBatch:
    """Return chains of 20 random words with random labels."""
    rng = np.random.default_rng(0)
    return vrt.GraphBatch.from_graphs(
        [
            vrt.InputGraph.chain(
                20, {"word": rng.integers(0, words, 20), "label": rng.integers(0, classes, 20)}
            )
            for _ in range(count)
        ]
    )


def jobs(given: argparse.Namespace) -> Iterator[Job]:
    """Yield what is compared: a name, F and a batch."""
    for classes in (10_000, 40_000):
        batch = sentences(4, 1000, classes)
        yield f"softmax over {classes}", Classifier(1000, classes, 64), batch
    yield "50,000 vertices", Classifier(3, 5, 16), sentences(2500, 3, 5)
    for name, size, hidden in SUITES:
        suite = make_suite(name, hidden, given.trees, given.text)
        graphs = suite.pool.take(np.arange(size) % suite.pool.num_graphs)
        yield f"{name} {hidden}, batch {size}", suite.function, graphs


def gradients(net: vrt.Network, batch: vrt.GraphBatch) -> dict[str, np.ndarray]:
    """Return the gradients of a step that changes nothing."""
    capture = Capture()
    net.step(batch, capture)  # type: ignore[arg-type]
    return capture.gradients


def error_of(exact: vrt.Network, net: vrt.Network, batch: vrt.GraphBatch) -> tuple[str, float]:
    """Return the parameter whose gradient is farthest from the exact one, and how far it is."""
    net.parameters.update(exact.parameters)
    exact.parameters.update(net.parameters)  # as float32 has them
    wanted, found = gradients(exact, batch), gradients(net, batch)
    errors = {
        name: float(np.linalg.norm(found[name] - g) / np.linalg.norm(g))
        for name, g in wanted.items()
    }
    worst = max(errors, key=errors.__getitem__)
    return worst, errors[worst]


def main() -> None:
    """Compare."""
    row = CommandOption(
        "--precision P", OneOf(PRECISIONS), "", ", ".join(PRECISIONS), default="float32"
    )
    given = read_options(
        "benchmarks.accuracy", __doc__, None, row, device="auto", trees=None, text=None
    )
    how = {"device": given.device, "seed": 1}
    for name, function, batch in jobs(given):
        exact = vrt.compile(function, dtype="float64", **how)
        for engine in ("batched", "persistent"):
            try:
                net = vrt.compile(function, engine=engine, precision=given.precision, **how)
                worst, error = error_of(exact, net, batch)
            except VertexrtError as problem:
                print(f"{name:28} {engine:10} {problem}")
                continue
            print(f"{name:28} {engine:10} {error:.1e} ({worst})", flush=True)


if __name__ == "__main__":
    main()
