"""Compare the engines of vertexrt over the same memory: Tree-LSTM training on SST.

    python -m benchmarks.engines [--threads 1] [--batch 1,4,16,64,256] [--seconds 20] [--json FILE]

Two networks in one process differ by up to 13 % at batch 1 for where their parameters and arenas
lie, also where both are the same (aligning them, or huge pages, changes nothing). So the engines
here share one set of parameters, gradients and arenas. `again` is `batched` once more: how far its
ratio is from 1 says how much a difference means.

A sample is forward, backward and SGD over some minibatches, each drawn, assembled and scheduled
anew. The engines take turns in an order that changes from round to round, over the same
minibatches. Before that, all take a step from the same parameters and must agree, and `auto` times
its candidates on minibatches that do not count.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    import vertexrt as vrt
    from vertexrt.bench.measure import Draw

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
CONTENDERS = {"batched": "batched", "again": "batched", "persistent": "persistent", "auto": "auto"}
BOUND = 1e-4  # relative to the largest element: float32 sums over some thousand terms
LR = 1e-3  # small: the parameters stay where arithmetic takes its usual time
SAMPLE_SECONDS = 0.2
ROUNDS = 7  # at least
SETTLING_STEPS = 400  # for `auto`, at most


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, time, print the table and write the JSON file; return the exit code."""
    options = parse(arguments)
    for name in THREAD_VARIABLES:
        os.environ[name] = str(options.threads)  # before NumPy loads its BLAS

    from benchmarks.samples import write
    from vertexrt import data, models
    from vertexrt.bench.measure import Draw

    dataset = data.load(options.data, task="sentiment")
    function = models.get("tree-lstm").build(
        dataset, hidden=options.hidden, embed=options.hidden, dropout=0.0
    )
    pool = dataset.splits["train"]
    results = []
    print(f"{'batch':>5}  graphs/s: {'':<38} persistent/batched  auto/better  again/batched")
    for batch_size in options.batch:
        nets = compile_all(function, options)
        check(nets, Draw(pool, batch_size, seed=1))
        settle(nets["auto"], Draw(pool, batch_size, seed=2))
        samples = measure(nets, Draw(pool, batch_size), options.seconds)
        result = summarise(min(batch_size, pool.num_graphs), samples)
        result["auto"] = nets["auto"]._model.chooser.describe()
        results.append(result)
        print(line(result), flush=True)
    write(
        options.json,
        "engines",
        arguments,
        results,
        threads=options.threads,
        unit="graphs/s, forward + backward + SGD, minibatch assembly and schedule included",
    )
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines",
        description="Time the engines of vertexrt over the same parameters and arenas.",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--batch",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[1, 4, 16, 64, 256],
        metavar="N,N,...",
        help="graphs in a minibatch",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="for each batch size")
    parser.add_argument("--data", default="sst", help="data set: a name or a folder")
    parser.add_argument("--hidden", type=int, default=256, help="hidden and embedding size")
    parser.add_argument("--device", choices=("cpu", "reference"), default="cpu")
    parser.add_argument("--json", type=Path, help="write all samples, machine and versions here")
    return parser.parse_args(arguments)


def compile_all(
    function: "vrt.VertexFunction", options: argparse.Namespace
) -> "dict[str, vrt.Network]":
    """Compile for each engine, and let all work in the memory of the first."""
    import vertexrt as vrt

    nets = {
        name: vrt.compile(
            function, device=options.device, engine=engine, threads=options.threads, seed=1
        )
        for name, engine in CONTENDERS.items()
    }
    first, *others = [net._executor for net in nets.values()]
    for other in others:
        other.model.store, other.workers = first.model.store, first.workers
    chooser = nets["auto"]._model.chooser
    chooser.chosen.clear()  # what another run has timed
    return nets


def check(nets: "dict[str, vrt.Network]", draw: "Draw") -> None:
    """Take a step with each network from the same parameters.

    Raises: AssertionError, when losses or gradients differ by more than BOUND.
    """
    import numpy as np

    import vertexrt as vrt

    (ids,) = draw.take(1)
    batch = draw.pool.take(ids)
    rate = 1024.0  # large, so that little of the gradient is lost to rounding
    start = {name: value.copy() for name, value in nets["batched"].parameters.items()}
    want: dict[str, np.ndarray] = {}
    for engine, net in nets.items():
        net.set_parameters(start)
        loss = net.step(batch, vrt.SGD(lr=rate))
        got = {name: start[name] - value for name, value in net.parameters.items()}
        got["loss"] = np.array(loss)
        want = want or got
        for name, value in want.items():
            off = float(np.abs(got[name] - value).max() / max(np.abs(value).max(), 1e-30))
            assert off <= BOUND, f"{engine}, {name}: relative difference {off:.1e}"
    nets["batched"].set_parameters(start)


def settle(net: "vrt.Network", draw: "Draw") -> None:
    """Train until the automatic choice has timed the candidates of every size that comes up."""
    import vertexrt as vrt

    chooser = net._model.chooser
    optimizer = vrt.SGD(lr=LR)
    quiet = 0
    for ids in draw.take(SETTLING_STEPS):
        undecided = set(chooser.samples) - set(chooser.chosen)
        quiet = 0 if undecided or not chooser.chosen else quiet + 1
        if quiet > SETTLING_STEPS // 20:
            return
        net.step(draw.pool.take(ids), optimizer)


def measure(
    nets: "dict[str, vrt.Network]", draw: "Draw", seconds: float
) -> "dict[str, np.ndarray]":
    """Return samples in graphs/s by contender, one a round."""
    import numpy as np

    import vertexrt as vrt

    optimizers = {name: vrt.SGD(lr=LR) for name in nets}

    def take_turn(name: str, ids: list[Any]) -> float:
        begin = time.perf_counter()
        for graphs in ids:
            nets[name].step(draw.pool.take(graphs), optimizers[name])
        return time.perf_counter() - begin

    slowest = max(take_turn(name, draw.take(4)) / 4 for name in nets)  # compiles, grows buffers
    slowest = max(take_turn(name, draw.take(4)) / 4 for name in nets)
    steps = max(1, round(SAMPLE_SECONDS / slowest))
    samples: dict[str, list[float]] = {name: [] for name in nets}
    rng = np.random.default_rng(0)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples["auto"]) < ROUNDS:
        ids = draw.take(steps)
        for name in rng.permutation(list(nets)).tolist():
            samples[name].append(steps * draw.batch_size / take_turn(name, ids))
    return {name: np.array(values) for name, values in samples.items()}


def summarise(batch_size: int, samples: "dict[str, np.ndarray]") -> dict[str, Any]:
    """Return medians, and medians over rounds of ratios, with their quartiles."""
    import numpy as np

    speed = {name: float(np.median(values)) for name, values in samples.items()}
    better = max(("batched", "persistent"), key=lambda name: speed[name])
    ratios = {
        "persistent/batched": samples["persistent"] / samples["batched"],
        "auto/better": samples["auto"] / samples[better],
        "again/batched": samples["again"] / samples["batched"],
    }
    return {
        "batch_size": batch_size,
        "graphs_per_s": speed,
        "better": better,
        "ratios": {name: np.percentile(r, [50, 25, 75]).tolist() for name, r in ratios.items()},
        "samples": {name: values.tolist() for name, values in samples.items()},
    }


def line(result: dict[str, Any]) -> str:
    """Return the row of one batch size."""
    speeds = "  ".join(
        f"{name} {result['graphs_per_s'][name]:.0f}" for name in ("batched", "persistent", "auto")
    )
    ratios = "  ".join(
        f"{middle:.3f} ({low:.3f}-{high:.3f})" for middle, low, high in result["ratios"].values()
    )
    return f"{result['batch_size']:>5}  {speeds:<50} {ratios}"


if __name__ == "__main__":
    sys.exit(main())
