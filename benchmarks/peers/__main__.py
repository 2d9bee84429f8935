"""Time vertexrt beside PyTorch as an expert would write it.

    python -m benchmarks.peers --suite tree-lstm,tree-fc,var-lstm,fixed-lstm --device cpu
        --threads 1 --json FILE [--mode train,infer] [--batch 1,16,64,256] [--seconds 5]
        [--engines batched,persistent,auto,batched:unmerged] [--peers torch|none]

A step is one minibatch, drawn from a pool of many: it is assembled, its schedule built anew, then
trained on (forward, backward, plain SGD with sparse rows of the embedding) or evaluated (the
output of every vertex, in the order of the batch, in host memory). A sample is a block of steps
with one synchronisation at its end; the contenders take turns (A B C A B C ...) over the same
minibatches, so that a change of the machine's speed meets all of them.

First of all, at each batch size and before any timing, all contenders evaluate the same minibatch
with the same weights: loss, every gradient (taken from the step that is timed) and outputs must
agree; on a small minibatch also with vertexrt's `reference` backend in float64.

Variants: vertexrt with each engine (it computes identical vertices of a batch once, as it does by
default; `:unmerged` turns that off), `torch` (level- or step-batched by hand, autograd),
`torch-manual` (the backward pass by hand as well), `torch-nn.LSTM` (packed; cuDNN on CUDA).
"""

import argparse
import datetime
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.peers.options import UNMERGED, parse

if TYPE_CHECKING:
    from benchmarks.peers.contender import Arrays, Contender
    from benchmarks.peers.measure import Runner
    from benchmarks.peers.suites import Suite

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
LR = 1e-3  # small: the parameters stay where arithmetic takes its usual time
CHECKED_GRAPHS = 4  # with the reference backend, which is slow


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, time, print the table and write the JSON file; return the exit code."""
    options = parse(arguments)
    for name in THREAD_VARIABLES:
        os.environ[name] = str(options.threads)  # before NumPy loads its BLAS

    from benchmarks.peers.check import Disagreement
    from vertexrt.errors import UsageError, VertexrtError, message

    try:
        if options.peers == "torch" and importlib.util.find_spec("torch") is None:
            raise UsageError(
                message(
                    "peers",
                    "PyTorch is not installed",
                    "--peers torch compares with it",
                    'install the extra with `pip install -e ".[torch]"`, or give --peers none',
                )
            )
        if options.json is not None:
            options.json.touch()  # an unwritable path is found before any timing
        command = ["python", "-m", "benchmarks.peers", *(arguments or sys.argv[1:])]
        run(options, command)
    except (VertexrtError, Disagreement) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace, command: list[str]) -> None:
    """Check, time and print the table; write the record, also of a run that breaks off."""
    from benchmarks.machine import describe
    from benchmarks.peers.report import HEADER
    from benchmarks.peers.suites import make_suite

    if options.peers == "torch":
        import torch

        torch.set_num_threads(options.threads)
    record: dict[str, Any] = {
        "benchmark": "peers",
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": False,
        "options": {key: str(value) for key, value in vars(options).items() if key != "json"},
        "unit": "graphs/s; assembling the minibatch and building its schedule included",
        "suites": {},
        "checks": [],
        "results": [],
    }
    print(HEADER, flush=True)
    try:
        for name in options.suite:
            say(f"{name}: reading data, compiling")
            suite = make_suite(name, options)
            say(f"{name}: {suite.description}")
            record["suites"][name] = suite.description
            run_suite(suite, options, record)
        record["complete"] = True
    finally:
        if options.json is not None:
            record["machine"] = describe(options.threads, options.device)
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def run_suite(suite: "Suite", options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Check and time one suite; add to the record and print the table."""
    from benchmarks.peers.check import BOUNDS, check
    from benchmarks.peers.measure import Draw, measure
    from benchmarks.peers.report import summarise, table

    oracle, parameters = make_oracle(suite, options)
    contenders = make_ours(suite, options)
    peers = make_peers(suite.name, parameters, options) if options.peers == "torch" else {}
    contenders |= peers
    bound = BOUNDS[options.dtype]

    def verify(group: dict[str, "Contender"], draw: Draw, against: str) -> None:
        (ids,) = draw.take(1)
        batch = suite.pool.take(ids)
        for contender in group.values():
            contender.set_parameters(parameters)  # timing has trained them unequally
        where = f"{suite.name}, batch {draw.batch_size}"
        value = check(group, batch, bound, where, suite.kinked)
        entry = {"suite": suite.name, "batch_size": draw.batch_size, "against": against}
        record["checks"].append(entry | {"largest_difference": value, "bound": bound})
        say(f"{suite.name}: batch {draw.batch_size} agrees with {against} within {value:.1e}")

    verify({"reference": oracle} | contenders, Draw(suite.pool, CHECKED_GRAPHS), "reference")
    for batch_size in options.batch:
        draw = Draw(suite.pool, batch_size)
        if len(contenders) > 1:
            verify(contenders, draw, next(iter(contenders)))
        for mode in options.mode:
            say(f"{suite.name}: timing {mode}, batch {draw.batch_size}")
            runners = make_runners(mode, contenders)
            timing = measure(runners, draw, options.seconds)
            result = summarise(suite.name, mode, timing, list(peers))
            record["results"].append(result)
            print(table(result), flush=True)


def make_runners(mode: str, contenders: dict[str, "Contender"]) -> dict[str, "Runner"]:
    """Return what is timed; before and after each turn the whole device is idle."""
    from benchmarks.peers.measure import Runner

    def sync() -> None:
        for contender in contenders.values():
            contender.sync()

    def runner(contender: "Contender") -> Runner:
        if mode == "train":
            return Runner(lambda batch: contender.train(batch, LR), sync)
        return Runner(contender.infer, sync)

    return {name: runner(contender) for name, contender in contenders.items()}


def make_oracle(suite: "Suite", options: argparse.Namespace) -> tuple["Contender", "Arrays"]:
    """Return the reference backend in float64 and the parameters that all start from."""
    import vertexrt as vrt
    from benchmarks.peers.ours import Ours

    net = vrt.compile(suite.function, device="reference", dtype="float64", threads=1)
    oracle = Ours(net, suite.output)
    drawn = {name: value.astype(options.dtype) for name, value in oracle.parameters().items()}
    oracle.set_parameters(drawn)
    return oracle, drawn


def make_ours(suite: "Suite", options: argparse.Namespace) -> dict[str, "Contender"]:
    """Return vertexrt with each engine; the first one is called `vertexrt`."""
    import vertexrt as vrt
    from benchmarks.peers.ours import Ours
    from vertexrt.engine.variant import Passes

    found: dict[str, Contender] = {}
    for engine in options.engines:
        net = vrt.compile(
            suite.function,
            device=options.device,
            engine=engine.removesuffix(UNMERGED),
            dtype=options.dtype,
            threads=options.threads,
            passes=Passes(merge=not engine.endswith(UNMERGED)),
        )
        found[f"vrt-{engine}" if found else "vertexrt"] = Ours(net, suite.output)
    return found


def make_peers(
    name: str, parameters: "Arrays", options: argparse.Namespace
) -> dict[str, "Contender"]:
    """Return the PyTorch peers of a suite."""
    from benchmarks.peers import lstm, lstm_manual, tree_fc, tree_lstm, tree_lstm_manual
    from benchmarks.peers.torch_peer import Peer

    kinds: dict[str, type[Peer]]
    if name == "tree-lstm":
        kinds = {
            "torch": tree_lstm.LevelBatched,
            "torch-manual": tree_lstm_manual.LevelBatchedManual,
        }
    elif name == "tree-fc":
        kinds = {"torch": tree_fc.LevelBatched, "torch-manual": tree_fc.LevelBatchedManual}
    else:
        kinds = {
            "torch": lstm.StepBatched,
            "torch-manual": lstm_manual.StepBatchedManual,
            "torch-nn.LSTM": lstm.CudnnLstm,
        }
    return {variant: kind(parameters, options.device) for variant, kind in kinds.items()}


def say(text: str) -> None:
    """Report progress on stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
