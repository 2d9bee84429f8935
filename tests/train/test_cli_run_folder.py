"""What a run folder holds: whose it is, what a killed run leaves, checkpoints field by field.

No file makes a traceback or a silent result.
"""

import errno
import fcntl
import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.messages import table
from tests.train.cli_runs import ROOT, Cli, Parts, train
from vertexrt.cli import run_folder
from vertexrt.errors import CheckpointError, UsageError

LEFT = ".last.safetensors.0123abcd.tmp"
LAST = Path("run/last.safetensors")
HOLD = """
import sys, time, pathlib
from vertexrt.cli import run_folder
run_folder.take_lock(pathlib.Path(sys.argv[1]), "--out")
print("ready", flush=True)
time.sleep(99)
"""


def test_a_second_run_is_refused_until_the_first_is_gone(cli: Cli) -> None:
    """Two runs into one folder used to mix their metrics and to report each other's best."""
    Path("new").mkdir()
    words = [sys.executable, "-c", HOLD, str(cli.folder / "new")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        for flag in ("--out", "--resume"):
            assert cli(f"train tree-lstm {flag} new", code=2) == (
                f"vertexrt: [{flag}] process {holder.pid} on {socket.gethostname()} is at work in "
                "the run folder new; expected one run in a folder at a time; Wait for it to end, "
                "or give another folder.\n"
            )
        holder.kill()
    assert Path("new", run_folder.LOCK).exists()  # a kill leaves it, and it holds nobody up
    Path("new", LEFT).write_bytes(b"half of it")
    told = "Start the run again with --out new"  # where --out said to use --resume
    assert told in cli("train --resume new", code=1)
    cli.train("new", "--epochs 1")
    names = set(os.listdir("new")) - {"curve.png", "confusion.png"}
    assert names == {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"}


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
def test_a_lock_that_is_no_plain_file(kind: str, cli: Cli) -> None:
    lock = Path("new", run_folder.LOCK)
    lock.parent.mkdir()
    make = {"link": lambda lock: lock.symlink_to("../target"), "folder": Path.mkdir}
    make.get(kind, os.mkfifo)(lock)
    told = "[--out] the run folder new cannot be written ("
    assert told in cli.train("new", "--epochs 1", code=2)
    assert not Path("target").exists()


def test_no_link_in_a_run_folder_is_written_through(cli: Cli) -> None:
    """`metrics.jsonl.new` as a link made --resume overwrite its target."""
    target = Path("target")
    target.write_text("precious")
    for name in ("metrics.jsonl.new", "curve.new.png", "curve.png", "last.safetensors.tmp", LEFT):
        Path("run", name).symlink_to(cli.folder / target)
    cli("train --resume run --epochs 4")
    assert target.read_text() == "precious"
    assert not Path("run", LEFT).is_symlink()
    folder = run_folder.RunFolder(Path())
    folder.metrics.symlink_to(target)
    with pytest.raises(CheckpointError, match="the metrics cannot be written"):
        folder.append([{"epoch": 1, "split": "dev"}])
    assert target.read_text() == "precious"


DEEP: Any = 0
for _ in range(500):
    DEEP = [DEEP]

# A field of a checkpoint's meta and the JSON in its place, and what is said.
FIELDS = table(__file__, "FIELDS")


@pytest.mark.parametrize(("field", "told"), FIELDS.items())
def test_a_field_that_is_not_ours(field: str, told: str, cli: Cli) -> None:
    parts = Parts(LAST)
    path, _, value = field.partition(" = ")
    *owners, name = path.split(".")
    owner = parts.meta
    for each in owners:
        owner = owner[each]
    owner[name] = json.loads(value)
    parts.write(LAST)
    assert told in cli("train --resume run --epochs 4", code=1)


@pytest.mark.parametrize("name", ["options", "state", "random", "data", "vocabularies"])
def test_a_field_that_is_missing(name: str, cli: Cli) -> None:
    parts = Parts(LAST)
    del parts.meta[name]
    parts.write(LAST)
    assert f"the field '{name}' is missing" in cli("eval run/last.safetensors", code=1)


def test_a_meta_that_is_none(cli: Cli) -> None:
    parts = Parts(LAST)
    parts.meta["state"] = DEEP
    parts.write(LAST)
    assert "more than 32 levels" in cli("train --resume run", code=1)
    parts.meta = []
    parts.write(LAST)
    assert "its meta is no object of JSON" in cli("train --resume run", code=1)


# Parameters and state of Adam: what is put in place of a tensor, or in its first element.
TENSORS: list[tuple[str, Any, str]] = [
    ("parameter/b", math.nan, "holds the parameter 'b' that is not finite"),
    ("optimizer/m/b", math.inf, "holds the optimizer state 'm/b' that is not finite"),
    ("optimizer/v/b", -1.0, " in 'v/b' at [0]; expected: finite floats, and no neg"),
    ("optimizer/v/", None, "the state holds moments m; expected: m, v"),
    ("optimizer/steps", np.array(99, np.int64), "99 steps in 1 epochs and 0 minibatches"),
    ("optimizer/steps", np.array([1, 2]), "'steps' of shape (2,), int64; expected: one whole numb"),
    ("parameter/b", np.ones(24, np.int64), "holds the parameter 'b' of dtype int64"),
    ("b", np.ones(3), "holds a tensor 'b'; parameters, averages and an optimizer's state"),
]


@pytest.fixture(scope="module")
def adam(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert train(prepared / "data", out, "--epochs", "1", "--optimizer", "adam") == 0
    return out / "last.safetensors"


@pytest.mark.parametrize(("name", "value", "told"), TENSORS)
def test_a_tensor_that_is_not_ours(name: str, value: Any, told: str, cli: Cli, adam: Path) -> None:
    parts = Parts(adam)
    if value is None:
        parts.tensors = {k: v for k, v in parts.tensors.items() if not k.startswith(name)}
    elif isinstance(value, float):
        parts.tensors[name][0] = value
    else:
        parts.tensors[name] = value
    parts.write(LAST)
    assert told in cli("train --resume run --epochs 2", code=1)


def test_an_optimizer_of_another_class(cli: Cli) -> None:
    parts = Parts(LAST)
    parts.optimizer["class"] = "Adam"
    parts.write(LAST)
    told = "the optimizer is not the one that the options name"
    assert told in cli("train --resume run --epochs 4", code=1)


def test_eval_refuses_parameters_that_are_not_finite(cli: Cli) -> None:
    """It printed `loss nan` and ended with 0."""
    parts = Parts(LAST)
    parts.tensors["parameter/b"][0] = math.nan
    parts.write(LAST)
    told = "the parameter 'b' that is not finite"
    assert told in cli("eval run/last.safetensors", code=1)
