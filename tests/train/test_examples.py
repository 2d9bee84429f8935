"""The scripts in examples/ train."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from examples import crf_tagger, halting, relations, tape, top_down
from tests.model_evaluations import along, gru, part
from tests.runs import Way, assert_loss_gradients


def crf(p: Any, batch: vrt.GraphBatch) -> Any:
    """Add up all sequences of tags, one after another."""
    words, tags = (np.asarray(batch.pulls[name]) for name in ("word", "tag"))
    inputs = [p["embedding.weight"][word] for word in words]
    states = [s[0] for s in along(gru, part(p, "cell."), inputs)]
    scores = [p["out.weight"] @ h + p["out.bias"] for h in states]

    def total(path: Any) -> Any:
        moves = sum(p[f"into.{b}"][a] for a, b in itertools.pairwise(path))
        return sum(score[tag] for score, tag in zip(scores, path, strict=True)) + moves

    paths = itertools.product(range(crf_tagger.TAGS), repeat=len(words))
    return np.log(sum(np.exp(total(path)) for path in paths)) - total(tags.tolist())


EXAMPLES = {
    "crf_tagger": crf_tagger,
    "top_down": top_down,
    "halting": halting,
    "relations": relations,
    "tape": tape,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLES[name].main(10) < 0.97  # type: ignore[attr-defined]
    assert "loss" in capsys.readouterr().out or name == "crf_tagger"


def test_the_loss_of_a_crf_is_over_all_sequences_of_tags() -> None:
    """And its gradients are central differences."""
    sentence = crf_tagger.sentence(np.random.default_rng(6))
    batch, net = vrt.GraphBatch.from_graphs([sentence]), Way().compile(crf_tagger.CRF())
    want = crf(dict(net.parameters), batch)
    np.testing.assert_allclose(net(batch)["loss"].sum(), want, rtol=1e-12)
    assert_loss_gradients(net, batch)
