"""Gradients that the backward side of the path sums up on chip: on a GPU, and through the shim."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import SHIM_AND_GPU, gpu, require, shim
from tests.functions import FUNCTIONS
from tests.runs import PLAIN, TOLERANCE, Way, assert_close, assert_same, evaluate, train
from tests.shim_device import put_in_place
from tests.strategies import with_pulls
from vertexrt.api.network import Network
from vertexrt.engine.variant import Passes
from vertexrt.graph import GraphBatch
from vertexrt.kernels.cuda import persistent
from vertexrt.kernels.cuda.persistent import PersistentExecutable
from vertexrt.kernels.cuda.weights import REGISTERS, SHARED

ON_CHIP = Passes(gradients=True)
SHAPES = {1: [[], [0], [1], [2]], 2: [[], [], [0, 1], [], [2, 3], [], [4, 5]]}
# One of everything: rows of edges, a child's state as the operand, two rows a vertex; plain FMA and
# matrix units; from four groups to one; both places. Stacks are in test_cuda_persistent.py.
ON_SHIM = (
    ("tree-fc", 1, "float32", REGISTERS),
    ("tree-lstm", 4, "float64", SHARED),
    ("lstm-lm", 2, "float64", REGISTERS),
    ("both", 2, "float64", SHARED),
)
MIXED = ("both",)  # leaves multiply by the same weight outside the path
ON_GPU = tuple(
    (name, processors, dtype, place)
    for name in ("tree-lstm", "lstm-lm", "gru", "tree-fc", "both", "tied")
    for processors, dtype, place in (
        (1, "float32", SHARED),
        (2, "float64", REGISTERS),
        # Of states of five, which groups send one by one, the code of larger ones spills.
        (1 if name == "lstm-lm" else 4, "float32", REGISTERS),
    )
)
CASES = [
    *(pytest.param("shim", *case, marks=shim) for case in ON_SHIM),
    *(pytest.param("cuda", *case, marks=gpu) for case in ON_GPU),
]


def batch_of(name: str, graphs: int) -> GraphBatch:
    """Make graphs of one shape with pulls of their own."""
    lists = SHAPES[min(FUNCTIONS[name][1], 2)]
    return with_pulls([lists] * graphs)


def executable_of(net: Network) -> PersistentExecutable:
    """Return what runs the steps of a network."""
    variant = next(v for v in net.executor.model.variants.values() if v.use.loss)
    executable = variant.ready().processors
    assert isinstance(executable, PersistentExecutable)
    return executable


@pytest.mark.parametrize(("device", "name", "processors", "dtype", "place"), CASES)
def test_they_are_those_of_the_reference(
    device: str,
    name: str,
    processors: int,
    dtype: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require(device)
    monkeypatch.setattr(persistent, "PLACES", ((place,),))
    way = Way(device, dtype, engine="persistent", processors=processors, passes=ON_CHIP)
    here, there = (each.compile(FUNCTIONS[name][0]()) for each in (way, PLAIN))
    for graphs in (12, 3):  # more rows than units take at a time; in several groups
        batch = batch_of(name, graphs)
        first = train(here, batch)
        assert_same(first, train(there, batch), TOLERANCE[dtype])
        again = train(here, batch)
        for key, value in first.parameters.items():
            assert np.array_equal(value, again.parameters[key]), f"{key} has other bits"
    executable = executable_of(here)
    side = executable.writer.sides[1]
    assert len(side.sums) > 0
    assert side.sums_in_registers == (len(side.sums) if place == REGISTERS else 0)
    behind = {w for step in executable.writer.all_steps for w in step.words}
    both = behind & {h.word for h in side.sums}
    assert bool(both) == (name in MIXED), f"{both} are made after the path as well"


class TwoSizes(vrt.VertexFunction):
    """The path multiplies by a large weight and by a small one."""

    def __init__(self) -> None:
        super().__init__(arity=1, state={"a": 40, "b": 4})
        self.u, self.v = vrt.Parameter((40, 40)), vrt.Parameter((4, 4))

    def forward(self) -> None:
        below, x = self.gather(0), self.pull("x", (40,))
        b, a = vrt.tanh(self.v @ below.b + x[:4]), vrt.tanh(self.u @ below.a + x)
        self.scatter(a=a, b=b)
        self.push("loss", vrt.sum(a) * vrt.sum(b))


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_each_has_a_place_of_its_own(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 52: in shared memory all had the size of the last."""
    require(device)
    monkeypatch.setattr(persistent, "PLACES", ((SHARED,),))
    way = Way(device, "float64", engine="persistent", processors=2, passes=ON_CHIP)
    here, there = (each.compile(TwoSizes()) for each in (way, PLAIN))
    x = np.random.default_rng(1).standard_normal((3, 7, 40))
    batch = GraphBatch.from_graphs([vrt.InputGraph.chain(7, {"x": each}) for each in x])
    assert_same(train(here, batch), train(there, batch), TOLERANCE["float64"])
    writer = executable_of(here).writer
    sizes = [writer.budget.bytes([h]) for h in writer.sides[1].sums]
    assert len(sizes) == 2
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_matrix_units_round_as_asked(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, precision="tf32")
    function: Callable[[], vrt.VertexFunction] = FUNCTIONS["tree-fc"][0]
    here = vrt.compile(
        function(), device="cuda", engine="persistent", processors=2, precision="tf32",
        passes=ON_CHIP,
    )  # fmt: skip
    there = vrt.compile(function(), device="reference", dtype="float64")
    there.parameters.update(here.parameters)
    batch = batch_of("tree-fc", 12 if device == "shim" else 400)
    got, want = (train(net, batch).parameters["w"] for net in (here, there))
    error = float(np.abs(got - want).max() / np.abs(want).max())
    assert 1e-5 < error < 5e-3
    assert executable_of(here).writer.sides[1].sums_in_registers == 1


@gpu
def test_seeds_reach_them_too() -> None:
    require("cuda")
    way = Way("cuda", "float64", engine="persistent", processors=2, passes=ON_CHIP)
    here, there = (each.compile(FUNCTIONS["tree-lstm"][0]()) for each in (way, PLAIN))
    batch = batch_of("tree-lstm", 9)
    assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE["float64"])
    rules = vrt.Adam(0.01), vrt.Adam(0.01)
    for _ in range(3):
        here.step(batch, rules[0])
        there.step(batch, rules[1])
    here.sync()
    for name, value in here.parameters.items():
        assert_close(value, there.parameters[name], 1e-9, name)
