"""Compare several streams with one, batched engine on a GPU: training, and whether bits are equal.

    python -m benchmarks.streams [--model tree-lstm,lstm-lm] [--batch 1,16,64,256] [--json FILE]

All take the same minibatches in turn, after the same steps have given the same bits. `again` is one
stream once more: how far its ratio is from 1 says how much a difference means. `beside` are the
launches of a step that are not on the main stream, `waits` those in front of which one waits for
another.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import vertexrt as vrt
    from vertexrt.bench.jobs import Job

AGAIN = "again"
STEPS = 5  # after which bits are compared


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, time, print a line for each number of streams; return the exit code."""
    options = parse(arguments)

    from benchmarks.samples import write
    from vertexrt.bench.jobs import make_job

    results = []
    print("graphs/s; ratios to one stream: median, quartiles")
    for model in options.model:
        job = make_job(model, options.data)
        for policy in options.policy:
            for batch_size in options.batch:
                result = one_size(job, policy, batch_size, options)
                results.append(result)
                print(lines(result), flush=True)
    write(
        options.json,
        "streams",
        arguments,
        results,
        device="cuda",
        unit="graphs/s, forward + backward + SGD, minibatch assembly and schedule included",
    )
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streams",
        description="Time several streams of a GPU beside one, with the batched engine.",
    )

    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--model", type=words, default=["tree-lstm", "lstm-lm"])
    parser.add_argument("--data", help="data set or folder; by default the model's own")
    parser.add_argument("--policy", type=words, default=["frontier"])
    parser.add_argument("--batch", type=numbers, default=[1, 16, 64, 256], metavar="N,N,...")
    parser.add_argument("--streams", type=numbers, default=[2, 4], metavar="N,N,...")
    parser.add_argument("--hidden", type=int, default=256, help="hidden and embedding size")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each batch size")
    parser.add_argument("--json", type=Path, help="write all samples, machine and versions here")
    return parser.parse_args(arguments)


def one_size(
    job: "Job", policy: str, batch_size: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Compile, compare and time; return what is printed and kept.

    Raises: AssertionError, when the bits of several streams are not those of one.
    """
    import numpy as np

    import vertexrt as vrt
    from vertexrt.bench.counts import count
    from vertexrt.bench.jobs import first_graphs
    from vertexrt.bench.measure import LR, Draw, Runner, measure
    from vertexrt.engine.variant import Passes

    def compiled(streams: int) -> vrt.Network:
        return vrt.compile(
            job.make(options.hidden),
            device="cuda",
            policy=policy,
            passes=Passes(streams=streams),
            seed=1,
        )

    nets = {"1": compiled(1), AGAIN: compiled(1)} | {str(n): compiled(n) for n in options.streams}
    compare_bits(nets, Draw(job.pool, batch_size, seed=1).take(STEPS), job)

    def runner(net: "vrt.Network") -> Runner:
        optimizer = vrt.SGD(lr=LR)
        return Runner(lambda batch: net.step(batch, optimizer), net.sync)

    runners = {name: runner(net) for name, net in nets.items()}
    samples = measure(runners, Draw(job.pool, batch_size), options.seconds).samples
    one = np.array(samples["1"])
    sample = first_graphs(job, batch_size)
    return {
        "model": job.model,
        "policy": policy,
        "batch_size": batch_size,
        "hidden": options.hidden,
        "counts": {name: count(net, sample) for name, net in nets.items()},
        "ratios": {
            name: np.percentile(np.array(values) / one, [50, 25, 75]).tolist()
            for name, values in samples.items()
        },
        "samples": samples,
    }


def compare_bits(nets: "dict[str, vrt.Network]", draws: Sequence[Any], job: "Job") -> None:
    """Train all with the same minibatches; losses and parameters must be equal."""
    import numpy as np

    import vertexrt as vrt

    want: dict[str, np.ndarray] = {}
    for name, net in nets.items():
        optimizer = vrt.Adam(1e-3)
        losses = []
        for ids in draws:
            net.step(job.pool.take(ids), optimizer)
            losses.append(net.sync())
        got = {key: value.copy() for key, value in net.parameters.items()}
        got["loss"] = np.array(losses)
        want = want or got
        for key, value in want.items():
            assert np.array_equal(got[key], value), f"{name} streams: {key} has other bits"


def lines(result: dict[str, Any]) -> str:
    """Return a line for each number of streams."""
    import numpy as np

    where = f"{result['model']}, {result['policy']}, batch {result['batch_size']}"
    found = []
    for name, values in result["samples"].items():
        middle, low, high = result["ratios"][name]
        counts = result["counts"][name]
        launches = counts["kernels"] + counts["library"]
        found.append(
            f"{where}: {name:>5}  {np.median(values):>9.0f}  {middle:.3f} ({low:.3f}-{high:.3f})  "
            f"{launches:.0f} launches, {counts.get('beside', 0):.0f} beside, "
            f"{counts.get('waits', 0):.0f} waits"
        )
    return "\n".join(found)


if __name__ == "__main__":
    sys.exit(main())
