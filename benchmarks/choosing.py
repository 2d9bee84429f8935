"""How good the choice of `engine="auto"` is: every way to run a job against the one that it takes.

    python -m benchmarks.choosing [--device cuda] [--jobs lstm,tree-lstm] [--rounds 5]

Jobs: inference of a layer of an LSTM or a GRU at GRNN's nine sizes (EuroSys 2019, table 1), 100
steps, by a plan; training steps of a Tree-LSTM, an LSTM, a Tree-FC, a language model of two layers
and two LSTM layers alone (EcoRNN); evaluations of a Tree-FC. The ways are the batched engine and,
on a GPU, groups of every number of processors; on a CPU, what the threads allow. They take turns;
their results are compared first. Of each job, what the choice takes to the fastest way is printed,
and in the end how often that was within 3 %.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.language import PIECE
from benchmarks.papers.in_turn import sampled_in_turn, waited_once
from benchmarks.papers.stacks import Form, Stack, stack_batch
from benchmarks.peers.suites import make_suite
from vertexrt.cli.options import PATH, CommandOption, Whole
from vertexrt.data import load
from vertexrt.engine.choose import Chooser
from vertexrt.errors import NoKernelError
from vertexrt.models.language_model import LSTMLanguageModel
from vertexrt.scheduler.batch_shape import shape_of

TRAINED = {"tree-lstm": (1, 4, 16, 64, 256), "fixed-lstm": (1, 4, 16, 64), "tree-fc": (1, 16, 64)}
STEPS = 100  # of a sequence
LANGUAGE = {"language-200": 200, "language-650": 650}
LAYERS = {"layers-256": 256, "layers-512": 512}
EVALUATED = {"tree-fc-evaluation": "tree-fc"}
JOBS = ("lstm", "gru", *TRAINED, *EVALUATED, *LANGUAGE, *LAYERS)
SECONDS = 0.05  # of a way in a round, about
BOUND = 2e-5  # of the largest element, between engines
CLOSE = 1.03  # times the fastest

Run = Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """What is timed.

    Attributes:
        name: of the job; batch: what runs, or the first minibatch of training.
        make: makes F; trains: a step, else a request of a plan.
        push: of an evaluation that is no request of a plan, what it asks for.
    """

    name: str
    batch: vrt.GraphBatch
    make: Callable[[], vrt.VertexFunction | vrt.Model]
    trains: bool
    push: str = ""


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Yield the jobs that are asked for."""
    for name in options.jobs:
        if name in TRAINED:
            suite = make_suite(name, None, options.trees, options.text)
            make = partial(getattr, suite, "function")
            for count in TRAINED[name]:
                yield Job(f"{name}, batch {count}", suite.pool[:count], make, True)
            continue
        if name in EVALUATED:
            suite = make_suite(EVALUATED[name])
            make = partial(getattr, suite, "function")
            for count in TRAINED[EVALUATED[name]]:
                few = suite.pool[:count]
                yield Job(f"{name}, batch {count}", few, make, False, suite.output)
            continue
        if name in LANGUAGE:
            yield from language_jobs(name, LANGUAGE[name], options.text)
            continue
        if name in LAYERS:
            form = Form("LSTM", LAYERS[name], 2)
            for count in (32, 64, 128):
                batch = sequences(form, count, STEPS // 2)
                yield Job(f"{name}, batch {count}", batch, partial(Stack, form), True)
            continue
        for size in options.hidden:
            form = Form(name.upper(), size)
            for count in options.batch:
                batch = sequences(form, count, STEPS)
                yield Job(f"{name} {size}, batch {count}", batch, partial(Stack, form), False)


def sequences(form: Form, count: int, steps: int) -> vrt.GraphBatch:
    """Return drawn sequences for a stack."""
    x = np.random.default_rng(form.hidden).standard_normal((count, steps, form.hidden))
    return stack_batch(form, x.astype(np.float32))


def language_jobs(name: str, hidden: int, text: str | None) -> Iterator[Job]:
    """Yield training of a language model of two layers on pieces of 35 words."""
    data = load(text or "generated", format="text", pieces=PIECE, streams=64, layers=2)
    make = partial(LSTMLanguageModel, data.sizes()["vocab"], hidden, hidden, layers=2)
    for count in (20, 64):
        yield Job(f"{name}, batch {count}", data.splits["train"][:count], make, True)


def compiled(job: Job, options: argparse.Namespace) -> vrt.Network:
    """Return a network that chooses."""
    threads = None if options.device == "cuda" else options.threads
    return vrt.compile(job.make(), device=options.device, engine="auto", threads=threads, seed=1)


def runner(job: Job, net: vrt.Network, rate: float = 1e-6) -> Run:
    """Return what runs a job once; it may be under way when it returns."""
    if job.trains:
        return partial(net.step, job.batch, vrt.SGD(lr=rate))
    if job.push:
        return lambda: net(job.batch, outputs=(job.push,)).settle()
    return partial(net.plan(job.batch, arrays="device"), {})


def wait(net: vrt.Network) -> None:
    """Wait until a network has nothing under way."""
    if net.device == "cuda":
        net.executor.session.memory.synchronize()  # type: ignore[attr-defined]


def checked(job: Job, nets: dict[str, vrt.Network]) -> None:
    """Compare what all ways find. Raises: AssertionError."""
    first = next(iter(nets.values()))
    wanted = found_by(job, first)
    for way, net in nets.items():
        net.parameters.update(first.parameters)
        found = found_by(job, net)
        off = float(np.abs(found - wanted).max() / np.abs(wanted).max())
        assert off < BOUND, f"{job.name}: {way} is off by {off:.1e}"


def found_by(job: Job, net: vrt.Network) -> Any:
    """Return the loss of a step that changes nothing, or the states."""
    if job.push:
        return net(job.batch, outputs=[job.push])[job.push]
    if not job.trains:
        return net.plan(job.batch)({})["h"]
    return np.array(float(net.step(job.batch, vrt.SGD(lr=0.0))))


def fitting(job: Job, options: argparse.Namespace) -> dict[str, vrt.Network]:
    """Return a network for each way that the model finds possible and that runs, the best first."""
    chooser = chooser_of(compiled(job, options))
    found: dict[str, vrt.Network] = {}
    for way in chooser.rank(job.trains, shape_of(job.batch)):
        net = compiled(job, options)
        chooser_of(net).only(way)
        try:
            runner(job, net, 0.0)()
            wait(net)
        except NoKernelError:
            continue
        found[str(way)] = net
    return found


def chooser_of(net: vrt.Network) -> Chooser:
    """Return what chooses for a network."""
    return net.executor.model.chooser


def measure(job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Check and time the ways of a job; print a line.

    Returns: `seconds` of a run by way, the `choice` and its `ratio` to the fastest.
    """
    nets = fitting(job, options)
    checked(job, nets)
    if not options.rounds:
        return {}
    runs = {way: waited_once(runner(job, net), partial(wait, net)) for way, net in nets.items()}
    took = sampled_in_turn(runs, options.rounds, SECONDS)
    seconds = {way: float(np.median(taken)) for way, taken in took.items()}
    choice = next(iter(seconds))  # of those that run, the model's first
    ratio = seconds[choice] / min(seconds.values())
    print(f"{job.name}: {choice}, {ratio:.3f} times the fastest", flush=True)
    for way, each in sorted(seconds.items(), key=lambda pair: pair[1]):
        print(f"    {each * 1e6:8.0f} us  {way}", flush=True)
    return {"job": job.name, "seconds": seconds, "choice": choice, "ratio": ratio}


def main(words: list[str] | None = None) -> None:
    """Read the options, measure."""
    rounds = CommandOption(
        "--rounds N", Whole(0, 1000), "", "0: only compile and compare", default=5
    )
    options = read_options(
        "benchmarks.choosing",
        __doc__,
        words,
        rounds,
        CommandOption("--out FILE", PATH, "", "file for what was measured"),
        device="cpu",
        jobs=JOBS,
        hidden=(64, 256, 1024),
        batch=(1, 10, 20),
        trees=None,
        text=None,
        threads=1,
    )
    found = [measure(job, options) for job in jobs(options)]
    close = sum(each.get("ratio", math.inf) <= CLOSE for each in found)
    print(f"within {CLOSE - 1:.0%} of the fastest: {close} of {len(found)}")
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
