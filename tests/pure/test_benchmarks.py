"""The benchmark harness takes turns fairly, compares before it times, and says where it ran."""

import json
import os
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from benchmarks.peers.complete import build_complete
from benchmarks.peers.packed import build_packed
from benchmarks.peers.suites import cut_or_pad
from vertexrt.bench.measure import WARM_STEPS, Arrays, Disagreement, Draw, compare, measure
from vertexrt.bench.record import Results
from vertexrt.bench.run import describe, pinned
from vertexrt.config import THREAD_VARIABLES
from vertexrt.graph import GraphBatch, InputGraph, Rows


def ten_chains() -> GraphBatch:
    return GraphBatch.from_graphs([InputGraph.chain(length) for length in range(1, 11)])


class Fixed:
    """Return what it was told, whatever the batch; its gradient is `d_w`."""

    def __init__(self, loss: float, d_w: list[float], outputs: list[float]) -> None:
        self._loss, self.d_w, self.outputs = loss, np.array(d_w), np.array(outputs)
        self.w = np.zeros(len(d_w))

    def train(self, batch: GraphBatch, lr: float) -> None:
        self.w = self.w - lr * self.d_w

    def loss(self) -> float:
        return self._loss

    def infer(self, batch: GraphBatch) -> np.ndarray:
        return self.outputs

    def sync(self) -> None:
        pass

    def parameters(self) -> Arrays:
        return {"w": self.w.copy()}

    def set_parameters(self, values: Arrays) -> None:
        self.w = values["w"]


def test_contenders_take_turns_over_the_same_minibatches() -> None:
    calls: list[tuple[str, int]] = []

    class Watched(Fixed):
        def __init__(self, name: str) -> None:
            super().__init__(0.0, [0.0], [0.0])
            self.name = name

        def train(self, batch: GraphBatch, lr: float) -> None:
            calls.append((self.name, batch.num_vertices))
            time.sleep(0.001)

        def sync(self) -> None:
            calls.append(("synced", 0))

    contenders = {name: Watched(name) for name in ("vertexrt", "other")}
    samples = measure(contenders, Draw(ten_chains(), 4), seconds=0.1)
    rounds = len(samples["other"])
    assert rounds >= 3
    synced = [k for k, call in enumerate(calls) if call == ("synced", 0)]
    turn = len(calls) - synced[-3]  # both are synchronised before it, and it is after
    timed = calls[-rounds * 2 * turn :]
    for k in range(rounds):
        both = [timed[(2 * k + who) * turn : (2 * k + who + 1) * turn] for who in (0, 1)]
        first, second = both if k % 2 == 0 else both[::-1]  # who begins changes
        assert {name for name, _ in first[2:-1]} == {"vertexrt"}
        assert {name for name, _ in second[2:-1]} == {"other"}
        for one in both:
            assert one[0] == one[1] == one[-1] == ("synced", 0)
        assert [size for _, size in first] == [size for _, size in second]
    assert all(0 < sample < 4 / 0.001 for sample in samples["vertexrt"])


def test_slow_contenders_get_three_samples_of_one_step() -> None:
    class Slow(Fixed):
        steps = 0

        def train(self, batch: GraphBatch, lr: float) -> None:
            self.steps += 1
            time.sleep(0.002)

    slow = Slow(0.0, [0.0], [0.0])
    samples = measure({"one": slow}, Draw(ten_chains(), 4), seconds=1e-6)
    assert len(samples["one"]) == 3
    assert slow.steps == WARM_STEPS[0] + 3


def test_minibatches_are_whole_and_cover_an_epoch() -> None:
    draw = Draw(ten_chains(), 4)
    taken = draw.take(4)
    assert [len(ids) for ids in taken] == [4] * 4
    assert len({*taken[0].tolist(), *taken[1].tolist()}) == 8
    assert taken[0].tolist() != taken[2].tolist()
    whole = Draw(ten_chains(), 64)
    assert whole.batch_size == 10
    assert sorted(whole.take(1)[0].tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Fixed(2.5, [4.0, 0.0], [1.0]), r"the loss of b differs from that of a by 2\.5e-01"),
        (Fixed(2.0, [4.0, 0.4], [1.0]), r"the gradient of 'w' of b .* by 1\.0e-01"),
        (Fixed(2.0, [4.0, float("nan")], [1.0]), "the gradient of 'w' of b .* by nan"),
        (Fixed(2.0, [4.0, 0.0], [1.5]), "the output of b"),
        (Fixed(2.0, [4.0, 0.0], [1.0, 1.0]), "the output of b .* by inf"),
    ],
)
def test_a_difference_stops_the_run_and_is_named(other: Fixed, text: str) -> None:
    exact = Fixed(2.0, [4.0, 0.0], [1.0])
    record = Results("any", (), {})
    compare(record, {"a": exact, "b": exact}, ten_chains(), "x")
    assert record.checks[0]["largest_difference"] == 0.0
    with pytest.raises(Disagreement, match=rf"^\[check, x\] {text}"):
        compare(record, {"a": exact, "b": other}, ten_chains(), "x")
    assert len(record.checks) == 1
    assert not exact.w.any()
    assert not other.w.any()


def test_padding_keeps_words_and_cuts_long_chains() -> None:
    batch = GraphBatch.from_graphs(
        [InputGraph.chain(n, pulls={"word": np.arange(n), "label": np.arange(n)}) for n in (2, 5)]
    )
    fixed = cut_or_pad(batch, 3, pad=9)
    assert fixed.pulls["word"].tolist() == [0, 1, 9, 0, 1, 2]
    assert fixed.pulls["label"].tolist() == [0, 1, 9, 0, 1, 2]
    assert fixed.child.tolist() == [0, 1, 3, 4]
    assert fixed.sizes().tolist() == [3, 3]


def test_packed_schedule_of_chains() -> None:
    batch = GraphBatch.from_graphs(
        [InputGraph.chain(n, pulls={"word": np.arange(n), "label": np.arange(n)}) for n in (1, 3)]
    )
    packed = build_packed(batch)
    assert packed.widths.tolist() == [2, 1, 1]
    assert packed.word.tolist() == packed.label.tolist() == [0, 0, 1, 2]
    assert packed.row.tolist() == [1, 0, 2, 3]
    assert packed.before.tolist() == [0, 2]
    tree = GraphBatch.from_graphs(
        [InputGraph.complete_tree(2, pulls={"word": np.arange(3), "label": np.arange(3)})]
    )
    with pytest.raises(ValueError, match="chains in order"):
        build_packed(tree)


def test_complete_schedule_lays_children_side_by_side() -> None:
    def tree(leaves: int) -> InputGraph:
        size = 2 * leaves - 1
        at_root = np.where(np.arange(size) == size - 1, 0, -1)
        pulls = {
            "word": np.where(np.arange(size) < leaves, np.arange(size), -1),
            "target": Rows(np.array([[leaves]], np.float32), at_root),
        }
        return InputGraph.complete_tree(leaves, pulls=pulls)

    levels = build_complete(GraphBatch.from_graphs([tree(4), tree(4)]))
    assert levels.level_ptr == [0, 8, 12, 14]
    assert levels.word.tolist() == [0, 1, 2, 3] * 2
    assert levels.target.tolist() == [[4.0], [4.0]]
    assert levels.row.tolist() == [0, 1, 2, 3, 8, 9, 12, 4, 5, 6, 7, 10, 11, 13]
    with pytest.raises(ValueError, match="complete binary trees of one depth"):
        build_complete(GraphBatch.from_graphs([tree(4), tree(2)]))


def test_the_machine_is_described() -> None:
    machine = json.loads(json.dumps(describe(threads=1)))
    assert machine["cores"] >= 1
    assert machine["processor"]
    assert machine["gpu"] is None
    assert machine["versions"]["numpy"] == np.__version__


def test_threads_are_bounded_also_of_libraries_that_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "7")
    np.ones((4, 4)) @ np.ones((4, 4))
    with pinned(1) as threads:
        assert threads == 1
        assert [os.environ[name] for name in THREAD_VARIABLES] == ["1"] * 3
        assert {entry["num_threads"] for entry in threadpool_info()} == {1}
