"""Products of LSTM layers with their operands stored by rows and by columns (EcoRNN).

    python -m benchmarks.papers.ecornn_layout [--device cuda] [--hidden-sizes 256,512,1024]

The weight W [4H, H] of a layer's gates is multiplied with the states of B sequences:

| product | by rows: x [B, H], d [B, 4H] | by columns: x [H, B], d [4H, B] |
| --- | --- | --- |
| x W^T | x W^T | W x |
| d W | d W | W^T d |
| d^T x | d^T x | d x^T |

BLAS is NumPy's on a CPU, cuBLAS on a GPU, where ten products are one CUDA graph. The last column
says which is faster. What the runtime chooses is printed after the products of a weight: it keeps
states by rows, which is what its tasks gather, and chooses the implementation.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.command import run_command
from benchmarks.papers.in_turn import (
    Clock,
    Per,
    Sample,
    Table,
    add_numbers,
    add_run_options,
    nothing,
    opened_table,
    torch_layers,
    waited_once,
)
from vertexrt.bench.record import Key
from vertexrt.cli.options import Parser
from vertexrt.kernels.backend import TIMED
from vertexrt.kernels.cpu.choose_products import ProductShape, choose
from vertexrt.kernels.cpu.products import FORMS

BOUND = 1e-5  # of the largest element
ROWS, COLUMNS = "by rows", "by columns"
REPEATS = 10  # of a CUDA graph
GATES = 4
Array = Any  # of NumPy, or a tensor


class Operands(NamedTuple):
    """Operands of one size, in both layouts: names end in r and c."""

    w: Array
    x_r: Array
    x_c: Array
    d_r: Array
    d_c: Array


def operands_of(hidden: int, count: int) -> Operands:
    """Draw operands, arrays of NumPy."""
    rng = np.random.default_rng(hidden + count)
    shapes = (GATES * hidden, hidden), (count, hidden), (count, GATES * hidden)
    w, x, d = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return Operands(w, x, np.ascontiguousarray(x.T), d, np.ascontiguousarray(d.T))


def factors(form: str, of: Operands) -> dict[str, tuple[Array, Array]]:
    """Return the two matrices of a product in each layout; the second one gives its transpose."""
    return {
        "x W^T": {ROWS: (of.x_r, of.w.T), COLUMNS: (of.w, of.x_c)},
        "d W": {ROWS: (of.d_r, of.w), COLUMNS: (of.w.T, of.d_c)},
        "d^T x": {ROWS: (of.d_r.T, of.x_r), COLUMNS: (of.d_c, of.x_c.T)},
    }[form]


def time_products(table: Table, hidden: int, count: int) -> None:
    """Compare both layouts of each product, and time them."""
    on_host = operands_of(hidden, count)
    for form in FORMS:
        pairs = factors(form, on_host)
        found = {name: {form: product_of(form, name, a @ b)} for name, (a, b) in pairs.items()}
        a, b = pairs[ROWS]
        exact = a.astype(np.float64) @ b.astype(np.float64)
        table.check(f"{form}, h {hidden}, batch {count}", found, {form: exact}, BOUND)
        samples = _on_gpu(pairs) if table.gpu else _on_cpu(pairs, table.clock)
        key: Key = {"part": form, "hidden": hidden, "model": f"{form}, h {hidden}"}
        flop = 2.0 * GATES * hidden * hidden * count
        table.time({**key, "batch_size": count}, samples, Per("us", 1e6), flop)


def product_of(form: str, layout: str, made: Array) -> Array:
    """Return a product by rows, of whatever layout it is; a gradient has one."""
    return made.T if layout == COLUMNS and form != "d^T x" else made


def _on_cpu(pairs: dict[str, tuple[Array, Array]], clock: Clock) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for name, (a, b) in pairs.items():
        out = np.empty((len(a), b.shape[1]), a.dtype)
        found[name] = waited_once(partial(np.matmul, a, b, out=out), nothing, clock)
    return found


def _on_gpu(pairs: dict[str, tuple[Array, Array]]) -> dict[str, Sample]:
    stacks = torch_layers()
    torch, graphs = import_module("torch"), import_module("benchmarks.peers.cuda_graph")
    import_module("benchmarks.peers.float32").only_float32("cuda")
    found: dict[str, Sample] = {}
    for name, pair in pairs.items():
        a, b = (_like(torch, each) for each in pair)
        out = torch.empty((len(a), b.shape[1]), device="cuda")

        def products(a: Array = a, b: Array = b, out: Array = out) -> None:
            for _ in range(REPEATS):
                torch.mm(a, b, out=out)

        again = graphs.Graph(products)
        expected = pair[0] @ pair[1]
        off = float(np.abs(out.cpu().numpy() - expected).max() / np.abs(expected).max())
        assert off <= BOUND, f"{name} is off by {off:.1e} of the largest element"
        found[name] = _of_one(partial(stacks.event_seconds, again))
    return found


def _like(torch: Any, given: Array) -> Array:
    """Return a matrix of the host on the GPU, with the same strides."""
    if given.flags.c_contiguous:
        return torch.from_numpy(given).to("cuda")
    return torch.from_numpy(np.ascontiguousarray(given.T)).to("cuda").t()


def _of_one(sample: Callable[[int], float]) -> Sample:
    return lambda times: sample(times) / REPEATS


def run(options: argparse.Namespace, command: list[str]) -> Path:
    """Run all sizes; return the path of the JSON file."""
    with opened_table("ecornn_layout", options, command) as table:
        for hidden in options.hidden_sizes:
            for count in options.batch_sizes:
                time_products(table, hidden, count)
            if not table.gpu:
                for form in FORMS:
                    shape = ProductShape(form, "float", GATES * hidden, hidden)
                    print(f"chosen: {choose(shape, TIMED)}", flush=True)
        return table.path


def make_parser() -> Parser:
    """Declare the options."""
    parser = Parser(
        prog="python -m benchmarks.papers.ecornn_layout",
        description="Time products of LSTM layers in two layouts.",
    )
    add_run_options(parser)
    add_numbers(parser, "--hidden-sizes", (256, 512, 1024), "of the layers")
    add_numbers(parser, "--batch-sizes", (32, 64, 128), "sequences")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Read the options, run, draw; return the exit code."""
    return run_command(make_parser(), run, words)


if __name__ == "__main__":
    sys.exit(main())
