"""What models generate is what the same parameters say of the words so far, a prefix at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.data.text_formats import sentences, translation
from vertexrt.models import GRULanguageModel, LSTMLanguageModel, Seq2Seq

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
    read, known, _ = sentences({"train": ("\n".join(lines), "text")}, None, layers=2)
    whole, steps = nets(model, len(known["word"]), layers=2)
    found = model.generate(steps, read["train"], max_length=6)
    for line, (one,) in zip(lines, found, strict=True):
        words = line.split() + [known["word"].words[word] for word in one.words]
        text = {"train": (" ".join(words), "text")}
        again, _, _ = sentences(text, known, layers=2)
        logits = whole(again["train"], outputs=["logits"])["logits"]
        wanted = logits[again["train"].of_type("next")].argmax(axis=1)[-len(one.words) - 1 : -1]
        assert list(one.words) == wanted.tolist()


def test_a_translation_goes_on_until_it_ends() -> None:
    pairs = ["a b c\tX Y", "b\tZ", "c a\tY X Y"]
    read, known, _ = translation({"train": ("\n".join(pairs), "pairs")}, None)
    whole, steps = nets(Seq2Seq, len(known["word"]), len(known["said"]))
    end = known["said"].index("<eos>")
    (greedy, beams) = (
        Seq2Seq.generate(steps, read["train"], end=end, max_length=7, num_beams=n) for n in (1, 3)
    )
    for pair, (one,), several in zip(pairs, greedy, beams, strict=True):
        for each in (one, *several):
            said = [known["said"].words[word] for word in each.words if word != end]
            text = {"train": (f"{pair.partition(chr(9))[0]}\t{' '.join(said) or 'X'}", "pairs")}
            again, _, _ = translation(text, known)
            logits = whole(again["train"], outputs=["logits"])["logits"].astype(np.float64)
            logits = logits[again["train"].of_type("decoder")][: len(each.words)]
            scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            score = scores[np.arange(len(each.words)), each.words].mean()
            assert np.isclose(each.score, score, atol=1e-4)
            if each is one:
                assert list(one.words) == logits.argmax(axis=1).tolist()
        assert several[0].missing <= one.missing
