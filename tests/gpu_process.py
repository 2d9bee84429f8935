"""One process of a group that trains on its GPU; tests start several, as torchrun does.

    python -m tests.gpu_process OUT DEVICE [exchange at which the last process ends]

It writes its parameters and losses to OUT.RANK.npz, or prints the ParallelError and how long after
the step began it came.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.engine.variant import CompileOptions, Passes
from vertexrt.errors import ParallelError
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.cupy_device import CupyDevice
from vertexrt.kernels.cuda.device import Array, Link, Message
from vertexrt.models import TreeLSTM
from vertexrt.parallel import ProcessGroup

STEPS, SHARES = 6, 4


def forest(step: int) -> vrt.GraphBatch:
    rng, graphs = np.random.default_rng(step), []
    for _ in range(24):
        pulls = {"word": rng.integers(0, 50, 5), "label": rng.integers(0, 5, 5)}
        pulls["word"][[2, 4]] = -1
        graphs.append(vrt.InputGraph.from_children([[], [], [0, 1], [], [2, 3]], pulls))
    return vrt.GraphBatch.from_graphs(graphs)


class EndingLink:
    """A link whose process ends in the midst of an exchange."""

    def __init__(self, link: Link, last: int) -> None:
        self._link, self._left = link, last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        self._left -= 1
        if not self._left:
            os._exit(1)
        self._link.exchange(send, receive)


class EndingGpu(CupyDevice):
    """A GPU with such a link."""

    last = 0

    def link(self, number: Array, rank: int, size: int) -> Any:
        return EndingLink(super().link(number, rank, size), self.last)


def network(device: str, last: int) -> vrt.Network:
    """Compile.

    Args:
        last: number of the exchange at which this process ends; 0 for none.
    """
    function = TreeLSTM(50, 32, 32, 5)
    if not last:
        return vrt.compile(function, device=device, seed=3, threads=1)
    gpu = EndingGpu()
    gpu.last = last
    given = CompileOptions(np.dtype("float32"), "frontier", Passes(), "float32", "batched", 1, None)
    net = vrt.Network(compile_on(gpu, function.trace(), given), 3, "mean_graphs")
    net.parameters.update(vrt.compile(function, device="reference", seed=3).parameters)
    return net


def train(net: vrt.Network, group: ProcessGroup) -> dict[str, np.ndarray]:
    """Train; return parameters and losses."""
    adam, losses = vrt.Adam(0.02, clip_norm=1.0), []
    for step in range(STEPS):
        start = time.monotonic()
        try:
            losses.append(net.step(forest(step), adam, group=group))
        except ParallelError as error:
            print(f"{error} after {time.monotonic() - start:.1f} s", flush=True)
            os._exit(3)  # MPI and NCCL may wait for who is gone
    found = dict(net.parameters)
    return {**found, "losses": np.array(losses)}


def main() -> None:
    """Read the words, train."""
    out, device, *more = sys.argv[1:]
    group = vrt.parallel.init(shares=SHARES)
    last = int(more[0]) if more and group.rank == group.size - 1 else 0
    np.savez(f"{out}.{group.rank}.npz", **train(network(device, last), group))
    group.close()


if __name__ == "__main__":
    main()
