"""The command line with `--device`, and with state that is carried: training waits for no step.

A ShimDevice stands in for the GPU.
"""

import ctypes
import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.backend.test_cuda import tree_lstm, trees
from tests.device_rows import Taken, put_row, watch_steps
from tests.devices import shim
from tests.shim_device import put_in_place
from tests.train.cli_runs import (
    SMALL,
    Cli,
    interrupt_after,
    records,
    require_in,
    require_same_checkpoint,
    spoil_before,
    without_times,
    write_trees,
)
from vertexrt.cli.train import KEPT
from vertexrt.engine.executor import Executor
from vertexrt.engine.variant import CompileOptions
from vertexrt.errors import DeviceError
from vertexrt.ir.program import Program
from vertexrt.kernels.cuda import compile_for_gpu

CUDA = "--device cuda --epochs 2 --optimizer adam --dropout 0.2 --dtype float64 --threads 1"
SAID = r"calls: (\d+) kernels, (?:(\d+) products by warp groups, )?(\d+)(?: products)? of cuBLAS,"
EXPLAIN = "explain tree-lstm --data data --engine batched"


@shim
def test_training_waits_for_no_step_and_reports_its_exact_loss(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    asked: list[tuple[str, ...]] = []
    watch_steps(monkeypatch, after=lambda taken: asked.append((*taken.asked.outputs,)))
    _, first, *_ = cli.train("here", CUDA).splitlines()
    assert asked == [()] * 6, "a step with outputs is waited for"
    assert first.startswith(f"epoch 1/2  train loss {records('here')[0]['loss']:.4f}  dev loss ")
    assert ", root accuracy " in first
    cli.train("there", CUDA.replace("cuda", "reference"))
    for mine, theirs in zip(records("here"), records("there"), strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-9)
        for name in ("root_accuracy", "vertex_accuracy"):
            want = None if mine["split"] == "train" else theirs[name]
            assert mine[name] == want
    # It goes on to the same bits: interrupted inside of both epochs.
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        cli.train("again", CUDA, code=143)
        interrupt_after(patch, 4)
        cli("train --resume again", code=143)
    cli("train --resume again")
    require_same_checkpoint("again/last.safetensors", "here/last.safetensors")
    for line, other in zip(without_times("again"), without_times("here"), strict=True):
        # Sums of an epoch in two parts.
        assert line.pop("loss") == pytest.approx(other.pop("loss"), rel=1e-14)
        assert line == other


@shim
def test_a_loss_that_is_not_finite_is_found_at_the_end_of_an_epoch(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    spoil_before(monkeypatch, 6)  # the last of the second epoch
    told = "The last good checkpoint is new/last.safetensors."
    assert told in cli.train("new", CUDA, code=1)
    assert [line["epoch"] for line in records("new")] == [1, 1]


@shim
@pytest.mark.parametrize("found", ["cpu", "cuda"])
def test_auto_says_what_it_took(found: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    if found == "cuda":
        put_in_place(monkeypatch)
    else:
        monkeypatch.setitem(sys.modules, "cupy", None)
    said = f"device: {found} (auto)\n"
    assert cli.train("new", "--device auto --epochs 1 --engine batched").startswith(said)
    assert cli("eval new").startswith(said)
    assert cli(f"eval new --device {found}").startswith("dev: loss ")
    shown = cli(EXPLAIN, *SMALL[:-2])
    assert shown.startswith(f"{said}F\n")
    assert ("launches: kernel" in shown) == (found == "cuda")
    if found == "cpu":
        told = "device: cpu (auto); --precision tf32 is of a GPU and does nothing here\n"
        assert cli(EXPLAIN, *SMALL[:-2], "--precision", "tf32").startswith(told)


@shim
def test_explain_shows_launches(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    shown = cli(f"{EXPLAIN} --hidden 8 --embed 8 --device cuda --batch-size 4")
    path = shown.partition("  path kind {0,1}")[2].partition("    path'")[0]
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


def test_precision_reaches_the_device(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def compile_for(traced: Program, options: CompileOptions) -> Executor:
        asked.append(options.precision)
        raise DeviceError("[cuda] not today")

    put_row(monkeypatch, "cuda", compile_for_gpu, compile_for)
    cli.train("new", "--device cuda --precision tf32", code=1)
    assert asked == ["tf32"]


@pytest.mark.parametrize("command", ["explain tree-lstm", "train tree-lstm --out new"])
def test_a_missing_gpu_is_said(command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    shown = cli(f"{command} --data data --device cuda", code=1)
    require_in("vertexrt: [cuda] CuPy is not installed;  ... use device='cpu'", shown)
    assert not Path("new").exists()


@shim
def test_a_run_on_a_gpu_writes_a_timeline(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    write_trees(Path("few"), train=7, dev=1, test=1)
    words = "--engine persistent --device cuda --processors 2 --epochs 1 --batch-size 1"
    shown = cli.train("new", f"{words} --trace trace.json", data="few")
    assert f"timeline of {KEPT} minibatches: trace.json" in shown
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["args"]["run"] for e in slices} == set(range(KEPT))
    assert {"path.0", "weights", "update"} <= {e["name"] for e in slices}


# State that is carried over pieces of text.

CARRIED_TEXT = "the cat sees a dog\na dog sees the cat\nno cat sees me\n"


def write(folder: Path) -> Path:
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(CARRIED_TEXT * 2)
    return folder


LM = "train lstm-lm --data . --hidden 4 --embed 4 --layers 2 --epochs 2 --batch-size 2"


def test_a_run_carries_its_state(cli: Cli) -> None:
    write(Path())
    carried = "--set carried=true --set tied=true --device reference"
    cli(f"{LM} --pieces 4 {carried} --out new")
    assert records("new")[0]["perplexity"] > records("new")[2]["perplexity"]
    cli("eval new --split test")
    told = "[data] 2 streams of sentences; expected pieces; set pieces."
    assert told in cli(f"{LM} {carried} --out other", code=2)


@shim
def test_a_run_on_a_device_waits_for_no_state(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)
    write(Path())
    under_way: list[int] = []

    def after(taken: Taken) -> None:
        flights: Any = getattr(taken.executor, "flights", None)  # of a device
        under_way.append(0 if flights is None else len(flights.under_way))

    watch_steps(monkeypatch, after=after)
    words = f"{LM} --pieces 4 --dropout 0.2 --set carried=true --dtype float64 --threads 1"
    found = {}
    for device in ("cuda", "reference"):
        cli(f"{words} --device {device} --out {device}")
        found[device] = [line["perplexity"] for line in records(device)]
    steps = len(under_way) // 2
    assert under_way[:steps] == [1] * steps
    assert found["cuda"] == pytest.approx(found["reference"], rel=1e-9)
