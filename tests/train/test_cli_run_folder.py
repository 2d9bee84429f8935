"""A run folder belongs to one run at a time, and what a killed run leaves can be gone on with."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.train.cli_runs import (
    ROOT,
    SMALL,
    train,
    write_trees,
)
from vertexrt.cli import run_folder
from vertexrt.cli.main import main
from vertexrt.errors import CheckpointError, UsageError

LEFT = ".last.safetensors.0123abcd.tmp"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trees(tmp_path_factory.mktemp("trees"))


def hold(folder: Path) -> "subprocess.Popen[str]":
    """Lock a run folder in another process, which waits to be killed."""
    code = (
        "import sys, time, pathlib; from vertexrt.cli import run_folder;"
        "run_folder.take_lock(pathlib.Path(sys.argv[1]), '--out'); print('ready', flush=True);"
        "time.sleep(99)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_second_run_is_refused_until_the_first_is_gone(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs into one folder used to mix their metrics and to report each other's best."""
    run = tmp_path / "run"
    run.mkdir()
    process = hold(run)
    try:
        for words in (["--out", str(run)], ["--resume", str(run)]):
            assert main(["train", "tree-lstm", "--data", str(data), *SMALL, *words]) == 2
            assert capsys.readouterr().err == (
                f"vertexrt: [{words[0]}] process {process.pid} on {socket.gethostname()} is at "
                f"work in the run folder {run}; expected one run in a folder at a time; Wait for "
                "it to end, or give another folder.\n"
            )
    finally:
        process.kill()
        process.communicate()
    assert (run / run_folder.LOCK).exists()  # a kill leaves it, and it holds nobody up
    assert train(data, run, "--epochs", "1") == 0
    assert not (run / run_folder.LOCK).exists()


def test_where_the_file_system_has_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = run_folder.RunFolder(tmp_path, (), run_folder.take_lock(tmp_path, "--out"))
    with pytest.raises(UsageError, match=rf"process {os.getpid()} on .*; if it has ended, remove"):
        run_folder.take_lock(tmp_path, "--out")
    folder.close()
    assert os.listdir(tmp_path) == []
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock = tmp_path / run_folder.LOCK
    lock.write_text(f"process {gone.pid} on {socket.gethostname()}\n")
    run_folder.RunFolder(tmp_path, (), run_folder.take_lock(tmp_path, "--out")).close()
    for text in ("process 1 on another-machine\n", "nonsense", "process 99999999999 on x\n"):
        lock.write_text(text)
        with pytest.raises(UsageError, match="is at work in the run folder"):
            run_folder.take_lock(tmp_path, "--out")


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_lock_that_is_no_plain_file(
    kind: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lock = run / run_folder.LOCK
    if kind == "link":
        lock.symlink_to(tmp_path / "target")
    elif kind == "folder":
        lock.mkdir()
    else:
        os.mkfifo(lock)
    assert train(data, run, "--epochs", "1") == 2
    assert f"[--out] the run folder {run} cannot be written (" in capsys.readouterr().err
    assert not (tmp_path / "target").exists()


def test_killed_inside_the_first_save(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There --out said to use --resume, and --resume to use --out."""
    run = tmp_path / "run"
    run.mkdir()
    (run / LEFT).write_bytes(b"half of it")
    (run / run_folder.LOCK).write_text("process 1 on there\n")
    assert main(["train", "--resume", str(run)]) == 1
    assert f"Start the run again with --out {run}" in capsys.readouterr().err
    assert train(data, run, "--epochs", "1") == 0
    names = set(os.listdir(run)) - {"curve.png", "confusion.png"}
    assert names == {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"}


def test_no_link_in_a_run_folder_is_written_through(data: Path, tmp_path: Path) -> None:
    """`metrics.jsonl.new` as a link made --resume overwrite its target."""
    run, target = tmp_path / "run", tmp_path / "target"
    assert train(data, run, "--epochs", "1") == 0
    target.write_text("precious")
    for name in ("metrics.jsonl.new", "curve.new.png", "last.safetensors.tmp", LEFT):
        (run / name).symlink_to(target)
    (run / "curve.png").unlink(missing_ok=True)
    (run / "curve.png").symlink_to(target)
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    assert target.read_text() == "precious"
    assert not (run / LEFT).is_symlink()


def test_metrics_that_are_a_link(tmp_path: Path) -> None:
    folder = run_folder.RunFolder(tmp_path)
    folder.metrics.symlink_to(tmp_path / "target")
    (tmp_path / "target").write_text("")
    with pytest.raises(CheckpointError, match="the metrics cannot be written"):
        folder.append([{"epoch": 1, "split": "dev"}])
    assert (tmp_path / "target").read_text() == ""


def test_data_that_have_moved_are_named_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--data was refused, and without it nothing could be found."""
    data, run = write_trees(tmp_path / "data"), tmp_path / "run"
    assert train(data, run, "--epochs", "1") == 0
    data.rename(tmp_path / "moved")
    words = ["train", "--resume", str(run), "--epochs", "2"]
    assert main(words) == 2
    assert "there is no " in capsys.readouterr().err
    other = write_trees(tmp_path / "other", train=20)
    assert main([*words, "--data", str(other)]) == 1
    assert "are not those of " in capsys.readouterr().err
    assert main([*words, "--data", str(tmp_path / "moved")]) == 0
    assert vrt.load_checkpoint(run / "last.safetensors").meta["state"]["epoch"] == 2
