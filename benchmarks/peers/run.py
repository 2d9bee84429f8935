"""Time vertexrt against PyTorch and DyNet as an expert would write them.

A step is one minibatch, drawn from a pool of many: it is assembled, its schedule built anew, then
trained on (forward, backward, plain SGD with sparse rows of the embedding) or evaluated (the
output of every vertex, in the order of the batch, in host memory). A sample is a block of steps
with one synchronisation at its end; the contenders take turns over the same minibatches, so that a
change of the machine's speed meets all of them.

First of all, at each batch size and before any timing, all contenders evaluate the same minibatch
with the same weights: loss, every gradient (taken from the step that is timed) and outputs must
agree; on a small minibatch also with vertexrt's `reference` backend in float64.

Variants: vertexrt with each engine (it computes identical vertices of a batch once, as it does by
default; `:unmerged` turns that off), `torch` (level- or step-batched by hand, autograd),
`torch-manual` (the backward pass by hand as well), `torch-nn.LSTM` (packed; cuDNN on CUDA),
`torch-graph` (Tree-FC on CUDA: that of `torch-manual` as a CUDA graph), `dynet` (Tree-LSTM on the
CPU, with its automatic batching). `again` is the first engine once more: its ratio is the noise. On
a CPU our engines share parameters and arenas, as in an ablation.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import vertexrt as vrt
from benchmarks.peers.ours import Ours
from benchmarks.peers.suites import Suite, make_suite
from vertexrt.bench.ablation import share_memory
from vertexrt.bench.measure import Arrays, Contender, Draw, compare, measure
from vertexrt.bench.record import Key, compared
from vertexrt.bench.run import Recording, recording, say
from vertexrt.engine.devices import device_named
from vertexrt.engine.variant import Passes
from vertexrt.errors import UsageError, message

CHECKED_GRAPHS = 4  # with the reference backend, which is slow
NONE = "none"
UNMERGED = ":unmerged"  # of an engine, that it computes identical vertices of a batch all
AGAIN = "again"  # the first engine once more
OF_JOBS = ("hidden", "trees", "text", "leaves", "length")  # options of `make_suite`
# peer -> its modules, what they are called, how they are installed
MODULES = {
    "torch": (
        {"torch": "PyTorch", "numba": "numba"},  # which makes its schedules
        'install the extra with `pip install -e ".[torch]" numba`',
    ),
    "dynet": ({"dynet": "DyNet"}, "install it with `pip install dynet38`"),
}


def run(options: argparse.Namespace, command: list[str]) -> Path:
    """Check, time, print the table and write the JSON file; return its path.

    Raises: UsageError, when a peer is not installed or has no job to do; Disagreement, when two
        contenders do not compute the same.
    """
    require(options, device_named(options.device))
    with recording("peers", options, command) as made:
        if "torch" in options.peers:
            import torch

            torch.set_num_threads(made.threads)
        for name in options.suite:
            say(f"{name}: reading data, compiling")
            suite = make_suite(name, **{each: getattr(options, each) for each in OF_JOBS})
            say(f"{name}: {suite.description}")
            made.record.jobs[name] = suite.description
            _run_suite(suite, made)
    return made.path


def require(options: argparse.Namespace, device: str) -> None:
    """Raise UsageError for what cannot be compared."""
    for peer in options.peers:
        if peer == NONE:
            continue
        modules, install = MODULES[peer]
        for module, name in modules.items():
            if importlib.util.find_spec(module) is not None:
                continue
            got, wanted = f"{name} is not installed", f"--peers {peer} compares with it"
            raise UsageError(message("peers", got, wanted, f"{install}, or give --peers none"))
    if "dynet" in options.peers and (device != "cpu" or options.dtype != "float32"):
        got, wanted = f"dynet on {device}, {options.dtype}", "dynet on the CPU, float32"
        raise UsageError(message("peers", got, wanted, "leave dynet out"))
    if "dynet" in options.peers and options.suite != ("tree-lstm",):
        got, wanted = f"dynet with {', '.join(options.suite)}", "dynet with tree-lstm"
        raise UsageError(message("peers", got, wanted, "give --suite tree-lstm"))
    if options.engines == (NONE,) and options.peers == (NONE,):
        got, wanted = "--engines none with --peers none", "something to time"
        raise UsageError(message("peers", got, wanted, "name an engine or a peer"))


def _run_suite(suite: Suite, made: Recording) -> None:
    """Check and time one suite; add to the record and print the table."""
    options = made.options
    oracle, parameters = make_oracle(suite, options.dtype)
    contenders = make_ours(suite, options, made.device, made.threads)
    contenders |= make_peers(suite.name, parameters, options, made.device)

    def verify(group: dict[str, Contender], draw: Draw) -> None:
        (ids,) = draw.take(1)
        for contender in group.values():
            contender.set_parameters(parameters)  # timing has trained them unequally
        where = f"{suite.name}, batch {draw.batch_size}"
        compare(made.record, group, suite.pool.take(ids), where, suite.kinked, options.dtype)

    verify({"reference": oracle} | contenders, Draw(suite.pool, CHECKED_GRAPHS))
    for batch_size in options.batch_sizes:
        draw = Draw(suite.pool, batch_size)
        if len(contenders) > 1:
            verify(contenders, draw)
        for mode in options.mode:
            say(f"{suite.name}: timing {mode}, batch {draw.batch_size}")
            timed = contenders
            if mode == "infer":
                timed = {name: Inferring(each) for name, each in contenders.items()}
            samples = measure(timed, draw, options.seconds)
            key: Key = {"suite": suite.name, "mode": mode, "batch_size": draw.batch_size}
            made.keep("", compared(key, samples))


class Inferring:
    """A contender whose outputs are timed, not its training."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender

    def train(self, batch: vrt.GraphBatch, lr: float) -> None:
        """Evaluate a minibatch."""
        self.contender.infer(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.contender, name)


def make_oracle(suite: Suite, dtype: str) -> tuple[Contender, Arrays]:
    """Return the reference backend in float64 and the parameters that all start from."""
    net = vrt.compile(suite.function, device="reference", dtype="float64", threads=1)
    oracle = Ours(net, suite.output)
    drawn = {name: value.astype(dtype) for name, value in oracle.parameters().items()}
    oracle.set_parameters(drawn)
    return oracle, drawn


def make_ours(
    suite: Suite, options: argparse.Namespace, device: str, threads: int
) -> dict[str, Contender]:
    """Return vertexrt with each engine; the first one is called `vertexrt`."""
    found: dict[str, Contender] = {}
    nets = []
    for engine in options.engines:
        if engine == NONE:
            continue
        of = options.engines[0] if engine == AGAIN else engine
        net = vrt.compile(
            suite.function,
            device=device,
            engine=of.removesuffix(UNMERGED),
            dtype=options.dtype,
            threads=threads,
            passes=Passes(merge=not of.endswith(UNMERGED)),
        )
        nets.append(net)
        found[f"vrt-{engine}" if found else "vertexrt"] = Ours(net, suite.output)
    if device != "cuda":
        share_memory(nets)
    return found


def make_peers(
    name: str, parameters: Arrays, options: argparse.Namespace, device: str
) -> dict[str, Contender]:
    """Return the peers of a suite."""
    found: dict[str, Contender] = {}
    if "torch" in options.peers:
        from benchmarks.peers.torch_suites import torch_peers

        found |= torch_peers(name, parameters, device)
    if "dynet" in options.peers:
        from benchmarks.peers.dynet_tree_lstm import DynetTreeLstm

        found["dynet"] = DynetTreeLstm(parameters)
    return found
