"""The command line with `--device`: what `auto` says, and training that waits for no step.

A ShimDevice stands in for the GPU.
"""

import ctypes
import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.backend.test_cuda import tree_lstm, trees
from tests.device_rows import put_row, watch_steps
from tests.devices import shim
from tests.shim_device import put_in_place
from tests.train.cli_runs import (
    records,
    require_same_checkpoint,
    train,
    without_times,
    write_trees,
)
from tests.train.test_cli_train import interrupt_after, spoil_before
from vertexrt.cli.main import main
from vertexrt.engine.executor import Executor
from vertexrt.engine.variant import CompileOptions
from vertexrt.errors import DeviceError
from vertexrt.ir.program import Program
from vertexrt.kernels.cuda import compile_for_gpu

CUDA = ("--device", "cuda", "--epochs", "2", "--optimizer", "adam", "--dropout", "0.2")
SAID = r"calls: (\d+) kernels, (?:(\d+) products by warp groups, )?(\d+)(?: products)? of cuBLAS,"
ACCURACIES = ("root_accuracy", "vertex_accuracy")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trees(tmp_path_factory.mktemp("trees"))


@shim
def test_training_waits_for_no_step_and_reports_its_exact_loss(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_in_place(monkeypatch)
    asked: list[tuple[str, ...]] = []
    watch_steps(monkeypatch, after=lambda taken: asked.append((*taken.asked.outputs,)))
    here, there = tmp_path / "here", tmp_path / "there"
    words = (*CUDA, "--dtype", "float64", "--threads", "1")
    assert train(data, here, *words) == 0
    assert asked == [()] * 6, "a step with outputs is waited for"
    _, first, *_ = capsys.readouterr().out.splitlines()
    loss = records(here)[0]["loss"]
    assert first.startswith(f"epoch 1/2  train loss {loss:.4f}  dev loss ")
    assert ", root accuracy " in first
    assert train(data, there, *words[:1], "reference", *words[2:]) == 0
    for mine, theirs in zip(records(here), records(there), strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        for name in ACCURACIES:
            want = None if mine["split"] == "train" else theirs[name]
            assert mine[name] == want


@shim
@pytest.mark.parametrize("minibatches", [1, 3, 5])
def test_resume_on_a_device(
    minibatches: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    words = (*CUDA, "--dtype", "float64")
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert train(data, whole, *words) == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, minibatches)
        assert train(data, run, *words) == 143
    assert main(["train", "--resume", str(run)]) == 0
    require_same_checkpoint(run / "last.safetensors", whole / "last.safetensors")
    mine, theirs = without_times(run), without_times(whole)
    for line, other in zip(mine, theirs, strict=True):  # sums of an epoch in two parts
        assert line.pop("loss") == pytest.approx(other.pop("loss"), rel=1e-14)
    assert mine == theirs


@shim
def test_a_loss_that_is_not_finite_is_found_at_the_end_of_an_epoch(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_in_place(monkeypatch)
    spoil_before(monkeypatch, 6)  # the last of the second epoch
    run = tmp_path / "run"
    assert train(data, run, *CUDA, "--dtype", "float64") == 1
    assert f"The last good checkpoint is {run / 'last.safetensors'}." in capsys.readouterr().err
    assert [line["epoch"] for line in records(run)] == [1, 1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=shim)])
def test_auto_says_what_it_took(
    device: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def first_line() -> str:
        return capsys.readouterr().out.splitlines()[0]

    if device == "cuda":
        put_in_place(monkeypatch)
    else:
        monkeypatch.setitem(sys.modules, "cupy", None)
    run = tmp_path / "run"
    words = ("--device", "auto", "--epochs", "1", "--dropout", "0.2", "--engine", "batched")
    assert train(data, run, *words) == 0
    assert first_line() == f"device: {device} (auto)"
    assert main(["eval", str(run)]) == 0
    assert first_line() == f"device: {device} (auto)"
    assert main(["eval", str(run), "--device", device]) == 0
    assert first_line().startswith("dev: loss ")
    explain = ["explain", "tree-lstm", "--data", str(data), "--hidden", "6", "--embed", "5"]
    assert main([*explain, *words[4:], "--batch-size", "8"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"device: {device} (auto)\nF\n")
    assert ("launches: kernel" in shown) == (device == "cuda")


@shim
def test_explain_shows_launches(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in_place(monkeypatch)
    words = ["--hidden", "8", "--embed", "8", "--device", "cuda", "--engine", "batched"]
    words += ["--batch-size", "4"]
    assert main(["explain", "tree-lstm", "--data", str(data), *words]) == 0
    path = capsys.readouterr().out.partition("  path kind {0,1}")[2].partition("    path'")[0]
    launches = [line.strip() for line in path.splitlines() if " launches: " in line]
    assert launches[0] == "launches: kernel for each row, 32 threads, 4 a block"
    assert any(line.startswith("launches: kernel of products, 2 blocks of ") for line in launches)
    assert any(line.startswith("launches: cuBLAS, weight [24, 8], rows, ab") for line in launches)


@shim
@pytest.mark.parametrize("case", ["a tree", "trees", "wide products"])
def test_explain_counts_what_a_step_launches(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    function: vrt.VertexFunction | vrt.Model = tree_lstm()
    batch, optimizer = trees(1 if case == "a tree" else 40, 4), vrt.SGD(0.1)
    if case == "wide products":  # 256 rows by 256 columns: tiles that fill a device of 4 processors
        form = Form("LSTM", 64)
        function, batch = Stack(form), stack_batch(form, np.ones((32, 8, 64), np.float32))
    net = vrt.compile(function, device="cuda", engine="batched", dtype="float32")
    net.step(batch, optimizer)
    device = net.executor.session.device  # type: ignore[attr-defined]
    good, counts = device.calls, {"launch": 0, "gemm32": 0}
    words = {
        "launch": [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3,
        "gemm32": [ctypes.c_void_p]
        + [ctypes.c_int] * 5
        + [ctypes.c_void_p, ctypes.c_void_p]
        + [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        + [ctypes.c_int],
    }

    def counting(name: str) -> Any:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *words[name])
        real = kind(getattr(good, name))

        def call(*arguments: Any) -> int:
            counts[name] += 1
            return int(real(*arguments))

        return kind(call)

    calls = {name: counting(name) for name in counts}
    addresses = {name: ctypes.cast(call, ctypes.c_void_p).value for name, call in calls.items()}
    device.calls = dataclasses.replace(good, **addresses)  # type: ignore[arg-type]
    net.step(batch, optimizer)
    device.calls = good
    ending = 3  # the loss, whether the update is finite, and the update
    said = re.search(SAID, net.explain_batch(batch))
    assert said is not None
    kernels, wide, library = (int(number or 0) for number in said.groups())
    assert (kernels + wide, library) == (counts["launch"] - ending, counts["gemm32"])
    assert (wide > 0) == (case == "wide products")


def test_precision_reaches_the_device(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def compile_for(traced: Program, options: CompileOptions) -> Executor:
        asked.append(options.precision)
        raise DeviceError("[cuda] not today")

    put_row(monkeypatch, "cuda", compile_for_gpu, compile_for)
    assert train(data, tmp_path / "run", "--device", "cuda", "--precision", "tf32") == 1
    assert asked == ["tf32"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--precision tf23", 2, "[--precision] got 'tf23'; expected one of float32, tf32, bf16;"),
        ("--device cpu --precision bf16", 2, "[compile] precision is 'bf16' with device='cpu'"),
        ("--device cuda --processors 2", 2, "[--processors] the engine is auto;"),
        ("--device gpu", 2, "[--device] got 'gpu'; expected one of auto, cpu, cuda, reference;"),
    ],
)
def test_words_that_do_not_go_together(
    words: str, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "tree-lstm", *words.split()]) == code
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "train"])
def test_a_missing_gpu_is_said(
    command: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    words = ["--data", str(data), "--device", "cuda"]
    words += ["--out", str(tmp_path / "run")] if command == "train" else []
    assert main([command, "tree-lstm", *words]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("vertexrt: [cuda] CuPy is not installed; ")
    assert "use device='cpu'" in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "run").exists()
