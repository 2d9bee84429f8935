"""Calls that are not waited for give the same whenever they are read."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_cuda_persistent import batch_of
from tests.devices import gpu, shim
from tests.functions import FUNCTIONS
from tests.runs import Way, assert_bits
from tests.watched_device import break_counter, mend, watch
from vertexrt.engine.variant import Passes
from vertexrt.errors import DeviceError

NAME = "tree-fc"  # it is quick to compile, and on a CPU it is for one kind of vertex alone
WAYS = [
    pytest.param("cpu", "batched", id="cpu"),
    *(pytest.param("shim", e, marks=shim, id=f"shim-{e}") for e in ("batched", "persistent")),
    *(pytest.param("cuda", e, marks=gpu, id=f"cuda-{e}") for e in ("batched", "persistent")),
]


def network(device: str, engine: str) -> vrt.Network:
    processors = 2 if engine == "persistent" else None
    passes = Passes(specialise=device != "cpu")
    way = Way(device, "float32", engine=engine, processors=processors, passes=passes)
    return way.compile(FUNCTIONS[NAME][0]())


@pytest.mark.parametrize(("device", "engine"), WAYS)
def test_results_are_the_same_when_read_late(device: str, engine: str) -> None:
    net = network(device, engine)
    batches = [batch_of(NAME, graphs) for graphs in (3, 1, 4, 2, 5)]
    wanted = [dict(net(batch)) for batch in batches]
    waiting = [net(batch) for batch in batches]  # more than there are buffers
    for k in (4, 0, 2, 1, 3):
        got = waiting[k]
        assert set(got) == set(wanted[k])
        assert_bits(got, wanted[k])


@pytest.mark.parametrize(("device", "engine"), WAYS)
def test_a_later_step_does_not_change_a_result(device: str, engine: str) -> None:
    net = network(device, engine)
    batch, other = batch_of(NAME, 2), batch_of(NAME, 3)
    before = net(batch, outputs=("output",))["output"]
    evaluation = net(batch, outputs=("output",))
    for _ in range(3):
        net.step(other, vrt.SGD(0.5))
    net.sync()
    assert np.array_equal(evaluation["output"], before)
    assert not np.array_equal(net(batch, outputs=("output",))["output"], before)


@shim
def test_an_evaluation_that_gave_up_says_so_when_it_is_read() -> None:
    net = network("shim", "persistent")
    batch = batch_of(NAME, 3)
    before = dict(net(batch))
    net.executor.persistent_launch.patience = 5_000_000  # type: ignore[attr-defined]
    broken = watch(net)
    break_counter(broken)
    evaluation = net(batch)
    mend(broken)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"waited at instruction.* It was found in call 2\."):
            evaluation["loss"]
    after = net(batch)
    assert all(np.array_equal(after[name], value) for name, value in before.items())
