"""What models generate is what the same parameters say of the words so far, a prefix at a time."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from examples import tree_decoder
from vertexrt.cli.main import main
from vertexrt.data.files import Text
from vertexrt.data.readers import sentences
from vertexrt.models import GRULanguageModel, LSTMLanguageModel

SIZES = {"embed": 8, "hidden": 8}


def nets(model: Any, *sizes: int, **options: Any) -> list[vrt.Network]:
    """Return a network, and the one that generates with its parameters."""
    made = [
        vrt.compile(model(*sizes, **SIZES, **options, carried=carried), device="cpu", threads=1)
        for carried in (False, True)
    ]
    rng = np.random.default_rng(2)
    for name, value in made[0].parameters.items():
        made[0].parameters[name] = rng.normal(0, 0.7, value.shape)
    made[1].load_state({"parameters": made[0].state()["parameters"]})
    return made


@pytest.mark.parametrize("model", [LSTMLanguageModel, GRULanguageModel])
def test_a_language_model_goes_on(model: Any) -> None:
    lines = ["a b c d", "b", "c c a"]
    read, known, _ = sentences(Text("text", "\n".join(lines)), layers=2)
    whole, steps = nets(model, len(known["word"]), layers=2)
    found = model.generate(steps, read, max_length=6)
    for line, (one,) in zip(lines, found, strict=True):
        words = line.split() + [known["word"].words[word] for word in one.words]
        again, _, _ = sentences(Text("text", " ".join(words)), known, layers=2)
        logits = whole(again, outputs=["logits"])["logits"]
        wanted = logits[again.of_type("next")].argmax(axis=1)[-len(one.words) - 1 : -1]
        assert list(one.words) == wanted.tolist()


def test_words_are_reversed_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(tmp_path / "run"), tmp_path / "out.jsonl"
    rates = ["--lr", "0.008", "--schedule", "cosine", "--threads", "1", "--quiet"]
    assert main(["train", "seq2seq", "--epochs", "12", "--out", run, *rates]) == 0
    capsys.readouterr()
    assert main(["eval", run, "--split", "test", "--num-beams", "2"]) == 0
    given, made = capsys.readouterr().out.splitlines()[-2:]
    assert given.startswith("test, given the words before: loss ")
    assert float(made.removeprefix("test, generated: exact match ").split()[0]) >= 99
    assert main(["predict", run, "--out", str(out), "--temperature", "0.1", "--seed", "3"]) == 0
    text = vrt.data.load("generated", format="pairs").splits["test"]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == len(text) == 100
    assert all(set(line) == {"prediction", "score"} for line in lines)
    assert main(["eval", run, "--bleu"]) == (0 if find_spec("sacrebleu") else 2)
    shown = capsys.readouterr()
    assert "BLEU 9" in shown.out or "BLEU 100" in shown.out or ".[bleu]" in shown.err
    assert main(["predict", run, "--max-length", "2"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[0])["prediction"]) == 2


def test_texts_go_on_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a b\nb a\n")
    run = str(tmp_path / "run")
    small = ["--hidden", "4", "--embed", "4", "--epochs", "1", "--device", "reference", "--quiet"]
    assert main(["train", "gru-lm", "--data", str(tmp_path), "--out", run, *small]) == 0
    capsys.readouterr()
    assert main(["predict", run, "--max-length", "3"]) == 0
    words = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()]
    assert len(words) == 2
    assert all(len(each) <= 3 for each in words)
    assert main(["eval", run, "--num-beams", "2"]) == 2
    assert (
        "[--num-beams] gru-lm is of the task language-model; expected a translation, or"
        in capsys.readouterr().err
    )
    assert main(["predict", run]) == 0
    assert "loss" in capsys.readouterr().out


def test_a_tree_is_written_again_from_one_vector() -> None:
    assert tree_decoder.main(3) > 0.3
