"""How long the recurrent part of an LSTM takes on a GPU: 100 steps, inputs' products done before.

    python -m benchmarks.lstm_inference [--hidden 64,256,1024] [--batch 1,10,20] [--json FILE]

The persistent engine, with nothing that is special to an LSTM: a vertex function over chains. For
each size several numbers of processors a group are tried. The kernel's time is that of its own time
stamps, start to end; a minibatch is everything, from preparing to results on the host. Outputs
are compared with float64 on the CPU first.
"""

import argparse
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

import vertexrt as vrt
from benchmarks.samples import write
from vertexrt.errors import NoKernelError
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.one_launch import kernel_seconds

STEPS, WARM, TIMED = 100, 5, 20
BOUND = 1e-5  # relative to the largest element
PROCESSORS = {64: (1, 2, 4), 256: (8, 16, 32), 1024: (64, 128)}


class Recurrent(vrt.VertexFunction):
    """The recurrent part of an LSTM (Hochreiter and Schmidhuber 1997)."""

    def __init__(self, hidden: int) -> None:
        super().__init__(arity=1, state={"c": hidden, "h": hidden})
        self.hidden = hidden
        self.u = vrt.Parameter((4 * hidden, hidden))
        self.b = vrt.Parameter((4 * hidden,), init=vrt.init.normal(0.5))

    def forward(self) -> None:
        before = self.gather(0)
        gates = self.pull("x", (4 * self.hidden,)) + self.b + self.u @ before.h
        i, f, o, u = vrt.split(gates, 4)
        c = vrt.sigmoid(f) * before.c + vrt.sigmoid(i) * vrt.tanh(u)
        h = self.push("h", vrt.sigmoid(o) * vrt.tanh(c))
        self.scatter(c=c, h=h)


def batch_of(hidden: int, count: int, seed: int = 0) -> vrt.GraphBatch:
    """Return chains with random inputs."""
    rng = np.random.default_rng(seed)
    return vrt.GraphBatch.from_graphs(
        [
            vrt.InputGraph.chain(
                STEPS, {"x": rng.standard_normal((STEPS, 4 * hidden)).astype(np.float32)}
            )
            for _ in range(count)
        ]
    )


def measure(hidden: int, processors: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Check and time one size with groups of so many processors."""
    net = vrt.compile(
        Recurrent(hidden), device="cuda", engine="persistent", processors=processors, seed=1
    )
    exact = vrt.compile(Recurrent(hidden), device="cpu", dtype="float64", seed=1)
    exact.set_parameters(net.parameters)
    found = []
    for size in sizes:
        batch = batch_of(hidden, size)
        got, want = net.forward(batch)["h"], exact.forward(batch)["h"]
        error = float(np.abs(got - want).max() / np.abs(want).max())
        if error > BOUND:
            sys.exit(f"hidden {hidden}, batch {size}: outputs differ by {error:.1e}")
        waiting: deque[Any] = deque()
        for _ in range(WARM):
            net.submit(batch).result()
        start = time.perf_counter()
        for _ in range(TIMED):
            waiting.append(net.submit(batch))
            if len(waiting) > 1:
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()
        whole = (time.perf_counter() - start) / TIMED
        launch = cast("CudaExecutor", net._executor).one_launch
        spans = []
        launch.watched = True
        for _ in range(TIMED):
            net.forward(batch)
            spans.append(kernel_seconds(launch.seen()))
        launch.watched = False
        record = {
            "hidden": hidden,
            "batch": size,
            "processors": processors,
            "error": error,
            "kernel_ms": float(np.median(spans)) * 1e3,
            "minibatch_ms": whole * 1e3,
        }
        print(
            f"hidden {hidden:5} batch {size:3} groups of {processors:3}: kernel "
            f"{record['kernel_ms']:.3f} ms, minibatch {whole * 1e3:.3f} ms, error {error:.1e}",
            flush=True,
        )
        found.append(record)
    return found


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", default="64,256,1024", help="sizes")
    parser.add_argument("--batch", default="1,10,20", help="sequences of a minibatch")
    parser.add_argument("--json", type=Path, help="where to write the results")
    given = parser.parse_args()
    results = []
    for hidden in map(int, given.hidden.split(",")):
        for processors in PROCESSORS[hidden]:
            try:
                results += measure(hidden, processors, [int(n) for n in given.batch.split(",")])
            except NoKernelError as error:
                print(f"hidden {hidden} groups of {processors}: {error}", flush=True)
    write(given.json, "lstm_inference", None, results, device="cuda")


if __name__ == "__main__":
    main()
