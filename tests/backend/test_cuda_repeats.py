"""Levels of chains that one instruction repeats, on the shim and on a GPU."""

from __future__ import annotations

import time

import numpy as np
import pytest

import vertexrt as vrt
from tests.chain_cells import ALONE, CELLS, chains
from tests.devices import SHIM_AND_GPU, require
from tests.launches import launch_of
from tests.runs import PLAIN, TOLERANCE, Way, assert_close, assert_same, evaluate, train
from tests.watched_device import SCRIPT, mend, watch
from vertexrt.errors import DeviceError
from vertexrt.graph import GraphBatch, InputGraph
from vertexrt.kernels.cuda.instruction import COLUMNS, EXPECT, TIMES
from vertexrt.script.isa import NONE, WAIT

CASES = [  # cell, processors of a group, dtype, lengths of the chains
    ("lstm", 1, "float32", (9,)),
    ("lstm", 1, "float64", (9, 9, 9, 9, 9, 6)),  # two rows of a level, then one
    ("lstm", 2, "float32", (9, 9, 9)),
    ("lstm", 4, "float32", (9, 9)),
    ("lstm", 3, "float64", (9, 9, 9)),  # shares of five elements, or six: no vectors
    ("gru", 3, "float32", (9, 9)),
    ("gru", 1, "float64", (9, 9)),
    ("gru", 2, "float64", (9, 9, 7)),
    ("slow", 1, "float32", (9,)),
    ("slow", 2, "float32", (9, 9, 9, 9)),
    ("two", 1, "float64", (9, 9, 9, 7)),
    ("two", 2, "float32", (9, 9)),
    ("mean", 1, "float64", (9, 9)),
]


@pytest.mark.parametrize(("cell", "processors", "dtype", "lengths"), CASES)
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_levels_are_repeated(
    device: str, cell: str, processors: int, dtype: str, lengths: tuple[int, ...]
) -> None:
    require(device)
    batch = chains(lengths)
    way = Way(device=device, dtype=dtype, engine="persistent", processors=processors)
    here, there = way.compile(ALONE[cell]()), PLAIN.compile(ALONE[cell]())
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE[dtype])
    assert_same(train(here, batch), train(there, batch), TOLERANCE[dtype])
    launch = launch_of(here, batch)
    if launch.paths.clustered or processors == 1:
        begin, end = launch.written.sections[0, [0, -1]]
        assert launch.written.script[begin:end, TIMES].max() >= 5


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_a_child_that_is_absent_ends_a_repetition(device: str) -> None:
    """The first vertex names a child that is not there: -1, by number the one before the first."""
    require(device)
    first = GraphBatch.from_graphs([InputGraph.from_children([[-1], *([k] for k in range(8))])])
    batch = first.with_pulls(dict(chains((9,)).pulls))
    way = Way(device=device, dtype="float64", engine="persistent", processors=1)
    here, there = way.compile(CELLS["lstm"]()), PLAIN.compile(CELLS["lstm"]())
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE["float64"])
    assert_same(train(here, batch), train(there, batch), TOLERANCE["float64"])


@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_rows_of_the_ring_are_used_again(device: str, processors: int) -> None:
    require(device)
    batch = chains((400,))
    way = Way(device=device, dtype="float64", engine="persistent", processors=processors)
    here, there = way.compile(CELLS["slow"]()), PLAIN.compile(CELLS["slow"]())
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE["float64"])
    launch = launch_of(here, batch)
    if launch.paths.clustered or processors == 1:
        begin, end = launch.written.sections[0, [0, -1]]
        rows = launch.executable.writer.rings[0].rows
        assert launch.written.script[begin:end, TIMES].max() > 2 * rows > 0


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_a_repetition_that_waits_in_vain_ends_the_launch(device: str) -> None:
    """Members wait each by itself there, and all of their threads have to leave together."""
    require(device)
    here = Way(device=device, engine="persistent", processors=2).compile(CELLS["lstm"]())
    batch, optimizer = chains((9, 9)), vrt.SGD(0.1)
    here.step(batch, optimizer, outputs=here.pushes)
    before = dict(here.parameters)
    if device == "shim":
        here.executor.persistent_launch.patience = 5_000_000  # type: ignore[attr-defined]
    launch = launch_of(here, batch, outputs=here.pushes, optimizer=optimizer)
    if not launch.executable.clusters:
        pytest.skip("this GPU has no clusters")
    script = launch.written.script
    k = int(np.flatnonzero((script[:, TIMES] > 1) & (script[:, WAIT] != NONE))[0])
    broken = watch(here)

    def never_all(words: np.ndarray) -> None:  # the first repetition does not wait
        at = int(words[SCRIPT]) + 4 * k * COLUMNS
        broken.put(at + 4 * WAIT, NONE)
        broken.put(at + 4 * EXPECT, int(script[k, EXPECT]) + 1000)

    broken.before = never_all
    patience = here.executor.persistent_launch.patience / 1e9  # type: ignore[attr-defined]
    start = time.perf_counter()
    with pytest.raises(DeviceError, match=r"processor \d+ waited at instruction \d+ for"):
        here.step(batch, optimizer, outputs=here.pushes)
    assert time.perf_counter() - start < max(5.0, 2 * patience + 1)
    mend(broken)
    for name, value in here.parameters.items():
        assert np.array_equal(value, before[name]), f"{name} was updated"
    there = Way(device=device).compile(CELLS["lstm"]())
    there.parameters.update(before)
    other = vrt.SGD(0.1)
    here.step(batch, optimizer)
    there.step(batch, other)
    for name, value in here.parameters.items():
        assert_close(value, there.parameters[name], 1e-12, name)
