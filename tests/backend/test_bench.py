"""Each benchmark is run once, small; each switch of an ablation changes what runs.

Every benchmark compares before it times: what differs ends it, by name.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks import choosing, precisions, requests, stress
from benchmarks.lstm_inference import Recurrent
from benchmarks.papers import (
    __main__ as papers,
)
from benchmarks.papers import (
    ecornn_grid,
    ecornn_layout,
    ecornn_perplexity,
    grnn_latency,
    persistent_rnn,
    vpps_applications,
)
from benchmarks.papers.in_turn import Table
from benchmarks.papers.stacks import Form, Stack, stack_batch, top_vertices
from benchmarks.papers.weights import held_bytes, loaded_bytes
from benchmarks.peers import __main__ as peers
from tests.device_rows import Taken, watch_steps
from tests.devices import shim
from tests.paper_device import on_paper
from tests.shim_device import put_in_place
from vertexrt import models
from vertexrt.bench import ablation, breakdown
from vertexrt.bench.ablation import (
    AGAIN,
    ALL_ON,
    BASELINE,
    BATCHED,
    GRADIENTS,
    missing,
    variants,
)
from vertexrt.bench.measure import BOUNDS, TRAINING, Counts, Stepper, count
from vertexrt.bench.record import Entry, Results, read
from vertexrt.cli.main import main
from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Passes
from vertexrt.graph import GraphBatch, InputGraph, Rows

H, LEAVES, THREADS = 8, 4, 2
NO_TORCH = "torch is not installed (extra `torch`)"


# What is run: a command, and what its record must have.


class Ran(NamedTuple):
    """A benchmark, and its record.

    Attributes:
        words: `OWN` stands for a vertex function of one's own, over four trees.
        shown: of each entry, or of those with some values, what is looked at, its key first.
        found: these, in order; checks: how many comparisons there were before.
        printed: what it prints has such a text.
    """

    call: Callable[[Sequence[str]], int]
    words: str
    shown: str
    found: Sequence[tuple[Any, ...]]
    checks: int
    printed: str = ""
    only: dict[str, str] = {}  # noqa: RUF012 (never written to)


OWN = """
import vertexrt as vrt


class Sum(vrt.VertexFunction):
    def __init__(self, hidden: int) -> None:
        super().__init__(arity=2, state={"h": hidden})
        self.w = vrt.Parameter((hidden, hidden))
        self.b = vrt.Parameter((hidden,))

    def forward(self) -> None:
        h = vrt.tanh(self.w @ (self.gather(0).h + self.gather(1).h) + self.b)
        self.scatter(h=h)
        self.push("loss", vrt.losses.cross_entropy(h, self.pull("label")))
"""
FEW = [BASELINE, BASELINE + AGAIN, "+ policy agenda", ALL_ON, ALL_ON + AGAIN]
FEW += ["- persistent engine", "batched - compiled loop"]
PLAN = [v for v in variants("reference", THREADS) if v.name in FEW]
PLANNED = [(v.family, v.name, None if v.against == v.name else v.against) for v in PLAN]
SLOW = "--device reference --seconds 0 --threads"
IN_TURN = "--device cpu --threads 1 --rounds 2 --seconds 0"
NO_ROUNDS = IN_TURN.replace("rounds 2", "rounds 0")
TREE_FC = "--model tree-fc --leaves 2 --hidden 4 --batch-sizes 1,2"
PEERS = "--device=cpu --threads=1 --hidden=8 --batch-sizes=2,3 --seconds=0.02 --leaves=4 --length=6"
PEERS += " --trees generated --text generated --peers none"
WEIGHTS = ("batched, one vertex a task", "batched", "held on chip for a step")
WEIGHTS += ("persistent, group of 4",)
OURS, MODELS = (
    ("batched", "persistent"),
    ("character model, GRU 3 x 128", "classifier, GRU 2 x 256"),
)
RNN_WAYS = ("torch", "torch-gemm", *OURS)
ROWS = {
    "an ablation": Ran(
        main,
        f"bench ablation OWN --hidden 3 --batch-sizes 1 {SLOW} 2",
        "family variant against",
        [
            *PLANNED[:3],
            ("total", ALL_ON, BASELINE),
            *PLANNED[3:],
        ],
        2,
        "not available here: streams, because a CPU has no streams",
    ),
    "a breakdown": Ran(
        main,
        f"bench breakdown {TREE_FC} {SLOW} 1",
        "batch_size setting",
        [*product((1, 2), breakdown.SETTINGS)],
        0,
        "op by op",
        {"variant": "whole"},
    ),
    "ours without peers": Ran(
        peers.main,
        f"{PEERS} --suite tree-lstm,fixed-lstm --engines batched,batched:unmerged,again",
        "suite batch_size mode variant",
        [
            *product(
                ("tree-lstm", "fixed-lstm"),
                (2, 3),
                ("train", "infer"),
                ("vertexrt", "vrt-batched:unmerged", "vrt-again"),
            )
        ],
        2 * (1 + 2),
        "graphs/s",
    ),
    "scheduling": Ran(
        papers.main,
        f"{TREE_FC} --leaf-counts 2,4 --parts schedule {SLOW} 1",
        "against leaves batch_size",
        [("leaves", 2, 16), ("leaves", 4, 16), ("batch size", None, 1), ("batch size", None, 2)],
        0,
        only={"variant": "share"},
    ),
    "throughput": Ran(
        papers.main,
        f"{TREE_FC} --hidden-sizes 3 --parts throughput {SLOW} 1",
        "batch_size hidden against variant",
        [
            (size, hidden, against, way)
            for size, hidden, against in (
                (1, 4, "batch size"),
                (2, 4, "batch size"),
                (2, 3, "hidden size"),
            )
            for way in OURS
        ],
        2,
    ),
    "weights": Ran(
        papers.main,
        f"{TREE_FC} --parts weights {SLOW} 1",
        "variant",
        [(way,) for way in WEIGHTS],
        0,
        only={"batch_size": 2},  # type: ignore[dict-item]
    ),
    "products of both layouts": Ran(
        ecornn_layout.main,
        f"{IN_TURN} --hidden-sizes 8 --batch-sizes 2,3",
        "batch_size part variant",
        [*product((2, 3), ("x W^T", "d W", "d^T x"), ("by rows", "by columns"))],
        2 * 3 * 2,
        r"chosen: d\^T x, W \[32, 8\]: ",
    ),
    "applications of VPPS": Ran(
        vpps_applications.main,
        f"--models rvnn,bilstm-tagger --ways batched,serial --batch-sizes 2 --hidden 4 {SLOW} 1",
        "model variant",
        [*product(("rvnn", "bilstm-tagger"), ("batched", "serial"))],
        2,
    ),
}
WITH_TORCH = {
    "layers and applications of GRNN": Ran(
        grnn_latency.main,
        f"{IN_TURN} --hidden-sizes 4 --batch-sizes 1,2 --steps 3 --cells GRU",
        "part model batch_size variant",
        [
            *product(["layers"], ["GRU h 4"], (1, 2), ("torch", *OURS)),
            *product(["applications"], MODELS, [1], ("torch", *OURS)),
        ],
        (2 + 2) * 3,
    ),
    "the grid of ECO-RNN": Ran(
        ecornn_grid.main,
        f"{IN_TURN} --hidden-sizes 4 --layers 2 --batch-sizes 2,3 --steps 3 --engines batched",
        "model batch_size variant",
        [*product(["LSTM 2 x 4"], (2, 3), ("torch", "batched"))],
        2 * 2,
    ),
    "the grid without rounds": Ran(
        ecornn_grid.main,
        f"{NO_ROUNDS} --hidden-sizes 4 --layers 1,2 --batch-sizes 2 --steps 3",
        "model",
        [],
        2 * 3,
        "LSTM 2 x 4, batch 2: off from float64 by  torch ",
    ),
    "layers and stacks of persistent RNNs": Ran(
        persistent_rnn.main,
        f"{IN_TURN} --hidden 4 --hidden-sizes 3,5 --batch-sizes 1,2 --layers 2,3 --steps 3",
        "part hidden model batch_size variant",
        [
            *product(["batch"], [4], ["RNN h 4"], (1, 2), RNN_WAYS),
            *product(["size"], (3, 5), [None], [1], RNN_WAYS),
            *product(["depth"], [4], ("RNN 2 x 4", "RNN 3 x 4"), [2], ("torch", *OURS)),
        ],
        (2 + 2) * 4 + 2 * 3,
    ),
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a vertex function of one's own and its graphs; an ablation has few variants."""
    monkeypatch.setattr(ablation, "variants", lambda device, threads: PLAN)
    (tmp_path / "own.py").write_text(OWN)
    graph = {"children": [[], [], [0, 1]], "pulls": {"label": [0, 1, 2]}}
    (tmp_path / "own.jsonl").write_text(f"{json.dumps(graph)}\n" * 4)
    return f"--model {tmp_path / 'own.py:Sum'} --data {tmp_path / 'own.jsonl'}"


def values_of(entry: Entry, shown: str) -> tuple[Any, ...]:
    return tuple(entry.key.get(name, getattr(entry, name, None)) for name in shown.split())


@pytest.mark.parametrize("name", [*ROWS, *WITH_TORCH])
def test_a_benchmark_checks_times_and_records(
    name: str, own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in WITH_TORCH:
        pytest.importorskip("torch", reason=NO_TORCH)
    ran = (ROWS | WITH_TORCH)[name]
    out = tmp_path / "out"
    assert ran.call([*ran.words.replace("OWN", own).split(), "--out", str(out)]) == 0
    assert re.search(ran.printed, capsys.readouterr().out)
    (path,) = out.glob("*.json")
    record = read(path)
    assert record.complete
    assert record.machine["versions"]["llvmlite"]
    assert len(record.checks) == ran.checks
    assert all(each["largest_difference"] <= each["bound"] for each in record.checks)
    chosen = record.select(**ran.only)
    assert [values_of(e, ran.shown) for e in chosen] == [*ran.found]
    for entry in record.entries:
        low, high = entry.quartiles
        assert low <= entry.median <= high
        assert entry.median > 0 or entry.unit == "us a step", entry.key  # no time for a part
        assert (entry.ratio is None) == (entry.against is None)
        assert entry.counts.get("launches", 1) > 0


# What is refused, and what ends a run.

SUITE = f"{PEERS.replace('--peers none', '')} --suite tree-lstm --peers"
OF_TREES = "bench ablation --hidden 4 --device reference --seconds 0"


@pytest.mark.parametrize(
    ("call", "words", "lacking", "texts"),
    [
        (main, f"{OF_TREES} --batch-sizes 100000", "", ["at most 4,000, the graphs of tree-lstm"]),
        (main, f"{OF_TREES} --batch-sizes 1 --out /proc/none", "", ["[--out]"]),
        (
            peers.main,
            f"{SUITE} torch",
            "torch",
            ["[peers] PyTorch is not installed; ", 'pip install -e ".[torch]" numba'],
        ),
        (
            peers.main,
            f"{SUITE} dynet",
            "dynet",
            ["[peers] DyNet is not installed; ", "pip install dynet38"],
        ),
        (peers.main, "--device cpu --peers none --engines none", "", ["something to time"]),
        (peers.main, "--device cpu --peers dynet --suite tree-fc", "", ["dynet with tree-fc"]),
        (peers.main, f"{SUITE} dynet --dtype float64", "", ["float64"]),
        (
            ecornn_grid.main,
            f"{IN_TURN} --hidden-sizes 4 --layers 1 --batch-sizes 2 --out OUT",
            "torch",
            ["[papers] PyTorch is not installed; it, as the peer; "],
        ),
    ],
)
def test_what_cannot_be_run_is_refused(
    call: Callable[[Sequence[str]], int],
    words: str,
    lacking: str,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if call is peers.main:  # what else is needed is there
        found = {lacking: None}
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found.get(name, name))
    elif lacking:
        monkeypatch.setitem(sys.modules, lacking, None)
    assert call(words.replace("OUT", str(tmp_path)).split()) == 2
    shown = capsys.readouterr().err
    for text in texts:
        assert text in shown


def test_a_variant_that_differs_ends_an_ablation(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(taken: Taken) -> None:
        if taken.executor.model.policy == "agenda":
            for value in taken.outputs.values():
                value += 1e-2

    watch_steps(monkeypatch, after=spoil)
    words = f"bench ablation {own} --hidden 3 --batch-sizes 1 {SLOW} 2 --out {tmp_path}"
    assert main(words.split()) == 1
    text = "[check, Sum, batch 4] the output of + policy agenda differs"
    assert text in capsys.readouterr().err
    record = read(tmp_path / "ablation-Sum.json")
    assert not record.complete
    assert record.entries == []


def test_a_difference_ends_a_run_beside_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BOUNDS, "float32", -1.0)
    assert peers.main([*PEERS.split(), "--suite=fixed-lstm", f"--out={tmp_path}"]) == 1
    assert "[check, fixed-lstm, batch 4] the loss of vertexrt differs" in capsys.readouterr().err
    record = read(tmp_path / "peers.json")
    assert not record.complete
    assert record.entries == []


def table_in(folder: Path) -> Table:
    options = argparse.Namespace(rounds=0)
    return Table(options, "cpu", 1, Results("any", (), {}), folder / "any.json")


def test_a_difference_from_float64_ends_a_comparison_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_in(tmp_path)
    exact = {"h": np.array([1.0, 2.0])}
    table.check("here", {"torch": {"h": [1.0, 2.0001]}, "ours": exact}, exact, 1e-5)
    assert capsys.readouterr().out == "here: off from float64 by  torch 5.0e-05  ours 0.0e+00\n"
    off = [each["largest_difference"] for each in table.record.checks]
    assert off == [pytest.approx(5e-5), 0.0]
    for way, last, shown in (
        ("ours", 2.0001, "5.0e-05"),
        ("ours", np.nan, "nan"),
        ("torch", 2.1, "5.0e-02"),
    ):
        text = rf"^\[here\] h of {way} is off by {shown} of the largest element; at most "
        with pytest.raises(vrt.errors.NumericError, match=text):
            table.check("here", {way: {"h": [1.0, last]}}, exact, 1e-5)


# Switches of an ablation.

# What a switch changes, in which direction, where it is turned on (`one on`) or off (`one off`).
FEWER_WITH = {
    "policy frontier": "tasks",
    "policy depth": "tasks",
    "policy agenda": "tasks",
    "specialisation": "products",
    "eager placement": "groups",
    "lazy placement": "products",
    "stacking": "products",
    "fusion": "groups",
    "merging": "rows",
    "persistent, segments": "instructions",
}
MORE_WITHOUT = {
    "policy serial": "tasks",
    "- specialisation": "flops",
    "- lazy placement": "products",
    "- stacking": "products",
    "- fusion": "groups",
    "- merging": "rows",
    "- segments": "instructions",
    "- segments - fusion": "groups",
}


def classified() -> tuple[vrt.VertexFunction, GraphBatch]:
    """Return a Tree-LSTM and trees of several shapes, whose words come again."""
    graphs = []
    comb = [[], [], [0, 1], [], [2, 3], [], [4, 5], [], [6, 7], [], [8, 9]]
    for lists in (comb, [[], [], [0, 1], [], [], [3, 4], [2, 5]], [[]]):
        at_leaf = [not children for children in lists]
        pulls = {"word": np.where(at_leaf, np.arange(len(lists)) % 2, -1)}
        graphs.append(InputGraph.from_children(lists, pulls | {"label": np.arange(len(lists)) % 3}))
    return models.TreeLSTM(2, 4, 4, 3), GraphBatch.from_graphs(graphs)


def counts_of(name: str, device: str = "reference") -> Counts:
    """Count what a variant runs on a host; on the reference device nothing is compiled for that."""
    (setting,) = (v.setting for v in variants("cpu", THREADS) if v.name == name)
    function, batch = classified()
    return count(setting.compile(function, device, THREADS), batch)


def test_a_switch_changes_what_runs() -> None:
    against = {v.name: v.against for v in variants("cpu", THREADS)}
    counted = {name: counts_of(name) for name in against}
    for switch, what in FEWER_WITH.items():
        name = f"+ {switch}"
        assert counted[name][what] < counted[against[name]][what], name
    for name, what in MORE_WITHOUT.items():
        assert counted[name][what] > counted[against[name]][what], name
    for loop, launches in (("+ compiled loop", BASELINE), (BATCHED, "batched - compiled loop")):
        calls = [counts_of(name, "cpu")["calls"] for name in (loop, launches)]
        assert calls[0] == THREADS < calls[1], "one of each share"
    for head in (BASELINE, ALL_ON):
        assert counted[head + AGAIN] == counted[head], "a control runs what its head runs"
    assert "instructions" not in counted[BASELINE]
    assert counted["+ persistent engine"]["instructions"] > counted[BASELINE]["launches"]
    assert "instructions" not in counted["- persistent engine"]
    assert counted[ALL_ON]["waits"] == 0
    assert counted["groups of 2"]["waits"] > 0
    assert counted["+ persistent, groups of 2"]["waits"] > 0
    # without eager placement, what leaves do is one launch, before the tasks it was two
    assert counted["- eager placement"]["launches"] < counted[ALL_ON]["launches"]


class Waits:
    """A network that notes when it is waited for."""

    waited = 0

    def step(self, batch: vrt.GraphBatch, optimizer: vrt.Optimizer) -> float:
        return 0.0

    def sync(self) -> float:
        self.waited += 1
        return 0.0


def test_a_host_that_waits_waits_after_each_step() -> None:
    net = Waits()
    for waits in (False, True):
        Stepper(net, waits).train(classified()[1], 0.0)  # type: ignore[arg-type]
        assert net.waited == waits


def counted_on_paper(processors: int, **options: Any) -> Counts:
    function, batch = classified()
    return count(on_paper(function, processors, **options), batch)


def test_switches_of_a_gpu_change_what_its_persistent_kernel_runs() -> None:
    whole, stays, summed = (
        counted_on_paper(2, passes=passes)
        for passes in (Passes(), Passes(hold=False), Passes(gradients=True))
    )
    assert stays["waits"] > whole["waits"]
    assert stays["instructions"] > whole["instructions"] > summed["instructions"]


def test_streams_share_what_a_gpu_launches() -> None:
    plan = {v.name: v for v in variants("cuda", 1)}

    def counts(name: str) -> Counts:
        setting = plan[name].setting
        assert setting.engine == "batched"
        policy, passes = setting.policy, setting.passes
        return counted_on_paper(1, policy=policy, passes=passes, engine="batched")

    named = "batched, 2 streams"
    one, several = counts(plan[named].against), counts(named)
    assert "streams" not in one
    assert several["streams"] == 2
    assert 0 < several["on_other_streams"] < several["kernels"] + several["library"]
    assert several["waits"] > 0
    assert several["launches"] == one["launches"]
    assert several["kernels"] == one["kernels"]


@pytest.mark.parametrize(
    ("of", "threads", "names"),
    [
        ("cpu", 1, "streams, weights on chip, gradients on chip, asynchronous host, group size"),
        ("cpu", 2, "streams, weights on chip, gradients on chip, asynchronous host"),
        ("cuda", 1, "compiled loop, timed products"),
    ],
)
def test_every_switch_is_a_variant_or_said_to_be_missing(of: str, threads: int, names: str) -> None:
    lacking = missing(of, threads)
    assert list(lacking) == names.split(", ")
    assert all(len(because) > 20 for because in lacking.values())
    plan = variants(of, threads)
    have = {v.name for v in plan}
    assert len(have) == len(plan), "what is timed goes by its name"
    assert all(v.against in have for v in plan)
    on_cpu = {"+ compiled loop", "timed products", "- register tiles"}
    on_gpu = {"+ asynchronous host", "- weights on chip", f"groups of 16 {GRADIENTS}"}
    on_gpu |= {"+ 2 streams", "batched, 2 streams", "+ persistent, gradients on chip"}
    assert have & (on_cpu | on_gpu) == (on_cpu if of == "cpu" else on_gpu)
    assert ("groups of 2" in have) == (of == "cpu" and threads == 2)


# Parts of a step, bytes of weights.


def trees(count: int = 1) -> GraphBatch:
    size = 2 * LEAVES - 1
    graphs = []
    for k in range(count):
        word = np.where(np.arange(size) < LEAVES, k * LEAVES + np.arange(size), -1)
        target = Rows(np.ones((1, 1), np.float32), np.where(np.arange(size) == size - 1, 0, -1))
        graphs.append(InputGraph.complete_tree(LEAVES, pulls={"word": word, "target": target}))
    return GraphBatch.from_graphs(graphs)


def test_parts_of_a_step_add_up_to_it() -> None:
    net = breakdown.SETTINGS["op by op"].compile(models.TreeFC(20, H), "reference", 1)
    pool, ids = trees(3), np.arange(2)
    for _ in range(2):
        found = breakdown.one_step(net, pool, ids, vrt.SGD(lr=0.0))
    assert set(found) - {"whole"} <= set(breakdown.PARTS)
    assert all(found[part] > 0 for part in ("products", "elementwise", "moves", "schedule", "host"))
    whole = found.pop("whole")
    assert sum(found.values()) == pytest.approx(whole)
    # an instruction is one kernel, so that each has one part
    (variant,) = net.executor.model.variants.values()
    kinds = breakdown.kinds_of_instructions(variant)
    assert {"products", "elementwise", "moves", "sums over rows"} == set(kinds)
    assert "prepare" not in vars(net.executor.model), "all is put back"


def prepared(engine: str, policy: str, processors: int | None = None) -> Run:
    net = vrt.compile(
        models.TreeFC(20, H),
        device="cpu",
        engine=engine,
        policy=policy,
        threads=processors or 1,
        processors=processors,
    )
    (run,) = net.executor.model.prepare(TRAINING, trees())
    return run


W, V = 4 * H * 2 * H, 4 * H  # bytes of the path's weight and of the read-out


@pytest.mark.parametrize(
    ("engine", "policy", "processors", "loads"),
    [
        ("batched", "serial", None, 3),  # a task a vertex
        ("batched", "frontier", None, 2),  # a task a level
        ("persistent", "frontier", 1, 2),
        ("persistent", "frontier", 4, 2),  # each processor loads its rows
    ],
)
def test_weights_are_loaded_once_a_task(
    engine: str, policy: str, processors: int | None, loads: int
) -> None:
    run = prepared(engine, policy, processors)
    assert loaded_bytes(run, 4) == 2 * loads * W + 2 * V  # forward and back; one root is read out
    assert held_bytes(run, 4) == 2 * W + 2 * V


def test_compiling_is_timed_in_processes_with_caches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    took = {"host": 3.0, "trace": 1.0, "first step": 2.0, "step": 0.5}
    original = subprocess.run

    def run(words: list[str], env: dict[str, str] | None = None, **options: Any) -> Any:
        if env is None:
            return original(words, **options)
        seen.append(env["VERTEXRT_CACHE"])
        return subprocess.CompletedProcess(words, 0, f"{json.dumps(took)}\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert papers.main(f"{TREE_FC} --parts compile {SLOW} 1 --out {tmp_path}".split()) == 0
    entries = read(tmp_path / "papers-tree-fc.json").entries
    found = {(e.key["engine"], e.key["cache"], e.key["variant"]): e.median for e in entries}
    assert found["batched", "cold", "first step"] == 2.0
    assert len(found) == 2 * 2 * 3
    first, again, second, last = seen  # cold and warm, of both engines
    assert first == again != second == last
    assert not any(Path(folder).exists() for folder in seen)


# Recurrent layers.


def test_a_stack_is_its_cells_one_above_the_other() -> None:
    form = Form("RNN", 3, 2, residual=True)
    net = vrt.compile(Stack(form), device="reference", dtype="float64", seed=1)
    x = np.random.default_rng(0).standard_normal((2, 4, 3))
    batch = stack_batch(form, x)
    found, below = net(batch), x
    for k in range(2):
        w, u, b, d = (
            np.asarray(net.parameters[f"layers.{k}.cell.{name}"])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        inner, handed = np.zeros((2, 3)), []
        for t in range(4):
            inner = np.tanh(below[:, t] @ w.T + inner @ u.T + b + d)
            handed.append(inner + below[:, t])
        below = np.stack(handed, 1)
    top = top_vertices(form, batch, 4)
    np.testing.assert_allclose(found["h"][top].reshape(2, 4, 3), below, rtol=1e-12)
    np.testing.assert_allclose(found["loss"].sum(), (below**2).sum(), rtol=1e-12)
    ends = top_vertices(form, batch, 4, last=True)
    np.testing.assert_allclose(found["h"][ends], below[:, -1], rtol=1e-12)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_both_train_alike_without_dropout(device: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for split, length in (("train", 401), ("valid", 90), ("test", 90)):  # last pieces are short
        words = " ".join(f"w{word}" for word in rng.integers(0, 20, length))
        (tmp_path / f"ptb.{split}.txt").write_text(words + "\n")
    given = "--hidden 8 --embed 8 --layers 2 --pieces 7 --batch-size 4 --dropout 0 --lr 1"
    given += f" --epochs 3 --schedule halving --clip-norm 0.5 --device {device} --data {tmp_path}"
    ecornn_perplexity.main(["--out", str(tmp_path / "out"), "--", *given.split()])
    found = json.loads((tmp_path / "out" / "perplexity.json").read_text())
    for split in ("train", "dev"):
        ours, theirs = ([row[split] for row in found["curves"][n]] for n in ("vertexrt", "torch"))
        assert len(ours) == 3
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    np.testing.assert_allclose(found["test"]["vertexrt"], found["test"]["torch"], rtol=1e-5)


# Benchmarks that print lines.


ONE = "--device cuda --hidden 8 --rounds 1"
PRINTED: dict[Callable[[Sequence[str]], object], tuple[str, str]] = {
    requests.main: (
        ONE,
        r"h    8 plan, last step  [\s\S]*batch, on the device[\s\S]*kernel[\s\S]*us over it",
    ),
    precisions.main: (
        f"{ONE} --batch 6 --steps 3 --times 1 --precisions bf16",
        r"LSTM h 8, batch   6, train    float32.*bf16.*off by[\s\S]*evaluate float32.*off by",
    ),
    choosing.main: (
        "--jobs gru --hidden 4 --batch 1 --threads 2 --rounds 1 --out OUT",
        r": [\s\S]*, \d\.\d{3} times the fastest[\s\S]*within 3% of the fastest: [01] of 1\n$",
    ),
    stress.main: ("--device cpu --jobs alone --launches 1", f"^alone: {stress.JOBS['alone'].what}"),
}


@shim
@pytest.mark.parametrize("call", PRINTED, ids=lambda call: call.__module__)
def test_lines_are_printed(
    call: Callable[[Sequence[str]], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of benchmarks that keep no record; a GPU has its stand-in."""
    words, printed = PRINTED[call]
    precision = "bf16" if call is precisions.main else "float32"
    put_in_place(monkeypatch, processors=2, precision=precision)
    monkeypatch.setattr(stress, "KINDS", 1)
    call(words.replace("OUT", str(tmp_path / "out")).split())
    shown = capsys.readouterr().out
    assert re.search(printed, shown), shown


def test_a_wrong_request_ends_it() -> None:
    subject = requests.subject_of(vrt.compile(Recurrent(H), device="cpu", threads=1), H)
    ways = requests.ways_of(subject)
    requests.check(subject, ways)
    ways["wrong"] = lambda k: ways["plan"](k) + np.float32(1e-3)
    with pytest.raises(AssertionError, match="wrong: off by"):
        requests.check(subject, ways)
