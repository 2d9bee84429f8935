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
from tests.train.cli_runs import Cli
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


def test_words_are_reversed_by_commands(bare: Cli) -> None:
    rates = "--lr 0.008 --schedule cosine --threads 1 --quiet"
    bare(f"train seq2seq --epochs 12 --out run {rates}")
    given, made = bare("eval run --split test --num-beams 2").splitlines()[-2:]
    assert given.startswith("test, given the words before: loss ")
    assert float(made.removeprefix("test, generated: exact match ").split()[0]) >= 99
    bare("predict run --out out.jsonl --temperature 0.1 --seed 3")
    text = vrt.data.load("generated", format="pairs").splits["test"]
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert len(lines) == len(text) == 100
    assert all(set(line) == {"prediction", "score"} for line in lines)
    shown = bare("eval run --bleu", code=0 if find_spec("sacrebleu") else 2)
    assert "BLEU 9" in shown or "BLEU 100" in shown or ".[bleu]" in shown
    first = bare("predict run --max-length 2").splitlines()[0]
    assert len(json.loads(first)["prediction"]) == 2


def test_texts_go_on_by_command(bare: Cli) -> None:
    for split in ("train", "valid", "test"):
        Path(f"{split}.txt").write_text("a b\nb a\n")
    small = "--hidden 4 --embed 4 --epochs 1 --device reference --quiet"
    bare(f"train gru-lm --data . --out run {small}")
    shown = bare("predict run --max-length 3").splitlines()
    words = [json.loads(line)["prediction"] for line in shown]
    assert len(words) == 2
    assert all(len(each) <= 3 for each in words)
    told = "[--num-beams] gru-lm is of the task language-model; expected a translation, or"
    assert told in bare("eval run --num-beams 2", code=2)
    assert "loss" in bare("predict run")


def test_a_tree_is_written_again_from_one_vector() -> None:
    assert tree_decoder.main(3) > 0.3
