"""Several streams share the launches of a step: the bits are those of one, and less shows."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backend.test_cuda import OPTIMIZERS, tree_lstm, trees
from tests.devices import on_gpus, shim
from tests.functions import FUNCTIONS
from tests.runs import TOLERANCE, Arrays, Way, assert_bits, assert_same, evaluate, train
from tests.shim_streams import ASKED, FIRST, LAST, LAUNCH, Queues
from tests.strategies import with_pulls
from vertexrt.api.network import Network
from vertexrt.engine.variant import Passes
from vertexrt.errors import DeviceError, NumericError
from vertexrt.graph import GraphBatch

# Several kinds of vertices at a level, and trees of several depths.
LISTS = [[[], [], [0, 1], [], [2, 3], [], [4, 5]], [[], [], [0, 1]], [[], [0], [], [1, 2]]]
ON_SHIM = ("attention", "oddments", "marks", "dropout")  # as tests/backend/test_cuda.py


def batch_of(seed: int = 0) -> GraphBatch:
    return with_pulls(LISTS, seed)


def compiled(name: str, streams: int, order: str | int, device: str = "shim") -> Network:
    way = Way(device=device, passes=Passes(streams=streams), order=order)
    return way.compile(FUNCTIONS[name][0]())


@functools.cache
def net(name: str, streams: int, order: str | int = LAST, device: str = "shim") -> Network:
    """Compile once for all batches."""
    return compiled(name, streams, order, device)


def queues(net: Network) -> Queues:
    """Return the streams of a network on the shim."""
    found: Queues = net.executor.session.device.queues  # type: ignore[attr-defined]
    return found


@on_gpus
@pytest.mark.parametrize("name", ON_SHIM)
def test_bits_are_those_of_one_stream(name: str, device: str) -> None:
    batch = batch_of()
    want = [run(net(name, 1, LAST, device), batch) for run in (evaluate, train)]
    reference = Way().compile(FUNCTIONS[name][0]())
    assert_same(want[1], train(reference, batch), TOLERANCE["float64"])
    for streams, order in ((2, LAST), (4, LAST), (3, FIRST), (3, 1)):
        several = net(name, streams, order, device)
        for run, one in zip((evaluate, train), want, strict=True):
            assert_same(run(several, batch), one, 0.0)
        assert device == "cuda" or len(queues(several).ran) > 1


GRAPHS = {"shim": 4, "cuda": 300}  # more, so that cuBLAS makes products on several streams


def trained(passes: Passes, order: str | int, device: str) -> tuple[list[float], dict[str, Any]]:
    """Train with another optimizer every few steps, evaluating in between."""
    each = Way(device=device, dtype="float32", passes=passes, order=order).compile(tree_lstm())
    found = []
    for name in ("adam", "clipped"):
        optimizer = OPTIMIZERS[name]()
        for k in range(3):
            loss = each.step(trees(GRAPHS[device], seed=k), optimizer)
            found.append(float(each(trees(3, seed=9))["loss"].sum()))
        found.append(float(loss))
    return found, dict(each.parameters)


@on_gpus
def test_training_gives_the_bits_of_one_stream(device: str) -> None:
    losses, parameters = trained(Passes(), ASKED, device)
    for streams, order in ((2, LAST), (4, FIRST)):
        others, values = trained(Passes(streams=streams), order, device)
        assert others == losses
        assert_bits(values, parameters)


def agrees(net: Network, batch: GraphBatch, want: Arrays) -> bool:
    """Tell whether a step has the gradients that are wanted; it may see what is no number."""
    try:
        got = train(net, batch).parameters
    except NumericError:
        return False
    return all(np.array_equal(got[key], value) for key, value in want.items())


@shim
@pytest.mark.parametrize(("name", "ends"), [("attention", [0]), ("marks", [-1])])
def test_waits_that_are_left_out_show(name: str, ends: list[int]) -> None:
    """Among them one for the beginning or the end. Of two rounds, not all steps need each other."""
    before, batch = batch_of(1), batch_of(2)
    want = train(compiled(name, 1, LAST), batch).parameters
    several = [compiled(name, 2, order) for order in (FIRST, LAST)]
    for each in several:
        queues(each).waits = 0
        assert agrees(each, batch, want)
    waits = queues(several[0]).waits
    assert waits == queues(several[1]).waits > 3
    shown = []
    for wait in range(waits):
        for each in several:
            for _ in range(2):  # both buffers of uploads hold what another batch looks up
                train(each, before)
            queues(each).waits, queues(each).ignored = 0, wait
            if not agrees(each, batch, want):
                shown.append(wait)
            queues(each).ignored = -1
    assert {range(waits)[end] for end in ends} <= set(shown)
    assert len(set(shown)) >= waits / 5


@shim
def test_a_launch_that_the_driver_refuses_is_named() -> None:
    """The main stream waits for what others have of such a step; the next one is right."""
    want, several = (
        Way(device="shim", dtype="float32", passes=Passes(streams=n)).compile(tree_lstm())
        for n in (1, 3)
    )
    batch = trees(3, 1)
    train(several, batch)
    device = several.executor.session.device  # type: ignore[attr-defined]
    good, asked = device.calls, 0

    def refuse(*given: Any) -> int:
        nonlocal asked
        asked += 1
        return int(real(*given)) if asked < 30 else 701

    real, refusing = LAUNCH(good.launch), LAUNCH(refuse)
    device.calls = replace(good, launch=ctypes.cast(refusing, ctypes.c_void_p).value)
    queues(several).waits = 0
    with pytest.raises(DeviceError, match=r"\[cuda\] error 701 at launch [1-9]\d*, step \d+;"):
        train(several, batch)
    assert queues(several).waits > 1  # at the beginning, and at the end
    device.calls = good
    assert_same(train(several, batch), train(want, batch), 0.0)
