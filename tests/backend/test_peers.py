"""`python -m benchmarks.peers` without PyTorch: vertexrt alone, and what is written."""

import importlib.util
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main
from vertexrt.bench.measure import BOUNDS
from vertexrt.bench.record import read

BENCH = ["--device=cpu", "--threads=1"]
SMALL = ["--hidden=8", "--batch-sizes=2,3", "--seconds=0.02", "--leaves=4", "--length=6"]
GENERATED = ["--trees", "generated", "--text", "generated"]


def test_ours_alone_is_checked_timed_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = ["--suite", "tree-lstm,fixed-lstm", "--engines", "batched,batched:unmerged,again"]
    out = ["--peers", "none", "--out", str(tmp_path)]
    assert main([*BENCH, *SMALL, *GENERATED, *suites, *out]) == 0
    printed = capsys.readouterr()
    assert "tree-lstm, batch 4: 4 variants agree with reference" in printed.err
    assert "small grammar" in printed.err  # generated data are named
    record = read(tmp_path / "peers.json")
    assert record.complete
    assert record.machine["python"]
    assert record.machine["versions"]["llvmlite"]
    assert record.machine["threads"] == 1
    assert len(record.checks) == 2 * (1 + 2)
    assert all(entry["largest_difference"] <= entry["bound"] for entry in record.checks)
    assert [tuple(e.key.values()) for e in record.entries] == [
        (suite, mode, size, variant)
        for suite in ("tree-lstm", "fixed-lstm")
        for size in (2, 3)
        for mode in ("train", "infer")
        for variant in ("vertexrt", "vrt-batched:unmerged", "vrt-again")
    ]
    assert printed.out.count("graphs/s") == len(record.entries)
    for entry in record.entries:
        low, high = entry.quartiles
        assert 0 < low <= entry.median <= high
        assert len(entry.samples) >= 3
        assert (entry.ratio is None) == (entry.key["variant"] == "vertexrt")


def test_a_difference_ends_the_run_and_keeps_what_was_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(BOUNDS, "float32", -1.0)
    suite = ["--suite=fixed-lstm", "--peers=none", f"--out={tmp_path}"]
    assert main([*BENCH, *SMALL, *GENERATED, *suite]) == 1
    assert "[check, fixed-lstm, batch 4] the loss of vertexrt differs" in capsys.readouterr().err
    record = read(tmp_path / "peers.json")
    assert not record.complete
    assert record.entries == []


@pytest.mark.parametrize(
    ("peer", "missing", "name", "action"),
    [
        ("torch", "torch", "PyTorch", 'pip install -e ".[torch]" numba'),
        ("torch", "numba", "numba", 'pip install -e ".[torch]" numba'),
        ("dynet", "dynet", "DyNet", "pip install dynet38"),
    ],
)
def test_a_missing_peer_is_said_and_what_to_do(
    peer: str,
    missing: str,
    name: str,
    action: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda module: None if module == missing else True
    )
    assert main([*BENCH, *SMALL, *GENERATED, "--suite", "tree-lstm", "--peers", peer]) == 2
    shown = capsys.readouterr().err
    assert f"[peers] {name} is not installed; " in shown
    assert action in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--peers", "none", "--engines", "none"], "something to time"),
        (["--peers", "dynet", "--suite", "tree-fc"], "dynet with tree-fc"),
        (["--peers", "dynet", "--suite", "tree-lstm", "--dtype", "float64"], "float64"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    words: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert main([*BENCH, *words]) == 2
    assert text in capsys.readouterr().err
