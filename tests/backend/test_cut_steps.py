"""A persistent launch is cut at wide products, which kernels of their own make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.devices import shim
from tests.functions import LSTMChain
from tests.launches import launch_of
from tests.paper_device import on_paper
from tests.runs import TOLERANCE, Result, Way, assert_same, evaluate, train
from tests.shim_device import ShimDevice
from vertexrt.api.network import Network
from vertexrt.engine.variant import CompileOptions, Passes
from vertexrt.errors import PlanError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.kernels.cuda.cuts import pieces_of
from vertexrt.kernels.cuda.device import Device
from vertexrt.kernels.cuda.driver import IS_GEMM
from vertexrt.kernels.cuda.instruction import FIRST_OP, STEP
from vertexrt.kernels.cuda.persistent_launch import WrittenScripts
from vertexrt.kernels.cuda.verify_cells import verify_launch
from vertexrt.script.isa import NONE, OP, PROGRAM, WAIT

SMALL = Form("LSTM", 128)  # whose products fill two processors
LARGE = Form("LSTM", 512, 2)
OPTIONS = CompileOptions(
    np.dtype("float32"), "frontier", Passes(), "float32", "persistent", 1, None
)


class CountingShim(ShimDevice):
    """Counts the launches of persistent kernels."""

    launches = 0

    def launch_all(self, *given: Any) -> int:
        self.launches += 1
        return super().launch_all(*given)


@cache
def batch_of(form: Form, sequences: int) -> GraphBatch:
    x = np.random.default_rng(3).standard_normal((sequences, 16, form.hidden))
    return stack_batch(form, x.astype(np.float32))


def network(device: Device, form: Form, passes: Passes | None = None) -> Network:
    options = replace(OPTIONS, passes=passes or Passes())
    executor = compile_on(device, Stack(form).trace(), options)
    return Way().with_values(Network(executor, 0, "mean_graphs"))


def test_a_script_is_cut_where_products_that_are_apart_are_not_next_to_each_other() -> None:
    apart = np.array((3, 4, 5, 9))
    pieces = [(p.begin, p.end, p.apart.tolist()) for p in pieces_of(12, apart)]
    assert pieces == [(0, 3, [3, 4, 5]), (6, 9, [9]), (10, 12, [])]
    assert [p[:2] for p in pieces_of(12, apart[:0])] == [(0, 12)]
    assert [p[:2] for p in pieces_of(4, apart[:1] - 3)] == [(0, 0), (1, 4)]


def other(dtype: str, form: Form) -> Network:
    """Compile for a CPU, which cuts nothing."""
    return Way(device="cpu", dtype=dtype).compile(Stack(form))


@pytest.mark.parametrize(
    ("kind", "form", "sequences"),
    [("shim", SMALL, 17), ("cuda", LARGE, 100)],
)
@pytest.mark.parametrize(
    ("passes", "run"), [(Passes(), train), (Passes(lazy=False), evaluate)], ids=["step", "parts"]
)
def test_what_is_cut_has_the_same_results(
    kind: str, form: Form, sequences: int, passes: Passes, run: Callable[..., Result]
) -> None:
    """Both as one launch for a step, and as several."""
    batch, net = batch_of(form, sequences), network(device_for(kind), form, passes)
    written = launch_of(net, batch).written
    assert len(pieces_of(len(written.script), written.apart)) > 2
    judge, rounded = (run(other(dtype, form), batch) for dtype in ("float64", "float32"))
    assert_same(run(net, batch), judge, TOLERANCE["float32"], rounded)


@shim
def test_each_piece_is_a_launch() -> None:
    device, batch = CountingShim(processors=2), batch_of(SMALL, 17)
    net = network(device, SMALL)
    written = launch_of(net, batch).written
    net.step(batch, vrt.SGD(0.1))
    pieces = pieces_of(len(written.script), written.apart)
    assert device.launches == sum(piece.begin < piece.end for piece in pieces) > 1


@pytest.mark.parametrize(("words", "whole"), [(1_000, True), (12_000, False)])
def test_a_stage_that_cannot_stand_alone_keeps_all_but_its_wide_products(
    words: int, whole: bool
) -> None:
    """A softmax of many words has more shared memory than a kernel of its own could have."""
    lists = [[], *([k] for k in range(15))]
    pulls = {name: np.arange(16, dtype=np.int32) for name in ("word", "label")}
    batch = GraphBatch.from_graphs([InputGraph.from_children(lists, pulls)] * 17)
    launch = launch_of(on_paper(LSTMChain(words, 128, 128), 2, of_device=2), batch)
    verify_launch(*launch)
    apart, facts = launch.written.apart, launch.executable.facts
    script = launch.written.script
    lazy = (script[:, OP] >= FIRST_OP) & (facts.stages[script[:, PROGRAM]] == Stage.LAZY)
    launched = np.zeros(len(script), np.bool_)
    launched[apart] = True
    kinds = facts.products[script[apart, STEP], IS_GEMM][lazy[apart]]
    assert kinds.any()
    assert (launched[lazy].all(), not kinds.all()) == (whole, whole)


def changed(rows: Callable[[WrittenScripts], None]) -> None:
    """Verify a step on paper of which something was changed."""
    launch = launch_of(on_paper(Stack(SMALL), 2, of_device=2), batch_of(SMALL, 17))
    written = replace(launch.written, apart=launch.written.apart.copy())
    written.script = written.script.copy()
    rows(written)
    verify_launch(*launch._replace(written=written))


def test_what_is_apart_is_verified() -> None:
    changed(lambda written: None)
    for change, said in (
        (lambda written: put(written.apart, -1, written.apart[-1] + 1), "same round|is apart"),
        (lambda written: put(written.apart, 1, written.apart[0]), "out of order, or twice"),
        (lambda written: put(written.apart, 0, written.apart[1]), "out of order, or twice"),
        (unwaited, r"same round|does not wait"),
    ):
        with pytest.raises(PlanError, match=said):
            changed(change)


def unwaited(written: WrittenScripts) -> None:
    """Let the kernel go on beside the first step that is apart."""
    written.script[written.apart[0] + 1, WAIT] = NONE


def put(array: np.ndarray, at: int, value: int) -> None:
    array[at] = value


def device_for(kind: str) -> Device:
    """Return a GPU, or what stands in for one of two processors."""
    if kind == "shim":
        return ShimDevice(processors=2)
    from vertexrt.kernels.cuda.cupy_device import CupyDevice

    return CupyDevice()
