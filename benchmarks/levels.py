"""What a level takes in a persistent kernel of a GPU, by the kernel's own clock; checkouts in turn.

    python -m benchmarks.levels BEFORE AFTER [...] [--jobs lstm256,tree8] [--seconds 240]

A chain of one sequence, and a comb, have one row a level: what two lengths differ by, a level, is
its time. All kernels are compiled first, side by side; then each checkout is timed alone, twice
where there is time, and the least of both medians counts. Times are of whole kernels in
microseconds, from the first time stamp of a processor to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

STEPS, WARM = 15, 3
WORDS, FREQUENT = 3000, 200  # of which every third leaf has a frequent one
# Of a job: network, hidden size, processors of a group; batches: sequences of so many steps, so
# many random trees, or (negative) a comb of so many levels; two of them, for the time of a level.
SHORT, LONG = (1, 100), (1, 500)
JOBS: dict[str, tuple[str, int, int, tuple[Any, ...], tuple[Any, Any] | None]] = {
    "lstm64": ("lstm", 64, 1, (SHORT, LONG), (SHORT, LONG)),
    "lstm256": ("lstm", 256, 16, (SHORT, LONG, (20, 100)), (SHORT, LONG)),
    "lstm512": ("lstm", 512, 16, ((1, 20), (1, 64), (16, 64)), ((1, 20), (1, 64))),
    "lstm1024": ("lstm", 1024, 128, (SHORT, LONG), (SHORT, LONG)),
    "tree8": ("tree", 256, 8, (-10, -60, 1, 64, 256), (-10, -60)),
    "tree16": ("tree", 256, 16, (-10, -60, 1, 64, 256), (-10, -60)),
}


def main() -> None:
    """Compare, or be one of the processes."""
    parser = argparse.ArgumentParser("python -m benchmarks.levels", description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=lambda x: Path(x).resolve())
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # of a process: compile, or when to stop
    asked = parser.parse_args()
    jobs, end = asked.jobs.split(","), time.time() + asked.seconds
    if asked.one:
        for job in jobs:
            measure(job, asked.one)
        return
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        work = [
            (way, job, x) for way in ("train", "infer") for job in jobs for x in asked.checkouts
        ]
        list(pool.map(lambda x: run(x[2], x[1], x[0], end - 30), work))
    found: dict[tuple[str, str, str], dict[Path, float]] = {}
    longest = 0.0
    for turn in range(2):
        for checkout in asked.checkouts:
            start = time.time()
            if turn and end - start < 1.2 * longest:
                break
            for job, way, name, us in run(checkout, asked.jobs, str(end - 5), end):
                row = found.setdefault((job, way, name), {})
                row[checkout] = min(us, row.get(checkout, us))
            longest = max(longest, time.time() - start)
    print(f"{'us':40}" + "".join(f"{x.name[-10:]:>11}" for x in asked.checkouts))
    for key, row in found.items():
        times = "".join(f"{row.get(x, float('nan')):11.3f}" for x in asked.checkouts)
        print(f"{key[0]:9} {key[1]:6} {key[2]:23}{times}")


def run(checkout: Path, jobs: str, one: str, end: float) -> list[tuple[str, str, str, float]]:
    """Run a process of a checkout, with a cache of its own; return what it measured."""
    own = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    own["VERTEXRT_CACHE"] = str(Path("caches", checkout.name).resolve())
    words = [sys.executable, str(Path(__file__).resolve()), ".", "--jobs", jobs, "--one", one]
    left = max(1.0, end - time.time())
    try:
        done = subprocess.run(
            words, cwd=checkout, env=os.environ | own, capture_output=True, text=True, timeout=left
        )
    except subprocess.TimeoutExpired:
        print(f"{checkout.name}: {jobs} did not end in time", flush=True)
        return []
    if done.returncode:
        print(f"{checkout.name}: {done.stderr[-300:]}", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def measure(job: str, one: str) -> None:
    """Compile a job's kernel ("train", "infer"), or time its batches until a time of the clock."""
    import vertexrt as vrt

    _, _, processors, batches, slope = JOBS[job]
    function = function_of(vrt, job)
    net = vrt.compile(function, device="cuda", engine="persistent", processors=processors, seed=1)
    for way in ("infer", "train"):
        if one in ("infer", "train"):
            if one == way:
                step(vrt, net, batch_of(vrt, job, batches[0]), way)
            continue
        took: dict[Any, float] = {}
        for what in batches:
            if time.time() > float(one):
                return
            # Gradients of 500 steps of a network that was not trained are not finite.
            if way == "infer" or what != LONG:
                took[what] = kernel_us(vrt, net, batch_of(vrt, job, what), way)
                print(json.dumps([job, way, str(what), took[what]]), flush=True)
        if slope and took.keys() >= set(slope):
            few, many = (int(np.abs(what).max()) for what in slope)
            each = (took[slope[1]] - took[slope[0]]) / (many - few)
            print(json.dumps([job, way, "a level", each]), flush=True)


def function_of(vrt: Any, job: str) -> Any:
    """Return the network of a job."""
    kind, hidden = JOBS[job][:2]
    if kind == "tree":
        from vertexrt.models import TreeLSTM

        return TreeLSTM(vocab=6000, embed=hidden, hidden=hidden, classes=5)

    class LSTM(vrt.VertexFunction):
        def __init__(self) -> None:
            super().__init__(arity=1, state={"c": hidden, "h": hidden})
            self.embedding = vrt.Parameter((50, hidden), init=vrt.init.uniform(0.1))
            self.w, self.u = (vrt.Parameter((4 * hidden, hidden)) for _ in range(2))
            self.v = vrt.Parameter((50, hidden))

        def forward(self) -> None:
            before = self.gather(0)
            word = vrt.embed(self.embedding, self.pull("word"))
            i, f, o, u = vrt.split(self.w @ word + self.u @ before.h, 4)
            c = vrt.sigmoid(i) * vrt.tanh(u) + vrt.sigmoid(f) * before.c
            h = vrt.sigmoid(o) * vrt.tanh(c)
            self.scatter(c=c, h=h)
            logits = self.push("logits", self.v @ h)
            self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))

    return LSTM()


def batch_of(vrt: Any, job: str, what: Any) -> Any:
    """Return the minibatch of a job."""
    rng = np.random.default_rng(0)
    if isinstance(what, tuple):
        count, steps = what
        shapes = [[[], *([k] for k in range(steps - 1))]] * count
    elif what < 0:
        shapes = [[[], *([2 * k, 2 * k + 1] if j else [] for k in range(-what) for j in (0, 1))]]
    else:
        shapes = [tree(int(np.clip(rng.normal(19, 8), 3, 45)), rng) for _ in range(what)]
    graphs = []
    for shape in shapes:
        n = len(shape)
        words = rng.integers(0, np.where(rng.integers(0, 3, n) > 0, WORDS, FREQUENT))
        if job.startswith("lstm"):
            words = words % 50
        else:
            words[[bool(kids) for kids in shape]] = -1
        arrays = {"word": words, "label": np.arange(n) % 5}
        graphs.append(vrt.InputGraph.from_children(shape, arrays))
    return vrt.GraphBatch.from_graphs(graphs)


def tree(leaves: int, rng: np.random.Generator) -> list[list[int]]:
    """Return a binary tree: neighbours are joined in a drawn order."""
    shape: list[list[int]] = [[]] * leaves
    roots = list(range(leaves))
    while len(roots) > 1:
        k = int(rng.integers(0, len(roots) - 1))
        shape = [*shape, [roots[k], roots[k + 1]]]
        roots[k : k + 2] = [len(shape) - 1]
    return shape


def step(vrt: Any, net: Any, batch: Any, way: str) -> None:
    """Take a step that changes nothing, and wait for it."""
    if way == "train":
        float(net.step(batch, vrt.SGD(0.0)))
    else:
        dict(net(batch))


def kernel_us(vrt: Any, net: Any, batch: Any, way: str) -> float:
    """Return the median time of the kernel."""
    for _ in range(WARM):
        step(vrt, net, batch, way)
    with net.trace() as timeline:
        for _ in range(STEPS):
            step(vrt, net, batch, way)
    first, last = np.full(STEPS, np.inf), np.zeros(STEPS)
    for e in timeline.events():
        if e["ph"] == "X":
            k = e["args"]["run"]
            first[k], last[k] = min(first[k], e["ts"]), max(last[k], e["ts"] + e["dur"])
    return float(np.median(last - first))


if __name__ == "__main__":
    main()
