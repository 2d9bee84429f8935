"""Gradients that no function leaves are not missed, whatever engine and device."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.stacks import Form, Stack, stack_batch
from tests.devices import SHIM_AND_GPU, require
from tests.read_by_others import (
    Body,
    Forks,
    cell_too,
    every,
    forks,
    marks,
    marks_of_every,
    one,
    signs,
)
from tests.runs import PLAIN, TOLERANCE, Way, assert_close, assert_same, evaluate, train
from vertexrt.engine.variant import Passes

BODIES = [(one, True), (cell_too, True), (every, True), (marks, True), (signs, True)]
CASES = [*BODIES, (marks_of_every, False), (one, False)]
WAYS = [
    Way(),
    Way(policy="depth"),
    Way(passes=Passes(lazy=False, eager=False, fuse=False)),
    Way(passes=Passes(specialise=False)),
    Way(device="cpu"),
    Way(device="cpu", engine="persistent", threads=2, processors=2),
]


def compare(way: Way, body: Body, chain: bool) -> None:
    batch = forks(whole=body in (every, marks_of_every))
    here, there = way.compile(Forks(body, chain)), PLAIN.compile(Forks(body, chain))
    for run in (evaluate, train):  # without layers, all edges carry all gradients
        assert_same(run(here, batch), run(there, batch), TOLERANCE[way.dtype])


@pytest.mark.parametrize(("body", "chain"), CASES)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_vertices_with_parents_of_several_layers(way: Way, body: Body, chain: bool) -> None:
    compare(way, body, chain)


@pytest.mark.parametrize(
    ("processors", "body", "chain"),
    [(0, one, True), (1, marks, True), (2, one, True), (2, marks_of_every, False)],
)
@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_vertices_with_parents_of_several_layers_on_a_gpu(
    device: str, processors: int, body: Body, chain: bool
) -> None:
    require(device)
    engine = "persistent" if processors else "batched"
    way = Way(device=device, dtype="float32", engine=engine, processors=processors or None)
    compare(way, body, chain)


STACKS = [Form("LSTM", 5, 3), Form("LSTM", 5, 2, residual=True)]


@pytest.mark.parametrize("form", STACKS, ids=str)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_stacks_without_zeros_are_as_all_together(way: Way, form: Form) -> None:
    batch = stack_batch(form, np.random.default_rng(3).standard_normal((3, 6, 5)).astype("f4"))
    here, wave = way.compile(Stack(form)), Way(passes=Passes(layers=False)).compile(Stack(form))
    for run in (evaluate, train):
        assert_same(run(here, batch), run(wave, batch), TOLERANCE[way.dtype])


@pytest.mark.parametrize("way", [Way(), Way(device="cpu")], ids=str)
def test_a_stack_has_the_gradients_of_pytorch(way: Way) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `torch`)")
    form, x = Form("LSTM", 6, 3), np.random.default_rng(5).standard_normal((4, 7, 6)).astype("f4")
    net = way.compile(Stack(form))
    judge = torch.nn.LSTM(6, 6, 3, batch_first=True, dtype=torch.float64)
    theirs = {  # by our name
        f"layers.{k}.cell.{name}": getattr(judge, f"{name}_l{k}")
        for k in range(3)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    with torch.no_grad():
        for name, value in theirs.items():
            value.copy_(torch.from_numpy(np.array(net.parameters[name])))
    top, _ = judge(torch.from_numpy(x.astype(np.float64)))
    ((top**2).sum() / len(x)).backward()  # the mean over graphs
    found = train(net, stack_batch(form, x))
    assert found.parameters.keys() == theirs.keys()
    for name, value in theirs.items():
        assert_close(found.parameters[name], value.grad.numpy(), TOLERANCE[way.dtype], name)


def test_a_dead_end_is_no_gradient() -> None:
    """What feeds a field that only `stop_gradient` reads has a gradient of zero."""
    found = train(Way(device="cpu").compile(Forks(signs)), forks(whole=False))
    assert not found.parameters["fork.v"].any()
    assert found.parameters["fork.u"].any()
