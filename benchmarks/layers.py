"""Stacks of recurrent layers, layer by layer against all layers as one wavefront.

    python -m benchmarks.layers [--device cuda] [--engine persistent] [--rounds 15]

A step of training and an evaluation, each with `Passes(layers=False)` and without, in turn: whole
minibatches, scheduled anew. Losses and results of both are compared first. On a CPU seconds are
those of the one thread, so that other programs count little.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.papers.stacks import Form, Stack, stack_batch
from benchmarks.turns import ratio_text, seconds_in_turn
from vertexrt.engine.variant import Passes

CASES = (  # cell, hidden, layers, residual, sequences, steps
    ("LSTM", 256, 2, False, 1, 20),
    ("LSTM", 128, 3, False, 1, 20),
    ("LSTM", 256, 2, False, 32, 50),
    ("GRU", 256, 2, False, 16, 50),
    ("RNN", 256, 8, True, 4, 128),
)
LONG = 1000  # vertices of a minibatch whose steps are timed one by one


def main() -> None:
    """Print a line for each stack and use."""
    given = read_options("benchmarks.layers", __doc__, device="cpu", engine="batched", rounds=15)
    for cell, hidden, layers, residual, count, steps in CASES:
        form = Form(cell, hidden, layers, residual)
        x = np.random.default_rng(0).standard_normal((count, steps, hidden)).astype(np.float32)
        batch = stack_batch(form, x)
        nets = {
            name: vrt.compile(
                Stack(form),
                device=given.device,
                engine=given.engine,
                threads=1,
                passes=Passes(layers=name != "wavefront"),
                seed=1,
            )
            for name in ("wavefront", "layer by layer")
        }
        _check([*nets.values()], batch)
        times = 1 if count * steps * layers > LONG else 5
        clock = time.thread_time if given.device == "cpu" else time.perf_counter
        for use, step in (("evaluation", _evaluate), ("training", _train)):
            ways = {name: partial(step, net, batch, times) for name, net in nets.items()}
            took = seconds_in_turn(ways, given.rounds, clock)
            line = f"{form}, {steps} steps, batch {count}, {use}:"
            for name, seconds in took.items():
                line += f" {name} {1e6 * np.median(seconds) / times:,.0f} us,"
            print(f"{line} {ratio_text(*took.values())} times as fast", flush=True)


def _evaluate(net: vrt.Network, batch: vrt.GraphBatch, times: int) -> None:
    for _ in range(times):
        net(batch, outputs=["h"]).settle()


def _train(net: vrt.Network, batch: vrt.GraphBatch, times: int) -> None:
    for _ in range(times):
        net.step(batch, vrt.SGD(1e-6))
        net.sync()


def _check(nets: list[vrt.Network], batch: vrt.GraphBatch) -> None:
    """Compare what two networks compute."""
    one, other = (net(batch, outputs=["h"])["h"] for net in nets)
    np.testing.assert_allclose(one, other, atol=1e-5)
    one, other = (float(net.step(batch, vrt.SGD(1e-4))) for net in nets)
    np.testing.assert_allclose(one, other, rtol=1e-5)


if __name__ == "__main__":
    main()
