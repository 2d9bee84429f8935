"""Small runs for the tests of the command line: few trees, few units, the plain NumPy backend."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import vertexrt as vrt
from vertexrt.api.checkpoint import FORMAT, VERSION, read_tensors, read_texts, write_tensors
from vertexrt.cli.main import main
from vertexrt.data.treebank import generate_treebank

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "vertexrt")
TRAIN, DEV, TEST = 24, 8, 8
SIZES = {"--hidden": "6", "--embed": "5", "--batch-size": "8", "--device": "reference"}
SMALL = tuple(word for option in SIZES.items() for word in option)


@cache
def trees() -> dict[str, list[str]]:
    """Return lines of generated trees by split."""
    return {split: text.splitlines() for split, text in generate_treebank(0).items()}


def write_trees(folder: Path, train: int = TRAIN, dev: int = DEV, test: int = TEST) -> Path:
    """Write a small treebank."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("dev", dev), ("test", test)):
        text = "".join(f"{line}\n" for line in trees()[split][:count])
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    return folder


def train(data: Path, out: Path, *more: str) -> int:
    """Train a small Tree-LSTM in this process; return the exit code."""
    small = [word for flag, value in SIZES.items() if flag not in more for word in (flag, value)]
    return main(["train", "tree-lstm", "--data", str(data), "--out", str(out), *small, *more])


def start(*words: str, **environ: str) -> "subprocess.Popen[str]":
    """Start the command line as a process of its own."""
    return subprocess.Popen(
        [*COMMAND, *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def records(run: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_times(run: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run, all but the clock."""
    clock = ("seconds", "graphs_per_s")
    return [{k: v for k, v in record.items() if k not in clock} for record in records(run)]


class Parts:
    """A checkpoint taken apart; `write` puts it together again with a checksum that is right."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        texts = read_texts(content)
        assert texts is not None
        self.tensors = read_tensors(content)
        self.meta: Any = json.loads(texts["meta"])
        self.optimizer: Any = json.loads(texts["optimizer"])

    def write(self, path: Path) -> None:
        texts = {"format": FORMAT, "version": str(VERSION)}
        texts |= {"meta": json.dumps(self.meta), "optimizer": json.dumps(self.optimizer)}
        path.write_bytes(write_tensors(self.tensors, texts))


def require_same_checkpoint(one: Path, other: Path) -> None:
    """Assert that two checkpoints hold the same bits and stand at the same place."""
    left, right = vrt.load_checkpoint(one), vrt.load_checkpoint(other)
    for found, expected in (
        (left.parameters, right.parameters),
        (left.average, right.average),
        (left.optimizer_state, right.optimizer_state),
    ):
        assert found.keys() == expected.keys()
        for name, array in found.items():
            assert np.array_equal(array, expected[name]), name
    assert left.meta["random"] == right.meta["random"]
    for name in ("epoch", "batch", "best", "best_epoch", "stale"):
        assert left.meta["state"][name] == right.meta["state"][name], name
