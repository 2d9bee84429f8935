"""Levels of layers and stacks that one instruction repeats, on both ways.

Groups of more than 16 processors are no clusters: states go through memory, also with flags.
"""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, ragged_batch
from tests.devices import SHIM_AND_GPU, require
from tests.launches import launch_of, most_times
from tests.runs import PLAIN, TOLERANCE, assert_same, evaluate, train
from tests.shim_device import put_in_place
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Stage

CASES = [  # cell, hidden, layers, processors of a group, dtype, sequences of 9 steps, groups
    ("LSTM", 40, 1, 20, "float32", 1, 1),
    ("LSTM", 40, 2, 20, "float64", 3, 1),
    ("RNN", 21, 1, 18, "float64", 2, 1),  # shares of an element, or two
    ("LSTM", 40, 1, 20, "float32", 2, 1),  # as many rows as are sent with flags
    ("RNN", 40, 3, 20, "float32", 4, 1),  # more
    ("GRU", 44, 2, 20, "float32", 3, 1),
    ("LSTM", 24, 2, 1, "float64", 2, 1),  # a processor alone, in each layer
    ("RNN", 16, 3, 1, "float32", 2, 1),
    ("GRU", 40, 1, 18, "float32", 2, 1),
    ("GRU", 128, 1, 1, "float32", 2, 1),  # whose weights leave no room for a ring
    ("LSTM", 40, 1, 20, "float32", 2, 2),  # a row of each group, which come at barriers
    ("GRU", 44, 1, 20, "float32", 4, 2),
]


def batch_of(form: Form, sequences: int) -> GraphBatch:
    """Make sequences of one length."""
    x = np.random.default_rng(sequences).standard_normal((9 * sequences, form.hidden))
    return ragged_batch(form, np.full(sequences, 9), x.astype(np.float32))


@pytest.mark.parametrize(
    ("cell", "hidden", "layers", "processors", "dtype", "sequences", "groups"), CASES
)
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_levels_are_repeated(
    device: str,
    cell: str,
    hidden: int,
    layers: int,
    processors: int,
    dtype: str,
    sequences: int,
    groups: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=groups * processors)
    form = Form(cell, hidden, layers, residual=layers > 2)
    here = vrt.compile(
        Stack(form), device="cuda", engine="persistent", processors=processors, dtype=dtype
    )
    there, batch = PLAIN.compile(Stack(form)), batch_of(form, sequences)
    there.parameters.update(here.parameters)
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE[dtype])
    assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])
    launch = launch_of(here, batch)
    flags = dtype == "float32" and processors > 1
    assert (launch.executable.writer.flagged_words > 0) == flags
    alone = launch.paths.lengths.shape[1] == 1  # groups that have rows
    assert ("sent with flags" in here.explain_batch(batch)) == (flags and alone)
    assert most_times(launch, Stage.PATH) == [8] * layers
    # The first level has no parent within its layer, and the last one no child.
    assert set(most_times(launch, Stage.PATH_BACKWARD)) <= {7, 8, 9}
