"""Every model of the catalogue trains from the command line, on small data of its format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.cli_runs import records, write_trees
from vertexrt import models
from vertexrt.cli.main import main
from vertexrt.cli.options import TASKS

TEXTS = {
    "text": ("txt", "the cat sees a dog\na dog sees the cat\n"),
    "tagged": ("txt", "Ann|B-PER saw|O Rome|B-LOC\nRome|B-LOC is|O far|O\n"),
    "pairs": ("tsv", "a b\tB A\nc\tC\n"),
}


def write(format: str, folder: Path) -> list[str]:
    """Write data of a format; return what says where, nothing for those that are generated."""
    if format == "trees":
        return ["--data", str(write_trees(folder, 4, 2, 2))]
    if format not in TEXTS:
        return []
    suffix, text = TEXTS[format]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.{suffix}").write_text(text)
    return ["--data", str(folder)]


@pytest.mark.parametrize("name", models.names())
def test_a_model_trains(name: str, tmp_path: Path) -> None:
    spec, run = models.get(name), tmp_path / "run"
    words = ["train", name, "--epochs", "1", "--batch-size", "256", "--out", str(run), "--quiet"]
    small = {"hidden": "4", "embed": "4", "layers": "2"}
    for option in small.keys() & spec.options.keys():
        words += [f"--{option}", small[option]]
    assert main([*words, *write(spec.format, tmp_path), "--device", "reference"]) == 0
    first = records(run)[0]
    assert first["loss"] > 0.0
    assert first.keys() >= set(TASKS[spec.task].measures) - {"entity_f1"}
    if spec.format in ("tagged", "pairs"):  # whose vocabularies are several
        assert main(["eval", str(run), "--split", "test"]) == 0
