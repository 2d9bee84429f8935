"""Latency of one layer of an LSTM or a GRU at GRNN's sizes, against PyTorch's (GRNN, section 6).

    python -m benchmarks.recurrent_latency [--device cpu] [--threads 1,2] [--engines batched]

A request is a minibatch of sequences of 100 steps, inputs as long as the state; inputs and results
are arrays of the host. Ours runs by a plan, made before, of a vertex function that is the cell of
`vertexrt.nn` and nothing more; the peer is `torch.nn.LSTM` or `GRU` in inference mode: oneDNN on a
CPU, cuDNN on a GPU. Results are compared first, at the size that is timed; ways take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import vertexrt as vrt
from benchmarks.turns import ratio_text, seconds_in_turn
from vertexrt.cli.values import list_of

STEPS, BOUND = 100, 1e-5  # of the largest element
SECONDS = 0.3  # of a way in a round, about
CELLS: dict[str, type[vrt.nn.LSTMCell | vrt.nn.GRUCell]] = {
    "LSTM": vrt.nn.LSTMCell,
    "GRU": vrt.nn.GRUCell,
}


class Layer(vrt.VertexFunction):
    """A cell over a sequence."""

    def __init__(self, name: str, size: int) -> None:
        super().__init__(state=dict.fromkeys(CELLS[name].states, size), arity=1)
        self.size, self.cell = size, CELLS[name](size, size)

    def forward(self) -> None:
        before, x = self.gather(0), self.pull("x", (self.size,))
        if isinstance(self.cell, vrt.nn.LSTMCell):
            h, c = self.cell(x, (before.h, before.c))
            self.scatter(h=h, c=c)
        else:
            h = self.cell(x, before.h)
            self.scatter(h=h)
        self.push("h", h)


def peer_of(name: str, size: int, parameters: Mapping[str, Any], device: str) -> Any:
    """Return PyTorch's layer with the same parameters."""
    torch = import_module("torch")
    layer = getattr(torch.nn, name)(size, size, batch_first=True)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    values = {f"{n}_l0": torch.from_numpy(np.asarray(parameters[f"cell.{n}"])) for n in names}
    layer.load_state_dict(values)
    return layer.to(device).eval()


def request(layer: Any, x: Any, device: str) -> Any:
    """Run PyTorch's layer on sequences of the host: [B, STEPS, H]."""
    torch = import_module("torch")
    with torch.inference_mode():
        return layer(torch.from_numpy(x).to(device))[0].cpu().numpy()


def compare(name: str, size: int, count: int, threads: int, options: argparse.Namespace) -> str:
    """Check that all find the same, time them in turn, and return a line."""
    import_module("torch").set_num_threads(threads)
    rng = np.random.default_rng(size + count)
    x = rng.standard_normal((count, STEPS, size)).astype(np.float32)
    rows = x.reshape(count * STEPS, size)
    chain = vrt.InputGraph.chain(STEPS, {"x": x[0]})
    batch = vrt.GraphBatch.from_graphs([chain] * count)
    ways: dict[str, Callable[[], Any]] = {}
    parameters: Any = {}
    for engine in options.engines.split(","):
        layer = Layer(name, size)
        own = threads if options.device == "cpu" else None
        net = vrt.compile(layer, device=options.device, engine=engine, seed=1, threads=own)
        parameters = parameters or net.parameters
        net.set_parameters(parameters)
        plan = net.plan(batch)
        ways[engine] = partial(lambda plan: plan.forward({"x": rows})["h"], plan)
    peer = peer_of(name, size, parameters, options.device)
    want = request(peer, x, options.device).reshape(count * STEPS, size)
    for engine, run in ways.items():
        off = float(np.abs(run() - want).max() / np.abs(want).max())
        assert off < BOUND, f"{engine} is off by {off:.1e} of the largest element"
    ways = {"torch": partial(request, peer, x, options.device), **ways}
    once = seconds_in_turn(ways, 1)
    repeats = {way: max(1, int(SECONDS / taken[0])) for way, taken in once.items()}
    took = seconds_in_turn(
        {way: partial(several, run, repeats[way]) for way, run in ways.items()}, options.rounds
    )
    each = {way: np.array(taken) / repeats[way] for way, taken in took.items()}
    line = f"{name:4} h {size:4} batch {count:2}, {threads} thread{'s' * (threads > 1)}"
    line += f"  torch {np.median(each['torch']) * 1e3:8.2f} ms"
    for engine in [way for way in each if way != "torch"]:
        ratio = ratio_text(each["torch"], each[engine])
        line += f"  {engine} {np.median(each[engine]) * 1e3:8.2f} {ratio}"
    return line


def several(call: Callable[[], Any], times: int) -> None:
    """Call so many times."""
    for _ in range(times):
        call()


def main() -> None:
    """Read the options, compare."""
    parser = argparse.ArgumentParser("python -m benchmarks.recurrent_latency", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engines", default="batched")
    parser.add_argument("--layers", default="LSTM,GRU")
    parser.add_argument("--hidden", type=list_of("--hidden", int), default="64,256,1024")
    parser.add_argument("--batch", type=list_of("--batch", int), default="1,10,20")
    parser.add_argument(
        "--threads", type=list_of("--threads", int), default="1,2", help="of a CPU, for both"
    )
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    for name in options.layers.split(","):
        for threads in options.threads if options.device == "cpu" else [1]:
            for size in options.hidden:
                for count in options.batch:
                    print(compare(name, size, count, threads, options), flush=True)


if __name__ == "__main__":
    main()
