"""`vertexrt train` carries the state of a language model over pieces of text."""

from __future__ import annotations

from pathlib import Path

from tests.train.cli_runs import records
from vertexrt.cli.main import main

TEXT = "the cat sees a dog\na dog sees the cat\nno cat sees me\n"


def write(folder: Path) -> Path:
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(TEXT * 2)
    return folder


def test_a_run_carries_its_state(tmp_path: Path) -> None:
    words = ["--hidden", "4", "--embed", "4", "--layers", "2", "--epochs", "2", "--batch-size", "2"]
    more = ["--pieces", "4", "--set", "carried=true", "--set", "tied=true", "--device", "reference"]
    run = tmp_path / "run"
    given = ["train", "lstm-lm", "--data", str(write(tmp_path)), "--out", str(run)]
    assert main([*given, *words, *more]) == 0
    assert records(run)[0]["perplexity"] > records(run)[2]["perplexity"]
    assert main(["eval", str(run), "--split", "test"]) == 0
    assert main([*given[:4], *words, *more[2:], "--out", str(tmp_path / "other")]) == 2
