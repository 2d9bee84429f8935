"""The persistent engine on CUDA against `reference`: on a GPU, and on the CPU through the shim."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import gpu, on_gpus, require, shim
from tests.functions import FUNCTIONS
from tests.launches import device_of, launch_of
from tests.optimizers import OPTIMIZERS
from tests.paper_device import on_paper
from tests.runs import PLAIN, TOLERANCE, Way, assert_close, assert_same, evaluate, train
from tests.shim_device import ShimDevice, put_in_place
from tests.strategies import with_pulls
from tests.watched_device import (
    COUNTERS,
    break_counter,
    break_members,
    mend,
    watch,
)
from vertexrt.api.network import Network
from vertexrt.data import load
from vertexrt.engine import choose
from vertexrt.engine.model import BATCHED
from vertexrt.engine.variant import Passes
from vertexrt.errors import DeviceError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.cupy_device import CupyDevice
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.cuda.persistent_launch import write_all
from vertexrt.kernels.ways import FEWEST, Configuration
from vertexrt.models import TreeLSTM, get
from vertexrt.native.compiled import compiled_for
from vertexrt.scheduler.batch_shape import shape_of

TREE = [[], [], [0, 1], [], [2, 3], [], [4, 5]]
CHAIN = [[], [0], [1], [2]]
DAG = [[], [], [0, 1], [0, 2], [2, 3]]  # vertices with several parents
# One of everything that a segment can have: several exchanges, edges, sums over a row, numbers.
ON_SHIM = (
    ("tree-lstm", 2, "float32"),
    ("tree-lstm", 1, "float64"),
    ("gru", 3, "float64"),
    ("attention", 2, "float64"),
    ("oddments", 2, "float64"),
    ("elementwise", 2, "float64"),
)
CASES = [
    *(("shim", *case) for case in ON_SHIM),
    *(
        ("cuda", name, processors, dtype)
        for name, dtype, processors in zip(
            FUNCTIONS, itertools.cycle(TOLERANCE), itertools.cycle((2, 5, 1, 16)), strict=False
        )
    ),
]


def batch_of(name: str, graphs: int, shape: list[list[int]] | None = None) -> GraphBatch:
    """Make graphs of one shape with pulls of their own."""
    lists = shape or (CHAIN if FUNCTIONS[name][1] == 1 else TREE)
    return with_pulls([lists] * graphs)


@functools.cache
def net(name: str, device: str, dtype: str, processors: int) -> Network:
    """Compile once for all tests."""
    if not processors:
        return PLAIN.compile(FUNCTIONS[name][0]())
    way = Way(device, dtype, engine="persistent", processors=processors)
    return way.compile(FUNCTIONS[name][0]())


@pytest.mark.parametrize(("device", "name", "processors", "dtype"), CASES)
def test_it_agrees_with_the_reference(device: str, name: str, processors: int, dtype: str) -> None:
    here, there = net(name, device, dtype, processors), net(name, "reference", dtype, 0)
    for graphs in (5, 1):  # the most kinds first, so that one kernel is compiled
        batch = batch_of(name, graphs)
        first = evaluate(here, batch)
        assert_same(first, evaluate(there, batch), TOLERANCE[dtype])
        again = evaluate(here, batch)
        for key, value in first.parameters.items():
            assert np.array_equal(value, again.parameters[key]), f"{key} has other bits"
    assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])


@on_gpus
def test_phrases_of_several_graphs_in_groups_of_as_few_processors_as_fit(device: str) -> None:
    """Equal phrases stay apart: else a group would read what another makes, without waiting."""
    function = TreeLSTM(vocab=9, embed=8, hidden=16, classes=3)
    gpu_device = ShimDevice(processors=32) if device == "shim" else CupyDevice("float32")
    options = Way(device, "float32", engine="persistent").options()
    executor = compile_on(gpu_device, function.trace(), options)
    few = Configuration(True, 1, FEWEST)
    executor.model.chooser.only(few)
    found, plain = Network(executor, 3, "mean_graphs"), PLAIN.compile(function)
    found.parameters.update(plain.parameters)
    graphs = []
    for last in range(8):  # the first four vertices are equal in all
        word = np.array([1, 2, -1, 3, -1, last, -1])
        pulls = {"word": word, "label": np.where(word < 0, 1, -1)}
        graphs.append(vrt.InputGraph.from_children(TREE, pulls))
    batch = GraphBatch.from_graphs(graphs)  # scripts are verified, as in all tests
    assert_same(train(found, batch), train(plain, batch), 2e-5)
    assert executor.model.chooser.ways == [few]


@pytest.mark.parametrize("graphs", [4, 16])
@pytest.mark.parametrize("name", ["bilstm-char-tagger", "tree-lstm", "lstm-lm"])
@gpu
def test_models_of_real_size_agree_with_the_batched_engine(name: str, graphs: int) -> None:
    require("cuda")
    spec = get(name)
    data = load("generated", format=spec.format, **spec.reading(spec.options))
    sizes = {"hidden": 256, "dropout": 0.0}
    nets = [
        vrt.compile(spec.build(data, **sizes), device="cuda", engine=engine, seed=1)
        for engine in ("persistent", "batched")
    ]
    pool = data.splits["train"]
    batch = pool.take(np.arange(graphs) % max(graphs // 2, 1))  # each graph is there twice
    for _ in range(2):
        found, wanted = (net(batch, outputs=["loss"])["loss"] for net in nets)
        np.testing.assert_allclose(found, wanted, rtol=0.0, atol=2e-5)
        losses = [float(net.step(batch, vrt.SGD(0.1))) for net in nets]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_each_group_of_a_launch_has_a_counter() -> None:
    """Groups without graphs meet as well, before they end."""
    here, found = on_paper(FUNCTIONS["tree-lstm"][0](), 2, of_device=64), []
    watch(here).before = lambda words: found.append(words.copy())
    for _ in range(2):
        here(batch_of("tree-lstm", 1))
    first, second = found
    assert second[COUNTERS] - first[COUNTERS] >= 4 * (2 + 64 // 2)


@on_gpus
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.01])
def test_a_step_updates_as_the_batched_engine_does(
    device: str, name: str, clip: float | None
) -> None:
    nets = [
        Way(device=device, dtype="float64", engine=engine, processors=processors).compile(
            FUNCTIONS["tree-lstm"][0]()
        )
        for engine, processors in (("persistent", 2), ("batched", None))
    ]
    optimizers = [OPTIMIZERS[name](clip_norm=clip) for _ in nets]
    for graphs in (3, 5, 1):
        batch = batch_of("tree-lstm", graphs, DAG)
        losses = [float(n.step(batch, o)) for n, o in zip(nets, optimizers, strict=True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for name, value in nets[0].parameters.items():
        assert_close(value, nets[1].parameters[name], 1e-12, name)


class WideTable(vrt.VertexFunction):
    """Rows of a table of any width, which a chain reads."""

    def __init__(self, width: int) -> None:
        super().__init__(arity=1, state={"h": 8})
        self.table = vrt.Parameter((5, width))
        self.w, self.u = vrt.Parameter((8, width)), vrt.Parameter((8, 8))

    def forward(self) -> None:
        x = self.w @ vrt.embed(self.table, self.pull("word"))
        h = vrt.tanh(x + self.u @ self.gather(0).h)
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


@pytest.mark.parametrize("width", [1023, 1200, 2050, 3072])
@pytest.mark.parametrize("engine", ["batched", "persistent"])
@on_gpus
def test_all_columns_of_a_wide_table_are_updated(device: str, engine: str, width: int) -> None:
    """Issue 52: those from 1,024 on never were."""
    here = Way(device=device, dtype="float32", engine=engine).compile(WideTable(width))
    there = PLAIN.compile(WideTable(width))
    before = there.parameters["table"]
    chain = InputGraph.chain(3, {"word": np.array([3, 0, 3], np.int32)})
    for net in (here, there):
        optimizer = vrt.SGD(0.5, momentum=0.9, clip_norm=1.0)
        for _ in range(2):
            net.step(GraphBatch.from_graphs([chain]), optimizer)
    wanted = there.parameters["table"]
    assert_close(here.parameters["table"], wanted, 1e-4, f"table of {width}")
    moved = here.parameters["table"] != before.astype(np.float32)
    assert moved[[0, 3]].all()
    assert not moved[[1, 2, 4]].any()


@pytest.mark.parametrize(
    ("precision", "least", "most"), [("tf32", 1e-5, 2e-3), ("bf16", 1e-4, 2e-2)]
)
@on_gpus
def test_matrix_units_round_as_asked(
    device: str, precision: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = FUNCTIONS["tree-lstm"][0]
    if device == "shim":
        put_in_place(monkeypatch, precision=precision)
    here = vrt.compile(
        function(), device="cuda", engine="persistent", processors=4, precision=precision
    )
    there = vrt.compile(function(), device="reference", dtype="float64")
    there.parameters.update(here.parameters)
    # So many that tiles have rows enough for them, of each of the groups.
    batch = batch_of("tree-lstm", 40 if device == "shim" else 400)
    got, want = (each(batch)["logits"] for each in (here, there))
    error = float(np.abs(got - want).max() / np.abs(want).max())
    assert least < error < most


@pytest.mark.parametrize("passes", [Passes(hold=False), Passes(segment=False, fuse=False)])
@on_gpus
def test_an_ablation_computes_the_same(device: str, passes: Passes) -> None:
    function = FUNCTIONS["tree-lstm"][0]
    way = Way(device=device, dtype="float64", engine="persistent", processors=2, passes=passes)
    here, there = way.compile(function()), net("tree-lstm", "reference", "float64", 0)
    batch = batch_of("tree-lstm", 5)
    assert_same(train(here, batch), train(there, batch), TOLERANCE["float64"])
    (variant,) = here.executor.model.variants.values()
    executable = variant.ready().processors
    assert isinstance(executable, PersistentExecutable)
    whole = net("tree-lstm", device, "float64", 2)
    train(whole, batch)
    other = next(v for v in whole.executor.model.variants.values() if v.use.loss).ready().processors
    assert isinstance(other, PersistentExecutable)
    if not passes.hold:
        assert not executable.writer.cells
        assert len(other.writer.cells) == 2


FOR = {"a counter": "all processors", "members": "its group"}


@pytest.mark.parametrize("waits_for", ["a counter", "members"])
@on_gpus
def test_who_waits_in_vain_says_so_and_training_goes_on(device: str, waits_for: str) -> None:
    here = Way(device=device, dtype="float64", engine="persistent", processors=2).compile(
        FUNCTIONS["tree-lstm"][0]()
    )
    batch, optimizer = batch_of("tree-lstm", 3), vrt.SGD(0.1)
    here.step(batch, optimizer, outputs=here.pushes)
    before = dict(here.parameters)
    if device == "shim":
        here.executor.persistent_launch.patience = 5_000_000  # type: ignore[attr-defined]
    if waits_for == "members" and device != "shim":
        pytest.skip("members of a cluster begin by a barrier of the device")
    broken = watch(here)
    if waits_for == "a counter":
        break_counter(broken)
    else:
        break_members(broken)
    start = time.perf_counter()
    with pytest.raises(
        DeviceError, match=rf"processor \d+ waited at instruction \d+ for {FOR[waits_for]}"
    ):
        here.step(batch, optimizer, outputs=here.pushes)
    assert time.perf_counter() - start < 5.0
    mend(broken)
    for name, value in here.parameters.items():
        assert np.array_equal(value, before[name]), f"{name} was updated"
    there = Way(device=device, dtype="float64").compile(FUNCTIONS["tree-lstm"][0]())
    there.parameters.update(before)
    other = vrt.SGD(0.1)
    found = here.step(batch, optimizer)
    assert found == pytest.approx(float(there.step(batch, other)), rel=1e-12)
    for name, value in here.parameters.items():
        assert_close(value, there.parameters[name], 1e-12, name)


@shim
def test_steps_outside_the_path_do_not_write_past_the_shared_memory_of_a_block() -> None:
    """No GPU of ours has so little; the kernel does not compile for one that had."""
    net = Way(device="shim", dtype="float64", engine="persistent", processors=2).compile(
        FUNCTIONS["tree-lstm"][0]()
    )
    device_of(net).shared_bytes = 64 << 10
    with pytest.raises(DeviceError, match="a block has the shared memory that steps outside"):
        net.step(batch_of("tree-lstm", 1), vrt.SGD(0.1))


@on_gpus
def test_what_does_not_fit_runs_in_turn(device: str) -> None:
    """Those of the path take 512 KiB of each processor, on both sides."""
    from vertexrt.models import TreeLSTM

    batch = batch_of("tree-lstm", 3)
    nets = [
        way.compile(TreeLSTM(10, 8, 256, 5))
        for way in (Way(device, "float32", engine="persistent", processors=2), Way("cpu"))
    ]
    nets[1].parameters.update(nets[0].parameters)
    found = [net.record(batch).backward() for net in nets]
    launch = launch_of(nets[0], batch)
    assert "do not fit on chip" in " ".join(launch.executable.writer.in_turn.values())
    for name, wanted in found[1].parameters.items():
        assert_close(found[0].parameters[name], wanted, 1e-5, name)


@on_gpus
def test_auto_times_both_engines_and_goes_on_with_one(device: str, choices_folder: Path) -> None:
    function = FUNCTIONS["tree-lstm"][0]
    here, there = (
        Way(device=device, dtype="float64", engine=engine, processors=n, tune=n == 2).compile(
            function()
        )
        for engine, n in (("auto", 2), ("batched", None))
    )
    batch, rules = batch_of("tree-lstm", 3), (vrt.SGD(0.01), vrt.SGD(0.01))
    for _ in range(2 * choose.SAMPLES + 1):
        losses = here.step(batch, rules[0]), there.step(batch, rules[1])
    assert losses[0] == pytest.approx(float(losses[1]), rel=1e-11)
    tuner = here.executor.model.tuner
    assert tuner is not None
    ((name, timed),) = tuner.samples.items()
    assert {option.persistent for option in timed} == {False, True}
    assert name in tuner.chosen
    assert list((choices_folder / "choices").iterdir()), "the choice is not on disk"


@shim
@pytest.mark.usefixtures("choices_folder")
def test_auto_goes_on_without_what_does_not_fit() -> None:
    from vertexrt.models import TreeLSTM

    net = Way(device="shim", dtype="float64", engine="auto", processors=1).compile(
        TreeLSTM(10, 8, 512, 5)
    )
    batch = batch_of("tree-lstm", 1)
    first = net(batch)["logits"]
    assert np.array_equal(first, net(batch)["logits"])
    assert net.executor.model.chooser.rank(False, shape_of(batch)) == [BATCHED]


@shim
def test_loops_compiled_ahead_are_those_that_run() -> None:
    here = net("tree-lstm", "shim", "float32", 2)
    train(here, batch_of("tree-lstm", 3))
    for thread in threading.enumerate():
        if thread.name == "vertexrt-loops":
            thread.join()
    assert len(compiled_for(write_all)) == 1
