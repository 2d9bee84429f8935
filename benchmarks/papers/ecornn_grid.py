"""Training of LSTM layers over a grid of sizes, against PyTorch's (EcoRNN).

    python -m benchmarks.papers.ecornn_grid [--device cuda] [--hidden-sizes 256,512,1024]
        [--layers 1,2,3,4] [--batch-sizes 32,64,128]

Layers alone, over 50 steps of vectors as long as the state: no words and no softmax. A step is
forward, backward and SGD; the peer is `nn.LSTM` with as many layers: oneDNN on a CPU, cuDNN on a
GPU, where a whole step is one CUDA graph. Loss and gradients are compared first at each size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import run_command
from benchmarks.papers.in_turn import add_numbers, add_run_options, opened_table
from benchmarks.papers.stacks import Form, Stack
from benchmarks.papers.training_steps import time_steps
from vertexrt.bench.record import Key
from vertexrt.cli.options import CommandOption, Parser, Whole

GRID = {  # by device: hidden sizes, layers, batch sizes
    "cpu": ((256,), (1, 2), (32, 64)),
    "cuda": ((256, 512, 1024), (1, 2, 3, 4), (32, 64, 128)),
}


def run(options: argparse.Namespace, command: list[str]) -> Path:
    """Run the grid; return the path of the JSON file."""
    with opened_table("ecornn_grid", options, command) as table:
        sizes, counts, batches = GRID["cuda" if table.gpu else "cpu"]
        for hidden in options.hidden_sizes or sizes:
            for layers in options.layers or counts:
                form = Form("LSTM", hidden, layers)
                nets = table.networks(lambda form=form: Stack(form))  # type: ignore[misc]
                for batch_size in options.batch_sizes or batches:
                    key: Key = {"part": f"h {hidden}", "hidden": hidden, "model": str(form)}
                    time_steps(table, {**key, "batch_size": batch_size}, nets, form, options.steps)
        return table.path


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(
        prog="python -m benchmarks.papers.ecornn_grid",
        description="Time training of LSTM layers against PyTorch over a grid of sizes.",
    )
    add_run_options(parser)
    add_numbers(parser, "--hidden-sizes", None, "of the layers; 256,512,1024 on a GPU")
    add_numbers(parser, "--layers", None, "of a stack; 1,2,3,4 on a GPU")
    add_numbers(parser, "--batch-sizes", None, "sequences of a minibatch; 32,64,128 on a GPU")
    parser.add([CommandOption("--steps N", Whole(1, 2**16), "", "of a sequence", default=50)])
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), run, words)


if __name__ == "__main__":
    sys.exit(main())
