"""Options of a file: TOML, or the config.json that a run leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.train.cli_runs import COMMAND, ROOT, SMALL, require_same_checkpoint, train, write_trees
from vertexrt.cli.main import main
from vertexrt.cli.options import parse


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = write_trees(tmp_path_factory.mktemp("trees"))
    out = tmp_path_factory.mktemp("runs") / "run"
    more = ("--epochs", "1", "--set", "arity=3", "--momentum", "0.5", "--optimizer", "sgd")
    assert train(data, out, *more, "--lr", "0.01") == 0
    return out


def test_a_run_is_repeated_from_its_configuration(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = json.loads((run / "config.json").read_text())
    assert (stored["model"], stored["set"], stored["hidden"]) == ("tree-lstm", {"arity": 3}, 6)
    words = ["train", "--config", str(run / "config.json")]
    assert main([*words, "--out", str(tmp_path / "again")]) == 0
    require_same_checkpoint(run / "best.safetensors", tmp_path / "again" / "best.safetensors")
    # The command line comes first.
    given = parse([*words, "--lr", "0.5", "--set", "arity=2"])
    assert (given.lr, given.set, given.momentum) == (0.5, [("arity", 2)], 0.5)
    # A run folder stands for its configuration.
    capsys.readouterr()
    assert main(["explain", str(run)]) == 0
    assert "TreeLSTM: 3 children, state c[6], h[6]" in capsys.readouterr().out


def test_toml(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('model = "tree-fc"\nhidden = 4\nepochs = 2\nlr = 1e-2\nset = {vocab = 7}\n')
    given = parse(["train", "--config", str(path), "--epochs", "3"])
    assert (given.model, given.hidden, given.epochs, given.lr) == ("tree-fc", 4, 3, 0.01)
    assert given.set == [("vocab", 7)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("epochs = ", "Invalid value"),
        ("epoch = 3", "unknown option '--epoch'"),
        ("epochs = 0", "[--epochs] got '0'; expected a whole number, 1 or more;"),
        ("epochs = [1]", "epochs is [1]; expected options by their long names: epochs = 3;"),
        ("set = 3", "set is 3; expected options by their long names: epochs = 3; those of --set"),
        ("a = " + "[" * 100_000, "maximum recursion depth exceeded"),
        ("epochs = 1" + "0" * 20_000, "Exceeds the limit (4300 digits)"),
        ("epochs = 0x1" + "0" * 20_000, "epochs is a number of too many digits; expected options"),
        # A file that others wrote chooses no place to write to, and no other file.
        ('trace = "victim"', "my.toml] it says --trace; expected what decides over the result;"),
        ('"trace=victim" = true', "unknown option '--trace=victim'"),
        ("help = true", "unknown option '--help'"),
        ("epochs = true", "epochs is True; expected options by their long names"),
        ("set = {a = inf}", "my.toml] a is inf; expected true, false, a finite number or a text"),
        ("epochs = nan", "epochs is nan; expected options by their long names"),
        ("batch_size = 4\nbatch-size = 8", "two values of --batch-size; expected options by"),
        ("epochs = 2020-01-01", "epochs is datetime.date(2020, 1, 1); expected options by"),
        ('out = "victim"', "it says --out; "),
        ('resume = "victim"', "it says --resume; "),
        ("continue = true", "it says --continue; "),
        ('config = "my.toml"', "it says --config; "),
    ],
)
def test_what_is_no_configuration(
    text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(text)
    assert main(["train", "tree-lstm", "--config", str(path), *SMALL]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert error in shown
    (tmp_path / "my.json").write_text("[1]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    os.mkfifo(tmp_path / "pipe.toml")
    for name, got in (
        ("my.json", "it is [1]; expected options"),
        ("deep.json", "more than 32 levels"),
        ("pipe.toml", "it is not a plain file"),
        ("none", "No such file"),
    ):
        assert main(["train", "tree-lstm", "--config", str(tmp_path / name)]) == 2
        assert got in capsys.readouterr().err


def test_a_model_in_a_file_is_no_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    path.write_text('model = "--trace=victim"')
    assert main(["train", "--config", str(path)]) == 2
    assert "no model is called '--trace=victim'" in capsys.readouterr().err


def test_a_precision_that_does_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    data = write_trees(tmp_path / "data")
    words = ["explain", "tree-lstm", "--data", str(data), *SMALL[:-2], "--precision", "tf32"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(
        "device: cpu (auto); --precision tf32 is of a GPU and does nothing here\n"
    )


def test_training_goes_on_without_a_reader(tmp_path: Path) -> None:
    data, run = write_trees(tmp_path / "data"), tmp_path / "run"
    words = [*COMMAND, "train", "tree-lstm", "--data", str(data), "--out", str(run), *SMALL]
    line = " ".join([*words, "--epochs", "2"]) + " | head -1"
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert "nobody reads the output any more; training goes on without it" in done.stderr
    assert vrt.load_checkpoint(run / "last.safetensors").meta["state"]["epoch"] == 2
