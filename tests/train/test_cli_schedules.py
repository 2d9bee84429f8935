"""Learning rates that change over the epochs of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.train.cli_runs import records, train, write_trees
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

    cosine = vrt.schedules.cosine(RATE, steps=EPOCHS)
    linear = vrt.schedules.linear(RATE, 0.0, steps=EPOCHS)
    assert rates("constant") == [RATE] * EPOCHS
    assert rates("cosine") == pytest.approx([cosine(epoch) for epoch in range(EPOCHS)])
    assert rates("linear") == pytest.approx([linear(epoch) for epoch in range(EPOCHS)])
    assert rates("halving") == [0.5, 0.5, 0.5, 0.25, 0.125, 0.0625]


def test_a_run_with_a_schedule_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = write_trees(tmp_path / "data"), tmp_path / "run"
    assert train(data, run, "--epochs", "2", "--lr", "0.1", "--schedule", "linear") == 0
    assert rates_of(run) == pytest.approx([0.1, 0.05])
    assert main(["train", "--resume", str(run), "--epochs", "4"]) == 0, capsys.readouterr().err
    assert rates_of(run) == pytest.approx([0.1, 0.05, 0.05, 0.025])


def rates_of(run: Path) -> list[float]:
    return [line["lr"] for line in records(run) if "lr" in line]
