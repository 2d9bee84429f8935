"""Generated data can be learned: a few steps beat what is said without looking at the input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt import models
from vertexrt.data import load
from vertexrt.graph import GraphBatch, Rows

STEPS = 40


def learned(name: str, **options: Any) -> tuple[vrt.Network, GraphBatch]:
    """Train a small model on minibatches of 50 graphs; return it and the dev split."""
    spec = models.get(name)
    chosen = {**spec.options, **options}
    data = load("generated", format=spec.format, **spec.reading(chosen))
    net = vrt.compile(spec.build(data, **chosen), device="cpu", threads=1, seed=0)
    train, optimizer = data.splits["train"], vrt.Adam(lr=0.02)
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        net.step(train.take(rng.choice(train.num_graphs, 50, replace=False)), optimizer)
    return net, data.splits["dev"]


@pytest.mark.parametrize("name", ["bilstm-tagger", "dag-lstm", "seq2seq"])
def test_labels_beat_the_most_frequent_one(name: str) -> None:
    sizes = {"hidden": 24, "embed": 16}
    net, dev = learned(name, **sizes, **({} if name == "seq2seq" else {"dropout": 0.0}))
    label = np.asarray(dev.pulls["label"])
    right = np.argmax(net(dev, outputs=["logits"])["logits"], axis=1) == label
    accuracy = right[label >= 0].mean()
    majority = np.bincount(label[label >= 0]).max() / (label >= 0).sum()
    assert 1.0 - accuracy < 0.6 * (1.0 - majority), (accuracy, majority)


def test_probabilities_beat_their_mean() -> None:
    net, dev = learned("deepgate", hidden=16)
    target = dev.pulls["target"]
    assert isinstance(target, Rows)
    assert target.index is not None
    found = net(dev, outputs=["output"])["output"][target.index >= 0]
    want = target.table[target.index[target.index >= 0]]
    assert np.abs(found - want).mean() < 0.6 * np.abs(want - want.mean()).mean()


def test_text_beats_the_frequencies_of_words() -> None:
    net, dev = learned("gru-lm", hidden=16, embed=16, dropout=0.0)
    label = np.asarray(dev.pulls["label"])
    label = label[label >= 0]
    shares = np.bincount(label) / len(label)
    unigram = math.exp(-sum(p * math.log(p) for p in shares if p))
    loss = net(dev, outputs=["loss"])["loss"].sum() / len(label)
    assert math.exp(loss) < 0.7 * unigram, (math.exp(loss), unigram)
