"""Calls that come again: what is kept, prepared and forgotten gives what PyTorch gives.

Each play makes calls of several layouts; modules run it on the host, the shim and a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
import vertexrt.torch as vt  # noqa: E402
from tests.devices import shim  # noqa: E402
from tests.shim_device import ShimDevice, put_in_place  # noqa: E402
from tests.torch.beside import (  # noqa: E402
    ENGINES,
    INPUT,
    PLACES,
    SIZE,
    WIDTH,
    Node,
    Side,
    cell_pair,
    rnn,
    same,
    sides_at,
    total,
    trees,
)
from tests.watched_device import break_counter, mend, watch  # noqa: E402
from vertexrt.engine.model import MOST_OF_A_BATCH  # noqa: E402
from vertexrt.errors import DeviceError, UsageError  # noqa: E402
from vertexrt.kernels.cuda.device_memory import UploadRoom  # noqa: E402
from vertexrt.torch.recurrent import ChainLayout, chains_of  # noqa: E402

PACKAGE = str(Path(vrt.__file__).parent)
MOST_CALLS = 115  # of functions of the package, in a step whose lengths came before


class CountingDevice(ShimDevice):
    """A device that counts what is uploaded."""

    uploaded = 0

    def upload(self, to: int, source: Any) -> None:
        CountingDevice.uploaded += source.nbytes
        super().upload(to, source)


def come_again(side: Side) -> list[Any]:
    """Train on layouts in turn: a larger one takes another arena; inputs and states differ."""
    found, steps = [], torch.optim.SGD(side.module.parameters(), lr=0.003)
    for k in (0, 1) * 3 + (2,) * 3 + (0, 1) + (4, 0, 5, 6, 3) * 2 + (7, 8, 9):
        results, leaves = side(k)
        found += [*results, *side.gradients(total(results), leaves)]
        steps.step()
        with torch.no_grad():
            found += side(k)[0]
    return [*found, *side.module.parameters()]


def alive_together(side: Side) -> list[Any]:
    """Keep several passes of one layout; go back through two, through one, and again."""
    found = []
    for _ in range(3):
        results, leaves = zip(*[side(k) for k in (0, 0, 0)], strict=True)
        totals = [total(each) for each in results]
        for order in ((1, 2), (0,), (1,)):
            number = sum(totals[k] * (k + 1) for k in order)
            given = [leaf for k in order for leaf in leaves[k]]
            found += side.gradients(number, given, retain_graph=True)
    return found


def parts_in_turn(side: Side) -> list[Any]:
    """Go back from other results each time."""
    found = []
    for _ in range(4):
        for used in ([0], [1], [0, -1], [-1], [0, 1, -1]):
            results, leaves = side(0)
            parts = [results[k % len(results)] for k in used]
            found += side.gradients(total(parts), leaves)
    return found


def few_are_kept(side: Side) -> list[Any]:
    """Call with more layouts than are kept, also between a pass and its way back."""
    found, executor = [], None
    if hasattr(side.module, "binding"):
        executor = side.module.binding.network.executor
        executor.model.kept.most = 2
    for _ in range(3):
        for k in range(4):
            results, leaves = side(k)
            with torch.no_grad():
                for other in range(4):
                    side(other)
            found += side.gradients(total(results), leaves)
            assert executor is None or len(executor.model.kept) <= 2
    return found


PLAYS: dict[Callable[[Side], list[Any]], list[str]] = {
    come_again: ["LSTM", "stack", "cell", "module", "loss", "twins"],
    alive_together: ["LSTM", "loss"],
    parts_in_turn: ["stack", "module"],
    few_are_kept: ["LSTM", "module"],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("play", "name"),
    [
        pytest.param(play, name, id=f"{name} {play.__name__}")
        for play, names in PLAYS.items()
        for name in names
    ],
)
def test_plays(
    play: Callable[[Side], list[Any]],
    name: str,
    engine: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, judge = sides_at(name, place, engine, monkeypatch)
    same(play(mine), play(judge))
    if play is few_are_kept and name == "LSTM" and place != "cpu":
        executor = mine.module.binding.network.executor
        for k in (10, 11, 12, 13):
            last = mine(k)  # which keeps its run
        found = [each for run in executor.model.kept.values() for each in run.kept.values()]
        rooms = [each for each in found if isinstance(each, UploadRoom)]
        assert rooms
        of_rooms = sum(each.memory.size for each in rooms)
        assert executor.session.memory.kept == of_rooms, "uploads go with their runs"
        del last


@pytest.mark.parametrize("place", PLACES)
def test_sparse_gradients_in_turn_with_whole_ones(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, judge = sides_at("loss", place, "batched", monkeypatch)
    assert not mine.module.sparse, "the default"
    for k, sparse in ((0, False), (1, True), (0, True), (3, False), (0, True)):
        mine.module.sparse = sparse
        same(*[side.gradients(3.0 * total(side(k)[0]), []) for side in (mine, judge)])
        assert mine.module.embedding.grad.is_sparse == sparse


@pytest.mark.parametrize("place", PLACES)
def test_what_is_given_is_looked_at_each_time(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = sides_at("LSTM", place, "batched", monkeypatch)
    given, _ = packed_for(mine)
    for _ in range(4):
        wanted = mine.module(given)[0].data
        longer = torch.cat([given.data, given.data[:1]]).detach().requires_grad_()
        found = mine.module(given._replace(data=longer))[0].data
        assert torch.equal(found, wanted)
        found.sum().backward()
        assert longer.grad[:-1].all()
        assert not longer.grad[-1].any()
        with pytest.raises(UsageError, match="5 steps; 6, as batch_sizes say"):
            mine.module(given._replace(data=given.data[1:]))
        with pytest.raises(RuntimeError, match=f"got {INPUT - 1}"):
            mine.module(given._replace(data=given.data[:, 1:]))
        other = given.data.float() if place == "cpu" else given.data.double()
        with pytest.raises((RuntimeError, ValueError), match=r"(?i)double|float"):
            mine.module(given._replace(data=other))


def packed_for(side: Side) -> tuple[Any, Any]:
    """Return packed sequences for a layer, and states to begin with."""
    like = next(side.module.parameters())
    return side.subject.give(4, lambda x: x.to(like.device, like.dtype).requires_grad_())


@shim
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_goes_up_again(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back from other results (-1), or with states (4), takes the place of the last."""
    mine, _ = sides_at("LSTM", "shim", engine, monkeypatch, CountingDevice)
    for which in ([0], [0, 1], [0, -1], [-1], [4], [0, 1]):
        counts = []
        for _ in range(5):
            before = CountingDevice.uploaded
            for k in which:
                results, _ = mine(max(k, 0))
                (results[-1].sum() if k < 0 else total(results)).backward()
            counts.append(CountingDevice.uploaded - before)
        assert counts[-1] == 0, (which, counts)


@shim
def test_a_step_like_one_before_does_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time cannot be tested; calls of functions of the package can be counted."""
    mine, _ = sides_at("LSTM", "shim", "persistent", monkeypatch)
    given, _ = packed_for(mine)
    calls = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    def step() -> int:
        nonlocal calls
        calls = 0
        out = mine.module(given)[0].data
        sys.setprofile(count)
        try:
            out = mine.module(given)[0].data
            out.backward(out)
        finally:
            sys.setprofile(None)
        return calls

    counts = [step() for _ in range(4)]
    assert counts[-1] == counts[-2] <= MOST_CALLS, counts


@shim
def test_a_pass_that_gave_up_says_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a pass: the next one that comes after its end says it, once."""
    mine, _ = sides_at("LSTM", "shim", "persistent", monkeypatch)
    given, _ = packed_for(mine)
    network = mine.module.binding.network
    network.executor.persistent_launch.patience = 5_000_000
    for _ in range(3):
        before = mine.module(given)[0].data
    broken = watch(network)
    break_counter(broken)
    mine.module(given)
    mend(broken)
    with pytest.raises(DeviceError, match="waited at instruction"):
        mine.module(given)
    assert torch.equal(mine.module(given)[0].data, before)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("at_once", [False, True])
def test_each_call_draws_anew(
    at_once: bool, place: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout is PyTorch's mode and seed, with and without gradients to come."""
    if place == "shim":
        put_in_place(monkeypatch)
    device = "cpu" if place == "cpu" else "cuda"
    mine, kept = (
        vt.Module(vrt.compile(Node(p), device=device, engine=engine, seed=1)) for p in (0.5, 0.0)
    )
    batch = trees(6)

    def ask(module: Any, seed: int = 0) -> Any:
        torch.manual_seed(seed)
        return module.loss(batch) if at_once else module(batch)["h"]

    found = {}
    for seed in (1, 2, 1, 2, 1, 3):
        results = ask(mine, seed)
        assert not torch.equal(results, ask(mine, 4)), "which is alive at the same time"
        for again in (True, False):  # a pass that is repeated draws the same
            grads = torch.autograd.grad(results.sum(), mine.embedding, retain_graph=again)
            same([results, *grads], found.setdefault(seed, [results, *grads]))
        with torch.no_grad():
            same([ask(mine, seed)], [results])
    assert not torch.equal(found[1][1], found[2][1])
    assert not torch.equal(found[1][0], found[3][0])
    mine.eval()
    same([ask(mine, 1)], [ask(kept, 2)])
    state = torch.get_rng_state()
    kept(batch)
    assert torch.equal(torch.get_rng_state(), state), "it draws nothing, and takes no number"


def test_layers_draw_by_pytorchs_seed() -> None:
    layer, x = vt.LSTM(3, 8, num_layers=2, dropout=0.5), torch.ones(4, 2, 3)
    torch.manual_seed(1)
    first, second = layer(x)[0], layer(x)[0]
    torch.manual_seed(1)
    assert torch.equal(layer(x)[0], first)
    assert not torch.equal(first, second)


def test_each_reset_counts() -> None:
    """Layouts are known by digests, which one bit of the resets changes, or states that come."""
    mine, judge = cell_pair("GRUCell")
    x, state = torch.randn(4, 3, INPUT).double(), torch.randn(3, SIZE).double()
    marks = [*torch.eye(12, dtype=torch.bool).view(12, 4, 3), None]
    for _ in range(3):
        for resets in marks:
            for start in (None, state):
                same(*[[out, *last] for out, last in (m(x, start, resets) for m in (mine, judge))])


@pytest.mark.parametrize("place", PLACES)
def test_a_way_back_that_is_older_than_a_kind(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another batch pulls what no vertex of this one does."""
    mine, _ = sides_at("module", place, "batched", monkeypatch)

    def batch(*index: int) -> vrt.GraphBatch:
        rows = vrt.Rows(np.zeros((4, WIDTH)), np.array(index))
        graph = vrt.InputGraph.chain(len(index), {"word": [0] * len(index), "x": rows})
        return vrt.GraphBatch.from_graphs([graph])

    like = mine.module.fixed
    x = torch.randn(4, WIDTH, device=like.device, dtype=like.dtype, requires_grad=True)
    old = mine.module(batch(-1, -1), x=x)["h"]
    mine.module(batch(0, -1, 2), x=x)
    old.square().sum().backward()
    assert x.grad is None or not x.grad.any()


def test_large_layouts_and_new_ones_are_not_kept() -> None:
    """They would take memory, and preparing them takes less than running them."""
    few, many = (np.full(n, 8, np.int64).tobytes() for n in (4, MOST_OF_A_BATCH))
    found = [
        [chains_of(ChainLayout(counts, b"", (("h", 3),), False), len(counts)) for _ in range(3)]
        for counts in (few, many)
    ]
    assert found[0][1] is found[0][2], "which came again"
    assert found[1][1] is not found[1][2]


@pytest.mark.parametrize(
    ("layers", "directions", "with_resets"),
    [(1, 1, False), (1, 1, True), (1, 2, False), (2, 1, False), (3, 2, False)],
)
def test_sequences_are_graphs(layers: int, directions: int, with_resets: bool) -> None:
    """Results say how steps follow each other; this says where graphs begin, which resets do."""
    counts, cuts = np.array([4, 3, 3, 1, 1]), np.zeros(12, np.bool_)  # lengths 5, 3, 3 and 1
    begins, kinds = [0, 5, 8, 11, 12], layers * directions
    if with_resets:
        cuts[[5, 9]] = True  # the second step of the second sequence, the third one of the third
        begins = [0, 5, 6, 8, 10, 11, 12]
    marks = np.packbits(cuts).tobytes() if with_resets else b""
    layout = ChainLayout(counts.tobytes(), marks, (("h", 2),), True, layers, directions)
    graphs = chains_of(layout, 12).graphs
    checked = vrt.GraphBatch(
        graphs.graph_ptr, graphs.child_ptr, graphs.child, graphs.pulls, graphs.types
    )
    assert checked.graph_ptr.tolist() == [kinds * v for v in begins]


def test_batch_sizes_of_another_dtype() -> None:
    layer, x = vt.LSTM(INPUT, SIZE), torch.randn(3, INPUT)
    packs = [
        rnn.PackedSequence(x, torch.tensor([2, 1], dtype=dtype))
        for dtype in (torch.int32, torch.int64)
    ]
    one, other = (layer(packed)[0].data for packed in packs)
    assert torch.equal(one, other)
