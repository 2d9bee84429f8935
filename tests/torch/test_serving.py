"""Requests of PyTorch's tensors: pulls as they are, results by DLPack, on the host and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lstm_chains import STEPS, WIDTH, Lstm, chains, exact
from tests.runs import Way

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tensors_in_and_out(device: str) -> None:
    net, words = Way(device, "float32").compile(Lstm()), [1] * STEPS
    batch = chains([STEPS], np.zeros((STEPS, WIDTH), np.float32), words)
    plans = net.plan(batch, arrays="device"), net.plan(batch, vertices=batch.roots, arrays="device")
    for _ in range(3):
        x = torch.randn(STEPS, WIDTH, device=device)
        wanted = exact(net.parameters, [STEPS], x.cpu().numpy(), words)
        found = [plan({"x": x})["h"] for plan in plans]
        found.append(net(batch.with_pulls({"x": x}), arrays="device")["h"])
        for array in found:
            tensor = torch.from_dlpack(array)
            assert tensor.device.type == device
            np.testing.assert_allclose(tensor.cpu(), wanted[-len(tensor) :], atol=1e-5)
