"""`vertexrt train --trace` writes a timeline of three minibatches, or says why it cannot."""

import json
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.devices import shim
from tests.shim_device import put_in_place
from tests.train.cli_runs import records, train, write_trees
from vertexrt.cli.main import main
from vertexrt.cli.train import KEPT, WARM_UP

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


@shim
def test_a_run_on_a_gpu_writes_one_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in_place(monkeypatch)
    trees, file = write_trees(tmp_path / "trees", train=7, dev=1, test=1), tmp_path / "trace.json"
    words = ("--engine", "persistent", "--device", "cuda", "--processors", "2", "--epochs", "1")
    words += ("--batch-size", "1", "--trace", str(file))
    assert train(trees, tmp_path / "run", *words) == 0
    assert f"timeline of {KEPT} minibatches: {file}" in capsys.readouterr().out
    slices = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["args"]["run"] for e in slices} == set(range(KEPT))
    assert {"path.0", "weights", "update"} <= {e["name"] for e in slices}


def test_a_run_too_short_for_a_timeline_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees, file = write_trees(tmp_path / "trees", train=8), tmp_path / "trace.json"
    traced = (*PERSISTENT, "--epochs", "1", "--trace", str(file))
    assert train(trees, tmp_path / "run", *traced) == 0
    expected = f"no timeline: it starts after {WARM_UP} minibatches, and there were 2"
    assert expected in capsys.readouterr().out
    assert not file.exists()


def test_processors_are_kept_with_the_run(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees")
    # Dropout draws anew for each group.
    persistent = ("--engine", "persistent", "--epochs", "1", "--dropout", "0")
    for name, more in (("two", ("--processors", "2")), ("one", ("--processors", "1"))):
        assert train(trees, tmp_path / name, *persistent, "--threads", "2", *more) == 0
    options = vrt.load_checkpoint(tmp_path / "two" / "last.safetensors").meta["options"]
    assert (options["processors"], options["threads"]) == (2, 2)
    two, one = records(tmp_path / "two"), records(tmp_path / "one")
    assert [r["loss"] for r in two] == pytest.approx([r["loss"] for r in one], rel=1e-5)
    run = str(tmp_path / "two")
    assert main(["train", "--resume", run, "--epochs", "2"]) == 0
    more = ["--epochs", "3", "--threads", "3", "--processors", "3"]
    assert main(["train", "--resume", run, *more]) == 0
    assert main(["eval", run, "--threads", "1"]) == 0


def test_without_threads_there_are_whole_groups(tmp_path: Path) -> None:
    trees = write_trees(tmp_path / "trees", train=8)
    five = ("--engine", "persistent", "--epochs", "1", "--processors", "5")
    assert train(trees, tmp_path / "run", *five) == 0
    options = vrt.load_checkpoint(tmp_path / "run" / "last.safetensors").meta["options"]
    assert options["threads"] % 5 == 0


def test_processors_that_do_not_divide_the_threads_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "tree-lstm", "--out", str(tmp_path / "run"), "--processors", "3"]
    assert main([*words, "--engine", "persistent", "--threads", "4"]) == 2
    shown = capsys.readouterr().err
    assert "[--processors] groups of 3 processors with 4 threads" in shown
    assert "Give --threads 6, or a divisor of 4" in shown
    assert main([*words, "--engine", "auto"]) == 2
    assert "[--processors] the engine is auto" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["batched", "auto"])
def test_engines_without_processors_are_refused(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "tree-lstm", "--engine", engine, "--trace", str(tmp_path / "trace.json")]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("")
    assert main([*words, "--out", str(tmp_path / "full")]) == 2  # before the folder is looked at
    assert "[--trace] the engine is" in capsys.readouterr().err
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
