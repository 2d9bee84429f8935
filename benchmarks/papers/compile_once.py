"""Compile a model in a process of its own, and print how long it took, as JSON.

`python -m benchmarks.papers.compile_once MODEL DATA HIDDEN ENGINE DEVICE THREADS GRAPHS`
"""

import json
import sys
import time
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.bench.run import first_graphs, make_job

TREE = [[], [], [0, 1]]


class Small(vrt.VertexFunction):
    """A recursive network, for what the package compiles whatever F is."""

    def __init__(self) -> None:
        super().__init__(arity=2, state={"h": 3})
        self.embedding = vrt.Parameter((2, 3))
        self.w = vrt.Parameter((3, 3))

    def forward(self) -> None:
        below = self.w @ (self.gather(0).h - self.gather(1).h)
        h = vrt.tanh(below + vrt.embed(self.embedding, self.pull("word")))
        self.scatter(h=h)
        self.push("loss", vrt.losses.cross_entropy(h, self.pull("label")))


def seconds_of_a_step(net: vrt.Network, batch: vrt.GraphBatch) -> float:
    """Time a step that changes nothing."""
    begin = time.perf_counter()
    net.step(batch, vrt.SGD(lr=0.0))
    net.sync()
    return time.perf_counter() - begin


def main(words: list[str]) -> None:
    """Time the host's loops (by a small network), tracing with its passes, and the first step."""
    model, source, hidden, engine, device, threads, graphs = words
    job = make_job(model, source or None)
    batch = first_graphs(job, int(graphs))
    pulls = {"word": np.array([0, 1, -1]), "label": np.arange(3)}
    tree = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(TREE, pulls)])
    how: dict[str, Any] = {"device": device, "engine": engine, "threads": int(threads)}
    host = seconds_of_a_step(vrt.compile(Small(), **how), tree)
    begin = time.perf_counter()
    net = vrt.compile(job.make(int(hidden)), **how)
    trace = time.perf_counter() - begin
    first, step = seconds_of_a_step(net, batch), seconds_of_a_step(net, batch)
    print(json.dumps({"host": host, "trace": trace, "first step": first - step, "step": step}))


if __name__ == "__main__":
    main(sys.argv[1:])
