"""Calls that are not waited for give the same whenever they are read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import ON_GPU
from tests.backend.test_cuda_persistent import batch_of
from tests.devices import shim
from tests.functions import FUNCTIONS
from tests.runs import Way, assert_bits
from tests.watched_device import break_counter, mend, watch
from vertexrt.engine.variant import Passes
from vertexrt.errors import DeviceError

NAME = "tree-fc"  # it is quick to compile, and on a CPU it is for one kind of vertex alone
WAYS = [replace(way, dtype="float32") for way in ON_GPU]
WAYS.append(Way("cpu", "float32", passes=Passes(specialise=False)))


@pytest.mark.parametrize("way", WAYS)
def test_results_are_the_same_when_read_late(way: Way) -> None:
    net = way.compile(FUNCTIONS[NAME][0]())
    batches = [batch_of(NAME, graphs) for graphs in (3, 1, 4, 2, 5)]
    wanted = [dict(net(batch)) for batch in batches]
    waiting = [net(batch) for batch in batches]  # more than there are buffers
    for k in (4, 0, 2, 1, 3):
        got = waiting[k]
        assert set(got) == set(wanted[k])
        assert_bits(got, wanted[k])


@pytest.mark.parametrize("way", WAYS)
def test_a_later_step_does_not_change_a_result(way: Way) -> None:
    net = way.compile(FUNCTIONS[NAME][0]())
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
    net = WAYS[1].compile(FUNCTIONS[NAME][0]())
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
