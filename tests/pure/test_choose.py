"""The automatic choice: candidates, ranking, timing, and what stays on disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.backend.test_update_in_step import batches
from tests.functions import FUNCTIONS, H
from tests.package_source import ROOT
from tests.paper_device import on_paper
from tests.strategies import WORDS, with_pulls
from vertexrt.engine.choose import SAMPLES, TIMED, Chooser, Tuner, size_class, work_of
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cpu.backend import CpuBackend
from vertexrt.kernels.ways import Configuration, Work
from vertexrt.models.tree_fc import TreeFC
from vertexrt.models.tree_lstm import TreeLSTM
from vertexrt.scheduler.batch_shape import BatchShape, shape_of

BATCHED = Configuration(False, 2)
PAIR = Configuration(True, 1, 2)
CPU = CpuBackend(np.dtype("float32"))


pytestmark = pytest.mark.usefixtures("choices_folder")


def batch(graphs: int) -> GraphBatch:
    return GraphBatch.from_graphs([InputGraph.chain(5)] * graphs)


def sequences(form: Form, count: int, steps: int = 100) -> BatchShape:
    return shape_of(stack_batch(form, np.zeros((count, steps, form.hidden), np.float32)))


def work(multiplications: float) -> Work:
    """Return a training step of so many multiplications a vertex."""
    return Work(multiplications / 3, 0.0, 0.0, 1, 1, 1.0, 1, 1, True)


def chooser_of(multiplications: float = 1e6, threads: int = 2) -> Chooser:
    return Chooser(CPU, work(multiplications), CPU.ways(threads, None))


def h200(function: Any) -> Chooser:
    """Return what chooses for a function on such a GPU, of which nothing runs here."""
    net = on_paper(function, None, of_device=132, engine="auto")
    return net.executor.model.chooser


# Which ways there are, and which the model finds best.


def test_a_function_without_products_has_a_rank_too() -> None:
    shape = shape_of(batch(30))
    found = chooser_of(0.0).rank(True, shape)
    assert np.isfinite([CPU.seconds(way, work(0.0), shape) for way in found]).all()


def measured(name: str) -> Any:
    """Return jobs and the seconds of each way, as `benchmarks.choosing` writes them."""
    path = ROOT / "benchmarks" / "results" / f"choosing_{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def over_best(jobs: list[Any], cells: str, chooser_for: Callable[[Form], Chooser]) -> list[float]:
    """Return how many times the best of its ways each job of layers takes in the chosen one."""
    ratios = []
    for job in jobs:
        cell, *words = job["job"].replace(",", "").split()
        if cell in cells.split():
            form, seconds = Form(cell.upper(), int(words[0])), job["seconds"]
            ranked = chooser_for(form).rank(False, sequences(form, int(words[2])))
            ratios.append(next(seconds[str(way)] for way in ranked if str(way) in seconds))
            ratios[-1] /= min(seconds.values())
    return ratios


@pytest.mark.parametrize("threads", [1, 2])
def test_the_choice_on_a_cpu_is_close_to_the_best_that_was_measured(threads: int) -> None:
    def compiled(form: Form) -> Chooser:
        return vrt.compile(Stack(form), device="cpu", threads=threads).executor.model.chooser

    ratios = over_best(measured("cpu")[str(threads)], "lstm gru", compiled)
    assert len(ratios) == 12
    assert np.median(ratios) <= 1.03
    assert max(ratios) <= 1.15


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_choice_is_close_to_the_best_that_was_measured(cell: str) -> None:
    """At GRNN's nine sizes on an H200."""
    jobs = measured("h200")
    for job in jobs:  # groups of 16 were no clusters when 20 sequences were measured
        if job["job"].endswith("batch 20"):
            job["seconds"].pop("persistent, 1 x 16 processors", None)
    ratios = over_best(jobs, cell, lambda form: h200(Stack(form)))
    assert len(ratios) == 9
    assert max(ratios) <= 1.03


def test_a_gpu_takes_the_batched_engine_for_trees_of_one_shape() -> None:
    """They come again: one graph of CUDA runs their wide levels. So it was measured on an H100."""
    chooser = h200(TreeFC(100, 512))
    seconds = {job["job"]: job["seconds"] for job in measured("tree_fc_h100")}
    one, two = InputGraph.complete_tree(256), InputGraph.complete_tree(2)
    for count in (1, 16, 64):
        pool = GraphBatch.from_graphs([one] * 64)
        for name, trains in (("tree-fc", True), ("tree-fc-evaluation", False)):
            way, found = chooser.pick(trains, pool[:count]), seconds[f"{name}, batch {count}"]
            assert found[str(way)] == min(found.values())
            assert not way.persistent
    other = GraphBatch.from_graphs([*[one] * 16, two])
    assert chooser.pick(False, other.take([0])).persistent


# What the model is told of a function and of a batch.


def test_work_is_apart_where_it_depends_on_no_child() -> None:
    found = work_of(TreeLSTM(7, 5, 6, 3).trace())
    assert found.row == 5 * 6 * 6  # three gates of the sum of states, and one for each child
    assert found.products == 1
    assert found.merges
    assert not work_of(TreeFC(7, 5).trace()).merges  # its leaves are looked up, and no product


def test_the_shape_of_a_batch_is_rounded_to_three_digits() -> None:
    graphs = [InputGraph.complete_tree(32), InputGraph.chain(100)]
    found = shape_of(GraphBatch.from_graphs(graphs))
    assert found == BatchShape(graphs=2, vertices=160, inner=128, edges=160, levels=96)
    assert shape_of(GraphBatch.from_graphs([InputGraph.chain(300), *graphs]).take([2, 1])) == found
    assert shape_of(batch(3)) == BatchShape(3, 14, 12, 12, 5, comes_again=True)


def test_batches_come_again_where_all_graphs_have_one_size() -> None:
    one, other = InputGraph.chain(4), InputGraph.chain(5)
    same, mixed = GraphBatch.from_graphs([one] * 3), GraphBatch.from_graphs([one, one, other])
    alone = GraphBatch.from_graphs([one])  # nothing is known of others
    found = [shape_of(x).comes_again for x in (same, same.take([1]), mixed, mixed.take([0]), alone)]
    assert found == [True, True, False, False, False]


# The choice of one batch after another.


def test_the_choice_is_by_the_batch_alone(choices_folder: Path) -> None:
    """Not by what came before, nor by a timing: runs repeat bit for bit."""
    sizes = (1, 30, 200, 8)
    first, second = chooser_of(threads=4), chooser_of(threads=4)
    forwards = {n: first.pick(True, batch(n)) for n in sizes}
    assert {n: second.pick(True, batch(n)) for n in reversed(sizes)} == forwards
    assert len({*forwards.values()}) > 1
    assert not (choices_folder / "choices").exists()


def test_what_has_no_kernel_is_not_tried_again() -> None:
    chooser = chooser_of()
    best = chooser.pick(True, batch(8))
    assert chooser.refuse(best)
    assert chooser.pick(True, batch(8)) != best
    while len(chooser.ways) > 1:
        assert chooser.refuse(chooser.pick(True, batch(8)))
    assert not chooser.refuse(chooser.ways[0])
    assert chooser.ways


def test_graphs_that_are_alike_have_the_same_choice() -> None:
    chooser, pool = chooser_of(), batch(8)
    assert len({chooser.pick(True, pool.take([k, k + 1])) for k in range(5)}) == 1
    only = CPU.ways(2, None)[-1]
    chooser.only(only)
    assert chooser.pick(True, pool.take([0, 1])) == only


def test_what_one_way_has_met_the_others_know() -> None:
    """Else each would compile again and again, as kinds appear."""
    net = vrt.compile(FUNCTIONS["tree-lstm"][0](), device="cpu", threads=2, seed=1)
    model, trained = net.executor.model, with_pulls([[[]], [[], [], [0, 1]], [[], [0]]])
    net.warm(trained, vrt.SGD(0.1))
    (first,) = model.variants.values()
    for way in list(model.chooser.ways):
        model.chooser.only(way)
        net.warm(trained[:1], vrt.SGD(0.1))
    assert len(model.variants) > 1
    for variant in model.variants.values():
        assert variant.path_kinds.keys() == first.path_kinds.keys()
        assert variant.lazy_kinds.keys() == first.lazy_kinds.keys()


# The choice by timing, which stays on disk.


def tuner_of(key: str) -> Tuner:
    return Tuner(key, chooser_of(), BATCHED)


def time_all(
    tuner: Tuner, seconds: dict[Configuration, float], first: float = 0.0
) -> Configuration | None:
    """Time ways until one is chosen, and return it.

    Args:
        seconds: of ways, others take 9; first: what the first sample of each takes more.
    """
    seen: set[Configuration] = set()
    for _ in range(SAMPLES * len(CPU.ways(2, None))):
        option = tuner.pick(True, batch(8))
        more = 0.0 if option in seen else first
        seen.add(option)
        tuner.observe(True, batch(8), option, seconds.get(option, 9.0) + more)
    assert len(tuner.chosen) == 1
    return tuner.pick(True, batch(8)) if seen >= seconds.keys() else None


@pytest.mark.parametrize("first", [0.0, 100.0], ids=["", "a slow first sample does not count"])
@pytest.mark.parametrize("winner", [BATCHED, PAIR])
def test_the_fastest_is_chosen(winner: Configuration, first: float) -> None:
    assert time_all(tuner_of("f"), {winner: 1.0}, first) in (winner, None)


def test_the_choice_is_kept_on_disk_for_the_same_function(choices_folder: Path) -> None:
    time_all(tuner_of("h"), {BATCHED: 1.0})
    again = tuner_of("h")
    assert again.pick(True, batch(8)) == BATCHED
    assert again.chosen
    assert not tuner_of("another").chosen
    (path,) = (choices_folder / "choices").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    assert not tuner_of("h").chosen, "a damaged file is measured anew"


def test_sizes_are_apart() -> None:
    assert size_class(True, batch(8)) != size_class(True, batch(64))
    assert size_class(True, batch(8)) != size_class(False, batch(8))
    assert size_class(True, batch(8)) == size_class(True, batch(9))


def test_what_is_tuned_trains_as_batched_does(choices_folder: Path) -> None:
    share, *_ = batches()  # the function and the sizes of that module, which compiles them too
    losses = []
    for engine in ("batched", "auto"):
        tune = engine == "auto"
        options = {"engine": engine, "tune": tune, "dtype": "float64", "threads": 2, "seed": 3}
        net = vrt.compile(TreeFC(WORDS, H), device="cpu", **options)
        optimizer = vrt.SGD(0.05)
        losses.append([net.step(share, optimizer) for _ in range(TIMED * SAMPLES + 2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-10)
    assert len(list((choices_folder / "choices").iterdir())) == 1
