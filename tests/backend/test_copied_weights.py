"""Weights in shared memory that registers hold as well while levels are repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.devices import require
from tests.launches import launch_of
from tests.runs import PLAIN, TOLERANCE, assert_same, evaluate, train
from tests.shim_device import ShimDevice, put_in_place
from vertexrt.kernels.cuda.compile import ALL_FIT, Spilled
from vertexrt.kernels.cuda.device import Ahead, none_ahead
from vertexrt.kernels.cuda.instruction import TIMES

COPIED = "in shared memory, copied to registers for repeated levels"
CASES = [  # cell, hidden, processors of a group, dtype, precision, sequences
    ("LSTM", 64, 1, "float32", "float32", 1),
    ("LSTM", 64, 2, "float64", "float32", 2),
    ("GRU", 320, 20, "float32", "float32", 2),
    ("RNN", 480, 18, "float32", "float32", 4),
    ("LSTM", 160, 4, "float32", "bf16", 1),
]


class FewRegisters(ShimDevice):
    """A device on which kernels spill that hold weights in registers throughout."""

    def spills(self, source: str, real: np.dtype[Any], ahead: Ahead = none_ahead) -> Spilled:
        """Find these by the structs of what sides hold."""
        held = [x.split("}")[0] for x in source.split("_weights {")[1:]]
        return Spilled(400, "it spills") if "WeightsInRegisters" in "".join(held) else ALL_FIT


def agree(here: vrt.Network, form: Form, sequences: int, steps: int, close: float) -> None:
    """Compare states and gradients, and see that levels were repeated."""
    x = np.random.default_rng(sequences).standard_normal((sequences, steps, form.hidden))
    there, batch = PLAIN.compile(Stack(form)), stack_batch(form, x.astype(np.float32))
    there.parameters.update(here.parameters)
    assert_same(evaluate(here, batch), evaluate(there, batch), close)
    assert_same(train(here, batch), train(there, batch), close)
    assert launch_of(here, batch).written.script[:, TIMES].max() >= steps - 2
    assert COPIED in here.explain_batch(batch)


@pytest.mark.parametrize(("cell", "hidden", "processors", "dtype", "precision", "sequences"), CASES)
def test_repetitions_read_the_copy(
    cell: str,
    hidden: int,
    processors: int,
    dtype: str,
    precision: str,
    sequences: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_in_place(monkeypatch, FewRegisters, processors=processors, precision=precision)
    form = Form(cell, hidden)
    here = vrt.compile(
        Stack(form),
        device="cuda",
        engine="persistent",
        processors=processors,
        dtype=dtype,
        precision=precision,
    )
    close = TOLERANCE[dtype] if precision == "float32" else 3e-2
    agree(here, form, sequences, 7, close)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("cell", "hidden", "processors", "sequences"), [("LSTM", 1024, 128, 1), ("GRU", 512, 32, 3)]
)
def test_layers_whose_kernels_would_spill(
    cell: str, hidden: int, processors: int, sequences: int
) -> None:
    require("cuda")
    form = Form(cell, hidden)
    here = vrt.compile(Stack(form), device="cuda", engine="persistent", processors=processors)
    agree(here, form, sequences, 9, TOLERANCE["float32"])
