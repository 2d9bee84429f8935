"""`vertexrt train` writes what it promises, stops when it should, and resumes to the same bits."""

import json
import math
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.device_rows import Taken, put_row, watch_steps
from tests.train.cli_runs import (
    SMALL,
    TRAIN,
    records,
    require_same_checkpoint,
    train,
    without_times,
    write_trees,
)
from vertexrt.cli.interrupt import Interrupt
from vertexrt.cli.main import main
from vertexrt.cli.options import TASKS
from vertexrt.config import usable_threads
from vertexrt.engine import devices
from vertexrt.engine.executor import Executor
from vertexrt.engine.variant import CompileOptions
from vertexrt.errors import NumericError, number_of
from vertexrt.ir.program import Program

DROPOUT = ("--dropout", "0.2")  # so that the random state matters


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trees(tmp_path_factory.mktemp("trees"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train three epochs without an interruption."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert train(data, out, "--epochs", "3", *DROPOUT) == 0
    return out


def interrupt_after(monkeypatch: pytest.MonkeyPatch, minibatches: int) -> None:
    """Let the signal SIGTERM be noted after so many minibatches."""

    def after(taken: Taken) -> None:
        if taken.number == minibatches:
            signal.raise_signal(signal.SIGTERM)

    watch_steps(monkeypatch, after=after)


def spoil_before(monkeypatch: pytest.MonkeyPatch, minibatch: int) -> None:
    """Let a parameter be no number before a minibatch, the first of which is 1."""

    def before(taken: Taken) -> None:
        if taken.number == minibatch:
            store = taken.executor.model.store
            store.refresh()
            store.value("v")[...] = math.nan

    watch_steps(monkeypatch, before=before)


def test_a_run_leaves_what_it_promises(whole: Path) -> None:
    names = {path.name for path in whole.iterdir()}
    checkpoints = {"last.safetensors", "best.safetensors"}
    pictures = {"curve.png", "confusion.png"}
    assert names - pictures == {"config.json", "metrics.jsonl", *checkpoints}
    lines = records(whole)
    assert [(line["epoch"], line["split"]) for line in lines[:-1]] == [
        (epoch, split) for epoch in (1, 2, 3) for split in ("train", "dev")
    ]
    assert lines[-1]["split"] == "test"
    for line in lines:
        assert list(line) == [
            *("epoch", "split", "loss", *TASKS["classification"].measures),
            *("graphs_per_s", "seconds", *(["lr"] if line["split"] == "train" else [])),
        ]
        assert 0.0 <= line["root_accuracy"] <= 1.0
        assert line["graphs_per_s"] > 0
    assert lines[4]["loss"] < lines[0]["loss"]


def test_the_best_checkpoint_has_the_best_dev_value(whole: Path) -> None:
    dev = [line for line in records(whole) if line["split"] == "dev"]
    state = vrt.load_checkpoint(whole / "best.safetensors").meta["state"]
    best = max(dev, key=lambda line: (line["root_accuracy"], -line["loss"]))
    assert (state["best"], state["best_loss"]) == (best["root_accuracy"], best["loss"])
    assert state["best_epoch"] == state["epoch"] == best["epoch"]


def test_the_last_lines(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a run"
    assert train(data, out, "--epochs", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        f"tree-lstm (classification, embed 5, hidden 6, dropout 0.3) on {data} "
        "(24 / 8 / 8 graphs): adagrad, lr 0.05, batch size 8, seed 0, 1 epoch; "
        f"auto, {number_of(usable_threads(), 'thread')}"
    )
    assert lines[1].startswith("epoch 1/1  train loss ")
    assert " graphs/s, " in lines[1]
    assert len(lines[1]) < 100
    best, test, run, evaluate, resume = lines[-5:]
    assert best.startswith("best dev root accuracy ")
    assert best.endswith("(epoch 1 of 1)")
    assert test.startswith("test of that checkpoint: loss ")
    assert run == f"run: {out}"
    assert evaluate == f"evaluate it: vertexrt eval '{out}' --split test"
    assert resume == f"train it further: vertexrt train --resume '{out}' --epochs 2"


def test_a_terminal_shows_a_bar(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert train(data, tmp_path / "run", "--epochs", "1") == 0
    shown = capsys.readouterr()
    assert "epoch 1/1   0%|" in shown.err
    assert f"{TRAIN}/{TRAIN} [" in shown.err
    assert ", loss " in shown.err
    assert " graphs/s]" in shown.err
    assert shown.out.splitlines()[1].startswith("epoch 1/1  train loss ")


def test_quiet_prints_the_result_only(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(data, tmp_path / "run", "--epochs", "1", "--quiet") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("best dev")
    assert shown.err == ""


def test_the_same_seed_gives_the_same_bits(data: Path, whole: Path, tmp_path: Path) -> None:
    assert train(data, tmp_path / "again", "--epochs", "3", *DROPOUT) == 0
    require_same_checkpoint(tmp_path / "again" / "last.safetensors", whole / "last.safetensors")
    assert without_times(tmp_path / "again") == without_times(whole)
    assert train(data, tmp_path / "other", "--epochs", "3", "--seed", "1", *DROPOUT) == 0
    assert without_times(tmp_path / "other") != without_times(whole)


@pytest.mark.parametrize("minibatches", [1, 4, 6])  # of 3 an epoch: inside, inside, at an end
def test_resume_after_an_interruption(
    minibatches: int,
    data: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_after(patch, minibatches)
        assert train(data, run, "--epochs", "3", *DROPOUT) == 143
    shown = capsys.readouterr().err
    assert f"checkpoint {run / 'last.safetensors'} written" in shown
    assert f"continue it: vertexrt train --resume {run}" in shown
    state = vrt.load_checkpoint(run / "last.safetensors").meta["state"]
    assert state["epoch"] * 3 + state["batch"] == minibatches
    assert main(["train", "--resume", str(run)]) == 0
    for name in ("last.safetensors", "best.safetensors"):
        require_same_checkpoint(run / name, whole / name)
    assert without_times(run) == without_times(whole)


def test_resume_on_the_cpu_backend(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--epochs", "2", "--device", "cpu", "--threads", "2", "--optimizer", "adam", *DROPOUT)
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(data, whole, *words) == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        assert train(data, run, *words) == 143
    assert main(["train", "--resume", str(run)]) == 0
    require_same_checkpoint(run / "last.safetensors", whole / "last.safetensors")
    assert without_times(run) == without_times(whole)


def test_resume_goes_on_with_more_epochs(data: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(data, run, "--epochs", "2", *DROPOUT) == 0
    assert main(["train", "tree-lstm", "--resume", str(run), "--epochs", "3"]) == 0
    require_same_checkpoint(run / "last.safetensors", whole / "last.safetensors")
    assert without_times(run) == without_times(whole)


def test_resume_drops_lines_that_its_checkpoint_does_not_know(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(data, run, "--epochs", "2", *DROPOUT) == 0
    with (run / "metrics.jsonl").open("a") as file:  # as after a crash before the checkpoint
        file.write(json.dumps({"epoch": 3, "split": "train", "loss": 0.0}) + "\n")
    assert main(["train", "--resume", str(run), "--epochs", "3"]) == 0
    assert without_times(run) == without_times(whole)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("tree-fc", 1, "is a run of tree-lstm; expected one of tree-fc, the model that was named"),
        ("--hidden 7", 2, "got --hidden 7, the run {run} has 6; only --data, --epochs, --lr, "),
        ("--batch-size 9", 2, "got --batch-size 9, the run {run} has 8"),
        ("--out elsewhere", 2, "[--out] got elsewhere with --resume"),
    ],
)
def test_resume_changes_nothing_that_matters(
    words: str, code: int, text: str, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", str(whole), *words.split()]) == code
    assert text.format(run=whole) in capsys.readouterr().err


def test_resume_wants_the_same_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_trees(tmp_path / "data")
    assert train(data, tmp_path / "run", "--epochs", "1") == 0
    write_trees(data, train=TRAIN - 1)
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "run"), "--epochs", "2"]) == 1
    shown = capsys.readouterr().err
    assert "[--resume] the " in shown
    assert f"splits of '{data}' are not those of {tmp_path / 'run'}" in shown


def test_patience_ends_a_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(data, run, "--epochs", "9", "--patience", "2", "--lr", "0") == 0
    assert "stopped early: no better dev value for 2 epochs" in capsys.readouterr().out
    assert records(run)[-2]["epoch"] == 3
    assert main(["train", "--resume", str(run), "--patience", "3"]) == 0
    assert records(run)[-2]["epoch"] == 4


def test_a_loss_that_is_not_finite_stops_training(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    spoil_before(monkeypatch, 5)  # the second minibatch of the second epoch
    assert train(data, run, "--epochs", "3") == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "vertex" in shown
    assert shown.endswith(f"The last good checkpoint is {run / 'last.safetensors'}.\n")
    checkpoint = vrt.load_checkpoint(run / "last.safetensors")
    assert checkpoint.meta["state"]["epoch"] == 1
    assert all(np.isfinite(value).all() for value in checkpoint.parameters.values())
    assert [line["epoch"] for line in records(run)] == [1, 1]


def test_parameters_that_are_not_finite_are_never_saved(data: Path, tmp_path: Path) -> None:
    from vertexrt.cli import session as run_state
    from vertexrt.cli.options import parse
    from vertexrt.cli.session import make_optimizer, open_session, resolve

    given = parse(["train", "tree-lstm", "--data", str(data), *SMALL])
    options = resolve(given)
    session = open_session(options)
    session.net.executor.model.store.value("b")[0] = math.inf
    text = r"^\[save_checkpoint\] the parameter 'b' is not finite; finite numbers; nothing was"
    path = tmp_path / "last.safetensors"
    with pytest.raises(NumericError, match=text):
        run_state.save(path, session, make_optimizer(session), run_state.RunState())
    assert not path.exists()


def test_an_interrupt_before_training_leaves_at_once(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = devices.module_of("reference")

    def compile_for(traced: Program, options: CompileOptions) -> Executor:
        signal.raise_signal(signal.SIGINT)
        return row.compile_for("reference", traced, options)

    put_row(monkeypatch, "reference", row, compile_for)
    before = signal.getsignal(signal.SIGINT)
    assert train(data, tmp_path / "run") == 130
    assert "interrupted before the end" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_does_not_wait() -> None:
    from vertexrt.cli.interrupt import Interrupted

    with Interrupt() as interrupt:
        interrupt.defer()
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.number == signal.SIGTERM
        with pytest.raises(Interrupted) as stop:
            signal.raise_signal(signal.SIGINT)
    assert stop.value.number == signal.SIGINT


def test_a_default_folder_is_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vertexrt.cli import run_folder

    monkeypatch.chdir(tmp_path)
    first, second = run_folder.fresh(None, "tree-lstm"), run_folder.fresh(None, "tree-lstm")
    assert first.path != second.path
    assert first.path.parent == Path("runs")
    assert first.path.name.startswith("tree-lstm-2")
