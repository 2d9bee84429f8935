"""Which products are overlapped with the path, and that scripts which mark others are refused."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.launches import Launch
from tests.paper_device import on_paper
from tests.runs import use_of
from vertexrt.errors import PlanError
from vertexrt.kernels.cuda.device_scripts import write_launch
from vertexrt.kernels.cuda.instruction import ACROSS, DOWN, OVERLAP
from vertexrt.kernels.cuda.verify_launch import verify_launch
from vertexrt.kernels.cuda.verify_overlap import verify_overlap
from vertexrt.script.isa import FIRST, NONE, OP, ROWS, WAIT

HIDDEN, OF_DEVICE = 32, 8


def launch(
    form: Form, sequences: int, steps: int, processors: int = 1, use: str = "inference"
) -> Launch:
    net = on_paper(Stack(form), processors, of_device=OF_DEVICE)
    batch = stack_batch(form, np.zeros((sequences, steps, form.hidden), np.float32))
    model = net.executor.model
    (run,) = model.prepare(use_of(use, model.function), batch)
    written = write_launch(run, run.layout.table, net.executor.persistent_launch, False, False)
    return Launch(run, run.layout.table, *written)


def overlapped(of: Launch) -> list[int]:
    return np.flatnonzero(of.written.script[: of.written.common, OVERLAP]).tolist()


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("sequences", "processors"), [(1, 1), (4, 1), (1, 2), (2, 2)])
def test_idle_processors_run_products_while_groups_follow_the_path(
    cell: str, sequences: int, processors: int
) -> None:
    assert overlapped(launch(Form(cell, HIDDEN), sequences, 80, processors)) == [0, 1]


@pytest.mark.parametrize(
    ("sequences", "steps", "processors", "use"),
    [
        pytest.param(5, 80, 1, "inference", id="most processors have a group"),
        pytest.param(1, 20, 1, "inference", id="one tile of rows"),
        pytest.param(1, 80, 1, "training", id="a way back"),
        pytest.param(1, 3000, 1, "inference", id="more tiles than there are counters for"),
    ],
)
def test_elsewhere_all_make_them_before_it(
    sequences: int, steps: int, processors: int, use: str
) -> None:
    assert overlapped(launch(Form("LSTM", HIDDEN), sequences, steps, processors, use)) == []


def test_of_a_stack_those_of_the_lowest_layer_are() -> None:
    found = launch(Form("LSTM", HIDDEN, 3), 1, 80)
    assert overlapped(found) == [0, 1]
    verify_launch(*found)


@pytest.mark.parametrize(
    ("at", "column", "value", "match"),
    [
        (2, OVERLAP, 32, "the first two, or none"),
        (1, OVERLAP, 0, "the first two, or none"),
        (1, FIRST, 1, "as the step has it"),
        (1, ROWS, 40, "as the step has it"),
        (1, ACROSS, 3, "as the step has it"),
        (1, DOWN, 2, "as the step has it"),
    ],
)
def test_wrong_scripts_are_refused(at: int, column: int, value: int, match: str) -> None:
    found = launch(Form("LSTM", HIDDEN), 1, 80)
    found.written.script[at, column] = value
    with pytest.raises(PlanError, match=match):
        verify_launch(*found)


def test_tiles_are_those_that_have_counters() -> None:
    found = launch(Form("LSTM", HIDDEN), 1, 80)
    found.written.script[:2, OVERLAP] = 16
    with pytest.raises(PlanError, match="80 rows in order, in 2 to 64 tiles"):
        verify_launch(*found)


def test_an_instruction_that_waits_is_not_overlapped() -> None:
    found = launch(Form("LSTM", HIDDEN), 1, 80)
    assert found.written.script[0, WAIT] == NONE
    found.written.script[0, WAIT] = 0
    with pytest.raises(PlanError, match="a step that the kernel begins with"):
        verify_overlap(found.written)
    found.written.script[0, WAIT] = NONE
    found.written.script[1, OP] = 0
    with pytest.raises(PlanError, match="forward, after one step of the function"):
        verify_overlap(found.written)


def test_it_is_explained() -> None:
    net = on_paper(Stack(Form("LSTM", HIDDEN)), 1, of_device=OF_DEVICE)
    batch = stack_batch(Form("LSTM", HIDDEN), np.zeros((1, 80, HIDDEN), np.float32))
    (run,) = net.executor.model.prepare(use_of("inference", net.program), batch)
    printed = net.executor.explanation().scripts(run)  # type: ignore[attr-defined]
    assert "blocks of work, overlapped with the path" in printed
