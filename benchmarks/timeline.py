"""What two processors do in a training step of a Tree-LSTM: the timeline of the README.

    python -m benchmarks.timeline --steps 400 --out benchmarks/results/timeline_cpu.json

Of many steps of one batch the shortest is kept, in the Chrome trace format, which Perfetto opens.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import vertexrt as vrt
from vertexrt.bench.run import describe
from vertexrt.models import TreeLSTM


def main() -> None:
    """Take steps, and write the shortest one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    graphs = []
    for leaves in (2, 4, 8, 16):
        shape = vrt.InputGraph.complete_tree(leaves)
        is_leaf = np.diff(shape.child_ptr) == 0
        word = np.where(is_leaf, rng.integers(0, 99, len(is_leaf)), -1)
        pulls = {"word": word, "label": rng.integers(0, 5, len(is_leaf))}
        graphs.append(vrt.InputGraph(shape.child_ptr, shape.child, pulls))
    batch = vrt.GraphBatch.from_graphs(graphs)
    h = options.hidden
    net = vrt.compile(
        TreeLSTM(vocab=99, embed=h, hidden=h, classes=5),
        device="cpu", engine="persistent", threads=2, processors=2,
    )  # fmt: skip
    optimizer = vrt.SGD(0.01)
    best: list[dict[str, object]] = []
    shortest = float("inf")
    for _ in range(options.steps):
        with net.trace() as timeline:
            net.step(batch, optimizer)
        slices = [event for event in timeline.events() if event["ph"] == "X"]
        took = max(event["ts"] + event["dur"] for event in slices)
        if took < shortest:
            shortest, best = took, timeline.events()
    record = {
        "command": f"python -m benchmarks.timeline --steps {options.steps}",
        "machine": describe(2),
        "traceEvents": best,
    }
    options.out.write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"{shortest:.0f} us, {len(best)} slices")


if __name__ == "__main__":
    main()
