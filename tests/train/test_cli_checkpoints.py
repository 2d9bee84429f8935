"""A checkpoint is checked field by field: no file makes a traceback or a silent result."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.cli_runs import Parts, train, write_trees
from vertexrt.cli.main import main

Meta = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = write_trees(tmp_path_factory.mktemp("trees"))
    out = tmp_path_factory.mktemp("runs") / "run"
    assert train(data, out, "--epochs", "1", "--optimizer", "adam") == 0
    return out


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command line, expect exit code 1 and return its one line on stderr."""
    capsys.readouterr()
    assert main(words) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1, shown
    assert shown.startswith("vertexrt: [")
    return shown


def at(meta: Meta, path: str) -> tuple[Meta, str]:
    *folders, name = path.split(".")
    for each in folders:
        meta = meta[each]
    return meta, name


FIELDS: list[tuple[str, Any, str]] = [
    ("format", "vertexrt-train-1", "an earlier vertexrt wrote it, with other options and sums"),
    ("options.task", "tagging", "its options: [tree-lstm] got --task tagging; its task is class"),
    ("options.reading", {"pieces": 3}, "[tree-lstm] got --pieces, which tree-lstm does not have"),
    ("options.reading", {"piece": 3}, "options.reading is a dict of 1; expected {}, which belongs"),
    ("options.reading", {"binary": 1}, "binary is 1; expected options by their long names"),
    ("state.measure", "perplexity", "state.measure is 'perplexity'; expected one of loss, root_"),
    ("state.totals.sums", {"labelled": 1}, "the field 'state.totals.sums.labelled' is not known"),
    ("options", [], "options is a list of 0; expected an object with named fields"),
    ("options.shape.hidden", 1e9, "[--hidden] got '1000000000.0'; expected a whole number"),
    ("options.shape.hidden", 10**9, "expected a whole number, 65536 at most"),
    ("options.shape.hidden", True, "hidden is True; expected options by their long names"),
    ("options.shape.hidden", "6", "a dict of 3; expected {'embed': 5, 'hidden': 6"),
    ("options.shape.depth", [3], "depth is [3]; expected true, false, a finite number or a text"),
    ("options.shape.depth", "a\0b", "depth is 'a\\x00b'; expected true, false, a finite number or"),
    ("options.shape.depth", 3, "the field 'options.shape.depth' is not known"),
    ("options.shape", {}, "options.shape is a dict of 0; expected {'embed': 128"),
    ("options.model", "tree-lst", "no model is called 'tree-lst'; one of tree-lstm, "),
    ("options.optimizer", "adamm", "[--optimizer] got 'adamm'; expected one of sgd, "),
    ("options.optimizer", "sgd", "the optimizer is not the one that the options name"),
    ("options.lr", 0.5, "the optimizer is not the one that the options name"),
    ("options.lr", "0.5", "options.lr is '0.5'; expected a number"),
    ("options.shape.dropout", 1, "expected a number, 0 or more and less than 1"),
    ("options.momentum", 0.5, "[adam] got --momentum, which adam does not have; it belongs to "),
    ("options.threads", 10**7, "[--threads] got '10000000'; expected a whole number, 1024 at most"),
    ("options.seed", 7, "random.seed is 0; expected a whole number from 7 to 7"),
    ("options.data", "a\0b", "options.data is 'a\\x00b'; expected a text without NUL"),
    ("options.seed", False, "seed is False; expected options by their long names"),
    ("options.epochs", None, "options.epochs is None; expected 6, which belongs to the other"),
    ("options.batch_size", "8", "options.batch_size is '8'; expected 8, which belongs to the"),
    ("options.colour", "red", "the field 'options.colour' is not known"),
    ("state.epoch", -1, "state.epoch is -1; expected a whole number from 0"),
    ("state.epoch", 2, "state.stale is 0; expected a whole number from 1 to 1"),
    ("state.best", None, "state.best is None; expected the dev value of epoch 1"),
    ("state.batch", 1, "1 minibatches of 0 graphs are done"),
    ("state.totals.loss", "inf", "state.totals.loss is 'inf'; expected a number"),
    ("random.step", 2.5, "random.step is 2.5; expected a whole number"),
    ("random.step", 10**30, "random.step is 1000000000000000000000000000000; expected"),
    ("data.splits.train", [24], "data.splits.train is a list of 1; expected a list of 2"),
    ("data.splits.train", [24, -1], "data.splits.train.1 is -1; expected a whole number from 0"),
    ("data.words", "abc", "the vocabularies are not those of data.words"),
    ("vocabularies.word", ["<unk>", 3], "vocabularies.word is 3; expected texts"),
    ("vocabularies.word", ["<unk>", "a"], "the vocabularies are not those of data.words"),
    ("vocabularies.word", ["a", "a"], "a vocabulary is no list of different words"),
    ("reals", [3], "reals is 3; expected texts"),
    ("vocabularies", ["a"], "vocabularies is a list of 1; expected an object with named fields"),
]


@pytest.mark.parametrize(
    ("path", "value", "text"), FIELDS, ids=[f"{f[0]}={f[1]}"[:40] for f in FIELDS]
)
def test_a_field_that_is_not_ours(
    path: str, value: Any, text: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = Parts(run / "last.safetensors")
    owner, name = at(parts.meta, path)
    owner[name] = value
    parts.write(tmp_path / "last.safetensors")
    assert text in complaint(["train", "--resume", str(tmp_path), "--epochs", "2"], capsys)


def test_a_full_path_that_nobody_would_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a\nb").mkdir()
    monkeypatch.chdir(tmp_path / "a\nb")
    write_trees(Path("data"))
    assert train(Path("data"), tmp_path / "run", "--epochs", "1") == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--epochs", "2"]) == 0


@pytest.mark.parametrize("name", ["options", "state", "random", "data", "vocabularies"])
def test_a_field_that_is_missing(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = Parts(run / "last.safetensors")
    del parts.meta[name]
    parts.write(tmp_path / "last.safetensors")
    assert f"the field '{name}' is missing" in complaint(["eval", str(tmp_path)], capsys)


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def not_finite(parts: Parts) -> None:
    parts.tensors["parameter/b"][0] = math.nan


def infinite_moment(parts: Parts) -> None:
    parts.tensors["optimizer/m/b"][0] = math.inf


def negative_square(parts: Parts) -> None:
    parts.tensors["optimizer/v/b"][0] = -1.0


def wrong_count(parts: Parts) -> None:
    parts.tensors["optimizer/steps"] = np.array(99, np.int64)


def no_count(parts: Parts) -> None:
    parts.tensors["optimizer/steps"] = np.array([1, 2], np.int64)


def other_optimizer(parts: Parts) -> None:
    parts.optimizer["class"] = "Adagrad"


def other_state(parts: Parts) -> None:
    for name in list(parts.tensors):
        if name.startswith("optimizer/v/"):
            del parts.tensors[name]


def whole_parameter(parts: Parts) -> None:
    parts.tensors["parameter/b"] = np.ones(24, np.int64)


def other_tensor(parts: Parts) -> None:
    parts.tensors["b"] = np.ones(3)


def meta_list(parts: Parts) -> None:
    parts.meta = []


def deep(parts: Parts) -> None:
    parts.meta["state"] = nested(500)


CHANGES: list[tuple[Callable[[Parts], None], str]] = [
    (not_finite, "holds the parameter 'b' that is not finite"),
    (infinite_moment, "holds the optimizer state 'm/b' that is not finite"),
    (
        negative_square,
        " in 'v/b' at [0]; expected: finite floats, and no neg",
    ),
    (wrong_count, "99 steps in 1 epochs and 0 minibatches"),
    (no_count, "'steps' of shape (2,), int64; expected: one whole number from 0 to"),
    (other_optimizer, "the optimizer is not the one that the options name"),
    (other_state, "the state holds moments m; expected: m, v"),
    (whole_parameter, "holds the parameter 'b' of dtype int64"),
    (other_tensor, "holds a tensor 'b'; parameters, averages and an optimizer's state"),
    (meta_list, "its meta is no object of JSON"),
    (deep, "more than 32 levels"),
]


@pytest.mark.parametrize(("change", "text"), CHANGES, ids=lambda x: getattr(x, "__name__", None))
def test_parts_that_are_not_ours(
    change: Callable[[Parts], None],
    text: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = Parts(run / "last.safetensors")
    change(parts)
    parts.write(tmp_path / "last.safetensors")
    assert text in complaint(["train", "--resume", str(tmp_path), "--epochs", "2"], capsys)


def test_eval_refuses_parameters_that_are_not_finite(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed `loss nan` and ended with 0."""
    parts = Parts(run / "best.safetensors")
    not_finite(parts)
    parts.write(tmp_path / "best.safetensors")
    assert "the parameter 'b' that is not finite" in complaint(["eval", str(tmp_path)], capsys)


def test_no_bit_changes_unnoticed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = bytearray((run / "last.safetensors").read_bytes())
    rng = np.random.default_rng(5)
    for place in (len(content) - 1, *rng.integers(0, len(content), 60)):
        changed = copy.copy(content)
        changed[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "last.safetensors").write_bytes(changed)
        complaint(["eval", str(tmp_path)], capsys)
