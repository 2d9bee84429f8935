"""How long a request takes: layers of an LSTM or a GRU, and two small models.

Source: GRNN (Holmes et al., EuroSys 2019), sections 8.2 and 8.5.

    python -m benchmarks.papers.grnn_latency [--device cuda] [--parts layers,applications]

`layers`: one layer over 100 steps, inputs as long as the state. `applications`: three layers of
128, every step returned, and two layers of 256, whose last step is returned, over 20 steps.

| measure | arrays come from | waited for | what is timed |
| --- | --- | --- | --- |
| host | the host, and go there | yes | the request |
| device | the GPU, and stay there | yes | the request |
| kernel | the GPU, and stay there | no | between two events: our kernels, the peer's CUDA graph |

Ours is a plan, made before; the peer is PyTorch's layer in inference mode: oneDNN on a CPU, cuDNN
in a CUDA graph on a GPU. The kernel's time is that of the persistent engine, with the products that
are launched before its kernel or between pieces of it. Results are compared first, at the size that
is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

import vertexrt as vrt
from benchmarks.command import add_list, run_command
from benchmarks.papers.in_turn import (
    PEER,
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
from benchmarks.papers.stacks import Form, Stack, stack_batch, top_vertices
from vertexrt.bench.record import Key
from vertexrt.cli.options import CommandOption, OneOf, Parser, Whole

BOUND = 2e-6  # of the largest element
PARTS, CELLS = ("layers", "applications"), ("LSTM", "GRU")
MEASURES = ("kernel", "device", "host")
ON_CPU, ON_GPU = (64, 256), (64, 256, 1024)  # hidden sizes by default
LAYER_STEPS, MODEL_STEPS = 100, 20
MODELS = {"character model": (128, 3, False), "classifier": (256, 2, True)}
GROUPS = {64: (1,), 128: (8, 16), 256: (8, 16), 1024: (128,)}  # processors of a group on a GPU


class Request(NamedTuple):
    """What a request is: sequences, steps of each, and whether only the last one is returned."""

    form: Form
    sequences: int
    steps: int
    last: bool = False


def measure(
    table: Table, measures: Sequence[str], key: Key, nets: dict[str, vrt.Network], request: Request
) -> None:
    """Compare one size, and time it by each measure."""
    torch_stacks = torch_layers()
    form, count, steps, last = request
    rng = np.random.default_rng(form.hidden + count)
    x = rng.standard_normal((count, steps, form.hidden)).astype(np.float32)
    layers = torch_stacks.Layers(form, next(iter(nets.values())).parameters, table.device)
    given = torch_stacks.time_first(x, "cpu")
    here = given.to(table.device)
    peer = torch_stacks.Request(layers, here, last)
    exact = torch_stacks.exact(layers, here)
    exact = exact[-1] if last else exact
    found = {PEER: {"h": peer.host(given).copy()}}
    wait = torch_stacks.synchronize if table.gpu else nothing
    batch = stack_batch(form, x)
    top = top_vertices(form, batch, steps, last)
    planned = Planned(batch, x.reshape(-1, form.hidden), top, wait)
    ways: dict[str, dict[str, Sample]] = {name: {} for name in MEASURES}
    ways["host"][PEER] = each_waited(lambda: peer.host(given), nothing, table.clock)
    if table.gpu:
        ways["device"][PEER] = each_waited(lambda: peer(here), wait)
        ways["kernel"][PEER] = partial(torch_stacks.event_seconds, peer.replay)
    for name, net in nets.items():
        call = planned.on_host(net)
        found[name] = {"h": call() if last else torch_stacks.steps_first(call(), count)}
        ways["host"][name] = each_waited(call, nothing, table.clock)
        if table.gpu:
            ways["device"][name], kernel = planned.on_device(net)
            ways["kernel"] |= {} if name == "batched" else {name: kernel}
    table.check(f"{key['model']}, batch {count}", found, {"h": exact}, BOUND)
    for kind in measures if table.gpu else ("host",):
        if len(ways[kind]) > 1:
            table.time({**key, "measure": kind}, ways[kind])


def run_layers(table: Table, options: argparse.Namespace) -> None:
    """Time a layer of each cell, hidden size and batch size."""
    sizes = options.hidden_sizes or (ON_GPU if table.gpu else ON_CPU)
    for cell in options.cells:
        for hidden in sizes:
            form = Form(cell, hidden)
            nets = _networks(table, options, form)
            for batch_size in options.batch_sizes:
                key: Key = {"part": "layers", "hidden": hidden, "model": str(form)}
                request = Request(form, batch_size, options.steps or LAYER_STEPS)
                measure(table, options.measures, {**key, "batch_size": batch_size}, nets, request)


def run_applications(table: Table, options: argparse.Namespace) -> None:
    """Time both models, one sequence at a time."""
    for cell in options.cells:
        for name, (hidden, layers, last) in MODELS.items():
            form = Form(cell, hidden, layers)
            nets = _networks(table, options, form)
            key: Key = {"part": "applications", "hidden": hidden, "model": f"{name}, {form}"}
            request = Request(form, 1, options.steps or MODEL_STEPS, last)
            measure(table, options.measures, {**key, "batch_size": 1}, nets, request)


def _networks(table: Table, options: argparse.Namespace, form: Form) -> dict[str, vrt.Network]:
    groups = options.groups if options.groups is not None else GROUPS.get(form.hidden, ())
    return table.networks(lambda: Stack(form), groups)


def run(options: argparse.Namespace, command: list[str]) -> Path:
    """Run the parts; return the path of the JSON file."""
    parts = {"layers": run_layers, "applications": run_applications}
    with opened_table("grnn_latency", options, command) as table:
        for part in options.parts:
            parts[part](table, options)
        return table.path


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(
        prog="python -m benchmarks.papers.grnn_latency",
        description="Time requests of recurrent layers and two small models against PyTorch.",
    )
    add_run_options(parser)
    add_list(parser, "--parts", OneOf(PARTS), PARTS, f"of {', '.join(PARTS)}")
    add_list(parser, "--cells", OneOf(CELLS), CELLS, f"of {', '.join(CELLS)}")
    names = f"of {', '.join(MEASURES)}; a CPU has host alone"
    add_list(parser, "--measures", OneOf(MEASURES), MEASURES, names)
    add_numbers(parser, "--hidden-sizes", None, "of the layers")
    add_numbers(parser, "--batch-sizes", (1, 10, 20), "sequences of a request, of the layers")
    text = "of a sequence; by default 100, of the models 20"
    parser.add([CommandOption("--steps N", Whole(1, 2**16), "", text)])
    add_numbers(parser, "--groups", None, "processors of a group of a GPU's persistent engine")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), run, words)


if __name__ == "__main__":
    sys.exit(main())
