"""`vertexrt train --average`: a run is judged by the moving average of its parameters."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from tests.train.cli_runs import records, require_same_checkpoint, train, without_times, write_trees
from tests.train.test_cli_checkpoints import Parts, complaint
from tests.train.test_cli_train import interrupt_after
from vertexrt.cli import session as run_state
from vertexrt.cli.main import main
from vertexrt.cli.session import open_session

DECAY, EPOCHS = 0.75, 3
AVERAGE = ("--average", str(DECAY), "--dropout", "0.2", "--optimizer", "adam")
ONE_UPDATE = ("--batch-size", "24", "--dropout", "0.2", "--optimizer", "adam")  # an epoch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trees(tmp_path_factory.mktemp("trees"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert train(data, out, "--epochs", str(EPOCHS), *AVERAGE) == 0
    return out


def test_an_average_follows_its_definition_and_training_does_not(
    data: Path, tmp_path: Path
) -> None:
    """Runs of 1, 2, 3 epochs without it have the parameters after each update."""
    expected: dict[str, np.ndarray] = {}
    for epochs in range(1, EPOCHS + 1):
        out = tmp_path / str(epochs)
        assert train(data, out, "--epochs", str(epochs), *ONE_UPDATE) == 0
        stored = run_state.load(out / "last.safetensors")
        assert stored.checkpoint.average == {}
        assert stored.judged is stored.checkpoint.parameters
        if not expected:
            expected = dict(open_session(stored.options).net.parameters)
        for name, value in stored.checkpoint.parameters.items():
            expected[name] = DECAY * expected[name] + (1.0 - DECAY) * value
    out, words = tmp_path / "averaged", ("--average", str(DECAY), "--epochs", str(EPOCHS))
    assert train(data, out, *words, *ONE_UPDATE) == 0
    found = run_state.load(out / "last.safetensors")
    for name, value in stored.checkpoint.parameters.items():
        np.testing.assert_array_equal(found.checkpoint.parameters[name], value)
        np.testing.assert_allclose(found.judged[name], expected[name], rtol=1e-5, atol=1e-7)


def test_dev_is_judged_by_the_average(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = whole / "last.safetensors"
    stored = run_state.load(last)
    session = open_session(stored.options)
    dev = session.dataset.splits["dev"]
    losses = []
    for values in (stored.checkpoint.average, stored.checkpoint.parameters):
        session.net.parameters.update(values)
        losses.append(session.net(dev)["loss"].sum() / dev.num_graphs)
    (line,) = (r for r in records(whole) if r["split"] == "dev" and r["epoch"] == EPOCHS)
    assert line["loss"] == pytest.approx(losses[0], rel=1e-5)
    assert abs(losses[1] - losses[0]) > 1e-3
    assert main(["eval", str(last)]) == 0
    shown = re.search(r"dev: loss ([\d.]+)", capsys.readouterr().out)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(losses[0], abs=1e-4)


@pytest.mark.parametrize("minibatches", [2, 3])  # of 3 an epoch
def test_resume_goes_on_with_the_average(
    minibatches: int, data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_after(patch, minibatches)
        assert train(data, run, "--epochs", str(EPOCHS), *AVERAGE) == 143
    assert main(["train", "--resume", str(run)]) == 0
    for name in ("last.safetensors", "best.safetensors"):
        require_same_checkpoint(run / name, whole / name)
    assert without_times(run) == without_times(whole)


def test_averages_that_are_not_those_of_the_run(
    data: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = Parts(whole / "last.safetensors")
    parts.tensors["average/b"][0] = np.nan
    parts.write(tmp_path / "last.safetensors")
    again = ["train", "--resume", str(tmp_path), "--epochs", "4"]
    assert "holds the average 'b' that is not finite" in complaint(again, capsys)
    del parts.tensors["average/b"]
    parts.write(tmp_path / "last.safetensors")
    assert "missing ['b'], unknown []; the parameters of the average" in complaint(again, capsys)
    parts.tensors = {k: v for k, v in parts.tensors.items() if not k.startswith("average/")}
    parts.write(tmp_path / "last.safetensors")
    assert "0 averages, --average 0.75" in complaint(again, capsys)
    assert main(["train", "--resume", str(whole), "--average", "0.5"]) == 2
    assert "got --average 0.5, the run" in capsys.readouterr().err
    assert train(data, tmp_path / "none", "--average", "1.0") == 2


def test_a_network_and_its_average_lie_in_one_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "both"
    net = vrt.compile(_Sum(), device="reference")
    average = vrt.ExponentialMovingAverage(net, 0.5)
    average.parameters["w"] += 1.0
    vrt.save_checkpoint(path, net, average=average)
    found = vrt.load_checkpoint(path)
    np.testing.assert_array_equal(found.parameters["w"] + 1.0, found.average["w"])
    vrt.save_checkpoint(path, net)
    assert vrt.load_checkpoint(path).average == {}


class _Sum(vrt.VertexFunction):
    def __init__(self) -> None:
        super().__init__(arity=1, state={"s": 2})
        self.w = vrt.Parameter((2, 2))

    def forward(self) -> None:
        s = self.w @ self.gather(0).s + self.pull("x", shape=(2,), dtype="float")
        self.scatter(s=s)
        self.push("s", s)
