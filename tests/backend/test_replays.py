"""Launches of layouts that come again: one CUDA graph gives the bits of launch by launch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import on_gpus, shim
from tests.functions import FUNCTIONS, LSTMChain
from tests.runs import PLAIN, TOLERANCE, Way, assert_bits, assert_same, evaluate
from tests.strategies import WORDS, with_pulls
from vertexrt.engine.variant import Passes
from vertexrt.kernels.cuda.device_executor import CudaExecutor
from vertexrt.kernels.cuda.ready_runs import LEAST_KEPT, MOST_BYTES, Replay
from vertexrt.models import TreeFC

HIDDEN, LEAVES, TREES = 5, 8, 3


def compiled(device: str, function: vrt.VertexFunction, **passes: Any) -> vrt.Network:
    """Compile for the batched engine."""
    return Way(device, dtype="float32", passes=Passes(**passes)).compile(function)


def trees(rng: np.random.Generator, leaves: int = LEAVES, count: int = TREES) -> vrt.GraphBatch:
    """Return complete trees with random words, and targets of roots."""
    one = vrt.GraphBatch.from_graphs([vrt.InputGraph.complete_tree(leaves)])
    batch = one.take(np.zeros(count, np.int32))
    word = np.full((count, one.num_vertices), -1, np.int32)
    word[:, :leaves] = rng.integers(WORDS, size=(count, leaves))
    at_root = np.full(batch.num_vertices, -1, np.int32)
    at_root[batch.graph_ptr[1:] - 1] = np.arange(count)
    target = rng.standard_normal((count, 1)).astype(np.float32)
    return batch.with_pulls({"word": word.ravel(), "target": vrt.Rows(target, at_root)})


def replays_of(net: vrt.Network) -> list[Replay]:
    """List the replays of all layouts that are kept."""
    assert isinstance(net.executor, CudaExecutor)
    net.sync()
    layouts = [e for v in net.executor.model.variants.values() for e in v.layouts.values()]
    return [replay for layout in layouts for replay in layout.replays.values()]


def captured(net: vrt.Network) -> int:
    """Count the graphs that a network launches by."""
    return sum(replay.graph is not None for replay in replays_of(net))


def both_ways(device: str) -> list[vrt.Network]:
    """Compile Tree-FC with replays, and without."""
    return [compiled(device, TreeFC(WORDS, HIDDEN), replay=way) for way in (True, False)]


def step_all(nets: list[vrt.Network], batch: vrt.GraphBatch, lr: float = 0.01) -> None:
    """Take a step with each network."""
    for net in nets:
        net.step(batch, vrt.SGD(lr))


def assert_same_bits(a: vrt.Network, b: vrt.Network) -> None:
    """Compare parameters."""
    assert_bits(b.parameters, a.parameters)


@on_gpus
@pytest.mark.parametrize("optimizer", [vrt.SGD, vrt.Adam])
def test_training_has_the_bits_of_launch_by_launch(device: str, optimizer: Any) -> None:
    ways = {"replay": {}, "launches": {"replay": False}}
    nets = [compiled(device, TreeFC(WORDS, HIDDEN), **passes) for passes in ways.values()]
    ruled = [optimizer(lr=0.01) for _ in nets]
    rng = np.random.default_rng(3)
    for step in range(8):
        batch = trees(rng)
        for net, by in zip(nets, ruled, strict=True):
            by.lr = 0.01 / (1 + step)
            net.step(batch, by)
    assert captured(nets[0])
    assert not captured(nets[1])
    assert_same_bits(*nets)


@on_gpus
def test_the_end_of_a_step_is_replayed_while_it_stays_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = both_ways(device)
    assert isinstance(nets[0].executor, CudaExecutor)
    session = nets[0].executor.session
    rng, launch, asked = np.random.default_rng(17), session.launch_each, list[int]()

    def counted(launches: Sequence[bytes]) -> None:
        asked[-1] += len(launches)
        launch(launches)

    monkeypatch.setattr(session, "launch_each", counted)
    for lr in [0.1] * 8 + [0.05] * 4:
        asked.append(0)
        step_all(nets, trees(rng), lr)
    assert asked[6:8] == [0, 0]
    assert min(asked[8:]) > 0
    assert captured(nets[0]) == 2
    assert_same_bits(*nets)


@on_gpus
def test_a_pass_may_have_nothing_to_launch(device: str) -> None:
    """A vertex alone has no way back apart from what its pass forward ends with."""
    net = Way(device, dtype="float64").compile(FUNCTIONS["gru"][0]())
    judge = PLAIN.compile(FUNCTIONS["gru"][0]())
    for _ in range(3):
        batch = with_pulls([[[]]])  # another one of the same layout
        assert_same(evaluate(net, batch), evaluate(judge, batch), TOLERANCE["float64"])


@on_gpus
def test_masks_differ_from_step_to_step(device: str) -> None:
    function = LSTMChain(WORDS, HIDDEN, HIDDEN, dropout=0.5)
    nets = [compiled(device, function, replay=way, merge=False) for way in (True, False)]
    batch, losses = with_pulls([[[], [0], [1], [2], [3]]] * 4), []
    for _ in range(6):
        for net in nets:
            losses.append(float(net.step(batch, vrt.SGD(0.0))))
    assert captured(nets[0])
    assert losses[::2] == losses[1::2]
    assert len(set(losses)) == 6  # a seed of each step


@on_gpus
def test_replays_go_with_their_layouts(device: str) -> None:
    """Those of layouts that were used last are kept; the memory of others is free again."""
    net = compiled(device, TreeFC(WORDS, HIDDEN))
    assert isinstance(net.executor, CudaExecutor)
    rng, memory = np.random.default_rng(7), net.executor.session.memory
    net.step(trees(rng), vrt.SGD(0.01))
    (variant,) = net.executor.model.variants.values()
    variant.layouts.most = 2
    for count in (1, 1, 2, 2) * 9:
        net.step(trees(rng, count=count), vrt.SGD(0.01))
    assert len(replays_of(net)) == captured(net) == 4  # of two layouts, since there are two buffers
    for count in (4, 4, 5, 5) * 3:  # the others are not asked for any more
        net.step(trees(rng, count=count), vrt.SGD(0.01))
    found = replays_of(net)
    assert len(found) == 4
    assert memory.kept == sum(each.memory.size for each in found)


class Interrupted(list[Any]):
    """A list to which nothing more is added once a signal has come."""

    def __iadd__(self, more: Any) -> Interrupted:  # type: ignore[misc]
        self.extend(more)
        raise KeyboardInterrupt


@shim
@pytest.mark.parametrize("added", [False, True])
def test_a_signal_frees_no_memory_that_launches_read(added: bool) -> None:
    """Memory that was let go waits in both lists then, and is counted and freed once."""
    net, rng = compiled("shim", TreeFC(WORDS, HIDDEN)), np.random.default_rng(9)
    for _ in range(4):
        net.step(trees(rng), vrt.SGD(0.01))
    rooms = [each.memory for each in replays_of(net)]
    assert isinstance(net.executor, CudaExecutor)
    session, (variant,) = net.executor.session, net.executor.model.variants.values()
    slot = session.buffers.next()
    variant.layouts.clear()
    assert [each.memory for each in session.memory.gone] == rooms != []
    before = sys.getprofile()
    if added:
        slot.gone = Interrupted()
    else:
        sys.setprofile(interrupt_record)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.uploaded(slot)
    finally:
        sys.setprofile(before)
    assert [each.memory for each in session.memory.gone] == rooms
    assert [each.memory for each in slot.gone] == (rooms if added else [])
    slot.gone = list(slot.gone)
    for _ in range(4):
        net.step(trees(rng), vrt.SGD(0.01))
    assert session.memory.kept == sum(each.memory.size for each in replays_of(net))


def interrupt_record(frame: FrameType, event: str, _: object) -> None:
    """Raise at a call of `record`, as a signal would."""
    if event == "call" and frame.f_code.co_name == "record":
        raise KeyboardInterrupt


@on_gpus
def test_graphs_are_captured_again_when_temporaries_of_streams_move(device: str) -> None:
    """A graph has the address of the temporaries that its launches had."""
    nets = [compiled(device, TreeFC(WORDS, HIDDEN), replay=way, streams=2) for way in (True, False)]
    rng, executor = np.random.default_rng(10), nets[0].executor
    assert isinstance(executor, CudaExecutor)
    assert executor.streams is not None
    for _ in range(6):
        step_all(nets, trees(rng))
    old, before = replays_of(nets[0]), executor.session.memory.era
    assert old
    assert device == "shim" or captured(nets[0])  # several streams of the shim are no graph
    step_all(nets, trees(rng, leaves=2 * LEAVES, count=8 * TREES))
    assert executor.session.memory.era > before
    for _ in range(2):
        step_all(nets, trees(rng))
    assert not {*map(id, old)} & {*map(id, replays_of(nets[0]))}
    assert_same_bits(*nets)


@shim
def test_large_uploads_go_to_the_buffers() -> None:
    net, batch = compiled("shim", TreeFC(WORDS, HIDDEN)), trees(np.random.default_rng(8))
    table = np.zeros((MOST_BYTES // LEAST_KEPT // 4 + 1, 1), np.float32)
    target = batch.pulls["target"]
    assert isinstance(target, vrt.Rows)
    large = batch.with_pulls({"target": vrt.Rows(table, target.index)})
    for _ in range(6):
        net.step(large, vrt.SGD(0.01))
    assert not replays_of(net)
