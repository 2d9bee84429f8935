"""Learning rates that change over the epochs of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.train.cli_runs import train, write_trees
from vertexrt.cli import run_folder
from vertexrt.cli import session as run_state
from vertexrt.cli.main import main
from vertexrt.cli.session import RunOptions, rate_of

EPOCHS, RATE = 6, 0.5


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> RunOptions:
    folder = tmp_path_factory.mktemp("text")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("a b c\nb c a\n")
    run = folder / "run"
    words = ["train", "rnn-lm", "--data", str(folder), "--hidden", "2", "--embed", "2"]
    more = ["--epochs", "2", "--schedule", "halving", "--device", "reference", "--out", str(run)]
    assert main([*words, *more]) == 0
    assert vrt.load_checkpoint(run / "last.safetensors").meta["options"]["schedule"] == "halving"
    found = run_folder.existing(str(run))
    found.close()
    stored = run_state.load(found.last).options
    return replace(stored, epochs=EPOCHS, lr=RATE)


def test_schedules_are_those_of_the_library(options: RunOptions) -> None:
    def rates(name: str) -> list[float]:
        return [rate_of(replace(options, schedule=name), epoch) for epoch in range(EPOCHS)]

    def expected(make: object) -> list[float]:
        optimizer = vrt.SGD(lr=RATE)
        schedule, found = make(optimizer), []  # type: ignore[operator]
        for _ in range(EPOCHS):
            found.append(optimizer.lr)
            schedule.step()
        return found

    schedules = vrt.schedules
    assert rates("constant") == [RATE] * EPOCHS
    cosine = expected(lambda o: schedules.CosineAnnealingLR(o, EPOCHS))
    assert rates("cosine") == pytest.approx(cosine)
    linear = expected(lambda o: schedules.LinearLR(o, 1.0, 0.0, EPOCHS))
    assert rates("linear") == pytest.approx(linear)
    assert rates("halving") == [0.5, 0.5, 0.5, 0.25, 0.125, 0.0625]


def test_a_run_with_a_schedule_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = write_trees(tmp_path / "data"), tmp_path / "run"
    assert train(data, run, "--epochs", "2", "--lr", "0.1", "--schedule", "linear") == 0
    last = run / "last.safetensors"
    assert vrt.load_checkpoint(last).optimizer["lr"] == pytest.approx(0.05)
    assert main(["train", "--resume", str(run), "--epochs", "4"]) == 0, capsys.readouterr().err
    assert vrt.load_checkpoint(last).optimizer["lr"] == pytest.approx(0.025)
