"""The update after the gradients of several groups and processors.

It must be the update of the reference for every optimizer, and nothing at all where the loss or the
norm is not finite or a processor is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.functions import H
from tests.optimizers import OPTIMIZERS, make_store, set_gradients
from tests.runs import Capture, Way
from tests.strategies import WORDS
from vertexrt.api.network import Network
from vertexrt.api.optimizer import Optimizer
from vertexrt.engine import batched
from vertexrt.engine import update as updates
from vertexrt.engine.parameters import ParameterStore
from vertexrt.engine.update import apply_update, collect, cut
from vertexrt.errors import DeviceError, NumericError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cpu import processors
from vertexrt.models.tree_fc import TreeFC
from vertexrt.script.isa import NONE, WAIT

Array = np.ndarray[Any, Any]

# threads, processors of a group
SHAPES = ((1, 1), (2, 1), (2, 2), (4, 2))
CLIPS = (None, 0.01, 1e3)
STEPS = 3

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
every_shape = pytest.mark.parametrize(("threads", "parts"), SHAPES)


def network(threads: int = 1, parts: int | None = None, device: str = "cpu") -> Network:
    engine = "batched" if parts is None else "persistent"
    way = Way(device, "float64", threads=threads, engine=engine, processors=parts)
    return way.compile(TreeFC(WORDS, H))


def batches() -> list[GraphBatch]:
    """Draw batches that touch different rows of the table; graphs of one batch differ in size."""
    rng = np.random.default_rng(1)
    drawn = []
    for k in range(STEPS):
        graphs = []
        for leaves in (2, 5, 3, 4, 2):
            lists: list[list[int]] = [[] for _ in range(leaves)]
            top = 0
            for leaf in range(1, leaves):
                lists.append([top, leaf])
                top = len(lists) - 1
            word = rng.integers(k, WORDS, len(lists)).astype(np.int32)
            word[leaves:] = -1
            target = rng.standard_normal((len(lists), 1))
            graphs.append(InputGraph.from_children(lists, {"word": word, "target": target}))
        drawn.append(GraphBatch.from_graphs(graphs))
    return drawn


def trained(net: Network, optimizer: Any) -> tuple[list[float], dict[str, Array]]:
    losses = [net.step(batch, optimizer) for batch in batches()]
    return losses, {name: value.copy() for name, value in net.parameters.items()}


def state_of(optimizer: Optimizer) -> dict[str, Array]:
    return {name: np.array(array) for name, array in optimizer.state.items()}


def assert_equal(one: dict[str, Array], other: dict[str, Array]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


# Whole steps.


@every_shape
@every_optimizer
@pytest.mark.parametrize("clip", CLIPS)
def test_every_rule_equals_the_reference(
    name: str, clip: float | None, threads: int, parts: int
) -> None:
    want_losses, want = trained(network(device="reference"), OPTIMIZERS[name](clip_norm=clip))
    optimizer = OPTIMIZERS[name](clip_norm=clip)
    losses, got = trained(network(threads, parts), optimizer)
    assert losses == pytest.approx(want_losses, rel=1e-10)
    assert optimizer.steps == STEPS
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-10, atol=1e-13, err_msg=key)


@pytest.mark.parametrize("clip", CLIPS)
def test_groups_of_one_are_the_bits_of_the_workers_of_the_batched_engine(
    clip: float | None,
) -> None:
    got = trained(network(2, 1), vrt.Adam(0.01, clip_norm=clip))
    want = trained(network(2), vrt.Adam(0.01, clip_norm=clip))
    assert got[0] == want[0]
    for key, value in want[1].items():
        np.testing.assert_allclose(got[1][key], value, rtol=1e-12, atol=1e-15, err_msg=key)


def test_gradients_are_there_for_an_update_of_ones_own() -> None:
    (batch, *_) = batches()
    got, want = network(4, 2), network()
    for net in (got, want):
        net.step(batch, vrt.SGD(0.1))
        assert not net._model.store.copies.any()  # ours leaves zeros, so that nobody clears them
        net.step(batch, Capture())  # type: ignore[arg-type]
    ours, theirs = got._model.store, want._model.store
    assert_close = np.testing.assert_allclose
    for name in theirs.names:
        assert_close(ours.gradient(name), theirs.gradient(name), rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(ours.touched["embedding"], theirs.touched["embedding"])
    assert not ours.copies[1:].any()


def test_forward_and_backward_leave_parameters_alone_and_mix_with_steps() -> None:
    first, second, _ = batches()
    nets, found = (network(4, 2), network()), []
    for net in nets:
        net.step(first, vrt.SGD(0.1))
        start = {name: value.copy() for name, value in net.parameters.items()}
        output = net.forward(second, train=True, outputs=["output"])["output"]
        gradients = net.backward({"output": np.ones_like(output)}).parameters
        assert_equal(start, net.parameters)
        net.step(first, vrt.SGD(0.1))
        found.append({**gradients, **{f"value {n}": v.copy() for n, v in net.parameters.items()}})
    for name, value in found[1].items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-10, atol=1e-13, err_msg=name)


# Steps that must change nothing.


@every_shape
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_loss_that_is_not_finite_changes_nothing(
    clip: float | None, threads: int, parts: int
) -> None:
    net, optimizer = network(threads, parts), vrt.Adam(0.01, clip_norm=clip)
    batch, other, _ = batches()
    net.step(batch, optimizer)
    start = {name: value.copy() for name, value in net.parameters.items()}
    state = state_of(optimizer)
    scale = net._model.store.value("v")
    scale *= 1e308
    start["v"] = scale.copy()
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(NumericError, match="loss"):
        net.step(other, optimizer)
    assert_equal(net.parameters, start)
    assert_equal(state_of(optimizer), state)
    scale /= 1e308
    assert np.isfinite(net.step(batch, optimizer))  # the next step starts clean
    assert optimizer.steps == 2


@every_shape
def test_a_norm_that_is_not_finite_changes_nothing(threads: int, parts: int) -> None:
    net, optimizer = network(threads, parts), vrt.SGD(0.1, 0.9, clip_norm=1.0)
    batch, *_ = batches()
    net.step(batch, optimizer)
    start = {name: value.copy() for name, value in net.parameters.items()}
    state = state_of(optimizer)
    run = processors.CpuProcessors.run
    with pytest.MonkeyPatch.context() as patch:

        def spoiled(self: Any, *given: Any) -> None:
            given[5].gradients[3] = np.inf  # the gradients that the run adds to
            run(self, *given)

        patch.setattr(processors.CpuProcessors, "run", spoiled)
        with pytest.raises(NumericError, match=r"the gradient of '.*' is (inf|nan) at"):
            net.step(batch, optimizer)
    assert_equal(net.parameters, start)
    assert_equal(state_of(optimizer), state)
    net.step(batch, optimizer)
    assert optimizer.steps == 2


def test_a_script_that_ends_early_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, optimizer = network(4, 2), vrt.Adam(0.01)
    batch, *_ = batches()
    net.step(batch, optimizer)
    start, state = {n: v.copy() for n, v in net.parameters.items()}, state_of(optimizer)
    assemble, broken = batched.assemble, []

    def spoiled(*given: Any) -> Any:
        scripts = assemble(*given)
        if not broken:  # one group of two
            waits = np.argwhere(scripts.words[:, :, WAIT] != NONE)
            scripts.words[*waits[-1], WAIT] = waits[-1][1]  # for itself
        broken.append(True)
        return scripts

    with monkeypatch.context() as patch:
        patch.setattr(batched, "assemble", spoiled)
        patch.setattr(batched, "verify_scripts", lambda *_: None)  # which would find it
        patch.setattr(processors, "SECONDS", 0.5)
        with pytest.raises(DeviceError, match=r"processor 1 gave up at instruction"):
            net.step(batch, optimizer)
    assert_equal(net.parameters, start)
    assert_equal(state_of(optimizer), state)
    assert np.isfinite(net.step(batch, optimizer))


# Gradients of several groups.

WIDE = {"table": (700, 50), "w": (300, 100), "b": (9,), "other": (6, 3)}


def groups_of(store: ParameterStore, groups: int, step: int) -> list[dict[str, Array]]:
    """Draw gradients for each group; which rows they touch overlaps in part."""
    touched: list[dict[str, Array]] = []
    for k in range(groups):
        part = make_store(str(store.dtype), WIDE)
        set_gradients(part, 10 * step + k)
        rng = np.random.default_rng([step, k])
        rows = np.sort(rng.choice(700, 400, replace=False))
        part.touched["table"] = rows
        part.gradient("table")[...] = 0.0
        part.gradient("table")[rows] = rng.standard_normal((400, 50))
        store.copies[k] = part.gradients
        touched.append(dict(part.touched))
    for name in store.sparse:
        store.touched[name] = np.unique(np.concatenate([t[name] for t in touched]))
    return touched


def wide(dtype: str, groups: int) -> ParameterStore:
    store = ParameterStore(WIDE, dtype, ["table", "other"], copies=groups)
    store.values[...] = np.random.default_rng(8).standard_normal(store.values.size)
    return store


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_gradients_of_groups_are_added_up(dtype: str, groups: int) -> None:
    store, optimizer = wide(dtype, groups), vrt.Adam(0.01, clip_norm=3.0)
    for step in range(2):
        touched = groups_of(store, groups, step)
        before = store.values.copy()
        expected = np.add.reduce(store.copies[:groups].astype(np.float64))
        collect(store, touched)
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(store.gradients, expected, rtol=tolerance, atol=tolerance)
        optimizer.settle(apply_update(store, optimizer.request(store)))
        assert not store.copies.any()
        assert (store.value("w") != store.views(before)["w"]).mean() > 0.9


def test_pieces_have_every_touched_element_once() -> None:
    store = wide("float32", 3)
    touched = groups_of(store, 3, 0)
    made = cut(store, touched)
    for k, rows_of in enumerate([store.touched, *touched[1:]]):
        count = np.zeros(store.values.size, np.int64)
        for (start, width), spans in zip(made.pieces, made.spans, strict=True):
            for row in made.listed[spans[k, 0] : spans[k, 1]]:
                count[start + row * width : start + (row + 1) * width] += 1
        want = np.zeros_like(count)
        want[: store.dense_size] = 1
        for name, rows in rows_of.items():
            store.views(want)[name][rows] = 1  # type: ignore[arg-type]
        np.testing.assert_array_equal(count, want)
    assert len(made.pieces) > 5
    assert (made.pieces[:, 1] <= updates.PIECE).all()
