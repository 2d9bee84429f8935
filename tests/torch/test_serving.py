"""Requests of PyTorch's tensors: pulls as they are, results by DLPack, on the host and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import gpu, require
from vertexrt import nn

torch = pytest.importorskip("torch")
STEPS, WIDTH, HIDDEN = 7, 4, 6


class Step(vrt.VertexFunction):
    """An LSTM along a chain."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": HIDDEN, "c": HIDDEN})
        self.cell = nn.LSTMCell(WIDTH, HIDDEN)

    def forward(self) -> None:
        before = self.gather(0)
        h, c = self.cell(self.pull("x", shape=(WIDTH,)), (before.h, before.c))
        self.scatter(h=h, c=c)
        self.push("h", h)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_tensors_in_and_out(device: str) -> None:
    require(device)
    judge = torch.nn.LSTM(WIDTH, HIDDEN).double()
    net = vrt.compile(Step(), device=device)
    net.parameters.update(
        {f"cell.{n.removesuffix('_l0')}": p.detach().numpy() for n, p in judge.named_parameters()}
    )
    x = torch.randn(3, STEPS, WIDTH, device=device)
    zeros = np.zeros((STEPS, WIDTH), np.float32)
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(STEPS, {"x": zeros})])
    plans = net.plan(batch, arrays="device"), net.plan(batch, vertices=batch.roots, arrays="device")
    for each in x:
        wanted = judge(each.double().cpu())[0].float()
        lent = batch.with_pulls({"x": each})
        found = [plan({"x": each})["h"] for plan in plans]
        found.append(net(lent, arrays="device")["h"])
        for array in found:
            tensor = torch.from_dlpack(array)
            assert tensor.device.type == device
            assert torch.allclose(tensor.cpu(), wanted[-len(tensor) :], atol=1e-5)
