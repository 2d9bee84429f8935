"""Memory of runs: live tensors never overlap, the peak is known before, arenas grow."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vertexrt as vrt
from tests.declared import Declared
from tests.functions import FUNCTIONS
from tests.runs import ALL, OFF, Way, train, use_of
from tests.strategies import full_batches
from vertexrt.api.network import Network
from vertexrt.engine.batched import RunMemory
from vertexrt.engine.parameters import ParameterStore
from vertexrt.errors import RoomError
from vertexrt.graph import GraphBatch
from vertexrt.memory import MemoryPlan
from vertexrt.memory.aligned import CACHE_LINE, HUGE_PAGE

UNWRITTEN = 7e77


class Guarded(RunMemory):
    """Memory whose arena is marked before each run, with some elements behind it."""

    def take(self, elements: int, zero_elements: int) -> np.ndarray:
        self.zero_elements = zero_elements
        self.arena = np.full(elements + 64, UNWRITTEN, self.arena.dtype)
        self.arena[:zero_elements] = 0.0
        return self.arena

    def check(self, total: int) -> None:
        assert (self.arena[total:] == UNWRITTEN).all(), "something was written behind the peak"
        assert (self.arena[: self.zero_elements] == 0.0).all(), "the zeros were written to"


@functools.cache
def guarded(name: str, specialised: bool) -> Network:
    """Compile once; the nets meet new batches again and again, as in training."""
    net = Way(passes=ALL if specialised else OFF).compile(FUNCTIONS[name][0]())
    net.executor.memories[0] = Guarded(net.executor.model.store.gradients)
    return net


@pytest.mark.parametrize("specialised", [True, False])
@pytest.mark.parametrize("name", ["tree-fc", "max-mean", "pass-on", "marks", "oddments"])
@settings(max_examples=8)
@given(data=st.data())
def test_the_peak_is_known_before_the_run(
    name: str, specialised: bool, data: st.DataObject
) -> None:
    """Nothing is written outside of the plan, and nothing is read that was not written."""
    batch = data.draw(full_batches(FUNCTIONS[name][1], max_vertices=6, max_graphs=2))
    net = guarded(name, specialised)
    memory = net.executor.memories[0]
    assert isinstance(memory, Guarded)
    totals = []
    for kind, run in (("inference", net), ("training", lambda b: train(net, b).outputs)):
        assert all((np.abs(value) < UNWRITTEN / 1e9).all() for value in run(batch).values())
        plan = _plan(net, kind, batch)
        assert plan.arena_bytes("float64") == 8 * plan.total
        memory.check(plan.total)
        totals.append(plan.total)
    assert totals[0] <= totals[1], "what only backward reads is freed"


def _plan(net: Network, kind: str, batch: GraphBatch) -> MemoryPlan:
    """Return the plan of a run, see `use_of`."""
    (run,) = net.executor.model.prepare(use_of(kind, net.program), batch)
    return run.layout.plan


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_batch_that_no_machine_has_room_for_is_refused_by_name(device: str) -> None:
    class Wide(Declared, arity=1, state={"h": 1000000}, w=(1,)):
        def forward(self) -> None:
            h = self.gather(0).h * self.pull("x", shape=()) + vrt.sum(self.w)
            self.scatter(h=h)
            self.push("loss", vrt.sum(h))

    net, optimizer = vrt.compile(Wide(), device=device), vrt.Adam()
    graph = vrt.InputGraph.chain(10, {"x": np.ones(10)})
    text = r"^\[batch\] the values of a batch take [\d.]+ GiB; less than this process may have, of "
    for call in (lambda b: net.step(b, optimizer), net):
        with pytest.raises(MemoryError, match=text) as caught:
            call(vrt.GraphBatch.from_graphs([graph] * 20_000))
        assert isinstance(caught.value, RoomError)
    assert (optimizer.steps, net.state()["random"]["draws"]) == (0, 0)


def test_arenas_grow_and_keep_their_zeros_and_what_forward_left() -> None:
    memory = RunMemory(np.zeros(4, np.float32))
    first = memory.take(100, 16)
    assert (len(first) >= 100, first.dtype) == (True, np.float32)
    first[16:] = 1.0
    memory.take(100, 4)[4:] = 2.0  # this run keeps its tensors from element 4 on
    assert memory.take(90, 20) is first
    assert not first[:20].any()
    first[20:] = np.arange(20, len(first))
    grown = memory.take(2 * len(first), 4)
    assert len(grown) >= 2 * len(first)
    np.testing.assert_array_equal(grown[: len(first)], first)


def test_memory_begins_at_cache_lines_and_large_memory_at_huge_pages() -> None:
    memory = RunMemory(np.zeros(4, np.float32))
    small, large = ParameterStore({"w": (8, 8)}), ParameterStore({"w": (1024, 512)})
    for array in (memory.take(100, 4), small.values, small.gradients):
        assert array.ctypes.data % CACHE_LINE == 0
    for array in (memory.take(HUGE_PAGE, 4), large.values, large.gradients):
        assert array.ctypes.data % HUGE_PAGE == 0
