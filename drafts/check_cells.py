"""Cells on a GPU: agreement with the reference of all cases of the stand-in's test, then kernel times.

PYTHONPATH=. python check.py check|times [-v]
"""

from __future__ import annotations

import sys
import time
import traceback
from functools import partial
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack
from tests.functions import FUNCTIONS, LSTMChain
from tests.runs import PLAIN, TOLERANCE, Way, assert_same, evaluate, train
from tests.strategies import with_pulls
from vertexrt.data.edges import chain, stacked
from vertexrt.graph import GraphBatch
from vertexrt.models import TreeLSTM

TREE = [[], [], [0, 1], [], [2, 3], [], [4, 5]]
CHAIN = [[], [0], [1], [2]]
DAG = [[], [], [0, 1], [0, 2], [2, 3]]
DEVICE = "cuda"
STEPS = 15
WORKERS = 14


def way(processors, dtype: str) -> Way:
    return Way(DEVICE, dtype, engine="persistent", processors=processors)


def sides(net):
    found = []
    for v in net._executor.model.variants.values():
        ready = v.loaded
        if ready is not None and ready.processors is not None:
            found.append(
                len(ready.processors.writer.cells)
                if hasattr(ready.processors.writer, "cells")
                else 0
            )
    return found


def pool():
    return ProcessPoolExecutor(WORKERS, get_context("spawn"))


def check():
    from tests.backend import test_cuda_cells as T

    cases = []
    for name in T.MAKES:
        if name == "curves":
            continue
        arity = FUNCTIONS[name][1] if name in FUNCTIONS else 1
        for dtype in ("float32", "float64"):
            for p in (8, 16) if dtype == "float32" else (16,):
                cases.append((name, p, dtype))
    cases += [
        (n, p, "float32")
        for n in ("lstm-lm", "tree-lstm", "forget-all", "attentive", "normed")
        for p in (1, 4, 32)
    ]
    shapes = {c[0]: c[3] for c in T.CASES}
    with pool() as workers:
        wrong = [c for c, w in zip(cases, workers.map(one, cases)) if w]
    print(f"{len(wrong)} of {len(cases)} wrong: {wrong}", flush=True)


def one(case):
    from tests.backend import test_cuda_cells as T

    name, processors, dtype = case
    start, found, said = time.time(), "", "ok"
    try:
        here, there = (
            way(processors, dtype).compile(T.MAKES[name]()),
            PLAIN.compile(T.MAKES[name]()),
        )
        shape = {c[0]: c[3] for c in T.CASES}.get(name)
        if shape is None:
            shape = CHAIN if name in FUNCTIONS and FUNCTIONS[name][1] == 1 else TREE
        for graphs in (5, 1, 40):
            batch = T.MODELS[name].batch if name in T.MODELS else with_pulls([shape] * graphs)
            if name == "started":
                batch = T.given(batch)
            first = evaluate(here, batch)
            assert_same(first, evaluate(there, batch), TOLERANCE[dtype])
            again = evaluate(here, batch)
            for key, value in first.parameters.items():
                assert np.array_equal(value, again.parameters[key]), f"{key} has other bits"
        assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])
        found = sides(here)
    except Exception as error:
        said = f"WRONG {type(error).__name__}: {str(error)[:300]}"
        if "-v" in sys.argv:
            traceback.print_exc()
    print(
        f"{name:14} P {processors:3} {dtype} cells {found}: {said} ({time.time() - start:.0f} s)",
        flush=True,
    )
    return said != "ok"


def chains(count: int, steps: int, vocab: int = 50) -> GraphBatch:
    shape = [[], *([k] for k in range(steps - 1))]
    graphs = []
    for g in range(count):
        word = (np.arange(steps) * 7 + g) % vocab
        graphs.append(vrt.InputGraph.from_children(shape, {"word": word, "label": word}))
    return GraphBatch.from_graphs(graphs)


def combs(count: int, depth: int) -> GraphBatch:
    """Trees of one inner vertex a level: a level of one row."""
    shape: list[list[int]] = [[]]
    for _ in range(depth):
        shape += [[], [len(shape) - 1, len(shape)]]
    return _trees([shape] * count)


def random_trees(count: int, seed: int = 0) -> GraphBatch:
    rng, shapes = np.random.default_rng(seed), []
    for _ in range(count):
        leaves = int(np.clip(rng.normal(19, 8), 3, 45))
        shape: list[list[int]] = [[] for _ in range(leaves)]
        roots = list(range(leaves))
        while len(roots) > 1:
            k = int(rng.integers(0, len(roots) - 1))
            shape.append([roots[k], roots[k + 1]])
            roots[k : k + 2] = [len(shape) - 1]
        shapes.append(shape)
    return _trees(shapes, rng)


def _trees(shapes: list[list[list[int]]], rng: Any = None) -> GraphBatch:
    graphs = []
    for n, shape in enumerate(shapes):
        word = np.array([-1 if kids else (k * 7 + n) % 90 for k, kids in enumerate(shape)])
        label = np.array([k % 5 for k in range(len(shape))])
        graphs.append(vrt.InputGraph.from_children(shape, {"word": word, "label": label}))
    return GraphBatch.from_graphs(graphs)


def kernel_us(net: vrt.Network, batch: GraphBatch, training: bool) -> float:
    """Return what the kernel of a step takes, by its own clock."""
    optimizer = vrt.SGD(0.0)

    def run() -> None:
        if training:
            float(net.step(batch, optimizer))
        else:
            dict(net(batch))

    for _ in range(3):
        run()
    with net.trace() as timeline:
        for _ in range(STEPS):
            run()
    ends = np.zeros((STEPS, 2))
    for e in timeline.events():
        if e["ph"] == "X":
            k = e["args"]["run"]
            first, last = ends[k]
            ends[k] = min(first or e["ts"], e["ts"]), max(last, e["ts"] + e["dur"])
    return float(np.median(ends[:, 1] - ends[:, 0]))


def wall_us(net: vrt.Network, batch: GraphBatch, training: bool, steps: int = 200) -> float:
    """Return what a step takes from the host, waited for at the end."""
    optimizer = vrt.SGD(0.0)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        if training:
            for _ in range(steps):
                loss = net.step(batch, optimizer)
            float(loss)
        else:
            for _ in range(steps):
                found = net(batch)
            dict(found)
        best = min(best, (time.perf_counter() - start) / steps)
    return best * 1e6


def trees256():
    found = {"comb 10": combs(1, 10), "comb 60": combs(1, 60), "1 tree": random_trees(1, 3)}
    return found | {f"{n} trees": random_trees(n) for n in (16, 64, 256)}


def sequences(*more):
    return {f"{n} x {t}": chains(n, t) for n, t in ((1, 100), (1, 500), *more)}


def tree_lstm():
    return TreeLSTM(vocab=100, embed=256, hidden=256, classes=5)


JOBS = [
    ("Tree-LSTM 256", 16, tree_lstm, trees256, ("comb 10", "comb 60", 50)),
    ("Tree-LSTM 256", 8, tree_lstm, trees256, ("comb 10", "comb 60", 50)),
    (
        "LSTM 256",
        16,
        partial(LSTMChain, 50, 256, 256),
        partial(sequences, (20, 100)),
        ("1 x 100", "1 x 500", 400),
    ),
    (
        "LSTM 1024",
        128,
        partial(LSTMChain, 50, 1024, 1024),
        partial(sequences, (4, 100)),
        ("1 x 100", "1 x 500", 400),
    ),
    (
        "LSTM 64",
        1,
        partial(LSTMChain, 50, 64, 64),
        partial(sequences, (20, 100)),
        ("1 x 100", "1 x 500", 400),
    ),
]


def warm(case):
    number, training = case
    title, processors, make, batches, _ = JOBS[number]
    start = time.time()
    try:
        net, batch = way(processors, "float32").compile(make()), next(iter(batches().values()))
        if training:
            float(net.step(batch, vrt.SGD(0.0)))
        else:
            dict(net(batch))
        said = "compiled"
    except Exception as error:
        said = str(error)[:300]
    print(
        f"{title} P {processors} training {training}: {said} ({time.time() - start:.0f} s)",
        flush=True,
    )


def times():
    with pool() as workers:
        list(workers.map(warm, [(n, t) for n in range(len(JOBS)) for t in (False, True)]))
    for title, processors, make, make_batches, (short, long, levels) in JOBS:
        batches = make_batches()
        try:
            net = way(processors, "float32").compile(make())
        except Exception as error:
            print(title, str(error)[:300])
            continue
        for training in (False, True):
            found = {}
            what = "train" if training else "infer"
            for name, batch in batches.items():
                try:
                    found[name] = (
                        kernel_us(net, batch, training),
                        wall_us(net, batch, training, 100),
                    )
                except Exception as error:
                    print(f"{title}, {name}: {str(error)[:300]}", flush=True)
                    if "-v" in sys.argv:
                        traceback.print_exc()
                    continue
                print(
                    f"{title} P {processors} {what} {name:9}: kernel {found[name][0]:8.1f} us, wall {found[name][1]:8.1f}",
                    flush=True,
                )
            if short in found and long in found:
                print(
                    f"{title} P {processors} {what}: {(found[long][0] - found[short][0]) / levels:.3f} us a level (sides {sides(net)})",
                    flush=True,
                )


if __name__ == "__main__":
    print("vertexrt", vrt.__file__, flush=True)
    if "check" in sys.argv:
        check()
    if "times" in sys.argv:
        times()
