"""`vertexrt train --trace` writes a timeline of three minibatches, or says why it cannot."""

import json
from pathlib import Path

import pytest

from tests.train.cli_runs import records, train, write_trees
from vertexrt.cli.main import main
from vertexrt.cli.trace import KEPT, WARM_UP

PERSISTENT = ("--engine", "persistent", "--device", "cpu", "--threads", "2", "--batch-size", "4")


def test_a_run_writes_the_timeline_of_its_first_minibatches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, file = write_trees(tmp_path / "trees"), tmp_path / "trace.json"
    traced = (*PERSISTENT, "--epochs", "2", "--trace", str(file))
    assert train(trees, tmp_path / "run", *traced) == 0
    assert f"timeline of {KEPT} minibatches: {file}" in capsys.readouterr().out
    events = json.loads(file.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["args"]["run"] for e in slices} == set(range(KEPT))
    assert any(e["name"] == "path.0" for e in slices)
    assert train(trees, tmp_path / "other", *PERSISTENT, "--epochs", "2") == 0
    one, other = records(tmp_path / "run"), records(tmp_path / "other")
    assert [r["loss"] for r in one] == [r["loss"] for r in other]


def test_a_run_too_short_for_a_timeline_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, file = write_trees(tmp_path / "trees", train=8), tmp_path / "trace.json"
    traced = (*PERSISTENT, "--epochs", "1", "--trace", str(file))
    assert train(trees, tmp_path / "run", *traced) == 0
    expected = f"no timeline: it starts after {WARM_UP} minibatches, and there were 2"
    assert expected in capsys.readouterr().out
    assert not file.exists()


@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_engines_without_processors_are_refused(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "tree-lstm", "--engine", engine, "--trace", str(tmp_path / "trace.json")]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    shown = capsys.readouterr().err
    assert f"[--trace] the engine is {engine}, which has no processors to trace" in shown
    assert "Add --engine persistent" in shown
    assert not (tmp_path / "run").exists()


def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "tree-lstm", "--engine", "persistent"]
    assert main([*words, "--trace", str(tmp_path / "nowhere" / "trace.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
