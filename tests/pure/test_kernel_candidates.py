"""A persistent kernel that spills gives way to the next one, which compiled beside it."""

from __future__ import annotations

from collections.abc import Sequence
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
from vertexrt.kernels.cuda.device import Ahead, none_ahead
from vertexrt.kernels.cuda.persistent import (
    LITTLE_SPILLED,
    MOST_BEFORE_MEMORY,
    MOST_OF_A_STEP,
    MOST_SPILLED,
    MOST_WITH_COPIES,
    WORTH_OF_COPIES,
)
from vertexrt.kernels.ways import FEWEST, Configuration
from vertexrt.models import TreeLSTM

MUCH, TOO_MUCH = MOST_SPILLED + 1, MOST_BEFORE_MEMORY + 1


class Spilling(PaperDevice):
    """A device on which persistent kernels spill, the first ones so many bytes, the others none."""

    def __init__(self, *spilled: int) -> None:
        super().__init__(processors=8)
        self.spilled = spilled
        self.tried: list[tuple[str, Sequence[str]]] = []
        self.loaded: list[str] = []

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = none_ahead) -> Spilled:
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


def test_where_all_kernels_spill_much_weights_stay_in_memory() -> None:
    """The last kernel that is tried has none in registers."""
    device = Spilling(*[MUCH] * 99)
    tried = evaluate(device)
    assert len(tried) == len({*tried}) > 1
    assert device.tried[-1][1] == []
    assert device.loaded[-1] == tried[-1]
    assert "WeightsInRegisters<" not in tried[-1]


def test_more_is_spilled_where_weights_would_be_read_from_memory() -> None:
    """Of eight processors registers have to hold some weights of a Tree-LSTM of 272."""
    for spilled, in_memory in ((MOST_BEFORE_MEMORY, False), (TOO_MUCH, True)):
        device = Spilling(*[spilled] * 99)
        evaluate(device, processors=8, size=272)
        assert ("take(memory)" in device.loaded[-1]) == in_memory


@pytest.mark.usefixtures("choices_folder")
@pytest.mark.parametrize("processors", [8, None])
def test_auto_does_not_take_kernels_that_spill_much(processors: int | None) -> None:
    device = Spilling(*[MUCH] * 99)
    assert not set(device.loaded) & {*evaluate(device, "auto", processors)}


@pytest.mark.parametrize(("spilled", "copies"), [(MOST_WITH_COPIES, True), (MUCH, False)])
def test_copies_are_left_out_where_all_kernels_before_spill_much(
    spilled: int, copies: bool
) -> None:
    """A layer of 256 in groups of 8: weights in registers, or in shared memory with a copy."""
    device = Spilling(MUCH, spilled)
    layers(device, Form("LSTM", 256))
    tried = [source for source, _ in device.tried]
    assert ["copy_weights(" in source for source in tried] == [False, True, False][: 3 - copies]
    assert device.loaded[-1] == tried[-1]
    assert "WeightsInSharedMemory<" in tried[-1]


@pytest.mark.parametrize(("less", "copies"), [(0, True), (WORTH_OF_COPIES + 1, False)])
def test_copies_are_worth_some_of_what_is_spilled(less: int, copies: bool) -> None:
    device = Spilling(MUCH, MOST_SPILLED, MOST_SPILLED - less, *[TOO_MUCH] * 9)
    layers(device, Form("LSTM", 256))
    assert ("copy_weights(" in device.loaded[-1]) == copies


def test_layers_with_copies_are_one_function() -> None:
    """But for the first, which pulls what the others gather."""
    counts = []
    for count in (2, 5):
        device = Spilling(MUCH)
        layers(device, Form("LSTM", 256, count))
        counts.append(device.loaded[-1].count("copy_weights("))
    assert counts == [2, 2]


@pytest.mark.parametrize(("engine", "processors"), [("auto", None), ("persistent", 4)])
def test_groups_of_4_hold_a_weight_in_two_places_only_where_asked_for(
    engine: str, processors: int | None
) -> None:
    """A layer of 200: groups of 8 have room for it in registers."""
    net = layers(PaperDevice(processors=132), Form("LSTM", 200), 20, engine, processors)
    tried = [way.processors for way in net.executor.model.chooser.ways if way.persistent]
    assert (4 in tried) == (processors == 4)


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
