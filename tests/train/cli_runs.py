"""Small runs for the tests of the command line: few trees, few units, the plain NumPy backend."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.attacks import checkpoints
from tests.device_rows import Taken, watch_steps
from vertexrt.cli.main import main
from vertexrt.data.treebank import generate_treebank

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "vertexrt")
TRAIN, DEV, TEST = 24, 8, 8
SIZES = {"--hidden": "6", "--embed": "5", "--batch-size": "8", "--device": "reference"}
SMALL = tuple(word for option in SIZES.items() for word in option)


MODEL = '''
import vertexrt as vrt
from helper import WIDTH


class Tree(vrt.VertexFunction):
    def __init__(self, vocab, classes, hidden=WIDTH, *, gated: bool = False, depth):
        super().__init__(arity=2, state={"h": hidden})
        self.depth = depth
        self.table = vrt.Parameter((vocab, hidden))
        self.w = vrt.Parameter((hidden, 2 * hidden))
        self.v = vrt.Parameter((classes, hidden))

    def forward(self):
        both = vrt.concat(self.gather(0).h, self.gather(1).h)
        h = vrt.tanh(vrt.embed(self.table, self.pull("word")) + self.w @ both)
        self.scatter(h=h)
        logits = self.push("logits", self.v @ h)
        self.push("loss", vrt.losses.cross_entropy(logits, self.pull("label")))


class Sum(vrt.VertexFunction):
    """A number for each graph: half of the sum of those of its leaves."""

    def __init__(self):
        super().__init__(arity=2, state={"s": 1})
        self.w = vrt.Parameter((1, 1))

    def forward(self):
        x = self.pull("x", shape=(1,), dtype="float")
        s = x + self.gather(0).s + self.gather(1).s
        self.scatter(s=s)
        output = self.push("output", self.w @ s)
        target = self.pull("target", shape=(1,), dtype="float")
        self.push("loss", self.present("target") * vrt.losses.squared_error(output, target))
'''
WHOLE = MODEL.replace("from helper import WIDTH", "WIDTH = 5")


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


def sums(count: int) -> str:
    rng = np.random.default_rng(0)
    lines = []
    for a, b in rng.standard_normal((count, 2)).round(3).tolist():
        pulls = {"x": [[a], [b], [0.0]], "target": [None, None, [(a + b) / 2]]}
        lines.append(json.dumps({"children": [[], [], [0, 1]], "pulls": pulls}) + "\n")
    return "".join(lines)


TEXTS = {
    "text": ("txt", "the cat sees a dog\na dog sees the cat\n"),
    "tagged": ("txt", "Ann|B-PER saw|O Rome|B-LOC\nRome|B-LOC is|O far|O\n"),
    "pairs": ("tsv", "a b\tB A\nc\tC\n"),
}


def write_texts(format: str, folder: Path) -> None:
    """Write small data of a format, the same for all splits."""
    suffix, text = TEXTS[format]
    folder.mkdir()
    for split in ("train", "dev", "test"):
        (folder / f"{split}.{suffix}").write_text(6 * text)


def train(data: Path | str, out: Path | str, *more: str) -> int:
    """Train a small Tree-LSTM in this process; return the exit code."""
    small = [word for flag, value in SIZES.items() if flag not in more for word in (flag, value)]
    return main(["train", "tree-lstm", "--data", str(data), "--out", str(out), *small, *more])


class Cli:
    """The command line in this process, in a folder with trees, `data`, and two runs on them.

    `run` and `averaged`, which differ by --average, have three epochs of three minibatches, with
    dropout, so that the random state matters.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, words: str, *more: str, code: int = 0) -> str:
        """Run a command line; return what it printed.

        Args:
            code: what it is to end with. Of 1 and 2 the one line on stderr is returned.
        """
        return self.ended(code, main, [*shlex.split(words), *more])

    def train(self, out: str, words: str = "", code: int = 0, data: str = "data") -> str:
        """Train a small Tree-LSTM."""
        return self.ended(code, train, data, out, *shlex.split(words))

    def ended(self, code: int, run: Callable[..., int], *arguments: Any) -> str:
        """Call what runs a command line."""
        self.capsys.readouterr()
        found = run(*arguments)
        shown = self.capsys.readouterr()
        assert found == code, shown.err
        if code == 0:
            return shown.out
        err = re.sub(r"vertexrt: compiling .*\n", "", shown.err)  # said where the cache is empty
        if code in (1, 2):
            assert err.count("\n") == 1, err
            assert err.startswith("vertexrt: ["), err
        return err


def require_in(told: str, shown: str) -> None:
    """Find texts with ` ... ` between them, in this order."""
    for text in told.split(" ... "):
        assert text in shown
        shown = shown.partition(text)[2]


def start(*command: str, **environ: str) -> "subprocess.Popen[str]":
    """Start a process."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def records(run: Path | str) -> list[dict[str, Any]]:
    """Read the metrics of a run."""
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def without_times(run: Path | str) -> list[dict[str, Any]]:
    """Read the metrics of a run, all but the clock."""
    clock = ("seconds", "graphs_per_s")
    return [{k: v for k, v in record.items() if k not in clock} for record in records(run)]


class Parts(checkpoints.Parts):
    """A checkpoint taken apart; `write` puts it together again with a checksum that is right."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes())

    def write(self, path: Path) -> None:
        path.write_bytes(self.signed())


def require_same_checkpoint(one: Path | str, other: Path | str) -> None:
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


def require_same_run(one: Path | str, other: Path | str) -> None:
    """Assert that two runs left the same checkpoints and the same metrics, all but the clock."""
    for name in ("last.safetensors", "best.safetensors"):
        require_same_checkpoint(Path(one, name), Path(other, name))
    assert without_times(one) == without_times(other)


def state_of(run: Path | str) -> Any:
    """Return where a run stands, from its last checkpoint."""
    return vrt.load_checkpoint(Path(run, "last.safetensors")).meta["state"]


def interrupt_after(monkeypatch: pytest.MonkeyPatch, minibatches: int) -> None:
    """Let the signal SIGTERM be noted after so many minibatches."""

    def after(taken: Taken) -> None:
        if taken.number == minibatches:
            signal.raise_signal(signal.SIGTERM)

    watch_steps(monkeypatch, after=after)


def spoil_before(monkeypatch: pytest.MonkeyPatch, minibatch: int) -> None:
    """Let a parameter be no number before a minibatch, the first of which is 1."""

    def before(taken: Taken) -> None:
        if taken.number == minibatch:
            store = taken.executor.model.store
            store.refresh()
            store.value("v")[...] = math.nan

    watch_steps(monkeypatch, before=before)
