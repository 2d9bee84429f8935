"""A module in DistributedDataParallel: two processes on halves are one process on the whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available():
    pytest.skip("PyTorch has no torch.distributed", allow_module_level=True)

from tests.processes import free_port  # noqa: E402
from tests.torch.beside import INPUT, layer_pair, same, tree_pair, trees  # noqa: E402


class Loss(torch.nn.Module):
    """Losses as what is called: hooks of DistributedDataParallel are those of a call."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, batch: Any) -> Any:
        loss = self.inside(batch, outputs=("loss",))["loss"].sum() / batch.num_graphs
        return loss + self.inside.loss(batch)


def train(module: Any, batch: Any) -> None:
    """Take steps on the mean loss of a batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        module(batch).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()


def work(rank: int, port: int, out: str) -> None:
    """Train on a half of the graphs, and keep the parameters."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    module = tree_pair()[0]
    halves = torch.nn.parallel.DistributedDataParallel(Loss(module))
    train(halves, trees(4).take([rank, rank + 2]))
    torch.save(module.state_dict(), f"{out}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_are_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, (free_port(), str(tmp_path)), nprocs=2)
    judge = tree_pair()[1]
    before = judge.embedding.detach().clone()
    train(Loss(judge), trees(4))
    for rank in range(2):
        values = torch.load(tmp_path / f"{rank}.pt")
        same([values[name] for name in judge.state_dict()], [*judge.state_dict().values()])
    assert not torch.equal(judge.embedding, before)


def step_elsewhere(rank: int, layer: Any, x: Any) -> None:
    """Take a step in the process that was given a layer."""
    layer(x)[0].sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.5).step()


def test_another_process_trains_the_same_layer() -> None:
    (mine, judge), x = layer_pair("GRU"), torch.randn(5, 2, INPUT).double()
    mine.share_memory()
    before = mine(x)[0]
    torch.multiprocessing.spawn(step_elsewhere, (mine, x), nprocs=1)
    step_elsewhere(0, judge, x)
    same([mine(x)[0]], [judge(x)[0]])
    assert (mine(x)[0] - before).abs().max() > 0.01
