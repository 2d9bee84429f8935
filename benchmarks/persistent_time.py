"""Where the time of a persistent kernel goes: instructions and waits, from its own time stamps.

`python -m benchmarks.persistent_time --batch 1,16 --processors 8` trains a Tree-LSTM on a GPU and
prints, for each kind of instruction, the mean over processors of what a step runs and waits.
"""

from collections import defaultdict
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.peers.suites import make_suite
from vertexrt.cli.options import COUNT, CommandOption
from vertexrt.engine.variant import Passes

WARM, WATCHED = 12, 8  # minibatches
Array = np.ndarray[Any, Any]


def measure(net: vrt.Network, pool: vrt.GraphBatch, size: int) -> None:
    """Print the table of one batch size."""
    rng = np.random.default_rng(0)
    batches = [pool.take(rng.integers(0, pool.num_graphs, size)) for _ in range(WARM + WATCHED)]
    optimizer = vrt.SGD(0.0)
    for batch in batches[:WARM]:
        net.step(batch, optimizer)
    net.sync()
    with net.trace() as timeline:
        for batch in batches[WARM:]:
            net.step(batch, optimizer)
    slices = [e for e in timeline.events() if e["ph"] == "X"]
    ends = np.zeros((WATCHED, 2))
    table: dict[tuple[int, str], Array] = defaultdict(lambda: np.zeros(4))
    names: dict[tuple[int, int, int], tuple[int, str]] = {}
    for e in slices:
        args = e["args"]
        first, last = ends[args["run"]]
        ends[args["run"]] = min(first or e["ts"], e["ts"]), max(last, e["ts"] + e["dur"])
        if e["cat"] != "wait":
            key = args.get("program", -1), e["name"]
            names[args["run"], e["tid"], args["instruction"]] = key
            table[key] += (1.0, 0.0, e["dur"], args.get("rows", 0))
    for e in slices:
        if e["cat"] == "wait":
            table[names[e["args"]["run"], e["tid"], e["args"]["instruction"]]][1] += e["dur"]
    spans = ends[:, 1] - ends[:, 0]
    print(f"batch {size}: the kernel takes {np.median(spans):.0f} us a step; mean of a processor:")
    each = WATCHED * len({e["tid"] for e in slices})
    for (program, name), (count, wait, run, rows) in sorted(table.items()):
        print(
            f"  {name if program < 0 else f'{name} of program {program}':24}: "
            f"{count / each:6.2f} x, wait {wait / each:6.1f} us, run {run / each:6.1f} us, "
            f"{rows / max(count, 1):7.1f} rows"
        )


def main() -> None:
    """Compile once, then print a table for each batch size."""
    processors = CommandOption("--processors N", COUNT, "", "of a group")
    gradients = CommandOption("--gradients", None, "", "are summed up on chip", default=False)
    given = read_options(
        "benchmarks.persistent_time", __doc__, None, processors, gradients, batch=(1, 16)
    )
    suite = make_suite("tree-lstm")
    net = vrt.compile(
        suite.function,
        device="cuda",
        engine="persistent",
        processors=given.processors,
        passes=Passes(gradients=given.gradients),
    )
    for size in given.batch:
        measure(net, suite.pool, size)


if __name__ == "__main__":
    main()
