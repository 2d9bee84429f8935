"""Kernel times of several checkouts on an H200, side by side: slopes of one-row levels, and batches.

    python fast_gpu.py [--jobs lstm256,tree16,...] [--limit 240] FOLDER FOLDER ...

Each folder is a checkout (before, after each commit; `git archive COMMIT | tar x -C FOLDER`). All
kernels are compiled first, side by side on all cores; then each folder is timed alone, in turn,
twice around as long as there is time (the least of both medians counts). One table is printed: us,
one column a folder, by the kernel's own clock. Rows that would end after the limit are left out.
Four folders and all jobs are about 48 kernels: 100 s on 16 cores, then 10 to 20 s a folder.
The order of `--jobs` is the order of timing. Needs no other file; numpy and the checkouts alone.
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

STEPS = 15
# name: kind, hidden, processors, batches {name: what}, of which two for the slope, and its levels
CHAINS = {"1 x 100": (1, 100), "1 x 500": (1, 500)}
TREES = {"comb 10": -10, "comb 60": -60, "1 tree": 1, "64 trees": 64, "256 trees": 256}
SLOPE_C, SLOPE_T = ("1 x 100", "1 x 500", 400), ("comb 10", "comb 60", 50)
JOBS = {
    "lstm256": ("lstm", 256, 16, CHAINS | {"20 x 100": (20, 100)}, SLOPE_C),
    "lstm64": ("lstm", 64, 1, CHAINS, SLOPE_C),
    "lstm1024": ("lstm", 1024, 128, CHAINS, SLOPE_C),
    "tree16": ("tree", 256, 16, TREES, SLOPE_T),
    "tree8": ("tree", 256, 8, TREES, SLOPE_T),
    "lstm512": ("lstm", 512, 16, {"16 x 64": (16, 64)}, None),
}


def network(job):
    from tests.functions import LSTMChain
    from tests.runs import Way
    from vertexrt.models import TreeLSTM

    kind, hidden, processors, _, _ = JOBS[job]
    way = Way("cuda", "float32", engine="persistent", processors=processors)
    if kind == "lstm":
        return way.compile(LSTMChain(50, hidden, hidden))
    return way.compile(TreeLSTM(vocab=100, embed=hidden, hidden=hidden, classes=5))


def batch_of(job, what):
    import numpy as np
    import vertexrt as vrt
    from vertexrt.graph import GraphBatch

    graphs = []
    if JOBS[job][0] == "lstm":
        count, steps = what
        for g in range(count):
            word = (np.arange(steps) * 7 + g) % 50
            shape = [[], *([k] for k in range(steps - 1))]
            graphs.append(vrt.InputGraph.from_children(shape, {"word": word, "label": word}))
        return GraphBatch.from_graphs(graphs)
    rng, shapes = np.random.default_rng(3 if what == 1 else 0), []
    if what < 0:  # a comb: a level of one row
        shape = [[]]
        for _ in range(-what):
            shape += [[], [len(shape) - 1, len(shape)]]
        shapes = [shape]
    for _ in range(max(what, 0)):
        leaves = int(np.clip(rng.normal(19, 8), 3, 45))
        shape = [[] for _ in range(leaves)]
        roots = list(range(leaves))
        while len(roots) > 1:
            k = int(rng.integers(0, len(roots) - 1))
            shape.append([roots[k], roots[k + 1]])
            roots[k : k + 2] = [len(shape) - 1]
        shapes.append(shape)
    for n, shape in enumerate(shapes):
        word = np.array([-1 if kids else (k * 7 + n) % 90 for k, kids in enumerate(shape)])
        label = np.arange(len(shape)) % 5
        graphs.append(vrt.InputGraph.from_children(shape, {"word": word, "label": label}))
    return GraphBatch.from_graphs(graphs)


def step(net, batch, training, optimizer):
    if training:
        float(net.step(batch, optimizer))
    else:
        dict(net(batch))


def kernel_us(net, batch, training):
    import numpy as np
    import vertexrt as vrt

    optimizer = vrt.SGD(0.0)
    for _ in range(3):
        step(net, batch, training, optimizer)
    with net.trace() as timeline:
        for _ in range(STEPS):
            step(net, batch, training, optimizer)
    first, last = np.full(STEPS, np.inf), np.zeros(STEPS)
    for e in timeline.events():
        if e["ph"] == "X":
            k = e["args"]["run"]
            first[k], last[k] = min(first[k], e["ts"]), max(last[k], e["ts"] + e["dur"])
    return float(np.median(last - first))


def compile_one(job, training):
    import vertexrt as vrt

    batches = JOBS[job][3]
    step(network(job), batch_of(job, next(iter(batches.values()))), training, vrt.SGD(0.0))


def time_all(jobs, until):
    for job in jobs:
        net = network(job)
        for training in (False, True):
            for name, what in JOBS[job][3].items():
                if time.time() > until:
                    return
                try:
                    us = kernel_us(net, batch_of(job, what), training)
                    print(json.dumps([job, "train" if training else "infer", name, us]), flush=True)
                except Exception as error:
                    print(
                        json.dumps([job, "train" if training else "infer", name, str(error)[:150]]),
                        flush=True,
                    )


def child(folder, number, *words, timeout):
    # Each checkout has a cache of its own: what is compiled is what its sources say.
    env = os.environ | {
        "PYTHONPATH": str(folder),
        "VERTEXRT_CACHE": f"level-times-cache/{number}",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, str(Path(__file__).resolve()), *map(str, words)]
    try:
        return subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=max(timeout, 1)
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        return subprocess.CompletedProcess(
            command, 1, out.decode() if isinstance(out, bytes) else out, "out of time"
        )


def main():
    if sys.argv[1:2] == ["--compile"]:
        return compile_one(sys.argv[2], sys.argv[3] == "True")
    if sys.argv[1:2] == ["--time"]:
        return time_all(sys.argv[3].split(","), float(sys.argv[2]))
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=lambda x: Path(x).resolve())
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--limit", type=float, default=240)
    asked = parser.parse_args()
    start, jobs = time.time(), asked.jobs.split(",")
    end = start + asked.limit
    work = [(n, f, j, t) for t in (False, True) for j in jobs for n, f in enumerate(asked.folders)]
    # What compiles longest comes first: training.
    work.sort(key=lambda x: not x[3])

    def compiled(x):
        n, folder, job, training = x
        done = child(folder, n, "--compile", job, training, timeout=end - 40 - time.time())
        if done.returncode:
            print(f"{folder.name} {job} training {training}: {done.stderr[-300:]}", flush=True)

    with ThreadPoolExecutor(max(2, (os.cpu_count() or 16) - 1)) as pool:
        list(pool.map(compiled, work))
    print(f"compiled {len(work)} kernels in {time.time() - start:.0f} s", flush=True)
    found, said, took = {}, {}, 0.0
    for turn in range(2):
        for n, folder in enumerate(asked.folders):
            left = end - 5 - time.time()
            if turn and left < took * 1.2:
                break
            began = time.time()
            done = child(folder, n, "--time", end - 8, asked.jobs, timeout=left)
            took = max(took, time.time() - began)
            if done.returncode:
                print(f"{folder.name}: {done.stderr[-400:]}", flush=True)
            for line in done.stdout.splitlines():
                if not line.startswith("["):
                    continue
                job, mode, name, us = json.loads(line)
                if isinstance(us, str):
                    said[folder.name, job, mode, name] = us
                else:
                    found[n, job, mode, name] = min(us, found.get((n, job, mode, name), us))
    titles = [f.name[-10:] for f in asked.folders]
    print(f"{'us, kernel clock':34}" + "".join(f"{t:>11}" for t in titles))
    for job in jobs:
        _, hidden, processors, batches, slope = JOBS[job]
        for mode in ("infer", "train"):
            rows = [
                (name, lambda n, name=name: found.get((n, job, mode, name))) for name in batches
            ]
            if slope:
                short, long, levels = slope

                def of(n, short=short, long=long, levels=levels):
                    a, b = found.get((n, job, mode, short)), found.get((n, job, mode, long))
                    return None if a is None or b is None else (b - a) / levels

                rows.insert(0, ("a level", of))
            for name, value in rows:
                cells = "".join(
                    "          -" if value(n) is None else f"{value(n):11.3f}"
                    for n in range(len(asked.folders))
                )
                print(f"{job:9}P {processors:<4}{mode:7}{name:12}{cells}")
    for key, text in said.items():
        print(*key, text)
    print(f"{time.time() - start:.0f} s in all")


main()
