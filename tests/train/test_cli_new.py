"""`vertexrt new` begins a model that trains as it stands; `vertexrt info` says where it runs."""

import json
from pathlib import Path

import pytest

import vertexrt as vrt
from tests.train.cli_runs import records
from vertexrt.cli.main import main


def meaning(tree: dict[str, list[list[int]]], words: list[str], vertex: int) -> bool:
    found = [meaning(tree, words, child) for child in tree["children"][vertex]]
    if words[vertex] in ("true", "false"):
        assert not found
        return words[vertex] == "true"
    return {"not": lambda: not found[0], "and": lambda: all(found), "or": lambda: any(found)}[
        words[vertex]
    ]()


def test_a_new_model_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "my_model.py", tmp_path / "run"
    assert main(["new", str(model)]) == 0
    shown = capsys.readouterr().out.splitlines()
    command = shown[-1].removeprefix("train it: vertexrt ").split()
    assert f"vertexrt {' '.join(command)}\n" in model.read_text()  # the file says it as well
    data = tmp_path / "my_model.jsonl"
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for line in lines[::50]:
        words, labels = line["pulls"]["word"], line["pulls"]["label"]
        values = [meaning(line, words, vertex) for vertex in range(len(words))]
        assert labels == ["yes" if value else "no" for value in values]
    small = ("--epochs", "5", "--hidden", "16", "--batch-size", "20", "--device", "reference")
    assert main([*command, *small, "--out", str(out)]) == 0
    dev = [line["root_accuracy"] for line in records(out) if line["split"] == "dev"]
    assert dev[-1] > 0.8
    assert vrt.load_checkpoint(out / "best.safetensors").meta["options"]["shape"]["hidden"] == 16
    assert main(["new", str(model)]) == 2
    assert "my_model.py cannot be written (File exists)" in capsys.readouterr().err
    assert main(["new", str(tmp_path / "my_model")]) == 2
    assert "expected a name in .py" in capsys.readouterr().err


def test_info(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["vertexrt"].startswith(vrt.__version__)
    assert "numpy " in lines["packages"]
    assert "reference" in lines["devices"].split(", ")
    assert "VERTEXRT_CHECK=1" in lines["flags"]
