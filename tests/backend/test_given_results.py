"""Large results of a plan on a GPU: they lie where the transfer put them, and stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.declared import Declared
from tests.devices import on_gpus
from tests.paper_device import PaperDevice
from tests.runs import Way
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.device_executor import LEAST_GIVEN, MOST_GIVEN, GivenResults

SIZE, COUNT = 64, 3000


class Squash(Declared, state={"h": SIZE}):
    """The hyperbolic tangent of what is pulled, and its sum."""

    def forward(self) -> None:
        h = self.push("h", vrt.tanh(self.pull("x", (SIZE,))))
        self.scatter(h=h)
        self.push("sum", vrt.sum(h))


@on_gpus
@pytest.mark.parametrize("engine", ["batched", "persistent"])
def test_results_of_earlier_requests_stay(device: str, engine: str) -> None:
    assert COUNT * SIZE * 4 > LEAST_GIVEN
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, COUNT, SIZE)).astype(np.float32)
    graphs = [InputGraph.from_children([[]] * 1, {"x": row[None]}) for row in x[0]]
    processors = 1 if engine == "persistent" else None
    way = Way(device=device, dtype="float32", engine=engine, processors=processors)
    net = way.compile(Squash())
    plan = net.plan(GraphBatch.from_graphs(graphs))
    found = [plan({"x": given}) for given in x]
    for given, each in zip(x, found, strict=True):
        assert np.abs(each["h"] - np.tanh(given)).max() <= 1e-6
        assert np.abs(each["sum"] - np.tanh(given).sum(1)).max() <= 1e-4
        each["h"][:] = 0.0  # they are the caller's


def test_memory_that_nobody_holds_is_used_again() -> None:
    given = GivenResults(PaperDevice())
    assert given.take(LEAST_GIVEN - 1) is None, "a copy is as fast"
    first, second = given.take(MOST_GIVEN // 2), given.take(MOST_GIVEN // 2)
    assert first is not None
    assert second is not None
    assert given.take(LEAST_GIVEN) is None, "results are copied, where many are held"
    part = first[8:16].view(np.float32)
    del first
    assert given.take(LEAST_GIVEN) is None, "a part of it is held"
    del part
    assert given.take(LEAST_GIVEN) is not None
