"""How long a GPU's persistent engine takes to its first step, with empty caches and with full ones.

    python -m benchmarks.cold_start

Tree-LSTM of 256, and a recursive network of 512 with two weights (VPPS, MICRO 2018, Table II). Each
start is a process of its own. Importing the package is not counted; compiling the compiled loops of
the host, which an installation does once, is said apart.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

import vertexrt as vrt
from vertexrt.models import TreeLSTM

WORDS, CLASSES = 1000, 5
TREE = [[], [], [0, 1], [], [2, 3], [], [4, 5]]


class Recursive(vrt.VertexFunction):
    """A recursive network over binary trees (Socher et al. 2011)."""

    def __init__(self, hidden: int) -> None:
        super().__init__(arity=2, state={"h": hidden})
        self.embedding = vrt.Parameter((WORDS, hidden))
        self.left = vrt.Parameter((hidden, hidden))
        self.right = vrt.Parameter((hidden, hidden))
        self.v = vrt.Parameter((CLASSES, hidden))

    def forward(self) -> None:
        below = self.left @ self.gather(0).h + self.right @ self.gather(1).h
        h = vrt.tanh(below + vrt.embed(self.embedding, self.pull("word")))
        self.scatter(h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.cross_entropy(logits, self.pull("label")))


FUNCTIONS = {
    "Tree-LSTM 256": lambda: TreeLSTM(WORDS, 256, 256, CLASSES),
    "RvNN 512": lambda: Recursive(512),
}


def start(name: str) -> dict[str, float]:
    """Time the host's loops (by a small network), then tracing and the first step."""
    word = np.array([1, 2, -1, 3, -1, 4, -1])
    pulls = {"word": word, "label": np.arange(7) % CLASSES}
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(TREE, pulls)])
    begin = time.perf_counter()
    vrt.compile(Recursive(8), device="cuda").step(batch, vrt.SGD(0.0))
    host = time.perf_counter()
    net = vrt.compile(FUNCTIONS[name](), device="cuda", engine="persistent")
    net.step(batch, vrt.SGD(0.0))
    net.sync()
    first = time.perf_counter()
    net.step(batch, vrt.SGD(0.0))
    net.sync()
    second = time.perf_counter()
    return {"host": host - begin, "first step": first - host, "step": second - first}


def main() -> None:
    """Print a line for each start."""
    if len(sys.argv) > 1:
        print(json.dumps(start(sys.argv[1])))
        return
    for name in FUNCTIONS:
        with tempfile.TemporaryDirectory() as folder:
            environment = {
                **os.environ,
                "VERTEXRT_CACHE": f"{folder}/vertexrt",
                "CUDA_CACHE_DISABLE": "1",
            }
            for state in ("empty", "full"):
                words = [sys.executable, "-m", "benchmarks.cold_start", name]
                done = subprocess.run(words, capture_output=True, text=True, env=environment)
                if done.returncode:
                    sys.exit(done.stderr)
                found = json.loads(done.stdout)
                print(
                    f"{name:14} caches {state:5}: to the first step {found['first step']:.2f} s; "
                    f"before, once an installation, {found['host']:.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
