"""A persistent kernel that spills gives way to the next one, which compiled beside it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.many_vectors import ManyVectors, two_chains
from tests.paper_device import PaperDevice, on_paper
from tests.shim_device import ARGUMENT_BYTES
from vertexrt.errors import NoKernelError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.compile import ALL_FIT, Spilled
from vertexrt.kernels.cuda.device import Ahead
from vertexrt.kernels.cuda.persistent import (
    LITTLE_SPILLED,
    MOST_BEFORE_TURNS,
    MOST_OF_A_STEP,
    MOST_SPILLED,
)
from vertexrt.kernels.ways import FEWEST, Configuration
from vertexrt.models import TreeLSTM

MUCH, TOO_MUCH = MOST_SPILLED + 1, MOST_BEFORE_TURNS + 1


class Spilling(PaperDevice):
    """A device on which persistent kernels spill, the first ones so many bytes, the others none."""

    def __init__(self, *spilled: int) -> None:
        super().__init__(processors=8)
        self.spilled = spilled
        self.tried: list[tuple[str, Sequence[str]]] = []
        self.loaded: list[str] = []

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = tuple) -> Spilled:
        """Take note of what was asked."""
        number = len(self.tried)
        self.tried.append((source, ahead()))
        return Spilled(self.spilled[number], "it spills") if number < len(self.spilled) else ALL_FIT

    def load(self, sources: Sequence[str], real: np.dtype[Any]) -> dict[str, int]:
        """Take note of what was loaded."""
        self.loaded += sources
        return super().load(sources, real)


def evaluate(
    device: Spilling,
    engine: str = "persistent",
    processors: int | None = None,
    size: int = 256,
) -> list[str]:
    """Run a Tree-LSTM of some size, and return the kernels that were tried."""
    net = on_paper(TreeLSTM(5, 4, size, 3), processors, engine=engine, device=device)
    if engine == "persistent" and processors is None:
        net.executor.model.chooser.only(Configuration(True, 1, FEWEST))  # whatever is predicted
    pulls = {"word": [0, 1, -1], "label": [1, 1, 1]}
    net.record(GraphBatch.from_graphs([InputGraph.from_children([[], [], [0, 1]], pulls)]))
    return [source for source, _ in device.tried]


def layers(
    device: PaperDevice,
    form: Form,
    count: int = 1,
    engine: str = "persistent",
    processors: int | None = 8,
) -> vrt.Network:
    """Train layers on sequences of 35 steps."""
    net = on_paper(Stack(form), processors, engine=engine, device=device)
    net.step(stack_batch(form, np.zeros((count, 35, form.hidden), np.float32)), vrt.SGD(0.0))
    return net


@pytest.mark.parametrize("spills", [0, 1, 2])
def test_the_next_kernel_compiles_beside_the_first(spills: int) -> None:
    device = Spilling(*[MUCH] * spills)
    tried = evaluate(device)
    assert len(tried) == len({*tried}) == spills + 1
    assert device.loaded[-1] == tried[-1]
    for (_, ahead), following in zip(device.tried, tried[1:], strict=False):
        assert list(ahead) == [following]


def test_a_kernel_that_spills_little_is_taken_at_once() -> None:
    device = Spilling(LITTLE_SPILLED)
    assert evaluate(device) == device.loaded[-1:]


def test_of_kernels_that_spill_the_least_is_taken() -> None:
    device = Spilling(LITTLE_SPILLED + 3, LITTLE_SPILLED + 1, *[MOST_SPILLED] * 98)
    _, least, *others = evaluate(device)
    assert others
    assert device.loaded[-1] == least


def test_where_all_kernels_spill_much_the_path_runs_in_turn() -> None:
    """The last kernel that is tried holds no weights."""
    device = Spilling(*[TOO_MUCH] * 99)
    tried = evaluate(device)
    assert len(tried) == len({*tried}) > 1
    assert device.tried[-1][1] == []
    assert device.loaded[-1] == tried[-1]
    assert "WeightsIn" not in tried[-1]


def test_more_is_spilled_where_the_path_would_run_in_turn() -> None:
    """Of eight processors registers have to hold some weights of a Tree-LSTM of 272."""
    for spilled, in_turn in ((MOST_BEFORE_TURNS, False), (TOO_MUCH, True)):
        device = Spilling(*[spilled] * 99)
        evaluate(device, processors=8, size=272)
        assert ("WeightsIn" not in device.loaded[-1]) == in_turn


@pytest.mark.usefixtures("choices_folder")
@pytest.mark.parametrize("processors", [8, None])
def test_auto_does_not_take_kernels_that_spill_much(processors: int | None) -> None:
    device = Spilling(*[MUCH] * 99)
    assert not set(device.loaded) & {*evaluate(device, "auto", processors)}


def test_layers_that_are_alike_are_one_function() -> None:
    """But for the first, which pulls what the others gather, and the last on the way back."""
    counts = []
    for count in (4, 6):
        device = Spilling()
        layers(device, Form("LSTM", 256, count))
        counts.append(device.loaded[-1].count("_facts {"))
    assert counts[0] == counts[1] < 8


def test_groups_of_4_hold_a_weight_in_two_places_only_where_asked_for() -> None:
    """A layer of 256: groups of 8 have room for it in registers."""
    form = Form("LSTM", 256)
    batch = stack_batch(form, np.zeros((4, 5, 256), np.float32))
    for engine in ("auto", "persistent"):
        net = on_paper(Stack(form), 4, engine=engine, device=PaperDevice(processors=132))
        net.executor.model.chooser.only(Configuration(True, 1, 4))
        refused = pytest.raises(NoKernelError, match="or one of them in both")
        with refused if engine == "auto" else nullcontext():
            net.step(batch, vrt.SGD(0.0))


@pytest.mark.parametrize(
    ("vectors", "argument_bytes", "text"),
    [
        (480, 4096, "words of a kernel; at most 4[0-9][0-9];"),
        (MOST_OF_A_STEP + 1, ARGUMENT_BYTES, rf"words of a step; at most {MOST_OF_A_STEP};"),
    ],
)
def test_a_function_with_too_many_words_runs_batched(
    vectors: int, argument_bytes: int, text: str
) -> None:
    batch, function = two_chains(), ManyVectors(vectors)
    device = PaperDevice(argument_bytes=argument_bytes)
    with pytest.raises(NoKernelError, match=text):
        on_paper(function, 1, device=device)(batch)
    net = on_paper(function, None, engine="auto", device=device)
    chooser = net.executor.model.chooser
    assert chooser.pick(False, batch).persistent
    net(batch)
    assert not chooser.pick(False, batch).persistent
