"""`--log tensorboard` writes the lines of metrics.jsonl as event files, too; read back here."""

import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.cli_runs import records, train, write_trees
from vertexrt.cli.main import main
from vertexrt.cli.run_folder import ScalarLog

Scalars = dict[tuple[str, int], float]


def event_files(run: Path) -> list[Path]:
    return sorted(run.glob("events.out.tfevents.*"))


def events(path: Path) -> list[Any]:
    """Read the records of a file: their length, its check sum, an event, its check sum."""
    from tensorboardX.proto.event_pb2 import Event

    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def scalars(paths: list[Path]) -> Scalars:
    """Return values by tag and step, as TensorBoard does: a start at a step drops what follows."""
    found: Scalars = {}
    for event in [event for path in paths for event in events(path)]:
        if event.WhichOneof("what") == "session_log":
            found = {key: value for key, value in found.items() if key[1] < event.step}
        for value in event.summary.value:
            assert value.tag.endswith("/test") or (value.tag, event.step) not in found
            found[value.tag, event.step] = value.simple_value
    return found


def of_metrics(run: Path) -> Scalars:
    return {
        (f"{name}/{line['split']}", line["epoch"]): value
        for line in records(run)
        for name, value in line.items()
        if name not in ("epoch", "split") and value is not None
    }


def assert_logged(run: Path) -> None:
    found, wanted = scalars(event_files(run)), of_metrics(run)
    assert set(found) >= set(wanted)
    assert {key[0] for key in found} == {key[0] for key in wanted}
    assert {key: found[key] for key in wanted} == pytest.approx(wanted, rel=1e-6)  # float32


def test_event_files_hold_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    data, run = write_trees(tmp_path / "data"), tmp_path / "run"
    logged = ("--log", "tensorboard")
    assert train(data, run, "--epochs", "2", "--schedule", "linear", "--lr", "0.1", *logged) == 0
    assert len(event_files(run)) == 1
    assert_logged(run)
    found = scalars(event_files(run))
    assert [found["lr/train", epoch] for epoch in (1, 2)] == pytest.approx([0.1, 0.05])
    assert {tag.split("/")[0] for tag, _ in found} >= {"loss", "root_accuracy", "graphs_per_s"}
    lost = ScalarLog()  # of an epoch whose checkpoint was not written any more
    lost.add(run, [{"epoch": 3, "split": "train", "loss": -1.0}])
    lost.close()
    assert scalars(event_files(run))["loss/train", 3] == -1.0
    time.sleep(1.1)  # names of event files count seconds
    assert main(["train", "--resume", str(run), "--epochs", "3", "--quiet", *logged]) == 0
    assert len(event_files(run)) == 3
    assert_logged(run)
    before = event_files(run)
    assert main(["train", "--resume", str(run), "--epochs", "4", "--quiet"]) == 0
    assert event_files(run) == before  # only where it is asked for


def test_a_missing_library_stops_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("tensorboardX", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    data, run = write_trees(tmp_path / "data"), tmp_path / "run"
    assert train(data, run, "--log", "tensorboard") == 2
    assert "pip install -e '.[tensorboard]' in the checkout" in capsys.readouterr().err
    assert not run.exists()
    assert train(data, run, "--log", "wandb") == 2
    assert "expected one of tensorboard" in capsys.readouterr().err
