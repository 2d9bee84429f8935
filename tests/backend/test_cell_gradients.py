"""Gradients of weights that cells sum up on chip: on a GPU, and on the CPU in place of one."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from tests.agreement import agree
from tests.backend.test_cuda_cells import CHAIN, COMB, DAG, TREE, executables
from tests.backend.test_layers_in_turn import HIDDEN, OneWeight, batch_of_two_layers
from tests.declared import Declared
from tests.devices import on_gpus, shim
from tests.functions import CLASSES, FUNCTIONS, WORDS, E
from tests.runs import PLAIN, TOLERANCE, Way, assert_bits, assert_same, evaluate, train
from tests.shim_device import ShimDevice
from tests.strategies import with_pulls
from vertexrt.api.network import Network
from vertexrt.engine.variant import Passes
from vertexrt.kernels.cuda import persistent
from vertexrt.kernels.cuda.compile_for_gpu import compile_on
from vertexrt.models import TreeLSTM

ON_CHIP = Passes(gradients=True)
MADE = FUNCTIONS | {"wide": (lambda: TreeLSTM(WORDS, E, 104, CLASSES), 2)}
# Of each function a graph, and how many gradients cells sum up.
OF = {"lstm-lm": (CHAIN, 1), "gru": (CHAIN, 1), "tree-lstm": (COMB, 2), "tree-fc": (TREE, 1)}
CASES = [
    ("lstm-lm", 1, "float32"),
    ("lstm-lm", 8, "float64"),
    ("gru", 4, "float64"),
    *(("tree-lstm", processors, "float32") for processors in (1, 4, 8)),
    ("tree-fc", 2, "float32"),
]


def net_of(
    name: str, processors: int, dtype: str, passes: Passes = ON_CHIP, device: str = "shim"
) -> Network:
    way = Way(device, dtype, engine="persistent", processors=processors, passes=passes)
    if device == "cuda":
        return way.compile(MADE[name][0]())
    several = ShimDevice(processors=3 * processors)
    compiled = compile_on(several, MADE[name][0]().trace(), way.options())
    return way.with_values(vrt.Network(compiled, 3, "mean_graphs"))


def summed(here: Network) -> set[str]:
    """Return the words of gradients that cells sum up, and check that no step makes one again."""
    found, behind = set[str](), set[str]()
    for each in executables(here):
        mine = {h.word for side in each.writer.sides for h in side.held if h.is_sum}
        behind |= mine & {w for step in each.writer.all_steps for w in step.words}
        found |= mine
    assert not behind, "these are made after the path as well"
    return found


def agrees(name: str, here: Network, shape: list[list[int]], dtype: str) -> None:
    """Compare with the reference: several groups with several graphs, and one; twice."""
    there = PLAIN.compile(MADE[name][0]())
    for graphs in (7, 1):
        batch = with_pulls([shape] * graphs)
        assert_same(evaluate(here, batch), evaluate(there, batch), TOLERANCE[dtype])
        first = train(here, batch)
        assert_same(first, train(there, batch), TOLERANCE[dtype])
        assert_bits(train(here, batch).parameters, first.parameters)


@pytest.mark.parametrize(("name", "processors", "dtype"), CASES)
@on_gpus
def test_they_are_those_of_the_reference(
    device: str, name: str, processors: int, dtype: str
) -> None:
    here, (shape, weights) = net_of(name, processors, dtype, device=device), OF[name]
    agrees(name, here, shape, dtype)
    assert len(summed(here)) == weights


@pytest.mark.parametrize("registers", [0, 20])
@shim
def test_they_lie_in_shared_memory_too(registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent, "REGISTERS", (registers,))
    here = net_of("tree-lstm", 4, "float32")
    agrees("tree-lstm", here, DAG, "float32")
    assert len(summed(here)) == 2
    assert all(each.writer.sides[-1].shared > 0 for each in executables(here))


@shim
def test_one_that_has_no_room_is_made_after_the_path() -> None:
    here = net_of("wide", 1, "float32")
    agrees("wide", here, COMB, "float32")
    assert len(summed(here)) == 1


@shim
def test_one_program_of_all_rows_sums_up_zeros_of_absent_children() -> None:
    here = net_of("tree-lstm", 4, "float64", Passes(gradients=True, specialise=False))
    agrees("tree-lstm", here, COMB, "float64")
    assert len(summed(here)) == 2


@shim
@pytest.mark.parametrize("name", ["forget-all", "attention", "both"])
def test_others_are_made_after_the_path(name: str) -> None:
    here = net_of(name, 2, "float64")
    agrees(name, here, TREE, "float64")
    assert not summed(here)


@shim
def test_a_step_moves_parameters_by_them() -> None:
    here, there = net_of("tree-lstm", 4, "float64"), PLAIN.compile(FUNCTIONS["tree-lstm"][0]())
    batch = with_pulls([COMB] * 5)
    for net in (here, there):
        optimizer = vrt.Adam(0.01)
        for _ in range(3):
            net.step(batch, optimizer)
        net.sync()
    for name, value in there.parameters.items():
        np.testing.assert_allclose(here.parameters[name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize("processors", [1, 2])
@shim
def test_a_layer_sums_up_a_gradient_that_others_add_to(processors: int) -> None:
    way = Way("shim", engine="persistent", processors=processors, passes=ON_CHIP)
    here = agree(OneWeight, batch_of_two_layers(), way)
    assert any(h.is_sum for each in executables(here) for x in each.writer.sides for h in x.held)


class Given(Declared, state={"h": HIDDEN}):
    """What has no parameter, so that nothing is left for it."""

    def forward(self) -> None:
        self.scatter(h=vrt.tanh(self.pull("x", (HIDDEN,))))


class Above(vrt.VertexFunction):
    """A chain that reads it at some vertices."""

    def __init__(self, below: Given) -> None:
        super().__init__(state={"h": HIDDEN}, inputs={"below": below})
        self.w = vrt.Parameter((HIDDEN, HIDDEN))

    def forward(self) -> None:
        h = vrt.tanh(self.w @ (self.gather("before").h + self.gather("below").h))
        self.scatter(h=h)
        self.push("loss", vrt.sum(h * h))


class Pair(vrt.Model):
    """Both of them."""

    def __init__(self) -> None:
        self.given = Given()
        self.above = Above(self.given)


@pytest.mark.parametrize("rest", [0, 1])
@shim
def test_kinds_that_go_back_alike_may_sum_up_other_values(rest: int) -> None:
    batch = batch_of_two_layers("given", "above", slice(rest, None, 2))
    way = Way("shim", engine="persistent", processors=2, passes=ON_CHIP)
    assert summed(agree(Pair, batch, way))
