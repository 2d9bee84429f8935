"""The automatic choice: candidates, ranking, timing, and what stays on disk."""

from pathlib import Path

import numpy as np
import pytest

from tests.backend.test_update_in_step import batches
from tests.functions import H
from tests.strategies import WORDS
from vertexrt.engine.choose import (
    SAMPLES,
    TILES,
    TIMED,
    Chooser,
    Configuration,
    configurations,
    predict,
    predicted_best,
    size_class,
)
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.models.tree_fc import TreeFC

BATCHED = Configuration(False, 2)
PAIR = Configuration(True, 1, 2)


pytestmark = pytest.mark.usefixtures("choices_folder")


def batch(graphs: int) -> GraphBatch:
    return GraphBatch.from_graphs([InputGraph.chain(5)] * graphs)


def chooser_of(key: str) -> Chooser:
    return Chooser(key, lambda batch: predicted_best(configurations(2), batch, 1e6), BATCHED)


def time_all(chooser: Chooser, seconds: dict[Configuration, float], graphs: int) -> None:
    for _ in range(SAMPLES * len(configurations(2))):
        option = chooser.pick("training", batch(graphs))
        chooser.observe("training", batch(graphs), option, seconds.get(option, 9.0))


def test_configurations_use_all_threads_or_one_worker() -> None:
    for threads in (1, 2, 3, 4, 6):
        for option in configurations(threads):
            assert option.threads in (threads, 1)
    assert Configuration(True, 2, 3) in configurations(6)
    assert Configuration(True, 4, 1) in configurations(4)


def test_the_model_prefers_groups_for_many_graphs_and_one_worker_for_tiny_work() -> None:
    many = {o: predict(o, 256, 10_000, 12, 8e5) for o in configurations(4)}
    assert min(many, key=lambda o: many[o]).groups == 4
    tiny = {o: predict(o, 1, 3, 2, 100.0) for o in configurations(4)}
    assert min(tiny, key=lambda o: tiny[o]).processors == 1  # one graph is one share


def test_a_function_without_products_has_a_rank_too() -> None:
    ranked = predicted_best(configurations(2), batch(30), 0.0)
    assert set(ranked) <= set(configurations(2))
    assert np.isfinite([predict(c, 30, 300, 10, 0.0) for c in ranked]).all()


def test_tiles_are_ranked() -> None:
    def best(work: float, processors: int) -> int:
        options = [o for o in configurations(4) if o.persistent and o.processors == processors]
        assert {o.tile for o in options} == {0, *TILES}
        cost = {o: predict(o, 64, 2800, 14, work) for o in options}
        return min(cost, key=lambda o: cost[o]).tile

    assert best(1e3, 1) == 0  # nobody waits, and everything is near
    assert best(1e3, 4) == max(TILES)  # waits cost more than a few instructions
    assert best(1.8e6, 1) == best(1.8e6, 4) == min(TILES)  # rows leave the nearest cache


def test_tiles_that_hold_a_whole_task_are_left_out() -> None:
    few = predicted_best(configurations(2), batch(1), 1e6)
    assert all(option.tile == 0 for option in few)
    many = predicted_best(configurations(2), batch(30), 1e6)
    assert {option.tile for option in many} == {0, *TILES}
    wide = predicted_best(configurations(2), batch(1000), 1e6)
    assert all(option.tile == 0 for option in wide)


@pytest.mark.parametrize("winner", [BATCHED, PAIR])
def test_the_fastest_is_chosen(winner: Configuration) -> None:
    chooser = chooser_of("f")
    time_all(chooser, {winner: 1.0}, graphs=8)
    if winner in chooser.samples[size_class("training", batch(8))]:
        assert chooser.pick("training", batch(8)) == winner
    assert len(chooser.chosen) == 1


def test_a_slow_first_sample_does_not_count() -> None:
    chooser = chooser_of("g")
    seen: set[Configuration] = set()
    for _ in range(SAMPLES * 4):
        option = chooser.pick("training", batch(8))
        slow = option not in seen
        seen.add(option)
        fast = option == BATCHED
        chooser.observe("training", batch(8), option, 100.0 if slow else (1.0 if fast else 2.0))
    assert chooser.pick("training", batch(8)) == BATCHED


def test_the_choice_is_kept_on_disk_for_the_same_function() -> None:
    time_all(chooser_of("h"), {BATCHED: 1.0}, graphs=8)
    again = chooser_of("h")
    assert again.pick("training", batch(8)) == BATCHED
    assert again.chosen
    assert not chooser_of("another").chosen


def test_a_damaged_file_is_measured_anew(choices_folder: Path) -> None:
    chooser = chooser_of("i")
    time_all(chooser, {BATCHED: 1.0}, graphs=8)
    (path,) = (choices_folder / "choices").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    assert not chooser_of("i").chosen


def test_sizes_are_apart() -> None:
    assert size_class("training", batch(8)) != size_class("training", batch(64))
    assert size_class("training", batch(8)) != size_class("inference", batch(8))
    assert size_class("training", batch(8)) == size_class("training", batch(9))


def test_auto_trains_as_batched_does(choices_folder: Path) -> None:
    import vertexrt as vrt

    share, *_ = batches()  # the function and the sizes of that module, which compiles them too
    losses = []
    for engine in ("batched", "auto"):
        net = vrt.compile(TreeFC(WORDS, H), engine=engine, threads=2, dtype="float64", seed=3)
        optimizer = vrt.SGD(0.05)
        losses.append([net.step(share, optimizer) for _ in range(TIMED * SAMPLES + 2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-10)
    assert len(list((choices_folder / "choices").iterdir())) == 1
