"""Breakdowns: parts add up to steps, weights are counted by the formula, processes are timed."""

import json
from pathlib import Path

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt import models
from vertexrt.bench import ablation, breakdown
from vertexrt.bench.measure import count
from vertexrt.bench.record import read
from vertexrt.cli.main import main
from vertexrt.graph import GraphBatch, InputGraph, Rows

H, LEAVES = 8, 4


def trees(count: int = 1) -> GraphBatch:
    size = 2 * LEAVES - 1
    graphs = []
    for k in range(count):
        word = np.where(np.arange(size) < LEAVES, k * LEAVES + np.arange(size), -1)
        target = Rows(np.ones((1, 1), np.float32), np.where(np.arange(size) == size - 1, 0, -1))
        graphs.append(InputGraph.complete_tree(LEAVES, pulls={"word": word, "target": target}))
    return GraphBatch.from_graphs(graphs)


def test_counts_add_up_over_shares() -> None:
    net = vrt.compile(models.TreeFC(20, H), device="cpu", engine="batched", threads=2)
    alone = vrt.compile(models.TreeFC(20, H), device="cpu", engine="batched", threads=1)
    both, one = count(net, trees(2)), count(alone, trees(1))
    assert both["calls"] == 2
    assert both["products"] == 2 * one["products"]


def test_parts_of_a_step_add_up_to_it() -> None:
    net = breakdown.SETTINGS["op by op"].compile(models.TreeFC(20, H), "reference", 1)
    pool, ids = trees(3), np.arange(2)
    for _ in range(2):
        found = breakdown.one_step(net, pool, ids, vrt.SGD(lr=0.0))
    assert set(found) - {"whole"} <= set(breakdown.PARTS)
    assert all(found[part] > 0 for part in ("products", "elementwise", "moves", "schedule", "host"))
    whole = found.pop("whole")
    assert sum(found.values()) == pytest.approx(whole)
    # an instruction is one kernel, so that each has one part
    (variant,) = net.executor.model.variants.values()
    kinds = breakdown.kinds_of_instructions(variant)
    assert {"products", "elementwise", "moves", "sums over rows"} == set(kinds)
    assert type(net.executor.model).prepare is net.executor.model.prepare.__func__  # type: ignore[attr-defined]


SMALL = ["bench", "breakdown", "--model", "tree-fc", "--leaves", "4", "--hidden", "4"]


def test_a_breakdown_is_recorded_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown, "STEPS", (2, 2))
    words = ["--batch-sizes", "1,2", "--device", "reference", "--threads", "1", "--seconds", "0"]
    assert main([*SMALL, *words, "--out", str(tmp_path)]) == 0
    record = read(tmp_path / "breakdown-tree-fc.json")
    assert record.complete
    found = {(e.key["setting"], e.key["batch_size"]) for e in record.select(variant="whole")}
    assert found == {(setting, size) for setting in breakdown.SETTINGS for size in (1, 2)}
    assert all(e.median > 0 and len(e.samples) == 2 for e in record.select(variant="products"))
    assert "op by op" in capsys.readouterr().out


OWN = """
import vertexrt as vrt


class Sum(vrt.VertexFunction):
    def __init__(self, hidden: int) -> None:
        super().__init__(arity=2, state={"h": hidden})
        self.w = vrt.Parameter((hidden, hidden))
        self.b = vrt.Parameter((hidden,))

    def forward(self) -> None:
        h = vrt.tanh(self.w @ (self.gather(0).h + self.gather(1).h) + self.b)
        self.scatter(h=h)
        self.push("loss", vrt.losses.cross_entropy(h, self.pull("label")))
"""


@pytest.mark.parametrize("action", ["ablation", "breakdown"])
def test_any_vertex_function_is_measured(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown, "STEPS", (1, 1))
    monkeypatch.setattr(ablation, "ROUNDS", (1, 1))
    (tmp_path / "own.py").write_text(OWN)
    tree = {"children": [[], [], [0, 1]], "pulls": {"label": [0, 1, 2]}}
    (tmp_path / "own.jsonl").write_text(f"{json.dumps(tree)}\n" * 4)
    words = ["--model", str(tmp_path / "own.py:Sum"), "--data", str(tmp_path / "own.jsonl")]
    words += ["--hidden", "3", "--batch-sizes", "1", "--device", "reference", "--threads", "1"]
    assert main(["bench", action, *words, "--seconds", "0", "--out", str(tmp_path)]) == 0
    record = read(tmp_path / f"{action}-Sum.json")
    assert record.complete
    assert record.entries
    assert record.jobs["Sum"].startswith("Sum, ")
