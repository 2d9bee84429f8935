"""How long the recurrent part of an LSTM takes on a GPU: 100 steps, inputs' products done before.

    python -m benchmarks.lstm_inference [--hidden 64,256,1024] [--batch 1,10,20] [--out DIR]

The persistent engine, with nothing that is special to an LSTM: a vertex function over chains. For
each size several numbers of processors a group are tried. The kernel's time is that of its own time
stamps, start to end; a minibatch is everything, from preparing to results on the host. Outputs
are compared with float64 on the CPU first.
"""

import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from vertexrt.bench.record import Entry, Key, make_entry
from vertexrt.bench.run import recording
from vertexrt.errors import NoKernelError
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.persistent_launch import BOTH_CLOCKS

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


def kernel_seconds(stamps: np.ndarray) -> float:
    """Return how long a kernel ran on its slowest processor, given `PersistentLaunch.seen`."""
    longest = 0
    for own in stamps:
        ends = np.flatnonzero(own[1:, 0] == BOTH_CLOCKS)
        if own[0, 0] == BOTH_CLOCKS and len(ends):
            longest = max(longest, int(own[1 + ends[0], 2] - own[0, 2]))
    return longest * 1e-9


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


def measure(hidden: int, processors: int, sizes: Sequence[int]) -> list[Entry]:
    """Check and time one size with groups of so many processors."""
    net = vrt.compile(
        Recurrent(hidden), device="cuda", engine="persistent", processors=processors, seed=1
    )
    exact = vrt.compile(Recurrent(hidden), device="cpu", dtype="float64", seed=1)
    exact.parameters.update(net.parameters)
    found = []
    for size in sizes:
        batch = batch_of(hidden, size)
        got, want = net(batch)["h"], exact(batch)["h"]
        error = float(np.abs(got - want).max() / np.abs(want).max())
        if error > BOUND:
            sys.exit(f"hidden {hidden}, batch {size}: outputs differ by {error:.1e}")
        waiting: deque[Any] = deque()
        for _ in range(WARM):
            net(batch).settle()
        start = time.perf_counter()
        for _ in range(TIMED):
            waiting.append(net(batch))
            if len(waiting) > 1:
                waiting.popleft().settle()
        while waiting:
            waiting.popleft().settle()
        whole = (time.perf_counter() - start) / TIMED
        launch = cast("CudaExecutor", net.executor).persistent_launch
        spans = []
        launch.watched = True
        for _ in range(TIMED):
            net(batch).settle()
            spans.append(kernel_seconds(launch.seen()))
        launch.watched = False
        kernel = float(np.median(spans))
        print(
            f"hidden {hidden:5} batch {size:3} groups of {processors:3}: kernel "
            f"{kernel * 1e3:.3f} ms, minibatch {whole * 1e3:.3f} ms, error {error:.1e}",
            flush=True,
        )
        key: Key = {"hidden": hidden, "batch_size": size, "processors": str(processors)}
        milliseconds = {"kernel": [1e3 * span for span in spans], "minibatch": [1e3 * whole]}
        for variant, values in milliseconds.items():
            found.append(make_entry({**key, "variant": variant}, values, "ms", "lower"))
    return found


def main() -> None:
    """Measure all sizes."""
    given = read_options(
        "benchmarks.lstm_inference",
        __doc__,
        hidden=(64, 256, 1024),
        batch=(1, 10, 20),
        out="bench",
    )
    given.device, given.threads = "cuda", 1  # nothing else is measured
    command = ["python", "-m", "benchmarks.lstm_inference", *sys.argv[1:]]
    with recording("lstm_inference", given, command) as made:
        for hidden in given.hidden:
            for processors in PROCESSORS[hidden]:
                try:
                    made.record.entries += measure(hidden, processors, given.batch)
                except NoKernelError as error:
                    print(f"hidden {hidden} groups of {processors}: {error}", flush=True)


if __name__ == "__main__":
    main()
