"""What `precision="tf32"` and `"bf16"` bring: steps and evaluations against float32, in turn.

    python -m benchmarks.precisions [--hidden 256,512,1024] [--batch 4,16,64] [--engine persistent]

An LSTM layer over drawn sequences, whole minibatches. Results are compared with those of float32
first, at the size that is timed. A CPU has float32 alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

import vertexrt as vrt
from benchmarks.command import read_options
from benchmarks.language import train_ours
from benchmarks.papers.stacks import Form, Stack, stack_batch
from benchmarks.turns import ratio_text, seconds_in_turn
from vertexrt.cli.options import COUNT, CommandOption, OneOf, Several

BOUND = {"float32": 0.0, "tf32": 5e-3, "bf16": 5e-2}  # of the largest element, to float32


def main(given: Sequence[str] | None = None) -> None:
    """Print a line for each size and use."""
    known = Several(OneOf(tuple(BOUND)))
    options = read_options(
        "benchmarks.precisions",
        __doc__,
        given,
        CommandOption("--precisions P,P,...", known, "", ", ".join(BOUND), default=tuple(BOUND)),
        CommandOption("--times N", COUNT, "", "steps of a round", default=20),
        device="cuda",
        engine="persistent",
        hidden=(256, 512, 1024),
        batch=(4, 16, 64),
        steps=50,
        rounds=7,
    )
    for hidden in options.hidden:
        form = Form("LSTM", hidden)
        compiled = {
            name: vrt.compile(
                Stack(form),
                device=options.device,
                engine=options.engine,
                precision=name,
                seed=1,
            )
            for name in dict.fromkeys(("float32", *options.precisions))
        }
        for size in options.batch:
            x = np.random.default_rng(size).standard_normal((size, options.steps, hidden))
            batch = stack_batch(form, x.astype(np.float32))
            errors = check(compiled, batch)
            for use in (train, evaluate):
                ways: dict[str, Callable[[], None]] = {
                    name: partial(use, net, batch, options.times) for name, net in compiled.items()
                }
                line = compare(ways, options, errors)
                print(f"{form}, batch {size:3}, {use.__name__:8} {line}", flush=True)


def check(nets: dict[str, vrt.Network], batch: vrt.GraphBatch) -> dict[str, float]:
    """Return how far results are from those of float32, in the largest of them."""
    first = nets["float32"]
    whole = first(batch, outputs=["h"])["h"]
    errors = {}
    for name, net in nets.items():
        net.parameters.update(first.parameters)
        found = net(batch, outputs=["h"])["h"]
        errors[name] = float(np.abs(found - whole).max() / np.abs(whole).max())
        assert errors[name] <= BOUND[name], (name, errors[name])
    return errors


def compare(
    ways: dict[str, Callable[[], None]], options: argparse.Namespace, errors: dict[str, float]
) -> str:
    """Time all in turn; return microseconds of one, and of the others how many times as fast."""
    took = seconds_in_turn(ways, options.rounds)
    parts = []
    for name, seconds in took.items():
        each = 1e6 * np.median(seconds) / options.times
        ratio = f" {ratio_text(took['float32'], seconds)}" if name != "float32" else ""
        off = f" off by {errors[name]:.0e}" if name != "float32" else ""
        parts.append(f"{name} {each:9,.1f} us{ratio}{off}")
    return "  ".join(parts)


def train(net: vrt.Network, batch: vrt.GraphBatch, times: int) -> None:
    """Take steps on one minibatch."""
    train_ours(net, [batch] * times)


def evaluate(net: vrt.Network, batch: vrt.GraphBatch, times: int) -> None:
    """Evaluate it again and again; the last is waited for."""
    for _ in range(times):
        last = net(batch, outputs=("h",))
    last.settle()


if __name__ == "__main__":
    main()
