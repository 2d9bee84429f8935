"""Layouts that come again: runs that are kept give what runs that are made anew give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.devices import SHIM_AND_GPU, require, shim  # noqa: E402
from tests.shim_device import ShimDevice, put_in_place  # noqa: E402
from tests.torch.test_gpu import ENGINES, assert_near, compile_again, modules  # noqa: E402
from tests.torch.test_module import SIZE, trees  # noqa: E402
from tests.watched_device import break_counter, mend, watch  # noqa: E402
from vertexrt import nn  # noqa: E402
from vertexrt.errors import DeviceError  # noqa: E402
from vertexrt.kernels.cuda.upload import UploadRoom  # noqa: E402
from vertexrt.models.tree_lstm import TreeLSTM  # noqa: E402

INPUT, HIDDEN = 3, 4
PLACES = ["cpu", *SHIM_AND_GPU]


class CountingDevice(ShimDevice):
    """A device that counts what is uploaded."""

    uploaded = 0

    def upload(self, to: int, source: Any) -> None:
        CountingDevice.uploaded += source.nbytes
        super().upload(to, source)


def layers(
    place: str, engine: str, patch: pytest.MonkeyPatch, name: str = "LSTM", **stack: Any
) -> Any:
    """Return a layer at a place, and PyTorch's with the same numbers in float64."""
    torch.manual_seed(0)
    judge = getattr(torch.nn, name)(INPUT, HIDDEN, **stack).double()
    mine = getattr(vt, name)(INPUT, HIDDEN, **stack)
    if place == "cuda":
        require(place)
        mine = mine.to("cuda")
    if place == "shim":
        put_in_place(patch, CountingDevice)
        compile_again(mine, engine)
    mine.load_state_dict({n: p.float() for n, p in judge.state_dict().items()})
    return mine, judge


def packs(lengths: tuple[int, ...], place: Any) -> tuple[Any, Any]:
    """Return the same packed sequences for both, whose steps get gradients."""
    steps = [torch.randn(n, INPUT) for n in lengths]
    given = torch.nn.utils.rnn.pack_sequence(steps, enforce_sorted=False)
    here = given.to(place)
    ours = here.data.clone().requires_grad_()
    theirs = given.data.double().requires_grad_()
    return here._replace(data=ours), given._replace(data=theirs)


def total(found: Any) -> Any:
    """Return a number that depends on all results, and on where each of them is."""
    out, states = found
    several = states if isinstance(states, tuple) else (states,)
    places = [torch.linspace(1.0, 2.0, s.numel(), dtype=s.dtype, device=s.device) for s in several]
    of_states = [(s * p.view_as(s)).sum() for s, p in zip(several, places, strict=True)]
    return out.data.square().sum() + sum(of_states)


def assert_same_gradients(mine: Any, judge: Any, ours: Any, theirs: Any) -> None:
    assert_near(ours.data.grad, theirs.data.grad)
    for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
        assert_near(p.grad, q.grad)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["LSTM", "GRU", "stack"])
def test_layouts_that_come_again(
    name: str, engine: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters change between calls; a larger layout takes another arena."""
    stack = {"num_layers": 2, "bidirectional": True} if name == "stack" else {}
    mine, judge = layers(place, engine, monkeypatch, "LSTM" if stack else name, **stack)
    where = next(mine.parameters()).device
    steps = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (mine, judge)]
    for lengths in ((3, 1, 2), (4,)) * 4 + ((9, 7, 8, 9),) * 3 + ((3, 1, 2), (4,)):
        ours, theirs = packs(lengths, where)
        for step, layer, given in ((steps[0], mine, ours), (steps[1], judge, theirs)):
            step.zero_grad()
            total(layer(given)).backward()
        assert_same_gradients(mine, judge, ours, theirs)
        for step in steps:
            step.step()
        with torch.no_grad():
            assert_near(mine(ours)[0].data, judge(theirs)[0].data)
    for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
        assert_near(p, q)


@shim
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_goes_up_again(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = layers("shim", engine, monkeypatch)

    def uploaded(lengths: tuple[int, ...]) -> int:
        before = CountingDevice.uploaded
        total(mine(packs(lengths, "cpu")[0])).backward()
        return CountingDevice.uploaded - before

    uploaded((2,))
    sizes = [uploaded((3, 1)) for _ in range(4)]
    assert sizes[0] > 0
    assert sizes[2:] == [0, 0]


@shim
def test_another_way_back_is_kept_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back from other rows takes the place of what was kept."""
    mine, _ = layers("shim", "batched", monkeypatch)

    def uploaded(from_last: bool) -> int:
        before, (out, (h, _)) = CountingDevice.uploaded, mine(packs((3, 1), "cpu")[0])
        (h if from_last else out.data).sum().backward()
        return CountingDevice.uploaded - before

    for from_last in (True, False, True):
        counts = [uploaded(from_last) for _ in range(4)]
        assert counts[-1] == 0, counts


def test_a_place_that_no_sequence_has(monkeypatch: pytest.MonkeyPatch) -> None:
    given = packs((3, 1), "cpu")
    for layer, x in zip(layers("cpu", "batched", monkeypatch), given, strict=True):
        with pytest.raises((IndexError, RuntimeError)):
            layer(x._replace(unsorted_indices=torch.tensor([1, 2])))


@shim
def test_a_pass_that_gave_up_says_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a pass: the next one that comes after its end says it, once."""
    mine, _ = layers("shim", "persistent", monkeypatch)
    given = packs((3, 1), "cpu")[0]
    mine.binding.network.executor.persistent_launch.patience = 5_000_000
    for _ in range(3):
        before = mine(given)[0].data
    broken = watch(mine.binding.network)
    break_counter(broken)
    mine(given)
    mend(broken)
    with pytest.raises(DeviceError, match="waited at instruction"):
        mine(given)
    assert torch.equal(mine(given)[0].data, before)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
def test_several_of_one_layout_are_alive(
    engine: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, judge = layers(place, engine, monkeypatch)
    where = next(mine.parameters()).device
    for _ in range(3):
        pairs = [packs((3, 2), where) for _ in range(3)]
        for each in (mine, judge):
            each.zero_grad()
        found = [[total(layer(pair[k])) for pair in pairs] for k, layer in ((0, mine), (1, judge))]
        for order in ((1, 2), (0,), (1,)):  # one of them twice, which repeats its pass
            for way in found:
                sum(way[k] for k in order).backward(retain_graph=True)
        for ours, theirs in pairs:
            assert_same_gradients(mine, judge, ours, theirs)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
def test_layouts_that_are_forgotten(
    engine: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More come than are kept, also between a pass and its way back."""
    mine, judge = layers(place, engine, monkeypatch)
    executor: Any = mine.binding.network.executor
    executor.model.kept.most = 2
    where = next(mine.parameters()).device
    layouts = [(2,), (3, 1), (1, 1, 1), (4, 2)]
    for _ in range(3):
        for k, lengths in enumerate(layouts):
            ours, theirs = packs(lengths, where)
            for each in (mine, judge):
                each.zero_grad()
            found, wanted = total(mine(ours)), total(judge(theirs))
            with torch.no_grad():
                for other in (*layouts[:k], *layouts[k + 1 :]):
                    mine(packs(other, where)[0])
            found.backward()
            wanted.backward()
            assert_same_gradients(mine, judge, ours, theirs)
            assert len(executor.model.kept) <= 2
    if place != "cpu":  # uploads go with their runs, when launches that read them are over
        for length in range(5, 9):
            found = mine(packs((length,), where)[0])  # the last pass keeps its run
        found = [each for run in executor.model.kept.values() for each in run.kept.values()]
        rooms = [each for each in found if isinstance(each, UploadRoom)]
        assert rooms
        assert executor.session.memory.kept == sum(each.memory.size for each in rooms)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_that_gets_a_batch_again(
    device: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, judge = modules(device, engine, monkeypatch)
    place, batch = next(mine.parameters()).device, trees(3)
    for _ in range(4):
        x = torch.randn(batch.num_vertices, SIZE, dtype=torch.float64, requires_grad=True)
        ours = x.detach().to(place, torch.float32).requires_grad_()
        for each, given in ((mine, ours), (judge, x)):
            each.zero_grad()
            each.loss(batch, x=given).backward()
            each(batch, x=given)["h"].square().sum().backward()
        assert_near(ours.grad, x.grad)
        for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
            if q.grad is not None:
                assert_near(p.grad, q.grad)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
@pytest.mark.parametrize("engine", ENGINES)
def test_losses_of_batches_that_take_turns(
    device: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vertices that are equal are computed once, and count as often as they occur."""
    require(device)
    if device == "shim":
        put_in_place(monkeypatch)
    more: Any = {"processors": 4} if engine == "persistent" else {}
    sizes = {"vocab": 9, "embed": 8, "hidden": 8, "classes": 5}
    mine = vt.Module(vrt.compile(TreeLSTM(**sizes), device="cuda", engine=engine, **more))
    judge = vt.Module(vrt.compile(TreeLSTM(**sizes), device="cpu", dtype="float64"))
    judge.load_state_dict({n: p.double().cpu() for n, p in mine.state_dict().items()})

    def twins(count: int, first: int) -> vrt.GraphBatch:
        pulls = {"word": [first, first, -1], "label": [1, 1, 2]}
        trees = [vrt.InputGraph.from_children([[], [], [0, 1]], pulls=pulls) for _ in range(count)]
        return vrt.GraphBatch.from_graphs(trees)

    batches = [twins(3, 2), twins(5, 4), twins(1, 7)]
    for _ in range(4):
        for batch in batches:
            for each in (mine, judge):
                each.zero_grad()
            found, wanted = mine.loss(batch), judge.loss(batch)
            assert_near(found, wanted)
            found.backward()
            wanted.backward()
            for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
                assert_near(p.grad, q.grad)


class Dropping(vrt.VertexFunction):
    """It drops numbers of what it reads."""

    def __init__(self, dropped: float = 0.5) -> None:
        super().__init__(arity=1, state={"h": SIZE})
        self.w, self.dropped = vrt.Parameter((SIZE, SIZE), vrt.init.normal(0.5)), dropped

    def forward(self) -> None:
        x = vrt.random.dropout(self.pull("x", shape=(SIZE,)), self.dropped)
        h = vrt.tanh(self.w @ self.gather(0).h + x)
        self.scatter(h=h)
        self.push("h", h)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_call_draws_anew(place: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require("cuda" if place == "cuda" else "cpu")
    if place == "shim":
        put_in_place(monkeypatch)
    mine = vt.Module(
        vrt.compile(Dropping(), device="cpu" if place == "cpu" else "cuda", engine=engine, seed=1)
    )
    graphs = [vrt.InputGraph.from_children([[], [0], [1]]) for _ in range(2)]
    batch = vrt.GraphBatch.from_graphs(graphs)
    x = torch.randn(6, SIZE).to(next(mine.parameters()).device)
    found = []
    for seed in (1, 2, 1, 2, 1, 3):
        torch.manual_seed(seed)
        mine.zero_grad()
        h = mine(batch, x=x)["h"]
        mine(batch, x=x)  # of another seed, alive at the same time
        h.sum().backward()
        found.append((h.detach(), mine.w.grad.clone()))
    for a, b in ((0, 2), (0, 4), (1, 3)):
        for one, other in zip(found[a], found[b], strict=True):
            assert torch.equal(one, other)
    assert not torch.equal(found[4][0], found[5][0])
    assert not torch.equal(found[4][0], found[3][0])


def test_what_decides_how_a_batch_runs() -> None:
    """Other rows are of the same form; other numbers and other places are not."""
    graph = vrt.InputGraph.from_children([[], [0], [1]], pulls={"word": [0, 1, 2]})
    rows, index = np.ones((3, 2), np.float32), np.array([0, 1, 1], np.int32)
    batch = vrt.GraphBatch.from_graphs([graph]).with_pulls({"x": rows})
    table = batch.with_pulls({"x": vrt.Rows(rows, index)})
    assert batch.with_pulls({"x": 2 * rows}).form is batch.form
    assert batch.with_pulls({"y": rows}).form is batch.form
    for other in (
        table,
        batch.with_pulls({"word": np.array([0, 1, 1])}),
        batch.with_pulls({"x": np.arange(3)}),
        table.with_pulls({"x": vrt.Rows(rows, index[::-1])}),
        table.with_pulls({"x": rows}),
        batch[[0]],
    ):
        assert other.form is not batch.form


def test_results_follow_other_places() -> None:
    net = vrt.compile(Dropping(), device="cpu", seed=1)
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [0], [1]])])
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3, SIZE)).astype(np.float32)
    for _ in range(3):
        for index in ([0, 1, 2], [2, 2, 0], [0, 1, -1]):
            pulls = {"x": vrt.Rows(rows, np.array(index))}
            found = net(batch.with_pulls(pulls))["h"]
            own = np.where(np.array(index)[:, None] < 0, 0.0, rows[index]).astype(np.float32)
            wanted = net(batch.with_pulls({"x": own}))["h"]
            np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-6)


def test_a_missing_pull_is_named_again() -> None:
    net = vrt.compile(Dropping(), device="cpu", seed=1)
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children([[], [0]])])
    whole = batch.with_pulls({"x": np.zeros((2, SIZE), np.float32)})
    for _ in range(4):
        net.record(whole)
        for wrong in (batch, batch.with_pulls({"x": np.zeros((2, SIZE + 1), np.float32)})):
            with pytest.raises(vrt.errors.PullError):
                net.record(wrong)


def test_recurrent_cells_of_ones_own() -> None:
    mine = vt.Recurrent(nn.GRUCell(INPUT, HIDDEN), INPUT)
    x, resets = torch.randn(5, 2, INPUT), torch.rand(5, 2) < 0.3
    start = torch.randn(2, HIDDEN)
    wanted = [mine(x, start, resets)[0], mine(x, None, resets)[0], mine(x, start)[0]]
    for _ in range(3):
        found = [mine(x, start, resets)[0], mine(x, None, resets)[0], mine(x, start)[0]]
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("place", PLACES)
def test_a_way_back_that_is_older_than_a_kind(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch pulls what no vertex of this one does."""
    if place != "cpu":
        require(place)
    if place == "shim":
        put_in_place(monkeypatch)
    net = vrt.compile(Dropping(0.0), device="cpu" if place == "cpu" else "cuda", engine="batched")
    module = vt.Module(net)

    def batch(*index: int) -> vrt.GraphBatch:
        pulls = {"x": vrt.Rows(np.zeros((4, SIZE)), np.array(index))}
        return vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(len(index), pulls)])

    where = next(module.parameters()).device
    x = torch.randn(4, SIZE, device=where, requires_grad=True)
    old = module(batch(-1, -1), x=x)["h"]
    module(batch(0, -1, 2), x=x)
    old.square().sum().backward()
    assert x.grad is None or not x.grad.any()
