"""The scripts in examples/ train, and compute what their equations say, gradients included."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import vertexrt as vrt
from examples import crf_tagger, halting, relations, tape, top_down
from tests.model_evaluations import along, cross_entropy, gru, part
from tests.runs import Way, assert_loss_gradients

Evaluate = Callable[[Any, vrt.GraphBatch], Any]


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


def up_and_down(p: Any, batch: vrt.GraphBatch) -> Any:
    """Evaluate one tree."""
    pulled, label = batch.pulls["number"], np.asarray(batch.pulls["label"])
    assert isinstance(pulled, vrt.Rows)
    count = batch.num_vertices // 2
    up: list[Any] = []
    down: dict[int, Any] = {}
    above: dict[int, int] = {}
    for vertex in range(count):
        children = batch[0].children(vertex)
        above |= dict.fromkeys(children, vertex)
        given = np.concatenate([up[child] for child in children]) if children else None
        x = pulled.table[vertex] if given is None else given
        name = "up.leaf" if given is None else "up.inner"
        up.append(np.tanh(p[f"{name}.weight"] @ x + p[f"{name}.bias"]))
    loss = 0.0
    for vertex in reversed(range(count)):
        before = down[above[vertex]] if vertex in above else np.zeros(top_down.HIDDEN)
        down[vertex] = gru(part(p, "down.cell."), up[vertex], [before])[0]
        logits = p["down.out.weight"] @ down[vertex] + p["down.out.bias"]
        loss = loss + cross_entropy(logits, int(label[count + vertex]))
    return loss


def ponder(p: Any, batch: vrt.GraphBatch) -> Any:
    target = batch.pulls["target"]
    assert isinstance(target, vrt.Rows)
    states = along(gru, part(p, "cell."), np.asarray(batch.pulls["x"]))
    left, total, cost = 1.0, 0.0, 0.0
    for at, (h,) in enumerate(states):
        cost = cost + halting.COST * left
        wish = expit(p["halt.weight"] @ h + p["halt.bias"])[0]
        share = left if at == len(states) - 1 or wish > left else wish
        left, total = left - share, total + share * h
    error = p["out.weight"] @ total + p["out.bias"] - float(target.table[0, 0])
    return cost + (error * error).sum()


def recorded(p: Any, batch: vrt.GraphBatch) -> Any:
    value, target = batch.pulls["value"], batch.pulls["target"]
    assert isinstance(value, vrt.Rows)
    assert isinstance(target, vrt.Rows)
    assert value.index is not None
    known: list[Any] = []
    for vertex in range(batch.num_vertices):
        a, b = [*(known[k] for k in batch[0].children(vertex)), None, None][:2]
        kinds = {name: batch.pulls[name].index[vertex] for name in tape.OPERATIONS}  # type: ignore[union-attr, index]
        kind = next((name for name, at in kinds.items() if at >= 0), "leaf")
        if kind == "leaf":
            known.append(value.table[value.index[vertex]])
        elif kind == "matrix":
            known.append(p["w"] @ a)
        else:
            known.append(np.tanh(a) if kind == "tanh" else a + b if kind == "add" else a * b)
    error = known[-1] - target.table[-1]
    return (error * error).sum()


def related(p: Any, batch: vrt.GraphBatch) -> Any:
    number, target = (np.asarray(batch.pulls[name]) for name in ("number", "target"))
    kind, weight = (np.asarray(batch.edge_pulls[name]) for name in ("kind", "weight"))
    known: list[Any] = []
    loss = 0.0
    for vertex in range(batch.num_vertices):
        h = p["number.weight"] @ number[vertex]
        for edge in range(batch.child_ptr[vertex], batch.child_ptr[vertex + 1]):
            read = p[f"by_kind.{kind[edge]}.weight"] @ known[batch.child[edge]]
            h = h + float(weight[edge]) * (read + p["of_edge"])
        known.append(h)
        error = p["out.weight"] @ h + p["out.bias"] - target[vertex]
        loss = loss + (error * error).sum()
    return loss


def draw(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


EXAMPLES: dict[str, tuple[Any, Callable[[], Any], Callable[[], vrt.InputGraph], Evaluate]] = {
    "crf_tagger": (crf_tagger, crf_tagger.CRF, lambda: crf_tagger.sentence(draw(6)), crf),
    "top_down": (top_down, top_down.UpAndDown, lambda: top_down.tree(draw(), 5), up_and_down),
    "halting": (halting, halting.Ponder, lambda: halting.example(draw()), ponder),
    "relations": (relations, relations.RelationNet, lambda: relations.graph(draw()), related),
    "tape": (tape, tape.Operation, lambda: tape.expression(draw()), recorded),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLES[name][0].main(10) < 0.97
    assert "loss" in capsys.readouterr().out or name == "crf_tagger"


@pytest.mark.parametrize("name", EXAMPLES)
def test_losses_are_those_of_the_equations(name: str) -> None:
    """And gradients central differences."""
    _, make, graph, evaluate = EXAMPLES[name]
    batch, net = vrt.GraphBatch.from_graphs([graph()]), Way().compile(make())
    want = evaluate(dict(net.parameters), batch)
    np.testing.assert_allclose(net(batch)["loss"].sum(), want, rtol=1e-12)
    assert_loss_gradients(net, batch)
