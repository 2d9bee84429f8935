"""Products that idle processors run while groups follow the path, on the shim and on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, ragged_batch
from tests.devices import SHIM_AND_GPU, require, shim
from tests.launches import Launch
from tests.runs import PLAIN, TOLERANCE, Way, assert_close, assert_same, evaluate, use_of
from tests.shim_device import put_in_place
from tests.watched_device import SCRIPT, mend, watch
from vertexrt.errors import DeviceError
from vertexrt.kernels.cuda.device_scripts import write_launch
from vertexrt.kernels.cuda.instruction import ACROSS, COLUMNS, OVERLAP, TIMES
from vertexrt.kernels.cuda.overlap import TILE_ROWS
from vertexrt.script.isa import FIRST

HIDDEN, OF_SHIM = 16, 8
CASES = [  # cell, processors of a group, lengths of the sequences
    ("LSTM", 1, (70,)),
    ("LSTM", 1, (40, 40, 40)),
    ("LSTM", 2, (66, 3)),
    ("GRU", 1, (33, 20, 9, 1)),
    ("GRU", 4, (65,)),
    ("RNN", 2, (64, 64)),
]


def network(
    device: str, cell: str, processors: int, monkeypatch: pytest.MonkeyPatch
) -> vrt.Network:
    """Compile for a GPU, or for a shim with more processors than the tests have else."""
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=OF_SHIM, seed=HIDDEN)
    way = Way(device="cuda", dtype="float32", engine="persistent", processors=processors)
    return way.compile(Stack(Form(cell, HIDDEN)))


def batch_of(cell: str, lengths: tuple[int, ...]) -> vrt.GraphBatch:
    x = np.random.default_rng(3).standard_normal((sum(lengths), HIDDEN)).astype(np.float32)
    return ragged_batch(Form(cell, HIDDEN), np.array(lengths), x)


def launch_of_request(net: vrt.Network, batch: vrt.GraphBatch) -> Launch:
    model = net.executor.model
    (run,) = model.prepare(use_of("inference", model.function), batch)
    persistent = net.executor.persistent_launch  # type: ignore[attr-defined]
    return Launch(
        run, run.layout.table, *write_launch(run, run.layout.table, persistent, False, False)
    )


@pytest.mark.parametrize(("cell", "processors", "lengths"), CASES)
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_groups_wait_for_the_rows_that_they_read(
    device: str,
    cell: str,
    processors: int,
    lengths: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, batch = network(device, cell, processors, monkeypatch), batch_of(cell, lengths)
    there = PLAIN.compile(Stack(Form(cell, HIDDEN)))
    for _ in range(3):  # counters are zero again
        assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE["float32"])
    launch = launch_of_request(here, batch)
    assert launch.written.script[:2, OVERLAP].all()


class EagerState(vrt.VertexFunction):
    """What a vertex makes of its input is read by its parent alone."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": HIDDEN, "x": HIDDEN})
        self.w, self.u = (vrt.Parameter((HIDDEN, HIDDEN)) for _ in range(2))

    def forward(self) -> None:
        below = self.gather(0)
        h = vrt.tanh(self.u @ below.h + below.x)
        self.scatter(h=h, x=self.w @ self.pull("x", (HIDDEN,)))
        self.push("h", h)


@shim
def test_states_from_before_the_path_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, processors=OF_SHIM, seed=HIDDEN)
    way = Way(device="cuda", dtype="float32", engine="persistent", processors=2)
    here, there = way.compile(EagerState()), PLAIN.compile(EagerState())
    last = 69  # of a chain whose vertices are numbered from its end
    x = np.random.default_rng(5).standard_normal((last + 1, HIDDEN)).astype(np.float32)
    children = [[k + 1] if k < last else [] for k in range(last + 1)]
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.from_children(children, {"x": x})])
    here.parameters.update({name: value / 4 for name, value in here.parameters.items()})
    there.parameters.update(here.parameters)
    wanted = there(batch)["h"]
    assert np.abs(here(batch)["h"] - wanted).max() <= 1e-6 * np.abs(wanted).max()
    assert launch_of_request(here, batch).written.script[:2, OVERLAP].all()


class ReadsBeforeItMultiplies(vrt.VertexFunction):
    """The path begins with what it reads of the overlapped product: no other product is before."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"h": HIDDEN})
        self.w, self.u = (vrt.Parameter((HIDDEN, HIDDEN)) for _ in range(2))

    def forward(self) -> None:
        x = self.w @ self.pull("x", (HIDDEN,))
        h = vrt.tanh(self.u @ (x * self.gather(0).h) + x)
        self.scatter(h=h)
        self.push("h", h)


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_all_threads_wait_for_what_the_path_begins_with(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 52: only those that copy did, and in some orders the others were too early."""
    require(device)
    there = PLAIN.compile(ReadsBeforeItMultiplies())
    there.parameters.update({name: value / 4 for name, value in there.parameters.items()})
    x = np.random.default_rng(7).standard_normal((TILE_ROWS[1], 3, HIDDEN)).astype(np.float32)
    batch = vrt.GraphBatch.from_graphs([vrt.InputGraph.chain(3, {"x": each}) for each in x])
    wanted = there(batch)["h"]
    for seed in range(1, 11):
        if device == "shim":
            put_in_place(monkeypatch, processors=2 * len(x), seed=seed)
        way = Way(device="cuda", dtype="float32", engine="persistent", processors=1)
        here = way.compile(ReadsBeforeItMultiplies())
        here.parameters.update(there.parameters)
        assert_close(here(batch)["h"], wanted, TOLERANCE["float32"], f"order {seed}")
    written = launch_of_request(here, batch).written
    common, of_groups = np.split(written.script, [written.common])
    assert common[:2, OVERLAP].tolist() == 2 * [len(x)]
    # Repetitions begin with the second tile: what came before has waited for the first one alone.
    assert (of_groups[of_groups[:, FIRST] >= len(x), TIMES] == 2).all()


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_rows_that_never_come_end_the_launch(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here, batch = network(device, "LSTM", 1, monkeypatch), batch_of("LSTM", (70,))
    right = here(batch, outputs=["h"])["h"]
    if device == "shim":
        here.executor.persistent_launch.patience = 5_000_000  # type: ignore[attr-defined]
    across = int(launch_of_request(here, batch).written.script[1, ACROSS])
    broken = watch(here)

    def one_more(words: np.ndarray) -> None:  # than there are blocks of a tile
        broken.put(int(words[SCRIPT]) + 4 * (COLUMNS + ACROSS), across + 1)

    broken.before = one_more
    with pytest.raises(DeviceError, match=r"processor 0 waited at instruction \d+ for"):
        here(batch, outputs=["h"])["h"]
    mend(broken)
    assert np.array_equal(here(batch, outputs=["h"])["h"], right)
