"""What the papers show: weights that are loaded, scheduling, throughput, compile time."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import vertexrt as vrt
from benchmarks.papers import compile_once, schedule, throughput
from benchmarks.papers.__main__ import main
from benchmarks.papers.weights import device_bytes, held_bytes, loaded_bytes
from tests.backend.test_bench_breakdown import H, trees
from tests.paper_device import on_paper
from vertexrt import models
from vertexrt.bench.measure import TRAINING
from vertexrt.bench.record import read
from vertexrt.bench.run import first_graphs, make_job
from vertexrt.engine.batched import Run
from vertexrt.engine.variant import Passes


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


SMALL = ["--hidden", "4", "--batch-sizes", "1,2", "--hidden-sizes", "3"]
HERE = ["--device", "reference", "--threads", "1", "--seconds", "0", "--leaf-counts", "2,4"]


def test_schedule_throughput_and_weights_are_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "STEPS", (2, 2))
    monkeypatch.setattr(schedule, "GRAPHS", 2)
    monkeypatch.setattr(schedule, "WARM", 1)
    monkeypatch.setattr(throughput, "CHECKED_GRAPHS", 1)
    parts = ["--parts", "schedule,throughput,weights"]
    assert (
        main([*SMALL, *HERE, *parts, "--leaves", "2", "--model", "tree-fc", "--out", str(tmp_path)])
        == 0
    )
    record = read(tmp_path / "papers-tree-fc.json")
    assert record.complete
    scheduling = record.select(part="schedule", variant="share")
    sizes = [(e.key["against"], e.key.get("leaves"), e.key["batch_size"]) for e in scheduling]
    assert sizes == [
        ("leaves", 2, 2),
        ("leaves", 4, 2),
        ("batch size", None, 1),
        ("batch size", None, 2),
    ]
    assert all(0.0 < e.median < 100.0 for e in scheduling)
    speeds = record.select(part="throughput", variant="persistent")
    assert [(e.key["batch_size"], e.key["hidden"]) for e in speeds] == [(1, 4), (2, 4), (2, 3)]
    assert all(e.against == "batched" for e in speeds)
    assert len(record.checks) == 2
    loads = {str(e.key["variant"]): e.median for e in record.select(part="weights", batch_size=2)}
    assert loads["batched"] < loads["batched, one vertex a task"]
    assert loads["held on chip for a step"] <= loads["batched"]
    assert "schedule\nmodel" not in capsys.readouterr().err


def test_a_gpu_loads_weights_once_a_side_or_for_each_product() -> None:
    def loaded(hold: bool) -> float:
        net = on_paper(job.make(4), 2, passes=Passes(hold=hold))
        (run,) = net.executor.model.prepare(TRAINING, first_graphs(job, 6))
        return device_bytes(net, run)

    job = make_job("tree-lstm")
    assert loaded(hold=False) > 2 * loaded(hold=True) > 0


def test_compiling_is_timed_in_processes_with_caches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []
    original = subprocess.run

    class Done:
        returncode = 0
        stdout = '{"host": 3.0, "trace": 1.0, "first step": 2.0, "step": 0.5}\n'
        stderr = ""

    def run(words: list[str], env: dict[str, str] | None = None, **options: Any) -> Any:
        if env is None:
            return original(words, **options)
        seen.append(env)
        return Done()

    monkeypatch.setattr(subprocess, "run", run)
    assert main([*SMALL, *HERE, "--parts", "compile", "--out", str(tmp_path)]) == 0
    record = read(tmp_path / "papers-tree-lstm.json")
    found = {(e.key["engine"], e.key["cache"], e.key["variant"]): e.median for e in record.entries}
    assert found["batched", "cold", "first step"] == 2.0
    assert len(found) == 2 * 2 * 3
    folders = [env["VERTEXRT_CACHE"] for env in seen]
    assert len(folders) == 4  # cold and warm, of both engines
    assert folders[0] == folders[1] != folders[2] == folders[3]
    assert all(not Path(folder).exists() for folder in folders)


def test_one_process_says_how_long_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    compile_once.main(["tree-fc", "", "4", "batched", "reference", "1", "1"])
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"host", "trace", "first step", "step"}
    assert found["trace"] > 0.0
