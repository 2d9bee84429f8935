"""Every model computes what its paper says, a vertex at a time in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

import vertexrt as vrt
from tests import model_evaluations as by_hand
from tests.model_evaluations import Evaluated, LabelledVertex, Signal, SpeltSentence
from tests.runs import Way, assert_loss_gradients
from vertexrt.data.edges import chain, stacked
from vertexrt.data.files import Text
from vertexrt.data.generated import circuit_graph, layered_graphs
from vertexrt.data.readers import tagged, translation
from vertexrt.models import (
    DAGNN,
    BiLSTMCharTagger,
    BiLSTMTagger,
    ChildSumTreeLSTM,
    DeepGate,
    GRULanguageModel,
    LSTMLanguageModel,
    NaryTreeLSTM,
    ResidualRNN,
    RNNLanguageModel,
    RvNN,
    Seq2Seq,
    SLSTMLanguageModel,
)

VOCAB, EMBED, HIDDEN, CLASSES = 7, 3, 4, 3


class Case(NamedTuple):
    """A model, graphs, and what it computes for them."""

    model: Callable[[], vrt.Model | vrt.VertexFunction]
    batch: vrt.GraphBatch
    evaluate: Callable[[Any], Evaluated]
    type: str | None = None  # of the vertices that push logits


SENTENCES = [([1, 2, 3], [2, 3, 0]), ([4], [5]), ([6, 2, 2, 1], [2, -1, 1, 0])]


def chains(layers: int) -> vrt.GraphBatch:
    words, labels = zip(*SENTENCES, strict=True)
    sizes = np.array([*map(len, words)])
    pulls = {"layers.0": {"word": np.hstack(words)}, "next": {"label": np.hstack(labels)}}
    return stacked(sizes, chain(sizes), layers, ("", "next"), pulls)


def language_model(
    make: Callable[..., Any], step: by_hand.Step, layers: int, embed: int = EMBED, **options: Any
) -> Case:
    def evaluate(p: Any) -> Evaluated:
        return by_hand.language_model(p, SENTENCES, step, make is ResidualRNN)

    sizes = (embed,) if make is ResidualRNN else (embed, HIDDEN)
    model = partial(make, VOCAB, *sizes, layers=layers, **options)
    return Case(model, chains(layers), evaluate, "next")


TREES = [
    [
        LabelledVertex([], 1, 0),
        LabelledVertex([], 2, 1),
        LabelledVertex([0, 1], -1, 2),
        LabelledVertex([], 3, -1),
        LabelledVertex([2, 3], -1, 1),
    ],
    [LabelledVertex([], 5, 2)],
]
DAG = [
    [
        LabelledVertex([], 1, 0),
        LabelledVertex([], 2, 1),
        LabelledVertex([0, 1], 3, 2),
        LabelledVertex([0, 1, 2], 4, 1),
        LabelledVertex([2], 5, 0),
    ],
    [LabelledVertex([], 6, 2)],
]


def graphs(vertices: list[list[LabelledVertex]]) -> vrt.GraphBatch:
    return vrt.GraphBatch.from_graphs(
        vrt.InputGraph.from_children(
            [v.children for v in graph],
            {"word": [v.word for v in graph], "label": [v.label for v in graph]},
        )
        for graph in vertices
    )


def tree(make: Callable[..., Any], vertices: Any, compute: Any) -> Case:
    sizes = (VOCAB, HIDDEN) if make is RvNN else (VOCAB, EMBED, HIDDEN)
    return Case(
        partial(make, *sizes, classes=CLASSES),
        graphs(vertices),
        lambda p: by_hand.of_graphs(p, vertices, compute),
    )


TAGGED = "to|O Rome|LOC go|O\nI|O\nAnn|PER saw|O Rome|LOC to|O\n"


def tagger(letters: bool) -> Case:
    batch, known, _ = tagged(Text("tags", TAGGED), letters=letters, crf=letters)
    vocabulary, tags = known["word"], known["label"].words
    alphabet = known.get("letter", vocabulary)
    split = [[pair.split("|") for pair in line.split()] for line in TAGGED.splitlines()]
    sentences = [
        SpeltSentence(
            [vocabulary.index(word.lower() if letters else word) for word, _ in sentence],
            [alphabet.encode(word).tolist() for word, _ in sentence],
            [tags.index(tag) for _, tag in sentence],
        )
        for sentence in split
    ]
    sizes = {"vocab": len(vocabulary), "classes": len(tags), "embed": EMBED, "hidden": HIDDEN}
    model: Callable[[], vrt.Model] = partial(BiLSTMTagger, **sizes)
    if letters:
        model = partial(BiLSTMCharTagger, **sizes, num_letter=len(alphabet), spelling=3)
    return Case(model, batch, lambda p: by_hand.tagger(p, sentences), "tag")


def seq2seq() -> Case:
    text = "a b c\tX Y\nb\tZ\nc a\tY X Y\n"
    batch, known, _ = translation(Text("pairs", text))
    word, said = known["word"], known["said"]
    examples = []
    for line in text.splitlines():
        source, target = line.split("\t")
        spoken = said.encode(f"<eos> {target} <eos>".split()).tolist()
        examples.append((word.encode(source.split()).tolist(), spoken[:-1], spoken[1:]))
    return Case(
        partial(Seq2Seq, len(word), len(said), EMBED, HIDDEN),
        batch,
        lambda p: by_hand.translated(p, examples),
        "decoder",
    )


def dagnn() -> Case:
    model = partial(DAGNN, VOCAB, HIDDEN, CLASSES, layers=2)
    batch = layered_graphs(graphs(DAG), 2)
    return Case(model, batch, lambda p: by_hand.dagnn(p, DAG), "label")


CIRCUIT = [
    Signal("input", [], 0.5),
    Signal("input", [], 0.5),
    Signal("inverter", [0], 0.25),
    Signal("conjunction", [2, 1], 0.75),
    Signal("conjunction", [3, 2], 0.125),
    Signal("inverter", [3], 0.5),
]


def deepgate() -> Case:
    targets = np.array([signal.target for signal in CIRCUIT])
    kinds, below = [s.kind for s in CIRCUIT], [list(s.below) for s in CIRCUIT]
    batch = vrt.GraphBatch.from_graphs([circuit_graph(kinds, below, targets)])
    model = partial(DeepGate, HIDDEN)
    return Case(model, batch, lambda p: by_hand.deepgate(p, CIRCUIT), "reverse")


CASES: dict[str, Callable[[], Case]] = {
    "rnn-lm": lambda: language_model(RNNLanguageModel, by_hand.rnn, 2),
    "lstm-lm": lambda: language_model(LSTMLanguageModel, by_hand.lstm, 2),
    "lstm-lm-tied": lambda: language_model(LSTMLanguageModel, by_hand.lstm, 1, HIDDEN, tied=True),
    "gru-lm": lambda: language_model(GRULanguageModel, by_hand.gru, 2),
    "slstm-lm": lambda: language_model(SLSTMLanguageModel, by_hand.slstm, 2),
    "residual-rnn": lambda: language_model(ResidualRNN, by_hand.rnn, 8, HIDDEN),
    "rvnn": lambda: tree(RvNN, TREES, by_hand.rvnn),
    "nary-tree-lstm": lambda: tree(NaryTreeLSTM, TREES, by_hand.nary),
    "child-sum-tree-lstm": lambda: tree(ChildSumTreeLSTM, TREES, by_hand.child_sum),
    "dag-lstm": lambda: tree(ChildSumTreeLSTM, DAG, by_hand.child_sum),
    "bilstm-tagger": lambda: tagger(False),
    "bilstm-char-tagger": lambda: tagger(True),
    "seq2seq": seq2seq,
    "dagnn": dagnn,
    "deepgate": deepgate,
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_equations(name: str) -> None:
    """And gradients central differences."""
    case = CASES[name]()
    net = Way().compile(case.model())
    out = net(case.batch)
    want = case.evaluate(dict(net.parameters))
    rows = slice(None) if case.type is None else case.batch.of_type(case.type)
    push = "logits" if "logits" in out else "output"
    np.testing.assert_allclose(out[push][rows], want.logits, rtol=0, atol=1e-12)
    np.testing.assert_allclose(out["loss"].sum(), want.loss, rtol=1e-12)
    assert_loss_gradients(net, case.batch)
