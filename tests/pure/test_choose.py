"""The automatic choice: candidates, ranking, timing, and what stays on disk."""

import json
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.backend.test_update_in_step import batches
from tests.functions import H
from tests.package_source import ROOT
from tests.paper_device import PaperDevice
from tests.shim_device import put_in_place
from tests.strategies import WORDS
from vertexrt.engine.choose import SAMPLES, TIMED, Chooser, Tuner, size_class, work_of
from vertexrt.engine.variant import CompileOptions, Passes, Use
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cpu.backend import CpuBackend
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.ways import Configuration, Work
from vertexrt.models.tree_fc import TreeFC
from vertexrt.models.tree_lstm import TreeLSTM
from vertexrt.scheduler.batch_shape import BatchShape, shape_of

MEASURED = ROOT / "benchmarks" / "results" / "choosing_h200.json"
MEASURED_TREES = ROOT / "benchmarks" / "results" / "choosing_tree_fc_h100.json"
MEASURED_ON_CPU = ROOT / "benchmarks" / "results" / "choosing_cpu.json"
BATCHED = Configuration(False, 2)
PAIR = Configuration(True, 1, 2)
CPU = CpuBackend(np.dtype("float32"))


pytestmark = pytest.mark.usefixtures("choices_folder")


def batch(graphs: int) -> GraphBatch:
    return GraphBatch.from_graphs([InputGraph.chain(5)] * graphs)


def tuner_of(key: str) -> Tuner:
    return Tuner(key, Chooser(CPU, work(1e6), CPU.ways(2, None)), BATCHED)


def work(multiplications: float) -> Work:
    """Return a training step of so many multiplications a vertex."""
    return Work(multiplications / 3, 0.0, 0.0, 1, 1, 1.0, 1, 1, True)


def best_first(graphs: int) -> list[Configuration]:
    return Chooser(CPU, work(1e6), CPU.ways(2, None)).rank(True, shape_of(batch(graphs)))


def time_all(tuner: Tuner, seconds: dict[Configuration, float], graphs: int) -> None:
    for _ in range(SAMPLES * len(CPU.ways(2, None))):
        option = tuner.pick(True, batch(graphs))
        tuner.observe(True, batch(graphs), option, seconds.get(option, 9.0))


def test_configurations_use_all_threads_or_one_worker() -> None:
    for threads in (1, 2, 3, 4, 6):
        for option in CPU.ways(threads, None):
            assert option.threads in (threads, 1)
    assert Configuration(True, 2, 3) in CPU.ways(6, None)
    assert Configuration(True, 4, 1) in CPU.ways(4, None)


def test_the_model_prefers_groups_for_many_graphs_and_one_worker_for_tiny_work() -> None:
    many = {
        o: CPU.seconds(o, work(8e5), BatchShape(256, 10_000, 5_000, 9_000, 12))
        for o in CPU.ways(4, None)
    }
    assert min(many, key=lambda o: many[o]).groups == 4
    tiny = {o: CPU.seconds(o, work(100.0), BatchShape(1, 3, 1, 2, 2)) for o in CPU.ways(4, None)}
    assert min(tiny, key=lambda o: tiny[o]).processors == 1  # one graph is one share


def test_a_function_without_products_has_a_rank_too() -> None:
    shape = shape_of(batch(30))
    found = Chooser(CPU, work(0.0), CPU.ways(2, None)).rank(True, shape)
    assert set(found) <= set(CPU.ways(2, None))
    assert np.isfinite([CPU.seconds(way, work(0.0), shape) for way in found]).all()


def test_tasks_are_whole_on_a_cpu() -> None:
    """Tiles of 8 rows were up to 1.4 times as slow: see benchmarks/results/choosing_cpu.txt."""
    assert all(way.tile == 0 for threads in (1, 2, 6) for way in CPU.ways(threads, None))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_choice_on_a_cpu_is_close_to_the_best_that_was_measured(threads: int) -> None:
    """At the sizes of LSTM and GRU layers of `benchmarks.choosing`."""
    ratios = []
    for job in json.loads(MEASURED_ON_CPU.read_text(encoding="utf-8"))[str(threads)]:
        cell, *words = job["job"].replace(",", "").split()
        if cell not in ("lstm", "gru"):
            continue
        size, _, count = words
        form = Form(cell.upper(), int(size))
        net = vrt.compile(Stack(form), device="cpu", threads=threads)
        few = stack_batch(form, np.zeros((int(count), 100, form.hidden), np.float32))
        best, *_ = net.executor.model.chooser.rank(False, shape_of(few))
        ratios.append(job["seconds"][str(best)] / min(job["seconds"].values()))
    assert len(ratios) == 12
    assert np.median(ratios) <= 1.03
    assert max(ratios) <= 1.15


@pytest.mark.parametrize("winner", [BATCHED, PAIR])
def test_the_fastest_is_chosen(winner: Configuration) -> None:
    tuner = tuner_of("f")
    time_all(tuner, {winner: 1.0}, graphs=8)
    if winner in tuner.samples[size_class(True, batch(8))]:
        assert tuner.pick(True, batch(8)) == winner
    assert len(tuner.chosen) == 1


def test_a_slow_first_sample_does_not_count() -> None:
    tuner = tuner_of("g")
    seen: set[Configuration] = set()
    for _ in range(SAMPLES * 4):
        option = tuner.pick(True, batch(8))
        slow = option not in seen
        seen.add(option)
        fast = option == BATCHED
        tuner.observe(True, batch(8), option, 100.0 if slow else (1.0 if fast else 2.0))
    assert tuner.pick(True, batch(8)) == BATCHED


def test_the_choice_is_kept_on_disk_for_the_same_function() -> None:
    time_all(tuner_of("h"), {BATCHED: 1.0}, graphs=8)
    again = tuner_of("h")
    assert again.pick(True, batch(8)) == BATCHED
    assert again.chosen
    assert not tuner_of("another").chosen


def test_a_damaged_file_is_measured_anew(choices_folder: Path) -> None:
    tuner = tuner_of("i")
    time_all(tuner, {BATCHED: 1.0}, graphs=8)
    (path,) = (choices_folder / "choices").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    assert not tuner_of("i").chosen


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


def test_the_choice_is_by_the_batch_alone(choices_folder: Path) -> None:
    """Not by what came before, nor by a timing: runs repeat bit for bit."""
    sizes = (1, 30, 200, 8)
    first = Chooser(CPU, work(1e6), CPU.ways(4, None))
    forwards = {n: first.pick(True, batch(n)) for n in sizes}
    second = Chooser(CPU, work(1e6), CPU.ways(4, None))
    assert {n: second.pick(True, batch(n)) for n in reversed(sizes)} == forwards
    assert len({*forwards.values()}) > 1
    assert not (choices_folder / "choices").exists()


def test_what_has_no_kernel_is_not_tried_again() -> None:
    chooser = Chooser(CPU, work(1e6), CPU.ways(2, None))
    best = chooser.pick(True, batch(8))
    assert chooser.refuse(best)
    assert chooser.pick(True, batch(8)) != best
    while len(chooser.ways) > 1:
        assert chooser.refuse(chooser.pick(True, batch(8)))
    assert not chooser.refuse(chooser.ways[0])
    assert chooser.ways


def test_work_is_apart_where_it_depends_on_no_child() -> None:
    found = work_of(TreeLSTM(7, 5, 6, 3).trace())
    assert found.row == 5 * 6 * 6  # three gates of the sum of states, and one for each child
    assert found.products == 1


def test_the_shape_of_a_batch_is_rounded_to_three_digits() -> None:
    graphs = [InputGraph.complete_tree(32), InputGraph.chain(100)]
    found = shape_of(GraphBatch.from_graphs(graphs))
    assert found == BatchShape(graphs=2, vertices=160, inner=128, edges=160, levels=96)
    assert shape_of(batch(3)) == BatchShape(3, 14, 12, 12, 5, comes_again=True)


def test_batches_come_again_where_all_graphs_have_one_size() -> None:
    one, other = InputGraph.chain(4), InputGraph.chain(5)
    same, mixed = GraphBatch.from_graphs([one] * 3), GraphBatch.from_graphs([one, one, other])
    assert shape_of(same).comes_again
    assert shape_of(same.take([1])).comes_again
    assert not shape_of(mixed).comes_again
    assert not shape_of(mixed.take([0, 1])).comes_again
    assert not shape_of(GraphBatch.from_graphs([one])).comes_again  # nothing is known of others


@pytest.mark.parametrize("device", ["cpu", "shim"])
def test_what_one_way_has_met_the_others_know(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would compile again and again, as kinds appear."""
    if device == "shim":
        put_in_place(monkeypatch, processors=4)
    name = "cuda" if device == "shim" else device
    net = vrt.compile(TreeLSTM(7, 5, 6, 3), device=name, threads=2, seed=1)
    model, trained = net.executor.model, trees(6)
    net.warm(trained, vrt.SGD(0.1))
    (first,) = model.variants.values()
    for way in list(model.chooser.ways):
        model.chooser.only(way)
        net.warm(trained[:1], vrt.SGD(0.1))
    assert len(model.variants) > 1
    for variant in model.variants.values():
        assert variant.path_kinds.keys() == first.path_kinds.keys()
        assert variant.lazy_kinds.keys() == first.lazy_kinds.keys()


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_the_choice_is_close_to_the_best_that_was_measured(cell: str) -> None:
    """At GRNN's nine sizes on an H200, of which nothing runs here."""
    options = CompileOptions(np.dtype("float32"), "frontier", Passes(), "float32", "auto", 1, None)
    ratios = []
    for job in json.loads(MEASURED.read_text(encoding="utf-8")):
        name, *_ = words = job["job"].replace(",", "").split()
        if name != cell.lower():
            continue
        form, count = Form(cell, int(words[1])), int(words[3])
        model = compile_on(PaperDevice(processors=132), Stack(form).trace(), options).model
        few = stack_batch(form, np.zeros((count, 100, form.hidden), np.float32))
        way = next(x for x in model.chooser.rank(False, shape_of(few)) if str(x) in job["seconds"])
        ratios.append(job["seconds"][str(way)] / min(job["seconds"].values()))
    assert len(ratios) == 9
    assert max(ratios) <= 1.03


@pytest.mark.parametrize(
    ("cell", "count", "trains", "fastest"),
    [
        ("LSTM", 1, False, 16),
        ("LSTM", 10, False, 16),
        ("LSTM", 20, False, 32),
        ("GRU", 1, False, 16),
        ("GRU", 10, False, 16),
        ("LSTM", 4, True, 16),
        ("LSTM", 16, True, 32),
        ("LSTM", 32, True, 32),
    ],
)
def test_clusters_hold_a_layer_of_512_where_that_was_fastest(
    cell: str, count: int, trains: bool, fastest: int
) -> None:
    """A weight lies in registers and in shared memory then (`divided_h200.txt`)."""
    options = CompileOptions(np.dtype("float32"), "frontier", Passes(), "float32", "auto", 1, None)
    form, steps = Form(cell, 512), 50 if trains else 100
    model = compile_on(PaperDevice(processors=132), Stack(form).trace(), options).model
    few = stack_batch(form, np.zeros((count, steps, form.hidden), np.float32))
    assert model.chooser.rank(trains, shape_of(few))[0] == Configuration(True, 1, fastest)


def test_a_gpu_takes_the_batched_engine_where_it_replays() -> None:
    """Trees of one shape come again: one graph of CUDA runs their wide levels."""
    options = CompileOptions(np.dtype("float32"), "frontier", Passes(), "float32", "auto", 1, None)
    model = compile_on(PaperDevice(processors=132), TreeFC(100, 512).trace(), options).model
    one, two = InputGraph.complete_tree(256), InputGraph.complete_tree(2)
    same, other = GraphBatch.from_graphs([one] * 16), GraphBatch.from_graphs([*[one] * 16, two])
    assert not model.chooser.pick(False, same.take([0])).persistent
    assert model.chooser.pick(False, other.take([0])).persistent


@pytest.mark.parametrize("mode", ["training", "evaluation"])
def test_the_choice_for_trees_of_one_shape_is_the_better_engine(mode: str) -> None:
    """Of an H100, of which nothing runs here; the persistent engine as the model would take it."""
    options = CompileOptions(np.dtype("float32"), "frontier", Passes(), "float32", "auto", 1, None)
    model = compile_on(PaperDevice(processors=132), TreeFC(100, 512).trace(), options).model
    pool = GraphBatch.from_graphs([InputGraph.complete_tree(256)] * 64)
    name = {"training": "tree-fc", "evaluation": "tree-fc-evaluation"}[mode]
    jobs = json.loads(MEASURED_TREES.read_text(encoding="utf-8"))
    seconds = {job["job"]: job["seconds"] for job in jobs}
    for count in (1, 16, 64):
        found = seconds[f"{name}, batch {count}"]
        way = model.chooser.pick(mode == "training", pool[:count])
        assert found[str(way)] == min(found.values())


def test_functions_that_merge_words_never_come_again() -> None:
    tree, fc = TreeLSTM(7, 5, 6, 3), TreeFC(7, 5)
    assert work_of(tree.trace()).merges
    assert not work_of(fc.trace()).merges  # its leaves are looked up, and no product


def test_graphs_that_are_alike_have_the_same_choice() -> None:
    chooser = Chooser(CPU, work(1e6), CPU.ways(2, None))
    pool = batch(8)
    picked = [chooser.pick(True, pool.take([k, k + 1])) for k in range(5)]
    assert [chooser.pick(True, pool.take([k, k + 1])) for k in range(5)] == picked
    only = CPU.ways(2, None)[-1]
    chooser.only(only)
    assert chooser.pick(True, pool.take([0, 1])) == only


def test_explain_shows_what_the_model_says() -> None:
    """The first way is the one that runs; with one way there is nothing to choose."""
    for engine in ("auto", "batched"):
        net = vrt.compile(TreeLSTM(7, 5, 6, 3), device="cpu", engine=engine, threads=2)
        found = net.explain_batch(trees(6)).partition("ways by the cost model, ms\n")[2]
        ways = [line.split(maxsplit=1) for line in found.splitlines()]
        possible = net.executor.model.chooser.rank(True, shape_of(trees(6)))
        assert len(ways) == (len(possible) if engine == "auto" else 0)
        if ways:
            run = net.executor.model.prepare(Use(frozenset(), loss=True), trees(6))[0]
            assert ways[0][1] == str(run.configuration)


def test_functions_of_many_types_run_batched_by_default() -> None:
    """On a GPU, where they are of one layer; the persistent engine has one kernel for all."""
    together, one = Passes(layers=False), "persistent, 1 x 1 processors"
    for engine, passes, wanted in (
        ("auto", together, "batched, 1 worker"),
        ("persistent", together, "as few processors"),
        ("auto", Passes(), one),
        ("persistent", Passes(), one),
    ):
        options = CompileOptions(
            np.dtype("float32"), "frontier", passes, "float32", engine, 1, None
        )
        form = Form("GRU", 8, layers=3)
        model = compile_on(PaperDevice(processors=132), Stack(form).trace(), options).model
        assert model.chooser.work.types == 3
        few = stack_batch(form, np.zeros((1, 5, 8), np.float32))
        assert wanted in str(model.chooser.rank(True, shape_of(few))[0])


def trees(count: int) -> GraphBatch:
    """Return a leaf, and trees of it; some vertices have a label."""
    rng = np.random.default_rng(3)

    def tree(leaves: int) -> InputGraph:
        word = np.where(np.arange(2 * leaves - 1) < leaves, rng.integers(0, 7), -1)
        label = rng.integers(-1, 3, 2 * leaves - 1)
        return InputGraph.complete_tree(leaves, pulls={"word": word, "label": label})

    return GraphBatch.from_graphs([tree(1 << k % 3) for k in range(count)])
