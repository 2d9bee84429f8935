"""Compile a model in a process of its own, and print how long it took, as JSON.

`python -m benchmarks.papers.compile_once MODEL DATA HIDDEN ENGINE DEVICE THREADS GRAPHS`
"""

from __future__ import annotations

import json
import sys
import time


def main(words: list[str]) -> None:
    """Time tracing with its passes, the first step, and a step after it."""
    model, source, hidden, engine, device, threads, graphs = words
    import vertexrt as vrt
    from vertexrt.bench.jobs import first_graphs, make_job

    job = make_job(model, source or None)
    batch = first_graphs(job, int(graphs))
    begin = time.perf_counter()
    net = vrt.compile(job.make(int(hidden)), device=device, engine=engine, threads=int(threads))
    traced = time.perf_counter()
    net.step(batch, vrt.SGD(lr=0.0))
    net.sync()
    first = time.perf_counter()
    net.step(batch, vrt.SGD(lr=0.0))
    net.sync()
    second = time.perf_counter() - first
    found = {"trace": traced - begin, "first step": first - traced - second, "step": second}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
