"""Levels of the way back that one instruction repeats, on the shim and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.chain_cells import ALONE, chains
from tests.devices import SHIM_AND_GPU, require
from tests.launches import launch_of, most_times
from tests.runs import PLAIN, TOLERANCE, assert_same, evaluate, train
from tests.shim_device import put_in_place
from vertexrt import data
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Stage
from vertexrt.models.language_model import LSTMLanguageModel

STEPS = 9
CHAINS = [  # cell, processors, dtype, lengths of the chains
    ("lstm", 1, "float64", (9, 9, 5)),  # a level has more rows from some level on
    ("lstm", 18, "float64", (9, 9, 5)),
    ("gru", 17, "float32", (9, 9, 7)),
    ("slow", 20, "float32", (9, 9)),
    ("two", 20, "float64", (9, 9, 9, 9)),
    ("mean", 18, "float64", (9, 9)),
]


def agree(here: vrt.Network, there: vrt.Network, batch: GraphBatch, close: float) -> None:
    there.parameters.update(here.parameters)
    assert_same(evaluate(here, batch), evaluate(there, batch), close)
    assert_same(train(here, batch), train(there, batch), close)


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
    assert min(most_times(launch_of(here, batch), Stage.PATH_BACKWARD)) >= 3


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
    assert min(most_times(launch_of(here, batch), Stage.PATH_BACKWARD)) >= STEPS - 3
