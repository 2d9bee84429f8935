"""Weights that processors hold as pairs of bfloat16, in half the room."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.bfloat16 import rounded
from tests.chain_cells import CELLS, chains
from tests.devices import on_gpus
from tests.functions import FUNCTIONS
from tests.runs import PLAIN
from tests.shim_device import put_in_place
from tests.strategies import with_pulls

Array = np.ndarray
TREE = [[], [], [0, 1], [], [2, 3]]


def with_pairs(
    function: vrt.VertexFunction,
    device: str,
    processors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> vrt.Network:
    """Compile a function with precision='bf16'."""
    if device == "shim":
        put_in_place(monkeypatch, precision="bf16")
    return vrt.compile(
        function,
        device="cuda",
        engine="persistent",
        processors=processors,
        precision="bf16",
    )


def error(got: Array, want: Array) -> float:
    """Return the largest error, in the largest element."""
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("cell", "processors"), [("lstm", 1), ("lstm", 2), ("gru", 3)])
@on_gpus
def test_a_few_rows_are_multiplied_by_rounded_weights(
    device: str, cell: str, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is rounded then: products are of float32."""
    here = with_pairs(CELLS[cell](), device, processors, monkeypatch)
    there, batch = PLAIN.compile(CELLS[cell]()), chains((9, 9))
    whole = dict(here.parameters)
    there.parameters.update({k: rounded(v) if v.ndim == 2 else v for k, v in whole.items()})
    got, want = (each(batch)["h"] for each in (here, there))
    assert error(got, want) < 2e-6
    there.parameters.update(whole)
    assert error(got, there(batch)["h"]) > 1e-4


@pytest.mark.parametrize("graphs", [6, 40])  # rows of 8 at a time, and of 16 where there is room
@pytest.mark.parametrize("processors", [1, 4])
@on_gpus
def test_many_rows_are_rounded_too(
    device: str, processors: int, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = FUNCTIONS["tree-lstm"][0]
    here = with_pairs(function(), device, processors, monkeypatch)
    there, batch = PLAIN.compile(function()), with_pulls([TREE] * graphs)
    there.parameters.update({k: rounded(v) for k, v in here.parameters.items()})
    got, want = (each(batch)["logits"] for each in (here, there))
    assert 1e-5 < error(got, want) < 1e-2


@on_gpus
def test_training_follows_that_of_whole_weights(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters stay float32, so that steps much smaller than a bfloat16 add up."""
    here = with_pairs(CELLS["lstm"](), device, 2, monkeypatch)
    there, batch = PLAIN.compile(CELLS["lstm"]()), chains((9, 9, 9))
    there.parameters.update(here.parameters)
    start = np.array(here.parameters["u"])
    for net in (here, there):
        optimizer = vrt.SGD(1e-4)
        for _ in range(5):
            net.step(batch, optimizer)
    moved = np.array(here.parameters["u"]) - start
    assert error(moved, np.array(there.parameters["u"]) - start) < 2e-2
