"""A module in DistributedDataParallel: two processes on halves are one process on the whole."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("PyTorch has no torch.distributed", allow_module_level=True)

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from vertexrt.models.tree_lstm import TreeLSTM  # noqa: E402

STEPS, GRAPHS = 3, 4


def forest() -> vrt.GraphBatch:
    """Return trees of equal size, so that halves weigh the same."""
    rng, graphs = np.random.default_rng(0), []
    for _ in range(GRAPHS):
        pulls = {"word": rng.integers(0, 9, 3), "label": rng.integers(0, 2, 3)}
        pulls["word"][2], pulls["label"][:2] = -1, -1
        graphs.append(vrt.InputGraph.from_children([[], [], [0, 1]], pulls))
    return vrt.GraphBatch.from_graphs(graphs)


def model() -> vt.Module:
    function = TreeLSTM(vocab=9, embed=4, hidden=4, classes=2)
    return vt.Module(vrt.compile(function, device="cpu", dtype="float64", seed=3))


class Loss(torch.nn.Module):
    """The loss as what is called: hooks of DistributedDataParallel are those of a call."""

    def __init__(self, inside: vt.Module, at_once: bool) -> None:
        super().__init__()
        self.inside, self.at_once = inside, at_once

    def forward(self, batch: vrt.GraphBatch) -> torch.Tensor:
        if self.at_once:
            return self.inside.loss(batch)
        return self.inside(batch, outputs=("loss",))["loss"].sum() / batch.num_graphs


def train(module: torch.nn.Module, batch: vrt.GraphBatch) -> None:
    """Take steps on the mean loss of a batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(STEPS):
        optimizer.zero_grad()
        module(batch).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()


def work(rank: int, port: int, out: str, at_once: bool) -> None:
    """Train on a half of the graphs, and keep the parameters."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    module = model()
    halves = torch.nn.parallel.DistributedDataParallel(Loss(module, at_once))
    train(halves, forest().take([rank, rank + 2]))
    torch.save(module.state_dict(), f"{out}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("at_once", [False, True])
def test_two_processes_are_one(tmp_path: Path, at_once: bool) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, str(tmp_path), at_once), nprocs=2)
    whole = model()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    train(Loss(whole, False), forest())
    for rank in range(2):
        for name, value in torch.load(tmp_path / f"{rank}.pt").items():
            torch.testing.assert_close(value, whole.state_dict()[name], rtol=0.0, atol=1e-12)
    assert not torch.equal(whole.get_parameter("w"), before["w"])


def step_elsewhere(rank: int, layer: torch.nn.Module, x: torch.Tensor) -> None:
    """Take a step in the process that was given a layer."""
    layer(x)[0].sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()


def test_another_process_trains_the_same_layer() -> None:
    torch.manual_seed(0)
    mine, judge, x = vt.GRU(3, 4), torch.nn.GRU(3, 4), torch.randn(5, 2, 3)
    judge.load_state_dict(mine.state_dict())
    mine.share_memory()
    before = mine(x)[0]
    torch.multiprocessing.spawn(step_elsewhere, (mine, x), nprocs=1)
    step_elsewhere(0, judge, x)
    torch.testing.assert_close(mine(x)[0], judge(x)[0], rtol=0.0, atol=1e-5)
    assert (mine(x)[0] - before).abs().max() > 0.01
