"""Ctrl-C and SIGTERM end a run after the current minibatch, with a checkpoint to continue from."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.train.cli_runs import (
    SMALL,
    require_same_checkpoint,
    start,
    train,
    without_times,
    write_trees,
)
from vertexrt.cli.main import main

EPOCHS = 40
SECONDS = 60


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for a process; return its exit code and what is left of its output."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_writes_a_checkpoint(number: signal.Signals, code: int, tmp_path: Path) -> None:
    data, run = write_trees(tmp_path / "data"), tmp_path / "run"
    more = ("--data", str(data), "--out", str(run), "--epochs", str(EPOCHS), "--dropout", "0.2")
    process = start("train", "tree-lstm", *SMALL, *more)
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("tree-lstm (classification, ")
    assert process.stdout.readline().startswith(f"epoch 1/{EPOCHS}")
    process.send_signal(number)
    returned, _, err = finish(process)
    watchdog.cancel()
    assert returned == code
    assert f"{number.name} came; stopped at epoch " in err
    assert f"continue it: vertexrt train --resume {run}" in err
    assert "Traceback" not in err
    state = vrt.load_checkpoint(run / "last.safetensors").meta["state"]
    assert 1 <= state["epoch"] < EPOCHS

    epochs = str(state["epoch"] + 1)
    assert main(["train", "--resume", str(run), "--epochs", epochs]) == 0
    assert train(data, tmp_path / "whole", "--epochs", epochs, "--dropout", "0.2") == 0
    require_same_checkpoint(run / "last.safetensors", tmp_path / "whole" / "last.safetensors")
    assert without_times(run) == without_times(tmp_path / "whole")
