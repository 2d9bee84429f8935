"""Time Tree-LSTM training: vertexrt against PyTorch, on the trees of SST in file order.

    python -m benchmarks.tree_lstm --threads 1 --json FILE [--data PATH] [--batch-sizes 1,16,64,256]
        [--hidden 256] [--dtype float32] [--engines batched,persistent,auto] [--peer torch|none]

One sample is forward, backward and SGD over as many minibatches as take about `--seconds`;
assembling the minibatch from the data set and building its schedule count for every contender. The
contenders take turns (A B C A B C ...) over the same minibatches, so that a change of the machine's
speed meets all of them. Before any timing, the loss and all gradients of vertexrt are compared with
its `reference` backend in float64, and those of the peers with vertexrt's; a difference ends the
run.

Contenders: `vertexrt` (which computes identical vertices of a batch once, as it does by default);
each further engine as `vrt-ENGINE`; `torch` (level-batched by hand, autograd); `torch-manual` (the
backward pass by hand as well). See `benchmarks/peers_torch.py`.
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from benchmarks.levels import Trees
    from vertexrt import GraphBatch, Network

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
TOLERANCE = 1e-4  # relative to the largest element: float32 sums over some thousand terms
LR = 1e-3  # small: the parameters stay where arithmetic takes its usual time
CHECKED_GRAPHS = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, time, print the table and write the JSON file; return the exit code."""
    options = parse(arguments)
    for name in THREAD_VARIABLES:
        os.environ[name] = str(options.threads)  # before NumPy loads its BLAS

    from vertexrt.errors import UsageError, VertexrtError, message

    try:
        if options.peer == "torch" and importlib.util.find_spec("torch") is None:
            raise UsageError(
                message(
                    "tree_lstm",
                    "PyTorch is not installed",
                    "--peer torch compares with it",
                    'install the extra with `pip install -e ".[torch]"`, or give --peer none',
                )
            )
        run(options)
    except VertexrtError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Check, time, print the table and write the JSON file."""
    import vertexrt as vrt
    from vertexrt import data, models

    dataset = data.load(options.data, task="sentiment")
    train = dataset.splits["train"]
    function = models.get("tree-lstm").build(
        dataset, hidden=options.hidden, embed=options.hidden, dropout=0.0
    )
    nets = {
        engine: vrt.compile(
            function, device="cpu", engine=engine, dtype=options.dtype, threads=options.threads
        )
        for engine in options.engines
    }
    net = next(iter(nets.values()))
    peers = load_peers(net, options.threads) if options.peer == "torch" else {}

    checked = check(net, vrt.compile(function, device="reference", dtype="float64"), peers, train)
    print(f"checked: {checked}")

    contenders: dict[str, Callable[[GraphBatch], Any]] = {}
    for engine, other in nets.items():
        name = f"vrt-{engine}" if contenders else "vertexrt"
        optimizer = vrt.SGD(lr=LR)
        contenders[name] = lambda batch, net=other, optimizer=optimizer: net.step(batch, optimizer)
    for name, peer in peers.items():
        contenders[name] = lambda batch, peer=peer: peer.step(trees_of(batch), LR)
    if options.json is not None:
        options.json.touch()  # an unwritable path is found before any timing
    results = []
    for batch_size in options.batch_sizes:
        result = measure(contenders, train, batch_size, options.rounds, options.seconds)
        print(table(result, header=not results), flush=True)
        results.append(result)
    if options.json is not None:
        from benchmarks.machine import describe

        record = {
            "benchmark": "tree_lstm",
            "command": [Path(sys.executable).name, "-m", "benchmarks.tree_lstm", *sys.argv[1:]],
            "machine": describe(options.threads),
            "options": {key: str(value) for key, value in vars(options).items() if key != "json"},
            "check": checked,
            "unit": "graphs/s, forward + backward + SGD, minibatch assembly and schedule included",
            "results": results,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tree_lstm", description="Time Tree-LSTM training."
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of BLAS and of the backend")
    parser.add_argument("--json", type=Path, help="write all samples, machine and versions here")
    parser.add_argument("--data", default="sst", help="data set: a name or a folder")
    parser.add_argument(
        "--batch-sizes",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[1, 16, 64, 256],
        metavar="N,N,...",
        help="graphs in a minibatch",
    )
    parser.add_argument("--hidden", type=int, default=256, help="hidden and embedding size")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument(
        "--engines",
        type=lambda text: text.split(","),
        default=["batched"],
        metavar="E,E,...",
        help="engines of vertexrt; the first is the contender `vertexrt`",
    )
    parser.add_argument("--peer", choices=("torch", "none"), default="torch")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each contender")
    parser.add_argument("--seconds", type=float, default=0.7, help="length of a sample")
    return parser.parse_args(arguments)


def load_peers(net: "Network", threads: int) -> dict[str, Any]:
    """Return the PyTorch peers with the parameters of the network."""
    import torch

    from benchmarks.peers_torch import LevelBatched
    from benchmarks.peers_torch_manual import LevelBatchedManual

    torch.set_num_threads(threads)
    parameters = {name: value.copy() for name, value in net.parameters.items()}
    return {"torch": LevelBatched(parameters), "torch-manual": LevelBatchedManual(parameters)}


def trees_of(batch: "GraphBatch") -> "Trees":
    """Name the arrays of a graph batch as the peers read them."""
    from benchmarks.levels import Trees

    return Trees(
        batch.graph_ptr, batch.child_ptr, batch.child, batch.pulls["word"], batch.pulls["label"]
    )


def check(net: "Network", oracle: "Network", peers: dict[str, Any], train: "GraphBatch") -> str:
    """Compare loss and gradients of every contender; return one line that says how well they agree.

    Raises: AssertionError, when any differs by more than TOLERANCE.
    """
    import numpy as np

    batch = train.take(np.arange(min(CHECKED_GRAPHS, train.num_graphs)))
    oracle.set_parameters({n: p.astype(np.float64) for n, p in net.parameters.items()})
    loss, gradients = evaluate(net, batch)
    found = {"vertexrt against reference": difference((loss, gradients), evaluate(oracle, batch))}
    for name, peer in peers.items():
        found[f"{name} against vertexrt"] = difference(
            peer.gradients(trees_of(batch)), (loss, gradients)
        )
    for what, value in found.items():
        assert value <= TOLERANCE, f"{what}: relative difference {value:.2e}, allowed {TOLERANCE}"
    return ", ".join(f"{what} {value:.1e}" for what, value in found.items())


def evaluate(net: "Network", batch: "GraphBatch") -> tuple[float, dict[str, "np.ndarray"]]:
    """Return the loss of a batch, divided by its graphs, and the gradients by name.

    They are taken from a step, which is what is timed: the gradient is how far a step of plain SGD
    goes, divided by its learning rate (large, so that little is lost to rounding).
    """
    import vertexrt as vrt

    lr = 1024.0
    before = {name: value.copy() for name, value in net.parameters.items()}
    loss = net.step(batch, vrt.SGD(lr=lr))
    gradients = {name: (before[name] - value) / lr for name, value in net.parameters.items()}
    net.set_parameters(before)
    return loss, gradients


def difference(
    got: tuple[float, dict[str, "np.ndarray"]], expected: tuple[float, dict[str, "np.ndarray"]]
) -> float:
    """Return the largest difference of loss or gradients, relative to each one's maximum."""
    import numpy as np

    assert got[1].keys() == expected[1].keys(), (sorted(got[1]), sorted(expected[1]))
    found = [abs(got[0] - expected[0]) / abs(expected[0])]
    for name, value in expected[1].items():
        found.append(float(np.abs(got[1][name] - value).max() / np.abs(value).max()))
    return max(found)


def measure(
    contenders: dict[str, Callable[["GraphBatch"], Any]],
    train: "GraphBatch",
    batch_size: int,
    rounds: int,
    seconds: float,
) -> dict[str, Any]:
    """Time every contender in turn over the same minibatches; return samples in graphs/s."""
    import numpy as np

    batch_size = min(batch_size, train.num_graphs)
    available = train.num_graphs // batch_size
    at = 0

    def take_turn(step: Callable[["GraphBatch"], Any], first: int, count: int) -> float:
        begin = time.perf_counter()
        for k in range(first, first + count):
            ids = np.arange(batch_size) + (k % available) * batch_size
            step(train.take(ids))
        return time.perf_counter() - begin

    slowest = 0.0
    for step in contenders.values():
        take_turn(step, 0, 2)  # compiles, and grows buffers
        slowest = max(slowest, take_turn(step, 0, 2) / 2)
    count = max(1, round(seconds / slowest))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            samples[name].append(count * batch_size / take_turn(step, at, count))
        at += count
    summary = {}
    for name, values in samples.items():
        low, median, high = np.percentile(values, [25, 50, 75])
        ratio = np.median(np.array(samples["vertexrt"]) / np.array(values))
        summary[name] = {
            "median": float(median),
            "quartiles": [float(low), float(high)],
            "vertexrt_ratio": float(ratio),  # median over rounds of vertexrt / this one
            "samples": values,
        }
    return {"batch_size": batch_size, "batches_a_sample": count, "graphs_per_s": summary}


def table(result: dict[str, Any], *, header: bool) -> str:
    """Return the lines of one batch size."""
    lines = []
    if header:
        lines.append(f"{'batch':>5}  {'contender':<13} {'graphs/s':>9}  {'quartiles':>15}  ratio")
    for name, entry in result["graphs_per_s"].items():
        low, high = entry["quartiles"]
        spread = f"{low:.0f} - {high:.0f}"
        ratio = f"{entry['vertexrt_ratio']:5.2f}"
        lines.append(
            f"{result['batch_size']:>5}  {name:<13} {entry['median']:>9.0f}  {spread:>15}  {ratio}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
