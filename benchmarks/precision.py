"""How far gradients are from float64 with each precision of products on a GPU, and how fast.

`python -m benchmarks.precision` prints a line a precision: Tree-LSTM, hidden = embed = 256, SST.
"""

import time

import numpy as np

import vertexrt as vrt
from benchmarks.peers.options import Options
from benchmarks.peers.suites import make_suite
from vertexrt.engine.model import PRECISIONS
from vertexrt.engine.parameters import ParameterStore

COMPARED, TIMED, ROUNDS = 64, 256, 60  # graphs of a batch, batches


class Capture:
    """An optimizer that keeps the gradients of a step and changes nothing."""

    steps = 0

    def __init__(self) -> None:
        self.gradients: dict[str, np.ndarray] = {}

    def update(self, store: ParameterStore) -> None:
        """Copy the gradients."""
        self.gradients = {name: store.gradient(name).copy() for name in store.names}


def gradients(net: vrt.Network, batch: vrt.GraphBatch) -> dict[str, np.ndarray]:
    """Return the gradients of a step that changes nothing."""
    capture = Capture()
    net.step(batch, capture)  # type: ignore[arg-type]
    return capture.gradients


def main() -> None:
    """Compare and time."""
    suite = make_suite("tree-lstm", Options())
    compared = suite.pool.take(np.arange(COMPARED))
    exact = vrt.compile(suite.function, device="cuda", dtype="float64")
    wanted = gradients(exact, compared)
    rng = np.random.default_rng(0)
    batches = [
        suite.pool.take(rng.integers(0, suite.pool.num_graphs, TIMED)) for _ in range(ROUNDS)
    ]
    for precision in PRECISIONS:
        net = vrt.compile(suite.function, device="cuda", precision=precision)
        net.set_parameters(exact.parameters)
        found = gradients(net, compared)
        errors = [
            float(np.linalg.norm(found[n] - g) / np.linalg.norm(g)) for n, g in wanted.items()
        ]
        optimizer = vrt.SGD(0.01)
        for batch in batches:
            net.step(batch, optimizer)
        net.sync()
        start = time.perf_counter()
        for batch in batches:
            net.step(batch, optimizer)
        net.sync()
        rate = TIMED * ROUNDS / (time.perf_counter() - start)
        print(f"{precision:8} largest error of a gradient {max(errors):.1e}, {rate:,.0f} graphs/s")


if __name__ == "__main__":
    main()
