"""Bytes of weights that products ask for in a step (VPPS, Table I); counted, not timed.

`weights.py` has the formula. The schedules and scripts are those of the CPU: a GPU has
the same tasks.
"""

from __future__ import annotations

import vertexrt as vrt
from benchmarks.papers.options import Options
from benchmarks.papers.weights import held_bytes, loaded_bytes
from vertexrt.bench.counts import TRAINING
from vertexrt.bench.jobs import first_graphs
from vertexrt.bench.record import Entry, one_number
from vertexrt.bench.run import Bench

# name -> engine, policy, processors of a group
WAYS = {
    "batched, one vertex a task": ("batched", "serial", None),
    "batched": ("batched", "frontier", None),
    "persistent, group of 4": ("persistent", "frontier", 4),
}
HELD = "held on chip for a step"


def run(bench: Bench, options: Options) -> list[Entry]:
    """Count for each batch size, over the first graphs of the data."""
    function = bench.job.make(options.hidden)
    found = []
    for batch_size in options.batch_sizes:
        batch = first_graphs(bench.job, batch_size)
        key = bench.key(part="weights", batch_size=batch_size)
        for name, (engine, policy, processors) in WAYS.items():
            net = vrt.compile(
                function,
                device="cpu",
                engine=engine,
                policy=policy,
                threads=processors or 1,
                processors=processors,
            )
            (one,) = net._model.prepare(TRAINING, batch)
            itemsize = net._model.store.dtype.itemsize
            loaded = loaded_bytes(one, itemsize)
            found.append(one_number({**key, "variant": name}, loaded / 1e6, "MB a step", "lower"))
            if name == "batched":
                held = held_bytes(one, itemsize) / 1e6
                found.append(one_number({**key, "variant": HELD}, held, "MB a step", "lower"))
    return found
