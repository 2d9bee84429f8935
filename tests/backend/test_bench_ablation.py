"""The ablation: each switch changes what runs, variants are compared first, all is recorded."""

from dataclasses import replace
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.device_rows import Taken, watch_steps
from tests.paper_device import on_paper
from vertexrt.bench import ablation
from vertexrt.bench.ablation import AGAIN, ALL_ON, BASELINE, GRADIENTS, missing, variants
from vertexrt.bench.measure import TRAINING, Counts, Stepper, count
from vertexrt.bench.record import read
from vertexrt.bench.run import Job, first_graphs, make_job
from vertexrt.cli.main import main
from vertexrt.engine.variant import Passes
from vertexrt.ir.passes.segment import segment_tasks
from vertexrt.kernels.cpu.backend import CpuExecutable

GRAPHS, THREADS = 6, 2

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
    "compiled loop": "calls",
    "persistent, segments": "instructions",
}
MORE_WITHOUT = {
    "policy serial": "tasks",
    "- specialisation": "flops",
    "- lazy placement": "products",
    "- stacking": "products",
    "- fusion": "groups",
    "- merging": "rows",
    "batched - compiled loop": "calls",
    "- segments": "instructions",
    "- segments - fusion": "groups",
}


@pytest.fixture(scope="module")
def job() -> Job:
    return make_job("tree-lstm")


@pytest.fixture(scope="module")
def counted(job: Job) -> dict[str, Counts]:
    """Count what every variant runs on the CPU; nothing is compiled for that."""
    batch = first_graphs(job, GRAPHS)
    found = {}
    for variant in variants("cpu", THREADS):
        net = variant.setting.compile(job.make(4), "cpu", THREADS)
        found[variant.name] = count(net, batch)
    return found


AGAINST = {v.name: v.against for v in variants("cpu", THREADS)}


@pytest.mark.parametrize(("name", "what"), FEWER_WITH.items())
def test_a_switch_that_is_on_makes_fewer(name: str, what: str, counted: dict[str, Counts]) -> None:
    assert counted[f"+ {name}"][what] < counted[AGAINST[f"+ {name}"]][what]


@pytest.mark.parametrize(("name", "what"), MORE_WITHOUT.items())
def test_a_switch_that_is_off_makes_more(name: str, what: str, counted: dict[str, Counts]) -> None:
    assert counted[name][what] > counted[AGAINST[name]][what]


def test_engines_groups_and_eager_placement_change_what_runs(counted: dict[str, Counts]) -> None:
    assert "instructions" not in counted[BASELINE]
    assert counted["+ persistent engine"]["instructions"] > counted[BASELINE]["launches"]
    assert "instructions" not in counted["- persistent engine"]
    assert counted[ALL_ON]["waits"] == 0
    assert counted["groups of 2"]["waits"] > 0
    assert counted["+ persistent, groups of 2"]["waits"] > 0
    # without eager placement, what leaves do is one launch, before the tasks it was two
    assert counted["- eager placement"]["launches"] < counted[ALL_ON]["launches"]


def test_controls_run_what_their_heads_run(counted: dict[str, Counts]) -> None:
    for head in (BASELINE, ALL_ON):
        assert counted[head + AGAIN] == counted[head]


def test_what_is_off_by_default_is_not_there(job: Job) -> None:
    """Nothing is wrapped and nothing cut once more: the default costs nothing."""
    batch = first_graphs(job, GRAPHS)
    net = vrt.compile(job.make(4), device="cpu", threads=1)
    (run,) = net.executor.model.prepare(TRAINING, batch)
    assert type(run.ready.executable) is CpuExecutable
    tasks = segment_tasks(run.variant.tasks, alone=True)
    assert all(len(t.segments) == 1 for t in tasks)
    assert [t.task for t in tasks] == run.variant.tasks


class Waits:
    """A network that notes when it is waited for."""

    def __init__(self) -> None:
        self.waited = 0

    def step(self, batch: vrt.GraphBatch, optimizer: vrt.Optimizer) -> float:
        return 0.0

    def sync(self) -> float:
        self.waited += 1
        return 0.0


def test_a_host_that_waits_waits_after_each_step(job: Job) -> None:
    net = Waits()
    for waits in (False, True):
        Stepper(net, waits).train(first_graphs(job, 1), 0.0)  # type: ignore[arg-type]
        assert net.waited == waits


def test_switches_of_a_gpu_change_what_its_persistent_kernel_runs(job: Job) -> None:
    batch = first_graphs(job, GRAPHS)

    def counts(passes: Passes) -> Counts:
        return count(on_paper(job.make(4), 2, passes=passes), batch)

    behind = Passes(gradients=False)
    whole, stays, stepwise, summed = (
        counts(replace(behind, **change))
        for change in ({}, {"hold": False}, {"segment": False}, {"gradients": True})
    )
    assert stays["unheld_bytes"] > whole["unheld_bytes"] == 0
    assert stays["instructions"] == whole["instructions"] < stepwise["instructions"]
    assert summed["instructions"] < whole["instructions"]


def test_streams_share_what_a_gpu_launches(job: Job) -> None:
    batch = first_graphs(job, 1)
    plan = {v.name: v for v in variants("cuda", 1)}

    def counts(name: str) -> Counts:
        setting = plan[name].setting
        assert setting.engine == "batched"
        net = on_paper(
            job.make(4), 1, policy=setting.policy, passes=setting.passes, engine="batched"
        )
        return count(net, batch)

    for streams in (2, 4):
        for name in (f"+ {streams} streams", f"batched, {streams} streams"):
            one, several = counts(plan[name].against), counts(name)
            assert "streams" not in one
            assert 2 <= several["streams"] <= streams
            assert 0 < several["on_other_streams"] < several["kernels"] + several["library"]
            assert several["waits"] > 0
            assert several["launches"] == one["launches"]
            assert several["kernels"] == one["kernels"]


@pytest.mark.parametrize(
    ("device", "threads", "names"),
    [
        (
            "cpu",
            1,
            "streams, weights on chip, gradients on chip, asynchronous host, group size",
        ),
        ("cpu", 2, "streams, weights on chip, gradients on chip, asynchronous host"),
        ("cuda", 1, "compiled loop, timed products"),
    ],
)
def test_every_switch_is_a_variant_or_said_to_be_missing(
    device: str, threads: int, names: str
) -> None:
    lacking = missing(device, threads)
    assert list(lacking) == names.split(", ")
    assert all(len(because) > 20 for because in lacking.values())
    have = {v.name for v in variants(device, threads)}
    assert len(have) == len(variants(device, threads)), "what is timed goes by its name"
    assert ("+ asynchronous host" in have) == (device == "cuda")
    assert ("+ compiled loop" in have) == (device == "cpu")
    assert ({"timed products", "- register tiles"} <= have) == (device == "cpu")
    assert ("- weights on chip" in have) == (device == "cuda")
    assert {"+ 2 streams", "batched, 2 streams"} <= have or device != "cuda"
    for name in ("+ persistent, gradients on chip", f"groups of 16 {GRADIENTS}"):
        assert (name in have) == (device == "cuda")
    assert "- segments" in have
    assert ("groups of 2" in have) == (device == "cpu" and threads == 2)
    assert all(v.against in have for v in variants(device, threads))


SMALL = ["bench", "ablation", "--hidden", "4", "--batch-sizes", "1", "--seconds", "0"]
HERE = ["--device", "reference", "--threads", "2"]


FEW = [BASELINE, BASELINE + AGAIN, "+ policy agenda", ALL_ON, ALL_ON + AGAIN]
FEW += ["- persistent engine", "batched - compiled loop"]
PLAN = [v for v in variants("reference", THREADS) if v.name in FEW]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run few variants, on as few graphs, in as few rounds: the reference is slow."""
    monkeypatch.setattr(ablation, "ROUNDS", (2, 2))
    monkeypatch.setattr(ablation, "CHECKED_GRAPHS", 2)
    monkeypatch.setattr(ablation, "variants", lambda device, threads: PLAN)


@pytest.mark.usefixtures("few")
def test_a_run_checks_counts_times_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, *HERE, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "not available here: streams, because a CPU has no streams" in printed.out
    assert "variants agree with reference" in printed.err
    record = read(tmp_path / "ablation-tree-lstm.json")
    assert record.complete
    assert [c["where"] for c in record.checks] == ["tree-lstm, batch 2", "tree-lstm, batch 1"]
    assert {m["name"] for m in record.missing} >= {"streams", "asynchronous host"}
    found = [(e.key["family"], e.key["variant"]) for e in record.entries]
    assert sorted(found) == sorted([(v.family, v.name) for v in PLAN] + [("total", ALL_ON)])
    for entry in record.entries:
        assert len(entry.samples) == 2
        assert entry.counts["launches"] > 0
        assert (entry.against is None) == (entry.key["variant"] == entry_head(entry.key["family"]))
        assert (entry.ratio is None) == (entry.verdict is None) == (entry.against is None)


def entry_head(family: object) -> str:
    return {"one on": BASELINE, "one off": ALL_ON}.get(str(family), "")


@pytest.mark.usefixtures("few")
def test_a_variant_that_differs_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(taken: Taken) -> None:
        if taken.executor.model.policy == "agenda":
            for value in taken.outputs.values():
                value += 1e-2

    watch_steps(monkeypatch, after=spoil)
    assert main([*SMALL, *HERE, "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().err
    assert "[check, tree-lstm, batch 2] the output of + policy agenda differs" in shown
    record = read(tmp_path / "ablation-tree-lstm.json")
    assert not record.complete
    assert record.entries == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--batch-sizes", "100000"], "at most 4,000, the graphs of tree-lstm's data"),
        (["--batch-sizes", "0"], "expected a whole number, 1 or more"),
        (["--model", "tree-lstn"], "no model is called 'tree-lstn'"),
        (["--out", "/proc/none"], "[--out]"),
    ],
)
def test_wrong_words_are_said(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["bench", "ablation", "--hidden", "4", "--seconds", "0"]
    if "--batch-sizes" not in words:
        small += ["--batch-sizes", "1"]
    assert main([*small, *HERE, *words]) == 2
    assert text in capsys.readouterr().err
