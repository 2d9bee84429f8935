"""Steps of several GPUs that nobody waits for: what is found late, refused, or lost.

Devices are the CPU's stand-ins, and processes threads.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.backend.test_parallel_devices import network, stepped
from tests.backend.test_parallel_step import dataset
from tests.devices import shim
from tests.processes import ThreadCommunicator, lost, together
from tests.runs import assert_bits
from tests.shim_device import ShimDevice
from tests.shim_link import Death
from vertexrt.engine.shared_step import COMPARED
from vertexrt.errors import DeviceError, NumericError, ParallelError, UsageError
from vertexrt.kernels.cuda.step_end import FOUND, GAVE_UP, REFUSED
from vertexrt.parallel import ProcessGroup

pytestmark = shim


def started(
    communicator: ThreadCommunicator, device: ShimDevice | None = None, **limit: float
) -> tuple[vrt.Network, ProcessGroup]:
    """Compile a Tree-LSTM for a process."""
    net = network(device or ShimDevice(), "tree-lstm")
    return net, ProcessGroup(communicator, **limit)


def pool() -> vrt.GraphBatch:
    return dataset("tree-lstm").splits["train"]


@pytest.mark.parametrize("change", ["batch", "pulls", "seed", "parameters"])
def test_devices_with_other_batches_seeds_or_parameters_are_refused(change: str) -> None:
    """Of a step that nobody waits for: the next call says it, and nothing was updated."""

    def work(communicator: ThreadCommunicator) -> dict[str, np.ndarray]:
        last = communicator.rank == 1
        net, group = started(communicator, limit=6.0)  # of the busiest machine
        graphs, adam = pool(), vrt.Adam(0.1)
        batch = graphs[:12]
        stepped(net, batch, adam, group)
        before = values_of(net)
        if last and change == "parameters":
            changed = np.array(before["w"])
            changed[0, 0] += 1e-6
            net.parameters["w"] = before["w"] = changed
        elif last and change == "batch":
            batch = graphs[1:13]
        elif last and change == "pulls":
            pulls = {name: np.array(values) for name, values in batch.pulls.items()}
            pulls["label"][0] ^= 1
            batch = replace(batch, pulls=pulls)
        elif last:
            net.record(batch)  # draws a seed
        with pytest.raises(UsageError) as caught:
            stepped(net, batch, adam, group)
        assert adam.steps == 1
        assert_bits(net.parameters, before)
        text = str(caught.value)
        assert "process 1 has" in text
        assert COMPARED[("batch", "pulls", "seed", "parameters").index(change)] in text
        return before

    for found in together(2, work):
        assert isinstance(found, dict), found


def test_a_launch_that_gives_up_is_known_to_all() -> None:
    """Its process raises what it knows, the others name it; nobody updates."""

    def work(communicator: ThreadCommunicator) -> str:
        net, group = started(communicator)
        batch, sgd = pool()[:12], vrt.SGD(0.1)
        stepped(net, batch, sgd, group)
        before = values_of(net)
        if communicator.rank == 1:  # as a persistent kernel leaves it
            session = net.executor.session
            left = np.zeros(FOUND)
            left[[REFUSED, GAVE_UP]] = 1.0
            session.memory.upload(session.found, left)
            session.gave_up[0] = 1
        with pytest.raises(DeviceError) as caught:
            stepped(net, batch, sgd, group)
        assert_bits(net.parameters, before)
        assert np.isfinite(stepped(net, batch, sgd, group)), "it goes on"
        return str(caught.value)

    other, own = together(2, work)
    assert "a kernel of process 1 gave up waiting" in str(other)
    assert "processor 0 waited at instruction 0 for all processors" in str(own)


def test_a_signal_reaches_all_a_step_later() -> None:
    def work(communicator: ThreadCommunicator) -> list[int]:
        net, group = started(communicator)
        batch, sgd, seen = pool()[:12], vrt.SGD(0.1), []
        for step in range(4):
            group.signal = 15 if step == 1 and communicator.rank == 1 else 0
            net.step(batch, sgd, group=group)
            seen.append(group.signal)
        return seen

    # The second step is looked at when the third is launched.
    assert together(2, work) == [[0, 0, 15, 0]] * 2


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("how", ["dies_at", "hangs_at"])
def test_a_process_lost_in_an_exchange_is_named(number: int, how: str) -> None:
    """Two exchanges are a step; the parameters are those before it."""
    named = threading.Semaphore(0)

    def work(communicator: ThreadCommunicator) -> str:
        last = communicator.rank == 2
        device = ShimDevice(lost={how: number} if last else None)
        net, group = started(communicator, device, limit=1.0)
        batch, adam = pool()[:12], vrt.Adam(0.1)
        before = {}
        try:
            for _ in range(3):
                group.began()
                before = values_of(net)
                start = time.monotonic()
                stepped(net, batch, adam, group)
        except Death:
            return "dead"
        except ParallelError:
            assert last or time.monotonic() - start < 3.0
            assert_bits(net.parameters, before)
            if last and how == "hangs_at":  # until the others have named it
                assert all(named.acquire(timeout=9.0) for _ in range(2))
            named.release()
            raise
        raise AssertionError("no step is done without the last process")

    found = together(3, work)
    texts = lost(found)
    assert len(texts) == 3 - (how == "dies_at"), found
    for text in texts[:2]:
        assert "process 2 of 3" in text or "all processes answer" in text


def test_what_is_not_finite_is_refused_by_all() -> None:
    def work(communicator: ThreadCommunicator) -> list[str]:
        net, group = started(communicator)
        batch, sgd = pool()[:12], vrt.SGD(0.1)
        net.step(batch, sgd, group=group)
        good = dict(net.parameters)
        texts = []
        for value, rate in ((np.nan, 0.1), (good["w"], 3e38)):
            poison(net, value)
            before = values_of(net)
            with pytest.raises(NumericError) as caught:
                stepped(net, batch, vrt.SGD(rate), group)
            texts.append(str(caught.value))
            for n, v in net.parameters.items():
                assert np.array_equal(v, before[n], equal_nan=True)
            net.parameters.update(good)
        assert np.isfinite(net.step(batch, sgd, group=group))
        return texts

    one, other = together(2, work)
    assert isinstance(one, list), one
    assert one == other
    assert "parameter 'w' is not finite at [0, 0]" in one[0]
    assert "the update of" in one[1]


def poison(net: vrt.Network, value: Any) -> None:
    """Write to the store what `net.parameters` refuses."""
    store = net.executor.model.store
    store.refresh()
    store.value("w")[...] = value


def values_of(net: vrt.Network) -> dict[str, np.ndarray]:
    return dict(net.parameters)


class Slow(ShimDevice):
    """A device that takes longer for what it is asked for than others are waited for."""

    takes = 0.0

    def record(self, event: Any = None) -> Any:
        return time.monotonic() + self.takes

    def wait(self, event: Any) -> None:
        time.sleep(max(0.0, (event or 0.0) - time.monotonic()))
        super().wait(event)

    def has_come(self, event: Any) -> bool:
        return super().has_come(event) and time.monotonic() >= event


def test_a_long_step_is_waited_for() -> None:
    """The limit is for other processes, not for what a device computes itself."""

    def work(communicator: ThreadCommunicator) -> float:
        device = Slow()
        net, group = started(communicator, device, limit=1.0)
        batch, sgd = pool()[:12], vrt.SGD(0.1)
        stepped(net, batch, sgd, group)
        device.takes = 1.2
        return float(net.step(batch, sgd, group=group))

    one, other = together(2, work)
    assert isinstance(one, float), one
    assert one == other


class Watched(ShimDevice):
    """A device that notes a wait without a limit behind an exchange that waits for ever."""

    hung = False

    def record(self, event: Any = None) -> Any:
        return any(link.stuck for link in self.links)

    def wait(self, event: Any) -> None:
        self.hung |= bool(event)
        super().wait(event)


@pytest.mark.parametrize("number", [1, 2])
def test_what_grows_waits_for_nobody(number: int) -> None:
    """Room for the update is made before the exchange: in the first step, and for more rows."""

    def work(communicator: ThreadCommunicator) -> bool:
        last = communicator.rank == 1
        device = Watched(lost={"hangs_at": number} if last else None)
        net, group = started(communicator, device, limit=1.0)
        graphs, adam = pool(), vrt.Adam(0.1)
        group.began()

        def steps() -> None:
            stepped(net, graphs[:2], adam, group)
            stepped(net, graphs[2:40], adam, group)

        with pytest.raises(ParallelError):
            steps()
        return device.hung

    assert together(2, work) == [False, False]


def test_gradients_left_behind_are_in_no_sum() -> None:
    """Also where a process launches nothing, since it has no graph."""

    def parameters(left: bool) -> list[Any]:
        def work(communicator: ThreadCommunicator) -> dict[str, np.ndarray]:
            net, group = started(communicator)
            graphs, sgd = pool(), vrt.SGD(0.1)
            stepped(net, graphs[:12], sgd, group)
            found = net.record(graphs[:12])
            if left:
                found.backward()
            stepped(net, graphs[20:21], sgd, group)
            stepped(net, graphs[:12], sgd, group)
            return values_of(net)

        return together(2, work)

    wanted = parameters(False)[0]
    for found in parameters(True):
        assert isinstance(found, dict), found
        assert_bits(found, wanted)


def test_a_step_that_was_done_counts_although_an_error_came_after_it() -> None:
    def work(communicator: ThreadCommunicator) -> tuple[int, bool]:
        device = ShimDevice()
        net, group = started(communicator, device)
        batch, adam = pool()[:12], vrt.Adam(0.1)
        stepped(net, batch, adam, group)
        before = values_of(net)
        net.step(batch, adam, group=group)
        device.links[0].failure = lambda: "a process has ended"  # type: ignore[method-assign]
        with pytest.raises(ParallelError, match="a process has ended"):
            net.sync()
        return adam.steps, all(np.array_equal(v, before[n]) for n, v in net.parameters.items())

    assert together(2, work) == [(2, False)] * 2
