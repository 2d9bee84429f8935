"""`python -m benchmarks.peers` without PyTorch: vertexrt alone, and what is written."""

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main
from benchmarks.peers.check import BOUNDS

SMALL = ["--hidden=8", "--batch=2,3", "--seconds=0.02", "--leaves=4", "--length=6"]
GENERATED = ["--trees", "generated", "--text", "generated"]


def test_ours_alone_is_checked_timed_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "peers.json"
    suites = ["--suite", "tree-lstm,fixed-lstm", "--engines", "batched,batched:unmerged"]
    assert main([*SMALL, *GENERATED, *suites, "--peers", "none", "--json", str(path)]) == 0
    printed = capsys.readouterr()
    assert "tree-lstm: batch 4 agrees with reference" in printed.err
    assert "small grammar" in printed.err  # generated data are named
    record = json.loads(path.read_text())
    assert record.keys() == {
        "benchmark",
        "date",
        "machine",
        "options",
        "unit",
        "suites",
        "checks",
        "results",
        "command",
        "complete",
    }
    assert record["complete"]
    assert record["command"][:3] == ["python", "-m", "benchmarks.peers"]
    assert record["machine"]["python"]
    assert record["machine"]["versions"]["numba"]
    assert len(record["checks"]) == 2 * (1 + 2)
    assert all(entry["largest_difference"] <= entry["bound"] for entry in record["checks"])
    assert [(r["suite"], r["batch_size"], r["mode"]) for r in record["results"]] == [
        (suite, size, mode)
        for suite in ("tree-lstm", "fixed-lstm")
        for size in (2, 3)
        for mode in ("train", "infer")
    ]
    lines = printed.out.splitlines()[1:]
    assert len(lines) == 2 * len(record["results"])
    for result in record["results"]:
        assert list(result["variants"]) == ["vertexrt", "vrt-batched:unmerged"]
        assert result["best_peer"] is None
        for entry in result["variants"].values():
            low, high = entry["quartiles"]
            assert 0 < low <= entry["median"] <= high
            assert len(entry["samples"]) >= 3


def test_a_difference_ends_the_run_and_keeps_what_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "peers.json"
    monkeypatch.setitem(BOUNDS, "float32", -1.0)
    suite = ["--suite=tree-fc", "--peers=none", f"--json={path}"]
    assert main([*SMALL, *suite]) == 2
    assert "[check, tree-fc, batch 4] the loss of vertexrt differs" in capsys.readouterr().err
    record = json.loads(path.read_text())
    assert not record["complete"]
    assert record["results"] == []


def test_missing_pytorch_is_said_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([*SMALL, *GENERATED, "--suite", "tree-fc"]) == 2
    assert "[peers] PyTorch is not installed; " in capsys.readouterr().err
