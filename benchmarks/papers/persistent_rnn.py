"""A simple recurrent layer at small batches, and how deep a stack may be (Persistent RNN).

    python -m benchmarks.papers.persistent_rnn [--device cuda] [--parts batch,size,depth]

| part | what | over |
| --- | --- | --- |
| batch | the recurrent part of a layer, forward: us a step of time, and TFLOP/s | batch sizes |
| size | the same at the first of the batch sizes | hidden sizes |
| depth | a step of training of residual layers: forward, backward and SGD | layers |

The recurrent part is h = tanh(x + u h), inputs multiplied before, over 128 steps. Peers: `torch` is
`nn.RNN`, oneDNN or cuDNN, whose input is one element, so that its product costs next to nothing;
`torch-gemm` is a product and a tanh a step. On a GPU both are CUDA graphs; what is timed there is
the kernel, as `grnn_latency` has it, and for the batched engine a request with arrays of the GPU.
The paper's stacks are of a speech model; these are residual layers alone. Results are compared
first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.command import add_list, run_command
from benchmarks.papers.in_turn import (
    PEER,
    Per,
    Sample,
    Table,
    add_numbers,
    add_run_options,
    each_waited,
    nothing,
    opened_table,
    torch_layers,
)
from benchmarks.papers.planned import Planned
from benchmarks.papers.stacks import Form, Recurrence, Stack, recurrence_batch
from benchmarks.papers.training_steps import time_steps
from vertexrt.bench.record import Key
from vertexrt.cli.options import SIZE, CommandOption, OneOf, Parser, Whole

BOUND = 2e-6  # of the largest element
PARTS = ("batch", "size", "depth")
GEMM = "torch-gemm"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a device runs by default: the layer's size, other sizes, layers of stacks, steps."""

    hidden: int
    hidden_sizes: tuple[int, ...]
    layers: tuple[int, ...]
    steps: int


SIZES = {
    "cpu": Sizes(256, (128, 256, 512), (2, 8), 32),
    "cuda": Sizes(1152, (256, 512, 1152), (2, 8, 48), 128),
}


def time_recurrence(
    table: Table, key: Key, nets: dict[str, vrt.Network], hidden: int, steps: int
) -> None:
    """Compare one size, and time it.

    Args:
        key: has the batch size.
    """
    torch_stacks = torch_layers()
    count = int(key["batch_size"])
    rng = np.random.default_rng(hidden + count)
    each = rng.standard_normal((count, steps, 1)).astype(np.float32)
    w = rng.standard_normal(hidden).astype(np.float32)
    x = each * w
    u = next(iter(nets.values())).parameters["u"]
    peers = {
        PEER: (torch_stacks.CudnnRecurrence(u, w, table.device), each),
        GEMM: (torch_stacks.LoopedRecurrence(u, table.device), x),
    }
    wait = torch_stacks.synchronize if table.gpu else nothing
    ways: dict[str, Sample] = {}
    found: dict[str, Any] = {}
    for name, (module, given) in peers.items():
        here = torch_stacks.time_first(given, table.device)
        request = torch_stacks.Request(module, here)
        found[name] = {"h": request.host(here).copy()}
        ways[name] = each_waited(partial(request, here), wait, table.clock)
        if table.gpu:
            ways[name] = partial(torch_stacks.event_seconds, request.replay)
    planned = Planned(recurrence_batch(x), x.reshape(-1, hidden), None, wait)
    for name, net in nets.items():
        call = planned.on_host(net)
        found[name] = {"h": torch_stacks.steps_first(call(), count)}
        ways[name] = each_waited(call, nothing, table.clock)
        if table.gpu:
            latency, kernel = planned.on_device(net)
            ways[name] = latency if name == "batched" else kernel
    loop = torch_stacks.LoopedRecurrence(np.asarray(u, np.float64), table.device)
    exact = torch_stacks.exact(loop, torch_stacks.time_first(x, table.device))
    table.check(f"h {hidden}, batch {count}", found, {"h": exact}, BOUND)
    flop = 2.0 * count * hidden * hidden * steps
    table.time(key, ways, Per("us a step", 1e6 / steps), flop)


def run_batch(table: Table, options: argparse.Namespace, sizes: Sizes) -> None:
    """Time the layer at each batch size."""
    hidden, steps = options.hidden or sizes.hidden, options.steps or sizes.steps
    nets = table.networks(lambda: Recurrence(hidden), options.groups)
    for count in options.batch_sizes:
        key: Key = {"part": "batch", "hidden": hidden, "model": f"RNN h {hidden}"}
        time_recurrence(table, {**key, "batch_size": count}, nets, hidden, steps)


def run_size(table: Table, options: argparse.Namespace, sizes: Sizes) -> None:
    """Time layers of each size at one batch size."""
    count, steps = options.batch_sizes[0], options.steps or sizes.steps
    for hidden in options.hidden_sizes or sizes.hidden_sizes:
        nets = table.networks(partial(Recurrence, hidden), options.groups)
        key: Key = {"part": "size", "hidden": hidden, "batch_size": count}
        time_recurrence(table, key, nets, hidden, steps)


def run_depth(table: Table, options: argparse.Namespace, sizes: Sizes) -> None:
    """Time a step of training of stacks at one batch size."""
    hidden, steps = options.hidden or sizes.hidden, options.steps or sizes.steps
    count = options.batch_sizes[:2][-1]
    for layers in options.layers or sizes.layers:
        form = Form("RNN", hidden, layers, residual=True)
        nets = table.networks(partial(Stack, form), options.groups)
        key: Key = {"part": "depth", "hidden": hidden, "model": str(form), "batch_size": count}
        time_steps(table, key, nets, form, steps)


def run(options: argparse.Namespace, command: list[str]) -> Path:
    """Run the parts; return the path of the JSON file."""
    parts = {"batch": run_batch, "size": run_size, "depth": run_depth}
    with opened_table("persistent_rnn", options, command) as table:
        sizes = SIZES["cuda" if table.gpu else "cpu"]
        for part in options.parts:
            parts[part](table, options, sizes)
        return table.path


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(
        prog="python -m benchmarks.papers.persistent_rnn",
        description="Time simple recurrent layers and deep stacks of them against PyTorch.",
    )
    add_run_options(parser)
    add_list(parser, "--parts", OneOf(PARTS), PARTS, f"of {', '.join(PARTS)}")
    text = "of the parts batch and depth; 1152 on a GPU"
    parser.add([CommandOption("--hidden N", SIZE, "", text)])
    add_numbers(parser, "--hidden-sizes", None, "of the part size; 256,512,1152 on a GPU")
    text = "sequences; the part size takes the first, depth the second"
    add_numbers(parser, "--batch-sizes", (1, 4, 64), text)
    add_numbers(parser, "--layers", None, "of the part depth; 2,8,48 on a GPU")
    text = "of a sequence; 128 on a GPU"
    parser.add([CommandOption("--steps N", Whole(1, 2**16), "", text)])
    add_numbers(parser, "--groups", (), "processors of a group of a GPU's persistent engine")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), run, words)


if __name__ == "__main__":
    sys.exit(main())
