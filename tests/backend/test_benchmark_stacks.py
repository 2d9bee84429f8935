"""Benchmarks of recurrent layers compare before they time, and write what they print."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks import choosing
from benchmarks.papers import (
    ecornn_grid,
    ecornn_layout,
    grnn_latency,
    persistent_rnn,
    vpps_applications,
)
from benchmarks.papers.in_turn import Table, sampled_in_turn
from benchmarks.papers.stacks import (
    Form,
    Recurrence,
    Stack,
    recurrence_batch,
    stack_batch,
    top_vertices,
)
from benchmarks.papers.training_steps import time_steps
from vertexrt.bench.record import Results, read

HERE = ["--device", "cpu", "--threads", "1", "--rounds", "2", "--seconds", "0"]


def run(main: Callable[[Sequence[str]], int], words: str, out: Path) -> Results:
    assert main([*HERE, *words.split(), "--out", str(out)]) == 0
    (path,) = out.glob("*.json")
    record = read(path)
    assert record.complete
    assert record.checks
    return record


def names(record: Results, **wanted: str) -> list[tuple[Any, ...]]:
    return [
        (e.key["model"], e.key["batch_size"], e.key["variant"]) for e in record.select(**wanted)
    ]


def test_products_of_both_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--hidden-sizes 8 --batch-sizes 2,3"
    record = run(ecornn_layout.main, sizes, tmp_path)
    assert len(record.checks) == 2 * 3 * 2
    assert {(e.key["batch_size"], e.key["variant"]) for e in record.select(part="d W")} == {
        (n, v) for n in (2, 3) for v in ("by rows", "by columns")
    }
    assert all(e.unit == "us" and e.counts["tflops"] > 0.0 for e in record.entries)
    assert "chosen: d^T x, W [32, 8]: " in capsys.readouterr().out


def test_a_stack_is_its_cells_one_above_the_other() -> None:
    form = Form("RNN", 3, 2, residual=True)
    net = vrt.compile(Stack(form), device="reference", dtype="float64", seed=1)
    x = np.random.default_rng(0).standard_normal((2, 4, 3))
    batch = stack_batch(form, x)
    found = net(batch)
    p = dict(net.parameters)
    below = x
    for k in range(2):
        inner = np.zeros((2, 3))
        handed = []
        for t in range(4):
            own = {w: p[f"layers.{k}.cell.{w}"] for w in ("weight_ih", "weight_hh")}
            bias = p[f"layers.{k}.cell.bias_ih"] + p[f"layers.{k}.cell.bias_hh"]
            given = below[:, t] @ own["weight_ih"].T + inner @ own["weight_hh"].T + bias
            inner = np.tanh(given)
            handed.append(inner + below[:, t])
        below = np.stack(handed, 1)
    top = top_vertices(form, batch, 4)
    assert np.allclose(found["h"][top].reshape(2, 4, 3), below)
    assert np.allclose(found["loss"].sum(), (below**2).sum())
    ends = top_vertices(form, batch, 4, last=True)
    assert np.allclose(found["h"][ends], below[:, -1])


def test_a_recurrence_is_a_product_and_a_tanh() -> None:
    net = vrt.compile(Recurrence(3), device="reference", dtype="float64", seed=1)
    x = np.random.default_rng(0).standard_normal((2, 4, 3))
    found = net(recurrence_batch(x))["h"].reshape(x.shape)
    h = np.zeros((2, 3))
    for t in range(4):
        h = np.tanh(x[:, t] + h @ np.array(net.parameters["u"]).T)
        assert np.allclose(found[:, t], h)


def test_ways_take_turns() -> None:
    calls: list[str] = []

    def sample(name: str) -> Callable[[int], float]:
        def once(times: int) -> float:
            calls.append(name)
            return 1.0

        return once

    took = sampled_in_turn({"a": sample("a"), "b": sample("b")}, 3, 0.0)
    assert took == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert "".join(calls[4:]) == "abbaab"  # after two calls of each that warm up


def table_in(folder: Path) -> Table:
    options = argparse.Namespace(rounds=0)
    return Table(options, "cpu", 1, Results("any", (), {}), folder / "any.json")


def test_a_difference_from_float64_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_in(tmp_path)
    exact = {"h": np.array([1.0, 2.0])}
    table.check("here", {"torch": {"h": [1.0, 2.0001]}, "ours": exact}, exact, 1e-5)
    assert capsys.readouterr().out == "here: off from float64 by  torch 5.0e-05  ours 0.0e+00\n"
    assert [each["largest_difference"] for each in table.record.checks] == [
        pytest.approx(5e-5),
        0.0,
    ]
    for way, values, off in (
        ("ours", [1.0, 2.0001], "5.0e-05"),
        ("ours", [np.nan, 2.0], "nan"),
        ("torch", [1.0, 2.1], "5.0e-02"),
    ):
        text = rf"^\[here\] h of {way} is off by {off} of the largest element; at most "
        with pytest.raises(vrt.errors.NumericError, match=text):
            table.check("here", {way: {"h": values}}, exact, 1e-5)


def test_without_pytorch_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    words = "--hidden-sizes 4 --layers 1 --batch-sizes 2 --steps 3 --engines batched"
    assert ecornn_grid.main([*HERE, *words.split(), "--out", str(tmp_path)]) == 2
    assert "[papers] PyTorch is not installed; it, as the peer; " in capsys.readouterr().err


def test_layers_and_applications_of_grnn(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    sizes = "--hidden-sizes 4 --batch-sizes 1,2 --steps 3 --cells GRU --engines batched,persistent"
    record = run(grnn_latency.main, sizes, tmp_path)
    ways = ("torch", "batched", "persistent")
    wanted = [("GRU h 4", count, way) for count in (1, 2) for way in ways]
    assert names(record, part="layers") == wanted
    models = ("character model, GRU 3 x 128", "classifier, GRU 2 x 256")
    assert names(record, part="applications") == [(m, 1, way) for m in models for way in ways]
    assert len(record.checks) == (2 + 2) * 3
    assert all(e.against == "torch" for e in record.entries if e.key["variant"] != "torch")


def test_without_rounds_results_are_compared_and_nothing_is_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    words = "--hidden-sizes 4 --layers 1,2 --batch-sizes 2 --steps 3 --rounds 0"
    here = [word for word in HERE if word not in ("--rounds", "2")]
    assert ecornn_grid.main([*here, *words.split(), "--out", str(tmp_path)]) == 0
    record = read(tmp_path / "ecornn_grid.json")
    assert not record.entries
    assert len(record.checks) == 2 * 3
    assert "LSTM 2 x 4, batch 2: off from float64 by  torch " in capsys.readouterr().out


def test_the_grid_of_ecornn(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    sizes = "--hidden-sizes 4 --layers 2 --batch-sizes 2,3 --steps 3 --engines batched"
    record = run(ecornn_grid.main, sizes, tmp_path)
    wanted = [("LSTM 2 x 4", count, way) for count in (2, 3) for way in ("torch", "batched")]
    assert names(record) == wanted


def test_networks_that_were_trained_unequally_are_compared_from_one_start(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    form = Form("LSTM", 4)
    nets = {way: vrt.compile(Stack(form), device="cpu", threads=1, seed=1) for way in "ab"}
    name, given = "layers.0.cell.weight_hh", nets["b"].parameters
    given[name] = 2.0 * given[name]
    table = table_in(tmp_path)
    time_steps(table, {"batch_size": 2, "hidden": 4}, nets, form, 3)
    assert max(each["largest_difference"] for each in table.record.checks) < 1e-5


def test_a_layer_over_sizes_and_stacks_of_persistent_rnn(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    sizes = "--hidden 4 --hidden-sizes 3,5 --batch-sizes 1,2 --layers 2,3 --steps 3"
    record = run(persistent_rnn.main, sizes, tmp_path)
    ways = ("torch", "torch-gemm", "batched", "persistent")
    over = [(e.key["batch_size"], e.key["variant"]) for e in record.select(part="batch")]
    assert over == [(count, way) for count in (1, 2) for way in ways]
    over = [(e.key["hidden"], e.key["variant"]) for e in record.select(part="size")]
    assert over == [(hidden, way) for hidden in (3, 5) for way in ways]
    assert names(record, part="depth") == [
        (f"RNN {layers} x 4", 2, way)
        for layers in (2, 3)
        for way in ("torch", "batched", "persistent")
    ]
    assert {e.unit for e in record.select(part="batch")} == {"us a step"}


def test_applications_of_vpps(tmp_path: Path) -> None:
    words = "--models rvnn,bilstm-tagger --ways batched,serial --batch-sizes 2 --hidden 4"
    here = ["--device", "reference", "--threads", "1", "--seconds", "0"]
    assert vpps_applications.main([*here, *words.split(), "--out", str(tmp_path)]) == 0
    record = read(tmp_path / "vpps_applications.json")
    assert len(record.checks) == 2
    assert [(e.key["model"], e.key["variant"], e.unit) for e in record.entries] == [
        (model, way, "graphs/s")
        for model in ("rvnn", "bilstm-tagger")
        for way in ("batched", "serial")
    ]


def test_the_choice_is_compared_with_every_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    words = "--jobs gru --hidden 4 --batch 1,2 --threads 2 --rounds 1"
    choosing.main([*words.split(), "--out", str(out)])
    shown = capsys.readouterr().out
    for job in (found := json.loads(out.read_text(encoding="utf-8"))):
        seconds = job["seconds"]
        assert len(seconds) > 1
        assert job["ratio"] == seconds[job["choice"]] / min(seconds.values()) >= 1
        assert f"{job['job']}: {job['choice']}, {job['ratio']:.3f} times the fastest" in shown
    close = sum(job["ratio"] <= choosing.CLOSE for job in found)
    assert shown.endswith(f"within 3% of the fastest: {close} of 2\n")
