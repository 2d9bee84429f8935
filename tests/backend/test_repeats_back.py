"""Levels of the way back that one instruction repeats, on the shim and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, ragged_batch
from tests.chain_cells import ALONE, chains
from tests.devices import SHIM_AND_GPU, require
from tests.launches import Launch, launch_of
from tests.runs import PLAIN, TOLERANCE, assert_same, evaluate, train
from tests.shim_device import put_in_place
from vertexrt import data
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Stage
from vertexrt.kernels.cuda.instruction import TIMES
from vertexrt.models.lstm_lm import LSTMLanguageModel

STEPS = 9
LAYERS = [  # cell, hidden, layers, processors of a group, dtype, sequences
    ("LSTM", 24, 2, 1, "float64", 3),  # upper layers have two children a vertex, lower ones two
    ("RNN", 16, 3, 1, "float32", 2),  # parents; with residual connections
    ("LSTM", 40, 2, 20, "float64", 3),
    ("GRU", 40, 1, 18, "float32", 2),
    ("RNN", 40, 3, 20, "float32", 4),
]
CHAINS = [  # cell, processors, dtype, lengths of the chains
    ("lstm", 1, "float64", (9, 9, 5)),  # a level has more rows from some level on
    ("lstm", 18, "float64", (9, 9, 5)),
    ("gru", 17, "float32", (9, 9, 7)),
    ("slow", 20, "float32", (9, 9)),
    ("two", 20, "float64", (9, 9, 9, 9)),
    ("mean", 18, "float64", (9, 9)),
]


def times(launch: Launch) -> list[int]:
    """Return how often levels are repeated at most, of each side of the way back."""
    found, writer = [], launch.executable.writer
    for side, phase in enumerate(writer.phases):
        if phase.stage == Stage.PATH_BACKWARD:
            begin, end = launch.written.sections[side, [0, -1]]
            found.append(int(launch.written.script[begin:end, TIMES].max()))
    return found


def agree(here: vrt.Network, there: vrt.Network, batch: GraphBatch, close: float) -> None:
    there.set_parameters(here.parameters)
    assert_same(evaluate(here, batch), evaluate(there, batch), close)
    assert_same(train(here, batch), train(there, batch), close)


@pytest.mark.parametrize(("cell", "hidden", "layers", "processors", "dtype", "sequences"), LAYERS)
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_levels_of_layers_are_repeated(
    device: str,
    cell: str,
    hidden: int,
    layers: int,
    processors: int,
    dtype: str,
    sequences: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=processors)
    form = Form(cell, hidden, layers, residual=layers > 2)
    here = vrt.compile(
        Stack(form), device="cuda", engine="persistent", processors=processors, dtype=dtype
    )
    x = np.random.default_rng(sequences).standard_normal((STEPS * sequences, hidden))
    batch = ragged_batch(form, np.full(sequences, STEPS), x.astype(np.float32))
    agree(here, PLAIN.compile(Stack(form)), batch, TOLERANCE[dtype])
    assert min(times(launch_of(here, batch))) >= STEPS - 2  # the first has no parent within


@pytest.mark.parametrize(("cell", "processors", "dtype", "lengths"), CHAINS)
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_levels_of_cells_are_repeated(
    device: str,
    cell: str,
    processors: int,
    dtype: str,
    lengths: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=processors)
    here = vrt.compile(
        ALONE[cell](), device="cuda", engine="persistent", processors=processors, dtype=dtype
    )
    batch = chains(lengths)
    agree(here, PLAIN.compile(ALONE[cell]()), batch, TOLERANCE[dtype])
    assert min(times(launch_of(here, batch))) >= 3


@pytest.mark.parametrize("processors", [1, 20])
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_levels_of_a_language_model_are_repeated(
    device: str, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edges to words move on by another number than those to the next step."""
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=processors)
    text = data.load("generated", format="text", pieces=STEPS, streams=3, layers=2)
    batch = text.splits["train"].take(np.arange(3))
    model = LSTMLanguageModel(text.sizes()["vocab"], 24, 24, layers=2, dropout=0.0)
    here = vrt.compile(
        model, device="cuda", engine="persistent", processors=processors, dtype="float64"
    )
    agree(here, PLAIN.compile(model), batch, TOLERANCE["float64"])
    assert min(times(launch_of(here, batch))) >= STEPS - 3
