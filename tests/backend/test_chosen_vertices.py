"""Pushes of chosen vertices, and passes that read arrays of a device: against an LSTM by hand."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_on_device import assert_near
from tests.lstm_chains import WAYS, Lstm, chains, compiled, drawn, exact
from vertexrt.errors import UsageError


@pytest.mark.parametrize(("device", "engine", "threads"), WAYS)
def test_results_of_chosen_vertices(device: str, engine: str, threads: int) -> None:
    net, lengths = compiled(device, engine, threads), [3, 1, 9, 5]
    graphs = chains(lengths, *drawn(0, 18))
    wanted = exact(net.parameters, lengths, *drawn(0, 18))
    several = [graphs.roots, [17, 0, 5, 5], np.arange(17, -1, -1), [], list(range(0, 18, 2))]
    for vertices in several:
        rows = wanted[np.asarray(vertices, np.int64)]
        found = [
            net(graphs, outputs=["sum", "h"], vertices=vertices),
            net(graphs, vertices=vertices, arrays="device"),
            net(graphs, vertices=vertices),
            net.plan(graphs, vertices=vertices)(),
            net.plan(graphs, vertices=vertices, arrays="device")(),
        ]
        for each in found:
            assert_near(each["h"], rows, "h")
            assert_near(each["sum"], rows.sum(axis=1), "sum")


class LstmToSumUp(Lstm):
    """The LSTM, whose loss is the sum of its state."""

    def forward(self) -> None:
        super().forward()
        self.push("loss", vrt.sum(self.gather(0).h))


@pytest.mark.parametrize(("device", "engine", "threads"), WAYS)
def test_a_step_keeps_pushes_of_chosen_vertices(device: str, engine: str, threads: int) -> None:
    net, lengths = compiled(device, engine, threads, LstmToSumUp), [3, 1, 9, 5]
    graphs = chains(lengths, *drawn(0, 18))
    for vertices in (graphs.roots, [17, 0, 5, 5], None, []):
        wanted = exact(net.parameters, lengths, *drawn(0, 18))
        rows = wanted if vertices is None else wanted[np.asarray(vertices, np.int64)]
        loss = net.step(graphs, vrt.SGD(0.1), outputs=["sum", "h"], vertices=vertices)
        assert_near(loss.outputs["h"], rows, "h")
        assert_near(loss.outputs["sum"], rows.sum(axis=1), "sum")
    with pytest.raises(UsageError, match="vertices has 18; 0 to 17, vertices of the batch"):
        net.step(graphs, vrt.SGD(0.1), outputs=["h"], vertices=[18])
