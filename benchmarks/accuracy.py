"""How far float32's gradients are from float64's, where sums are deep.

`python -m benchmarks.accuracy --device cuda` prints, for each job and engine, the largest error of
a gradient, relative to its norm. `--trees` and `--text` name SST and PTB; else data are generated.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np

import vertexrt as vrt
from benchmarks.peers.options import Options
from benchmarks.peers.suites import make_suite
from benchmarks.precision import gradients
from vertexrt.errors import VertexrtError

Job = tuple[str, Callable[[], vrt.VertexFunction], vrt.GraphBatch]
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
        self.push("loss", vrt.cross_entropy(self.v @ h, self.pull("label")))


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


def jobs(options: Options) -> Iterator[Job]:
    """Yield what is compared: a name, F and a batch."""
    for classes in (10_000, 40_000):
        batch = sentences(4, 1000, classes)
        yield f"softmax over {classes}", lambda n=classes: Classifier(1000, n, 64), batch
    yield "50,000 vertices", lambda: Classifier(3, 5, 16), sentences(2500, 3, 5)
    for name, size, hidden in SUITES:
        suite = make_suite(name, Options(trees=options.trees, text=options.text, hidden=hidden))
        graphs = suite.pool.take(np.arange(size) % suite.pool.num_graphs)
        yield f"{name} {hidden}, batch {size}", lambda f=suite.function: f, graphs


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--trees")
    parser.add_argument("--text")
    given = parser.parse_args()
    for name, make, batch in jobs(Options(trees=given.trees, text=given.text)):
        exact = vrt.compile(make(), device=given.device, dtype="float64", seed=1)
        for engine in ("batched", "persistent"):
            try:
                net = vrt.compile(make(), device=given.device, engine=engine, seed=1)
                net.set_parameters(exact.parameters)
                exact.set_parameters(net.parameters)  # as float32 has them
                wanted = gradients(exact, batch)
                found = gradients(net, batch)
            except VertexrtError as error:
                print(f"{name:28} {engine:10} {error}")
                continue
            errors = {
                n: float(np.linalg.norm(found[n] - g) / np.linalg.norm(g))
                for n, g in wanted.items()
            }
            worst = max(errors, key=errors.__getitem__)
            print(f"{name:28} {engine:10} {errors[worst]:.1e} ({worst})", flush=True)


if __name__ == "__main__":
    main()
