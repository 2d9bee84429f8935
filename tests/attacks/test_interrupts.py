"""Some interrupted calls; `python -m tests.attacks interrupts` runs any number."""

import gc
import random
import signal
import sys
import weakref
from types import FrameType
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.attacks.interrupts import (
    CALLS,
    LOADER,
    Side,
    attack,
    batch_of,
    differences,
    leaves,
    make_cases,
)
from tests.attacks.outcomes import FAILED
from tests.attacks.small_function import Small
from tests.devices import on_gpus
from tests.shim_device import ShimDevice
from vertexrt.kernels.cuda.device_memory import DeviceMemory

WAYS = ("reference, batched, 2", "cpu, batched, 1", "cpu, persistent, 2", LOADER)


def test_an_interrupted_call_was_done_or_was_not() -> None:
    """Issue 52: gradients of threads stayed, updates were not counted, locks stayed taken."""
    tally = attack(150, 52, WAYS)
    assert not tally.failures, tally.table()
    assert sum(tally.counts.values()) == 150


@on_gpus
def test_on_a_gpu_too(device: str) -> None:
    """Issue 52: a step was done and not counted, and graphs of other launches were replayed."""
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    run = make_cases(52, (f"{device}, batched, 2", f"{device}, persistent, 2"))
    try:  # in this process: a forked child has no GPU
        found = [run(k) for k in range(30 if device == "shim" else 300)]
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)
    assert not [each for each in found if FAILED in each[1]]


def test_memory_under_a_copy_stays_when_a_signal_ends_the_call() -> None:
    """Issue 52: others got it while a busy GPU had not copied it yet, and wrote to it."""

    class Busy(ShimDevice):
        """A device that a signal ends the first wait for."""

        def __init__(self) -> None:
            super().__init__()
            self.pinned_here: weakref.WeakSet[Any] = weakref.WeakSet()
            self.interrupts = True

        def pinned(self, size: int) -> Any:
            found = super().pinned(size)
            self.pinned_here.add(Kept(found))
            return found

        def wait(self, event: Any) -> None:
            if self.interrupts:
                self.interrupts = False
                raise KeyboardInterrupt
            super().wait(event)

    class Kept:
        """Lives as long as an array."""

        def __init__(self, array: Any) -> None:
            weakref.finalize(array, list.clear, [self])

    device = Busy()
    memory = DeviceMemory(device, False)
    there, host = memory.cleared(80, "room"), np.ones(10)
    for copy in (lambda: memory.upload(there, host), lambda: memory.download(host, there.address)):
        device.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            copy()
        gc.collect()
        assert len(device.pinned_here) == 1
        memory.synchronize()
        gc.collect()
        assert not device.pinned_here


class Interrupted:
    """A device, of whose calls a later one each time is interrupted when it is over."""

    def __init__(self, device: Any) -> None:
        self._device, self.at, self._left = device, 0, -1

    def begin(self) -> None:
        """Interrupt the call after the one of the last time."""
        self.at += 1
        self._left = self.at

    def rest(self) -> None:
        """Interrupt none."""
        self._left = -1

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._device, name)
        if not callable(found):
            return found

        def call(*given: Any, **options: Any) -> Any:
            result = found(*given, **options)
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
            return result

        return call


def step_with_groups(side: Side) -> Any:
    side.adam.groups = {"a": {"lr": 0.1}, "u": {"lr": 0.2}}
    return CALLS["step"](side)


def backward(side: Side) -> None:
    side.net.zero_grad()
    kept_run = side.net.record(side.batches[0])
    kept_run.backward()


@pytest.mark.parametrize(
    ("engine", "call"),
    [
        *(("batched", call) for call in (CALLS["step"], CALLS["own"], CALLS["update"])),
        *(("persistent", call) for call in (CALLS["step"], step_with_groups)),
    ],
)
@on_gpus
def test_each_call_of_a_device_may_be_the_last(device: str, engine: str, call: Any) -> None:
    """After any of them a step was done, or it was not; what follows has the bits of a twin."""
    side, twin = (Side(f"{device}, {engine}, 2") for _ in range(2))
    side.batches = twin.batches = [batch_of(random.Random(52))]
    for each in (side, twin):
        backward(each)
        call(each)
    session = side.net.executor.session  # type: ignore[attr-defined]
    watched = Interrupted(session.device)
    session.device = session.memory.device = session.buffers.device = watched
    ended = True
    while ended:
        for each in (side, twin):
            backward(each)
        before, wanted, after = twin.state(), call(twin), twin.state()
        watched.begin()
        try:
            call(side)
            ended = False
        except KeyboardInterrupt:
            pass
        watched.rest()
        now = side.state()
        if ended and differences(now, after):
            assert not differences(now, before), f"call {watched.at} left a part"
            assert list(leaves(call(side))) == list(leaves(wanted)), f"call {watched.at}"
        assert not differences(side.state(), after), f"after call {watched.at}"
    assert watched.at > 5


def test_a_plan_is_as_it_was_after_any_line() -> None:
    """A request that was ended left its pulls to the next one, which gave none."""
    graphs = batch_of(random.Random(3))
    plan = vrt.compile(Small(dropped=0.25), device="cpu").plan(graphs)
    others = {"mark": np.ascontiguousarray(graphs.pulls["mark"][::-1])}
    wanted, line, ended = list(leaves(plan())), 0, True

    def each_line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_globals["__name__"] != "vertexrt.api.network":
            return None
        left -= event == "line"
        if left < 0:
            raise KeyboardInterrupt
        return each_line

    while ended:
        left = line
        sys.settrace(each_line)
        try:
            plan(others)
            ended = False
        except KeyboardInterrupt:
            line += 1
        finally:
            sys.settrace(None)
        assert list(leaves(plan())) == wanted, f"after line {line}"
    assert line > 20
