"""Metrics count labelled vertices and roots as a plain loop does; the best value is chosen well."""

import json
import math
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from vertexrt.api.json_record import JsonRecord
from vertexrt.cli import curve
from vertexrt.cli.metrics import Totals, criterion, shown
from vertexrt.cli.run_folder import RunFolder
from vertexrt.cli.run_state import RunState
from vertexrt.errors import CheckpointError, NumericError
from vertexrt.graph import GraphBatch, InputGraph

C = 3


def forest(rng: np.random.Generator, graphs: int = 6) -> GraphBatch:
    """Return complete trees of several sizes with labels of which some are absent."""
    trees = []
    for _ in range(graphs):
        leaves = int(rng.choice([1, 2, 4, 8]))
        label = rng.integers(-1, C, 2 * leaves - 1).astype(np.int32)
        trees.append(InputGraph.complete_tree(leaves, pulls={"label": label}))
    return GraphBatch.from_graphs(trees)


def test_accuracy_agrees_with_a_loop() -> None:
    rng = np.random.default_rng(3)
    totals, right, seen, roots_right, roots_seen = Totals(), 0, 0, 0, 0
    for _ in range(4):
        batch = forest(rng)
        logits = rng.standard_normal((batch.num_vertices, C))
        totals.add(batch, {"logits": logits}, 2.0, 0.5)
        roots = set(batch.roots.tolist())
        label = batch.pulls["label"]
        assert isinstance(label, np.ndarray)
        for vertex in range(batch.num_vertices):
            if label[vertex] < 0:
                continue
            hit = int(np.argmax(logits[vertex])) == label[vertex]
            seen, right = seen + 1, right + hit
            if vertex in roots:
                roots_seen, roots_right = roots_seen + 1, roots_right + hit
    assert 0 < roots_seen < 24  # some roots have no label
    assert totals.root_accuracy() == roots_right / roots_seen
    assert totals.vertex_accuracy() == right / seen
    assert totals.graphs_per_s() == 24 / 2.0
    assert totals.mean_loss() == 8.0 / 24


def test_perplexity_is_over_labelled_vertices() -> None:
    label = np.array([1, 2, -1, 0], np.int32)
    batch = GraphBatch.from_graphs([InputGraph.chain(4, pulls={"label": label})])
    totals = Totals()
    totals.add(batch, {}, 3 * math.log(7.0), 1.0)
    assert totals.perplexity() == pytest.approx(7.0)
    assert Totals(loss=1e6, graphs=1, vertices=1).perplexity() == math.inf


def test_a_record_is_json() -> None:
    totals = Totals(loss=math.inf, graphs=2, vertices=3, seconds=1.0)
    record = totals.record("language-model", 4, "dev")
    assert list(record) == ["epoch", "split", "loss", "perplexity", "graphs_per_s", "seconds"]
    assert json.loads(json.dumps(record, allow_nan=False))["perplexity"] is None
    keys = list(Totals(graphs=1, seconds=1.0).record("sentiment", 1, "train"))
    assert keys[2:5] == ["loss", "root_accuracy", "vertex_accuracy"]


def test_a_loss_that_is_not_finite_is_refused() -> None:
    Totals(loss=1.0).require_finite("dev")
    with pytest.raises(NumericError, match=r"^\[dev\] the loss is nan; expected a finite number"):
        Totals(loss=math.nan).require_finite("dev")


def test_values_for_people() -> None:
    assert shown("root_accuracy", 0.456) == "root accuracy 45.60 %"
    assert shown("perplexity", 123.456) == "perplexity 123.46"
    assert shown("loss", 2.5e30) == "loss 2.500e+30"
    assert Totals(loss=3.0, graphs=2).text("tree-fc") == "loss 1.5000"


@pytest.mark.parametrize(
    ("task", "values", "best"),
    [
        ("sentiment", [0.5, 0.6, 0.6, 0.4, math.nan], 1),
        ("language-model", [300.0, 200.0, 200.0, 250.0, math.nan], 1),
        ("tree-fc", [math.nan, 2.0, 1.0], 2),
        ("language-model", [math.inf, 9.0], 1),  # an infinite best value could not be stored
    ],
)
def test_the_first_of_the_best_is_kept(task: str, values: list[float], best: int) -> None:
    old, chosen = None, -1
    for number, value in enumerate(values):
        if criterion(task).better(value, old):
            old, chosen = value, number
    assert chosen == best


def test_a_state_survives_json() -> None:
    state = RunState(3, 5, Totals(loss=0.1 + 0.2, graphs=7, seconds=1 / 3), 0.9, 2, 1)
    text = json.dumps(asdict(state))
    assert RunState.from_json(JsonRecord(json.loads(text), "test")) == state


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.append([{"epoch": 1, "split": "train"}, {"epoch": 2, "split": "train"}])
    with folder.metrics.open("a") as file:
        file.write('{"epoch": 3, "spl')
    assert [record["epoch"] for record in folder.records()] == [1, 2]
    folder.keep(lambda record: record["epoch"] < 2)
    assert folder.metrics.read_text() == '{"epoch": 1, "split": "train"}\n'


def test_metrics_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    good = '{"epoch": 1, "split": "dev", "loss": null}'
    for line, text in (
        ("nonsense", r"metrics.jsonl:2\] the line is not JSON"),
        ("[" * 99, r"the line is not JSON \(more than 32 levels\)"),
        ('{"epoch": 1}', r"metrics.jsonl:2\] the field 'split' is missing; .*; Correct or remove"),
        ('{"epoch": true, "split": "dev"}', r"epoch is True; expected a whole number"),
        ('{"epoch": 1, "split": "dev", "loss": "low"}', r"loss is 'low'; expected a number;"),
        ('{"epoch": 1, "split": "dev", "loss": NaN}', r"NaN is no number of JSON"),
    ):
        folder.metrics.write_text(f"{good}\n{line}\n")
        with pytest.raises(CheckpointError, match=text):
            folder.records()
    folder.metrics.unlink()
    os.mkfifo(folder.metrics)  # reading it would wait for somebody who writes
    with pytest.raises(CheckpointError, match="it is not a plain file"):
        folder.records()
    gone = RunFolder(tmp_path / "gone")
    text = r"metrics.jsonl\] the metrics cannot be written \(No such file or directory\)"
    with pytest.raises(CheckpointError, match=text):
        gone.append([{"epoch": 1}])
    with pytest.raises(CheckpointError, match=text):
        gone.keep(lambda record: True)


def test_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    for epoch in (1, 2):
        for split in ("train", "dev"):
            folder.append([Totals(loss=2.0, graphs=epoch).record("tree-fc", epoch, split)])
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert curve.draw(folder) == curve.HINT
        assert "pip install 'vertexrt[plot]'" in curve.HINT
    assert not folder.curve.exists()
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    assert curve.draw(folder) is None
    assert folder.curve.read_bytes().startswith(b"\x89PNG")
    assert curve.series(folder.records(), "dev", "loss") == ([1, 2], [2.0, 1.0])
