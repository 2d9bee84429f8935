"""Stacks of recurrent layers, layer by layer against all layers as one wavefront.

    python -m benchmarks.layers [--device cuda] [--engine persistent] [--rounds 15]

A step of training and an evaluation, each with `Passes(layers=False)` and without, in turn: whole
minibatches, scheduled anew. Losses and results of both are compared first. On a CPU seconds are
those of the one thread, so that other programs count little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--engine", default="batched", choices=("batched", "persistent", "auto"))
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    for cell, hidden, layers, residual, count, steps in CASES:
        form = Form(cell, hidden, layers, residual)
        x = np.random.default_rng(0).standard_normal((count, steps, hidden)).astype(np.float32)
        batch = stack_batch(form, x)
        nets = [
            vrt.compile(
                Stack(form),
                device=given.device,
                engine=given.engine,
                threads=1,
                passes=Passes(layers=on),
                seed=1,
            )
            for on in (False, True)
        ]
        _check(nets, batch)
        times = 1 if count * steps * layers > LONG else 5
        for name, step in (("evaluation", _evaluate), ("training", _train)):
            ways = [partial(step, net, batch) for net in nets]
            took = _in_turn(ways, times, given.rounds, given.device == "cpu")
            low, ratio, high = np.percentile(took[0] / took[1], [25, 50, 75])
            before, after = 1e6 * np.median(took, axis=1)
            print(
                f"{form}, {steps} steps, batch {count}, {name}: wavefront {before:,.0f} us, layer "
                f"by layer {after:,.0f}; {ratio:.2f} times as fast [{low:.2f} {high:.2f}]",
                flush=True,
            )


def _evaluate(net: vrt.Network, batch: vrt.GraphBatch) -> None:
    net(batch, outputs=["h"]).settle()


def _train(net: vrt.Network, batch: vrt.GraphBatch) -> None:
    net.step(batch, vrt.SGD(1e-6))
    net.sync()


def _check(nets: list[vrt.Network], batch: vrt.GraphBatch) -> None:
    """Compare what two networks compute."""
    one, other = (net(batch, outputs=["h"])["h"] for net in nets)
    np.testing.assert_allclose(one, other, atol=1e-5)
    one, other = (float(net.step(batch, vrt.SGD(1e-4))) for net in nets)
    np.testing.assert_allclose(one, other, rtol=1e-5)


def _in_turn(
    ways: Sequence[Callable[[], None]], times: int, rounds: int, of_thread: bool
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return seconds of each way in each round, [ways, rounds]; the first way takes turns."""
    clock = time.thread_time if of_thread else time.perf_counter
    took = np.zeros((len(ways), rounds))
    for number in range(-2, rounds):
        for k in range(len(ways)) if number % 2 else reversed(range(len(ways))):
            start = clock()
            for _ in range(times):
                ways[k]()
            if number >= 0:
                took[k, number] = (clock() - start) / times
    return took


if __name__ == "__main__":
    main()
