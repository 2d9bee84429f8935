"""Metrics count labelled vertices and roots as a plain loop does; the best value is chosen well."""

import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vertexrt.api.json_record import JsonRecord
from vertexrt.cli import run_folder
from vertexrt.cli.measures import Totals, better, confusion, deciding, entities, scores, shown
from vertexrt.cli.options import TASKS
from vertexrt.cli.run_folder import RunFolder
from vertexrt.cli.session import RunState
from vertexrt.errors import CheckpointError, NumericError
from vertexrt.graph import GraphBatch, InputGraph, Rows

CLASSIFY, TEXT = TASKS["classification"], TASKS["language-model"]


def totals(task: str, pushed: Any, right: Any, names: tuple[str, ...] = (), **more: Any) -> Totals:
    """Count one chain.

    Args:
        pushed: the answers of its vertices; of classes their numbers.
        right: what the label of the task says.
    """
    row, found = TASKS[task], Totals(**more)
    if np.ndim(pushed) == 1:
        pushed = np.eye(5)[pushed]
    batch = GraphBatch.from_graphs([InputGraph.chain(len(pushed), pulls={row.label: right})])
    found.add(row, batch, {row.answer: pushed}, 0.0, names)
    return found


def test_accuracy_is_of_labelled_vertices_and_roots() -> None:
    """The last vertex of a chain is its root; the second chain has no label there."""
    found = totals("classification", [0, 1, 2, 1], [0, 1, 1, 1], loss=3.0, seconds=0.5)
    found = totals("classification", [2, 0], [2, -1], **asdict(found))
    assert found.value("root_accuracy") == 1.0
    assert found.value("vertex_accuracy") == found.value("micro_f1") == 4 / 5
    assert (found.value("loss"), found.graphs_per_s()) == (1.5, 4.0)
    found = totals("classification", [0], [1], **asdict(found))
    assert (found.value("root_accuracy"), found.value("vertex_accuracy")) == (1 / 2, 4 / 6)


def test_perplexity_is_over_labelled_vertices() -> None:
    right = np.array([1, 2, -1, 0], np.int32)
    found = totals("language-model", np.zeros((4, 5)), right, loss=3 * math.log(7.0))
    assert found.value("perplexity") == pytest.approx(7.0)
    assert Totals(1e6, 1, sums={"labelled": 1}).value("perplexity") == math.inf


def test_errors_are_over_the_numbers_of_vertices_that_have_them() -> None:
    output = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]], np.float32)
    table = Rows(np.array([[1.5, 2.0], [5.0, 5.0]], np.float32), np.array([0, -1, 1], np.int32))
    found = totals("regression", output, table)
    assert found.value("mean_squared_error") == pytest.approx((0.5**2 + 2.0**2) / 4)
    assert found.value("mean_absolute_error") == pytest.approx((0.5 + 2.0) / 4)
    found = totals("regression", np.ones((1, 1)), [[9.0]], sums=found.sums)
    assert found.value("mean_absolute_error") == pytest.approx((2.5 + 8.0) / 5)


TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-PER I-PER O", {(1, 3, "PER")}),
        ("B-PER B-PER I-PER", {(0, 1, "PER"), (1, 3, "PER")}),
        ("I-LOC I-LOC I-PER", {(0, 2, "LOC"), (2, 3, "PER")}),  # no B: the type tells them apart
        ("B-LOC I-PER", {(0, 1, "LOC"), (1, 2, "PER")}),
        ("O O", set()),
    ],
)
def test_entities(tags: str, found: set[tuple[int, int, str]]) -> None:
    numbers = [TAGS.index(tag) for tag in tags.split()]
    assert entities(numbers, [0] * len(numbers), TAGS) == found
    apart = entities(numbers, list(range(len(numbers))), TAGS)  # a graph for each word
    assert {end - begin for begin, end, _ in apart} <= {1}


def test_entity_f1() -> None:
    right = np.array([1, 2, 0, 3, -1], np.int32)  # PER PER O LOC, and a word without a tag
    tagging = TASKS["tagging"]
    found = totals("tagging", [1, 2, 0, 1, 4], right, TAGS)
    assert found.value("entity_f1") == 2 * 1 / (2 + 2)
    assert found.value("accuracy") == 3 / 4
    assert deciding(tagging, found) == "entity_f1"
    assert deciding(tagging, found, "loss") == "loss"
    plain = totals("tagging", [1, 2, 0, 1, 4], right)
    assert deciding(tagging, plain) == "accuracy"  # the tags are no entities
    assert shown(plain.values(tagging)) == "loss 0.0000, accuracy 75.00 %"
    # In WikiNER few tags are B-: I- begins an entity where none is before it.
    began = totals("tagging", [1, 1, 0], np.array([1, 1, 0], np.int32), ("O", "I-PER"))
    assert began.value("entity_f1") == 1.0


def test_f1_of_classes() -> None:
    """Worked by hand: class 0 has precision 2/3, recall 1; class 1 1, 1/2; class 2 nothing."""
    label = np.array([0, 0, 1, 1, -1, 2], np.int32)
    cells = confusion(label, np.eye(5)[[0, 0, 1, 0, 2, 4]], 4)  # 4 is no class of the data
    want = [[2, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 1], [0] * 5]
    assert cells.tolist() == want
    wanted = [[2 / 3, 1, 0, 0], [1, 1 / 2, 0, 0], [4 / 5, 2 / 3, 0, 0]]
    assert np.allclose(scores(cells), wanted)
    found = Totals(graphs=1, confusion={"roots": cells * 0, "vertices": cells})
    assert found.value("macro_f1") == pytest.approx((4 / 5 + 2 / 3) / 3)  # class 3 is not there
    assert math.isnan(found.value("root_macro_f1"))
    assert math.isnan(Totals(graphs=1).value("macro_f1"))


def test_a_record_is_json() -> None:
    record = Totals(math.inf, 2, 1.0, {"labelled": 3}).record(TEXT, 4, "dev")
    assert list(record) == ["epoch", "split", "loss", "perplexity", "graphs_per_s", "seconds"]
    assert json.loads(json.dumps(record, allow_nan=False))["perplexity"] is None
    state = RunState(
        3, 5, Totals(0.1 + 0.2, 7, 1 / 3, {"roots": 7}), "root_accuracy", 0.9, 0.1, 2, 1
    )
    text = json.dumps(asdict(state))
    assert RunState.from_json(JsonRecord(json.loads(text), "test"), CLASSIFY) == state


def test_a_loss_that_is_not_finite_is_refused() -> None:
    Totals(loss=1.0).require_finite("dev")
    with pytest.raises(NumericError, match=r"^\[dev\] the loss is nan; expected a finite number"):
        Totals(loss=math.nan).require_finite("dev")


def test_values_for_people() -> None:
    values = {"root_accuracy": 0.456, "perplexity": 123.456, "loss": 2.5e30, "macro_f1": math.nan}
    want = "root accuracy 45.60 %, perplexity 123.46, loss 2.500e+30, macro f1 nan %"
    assert shown(values) == want
    assert shown(Totals(loss=3.0, graphs=2).values(TASKS["loss"])) == "loss 1.5000"


@pytest.mark.parametrize(
    ("measure", "values", "best"),
    [
        ("root_accuracy", [0.5, 0.6, 0.6, 0.4, math.nan], 1),
        ("perplexity", [300.0, 200.0, 200.0, 250.0, math.nan], 1),
        ("loss", [math.nan, 2.0, 1.0], 2),
        ("entity_f1", [0.2, 0.3, 0.1], 1),
        ("perplexity", [math.inf, 9.0], 1),  # an infinite best value could not be stored
    ],
)
def test_the_first_of_the_best_is_kept(measure: str, values: list[float], best: int) -> None:
    old: tuple[float | None, float | None] = None, None
    chosen = -1
    for number, value in enumerate(values):
        if better(measure, (value, 1.0), old):
            old, chosen = (value, 1.0), number
    assert chosen == best
    lower, same = (values[best], 0.9), (values[best], 1.0)
    assert [better(measure, each, same) for each in (lower, same)] == [True, False]
    assert not better(measure, same, lower)


def test_metrics_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = {"epoch": 1, "split": "train", "loss": None}
    folder.append([first, {"epoch": 2, "split": "train"}])
    with folder.metrics.open("a") as file:  # a line that was cut off is left out
        file.write('{"epoch": 3, "spl')
    assert [record["epoch"] for record in folder.records()] == [1, 2]
    folder.keep(lambda record: record["epoch"] < 2)
    good = '{"epoch": 1, "split": "train", "loss": null}\n'
    assert folder.metrics.read_text() == good
    for line, text in {
        "nonsense": r"metrics.jsonl:2\] the line is not JSON",
        "[" * 99: r"the line is not JSON \(more than 32 levels\)",
        '{"epoch": 1}': r"metrics.jsonl:2\] the field 'split' is missing; .*; Correct or remove",
        '{"epoch": true, "split": "dev"}': r"epoch is True; expected a whole number",
        '{"epoch": 1, "split": "dev", "loss": "low"}': r"loss is 'low'; expected a number;",
        '{"epoch": 1, "split": "dev", "loss": NaN}': r"NaN is no number of JSON",
    }.items():
        folder.metrics.write_text(f"{good}{line}\n")
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


@pytest.fixture
def picture() -> None:
    """Draw it: this fixture stands for that of all tests here."""


def test_the_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    for epoch in (1, 2):
        for split in ("train", "dev"):
            folder.append([Totals(loss=2.0, graphs=epoch).record(TASKS["loss"], epoch, split)])
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        said = run_folder.draw_curve(folder)
        assert said is not None
        assert "pip install -e '.[plot]' in the checkout" in said
    assert not (tmp_path / run_folder.CURVE).exists()
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    assert run_folder.draw_curve(folder) is None
    assert (tmp_path / run_folder.CURVE).read_bytes().startswith(b"\x89PNG")
