"""Random vertex functions agree with the oracle; failures are printed as small scripts.

`python -m tests.fuzz` runs more of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import require
from tests.fuzz.bounded import Array, Bounded
from tests.fuzz.campaign import RunOne, Settings, Tally, drawn, run_campaign, run_one
from tests.fuzz.compare import Expected, check, difference
from tests.fuzz.function import builder, source
from tests.fuzz.shrink import Failure, shrink
from tests.fuzz.ways import NamedWay, chosen, ways_of
from tests.runs import Way
from tests.shim import build as shim
from vertexrt.engine.variant import Passes

DAILY = 10_000_000  # seeds of the day begin at this many times its number


def run(seeds: Sequence[int], settings: Settings, note: str = "", one: RunOne = run_one) -> None:
    """Run functions and fail with the scripts of those that do not agree."""
    total = Tally()
    for tally in run_campaign(seeds, settings, 1, one):
        total.add(tally)
    found = [f"seed {f.seed}, {f.way}: {f.text}\n{f.script}" for f in total.findings]
    assert not found, f"{note}\n{total.table()}\n\n" + "\n".join(found)
    assert total.functions >= 0.7 * len(seeds), f"{note}\n{total.table()}"


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_reference(first: int) -> None:
    run(range(first, first + 50), Settings(per=1))


def test_reference_in_float32() -> None:
    run(range(30), Settings(dtype="float32", per=1))


def test_reference_on_functions_of_the_day() -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    first = today.toordinal() * DAILY
    run(range(first, first + 40), Settings(per=1), f"functions of {today}, seeds from {first}")


@pytest.mark.parametrize("ways", ["batched", "persistent"])
def test_cpu(ways: str) -> None:
    run(range(8), Settings("cpu", ways=ways, per=1))


@pytest.mark.skipif(not shim.available(), reason="needs a C++ compiler")
def test_kernels_of_a_gpu_on_the_shim() -> None:
    run(range(4), Settings("shim", per=1, most=4, nodes=8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ways", ["batched", "persistent"])
def test_gpu(ways: str, dtype: str) -> None:
    require("cuda")
    run(range(5), Settings("cuda", dtype, ways, per=1, nodes=12))


# The fuzzer itself.


def test_each_pass_is_turned_somewhere() -> None:
    names = {way.name for device in ("reference", "shim") for way in ways_of(device, "float64")}
    for field in Passes.__dataclass_fields__:
        assert any(field in name for name in names), f"no way turns {field}"


def test_graphs_may_have_more_vertices_than_any_has_children() -> None:
    """So that launches have the rows of products by other means, see `choose_products`."""
    batches = [batch for seed in range(40) for batch in drawn(seed, 40)[1]]
    assert 30 < max(len(graph) for batch in batches for graph in batch.graphs) <= 40


def test_ways_are_chosen_by_their_beginning() -> None:
    found = chosen(ways_of("reference", "float64"), "batched-no-f,persistent-1")
    assert [w.name for w in found] == ["batched-no-fuse", "persistent-1", "persistent-1-groups2"]


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-10), ("float32", 1e-4)])
def test_what_is_off_is_seen(dtype: str, off: float) -> None:
    want = Bounded(np.array([1.0, -2.0]), np.array([3.0, 3.0]))
    assert difference(want.value.astype(dtype), want, dtype, "x") == ""
    assert "x: off by" in difference(want.value + np.array([off, 0.0]), want, dtype, "x")
    assert difference(np.array([1.0, np.nan]), want, dtype, "x") == "x: not finite"
    assert difference(np.array([1.0]), want, dtype, "x") == "x: shape (1,), not (2,)"


@dataclass(frozen=True, slots=True)
class MovedWay(NamedWay):
    """A way that is wrong: one element of a matrix is not what it should be."""

    def compile(
        self, function: vrt.VertexFunction, parameters: dict[str, Array], shuffle: int
    ) -> vrt.Network:
        net = NamedWay.compile(self, function, parameters, shuffle)
        for name, value in parameters.items():
            if value.ndim == 2:
                net.parameters.update({**parameters, name: value + 0.01})
                break
        return net


def test_failures_become_small() -> None:
    spec, batches = next(
        (spec, batches)
        for spec, batches in (drawn(seed, 4) for seed in range(100))
        if 15 < len(spec.nodes) < 25 and any(node.op == "matmul" for node in spec.nodes)
    )
    way = MovedWay("moved", Way())
    build = builder(source(spec))
    outcome = check(build, [Expected(build, batch) for batch in batches], way)
    assert outcome.kind == "wrong"
    small = shrink(Failure(spec, batches, way, 1, outcome), seconds=20.0)
    assert small.outcome.kind == "wrong"
    assert len(small.function.nodes) <= 8
    assert [len(graph) for batch in small.batches for graph in batch.graphs] == [1]
    scope: dict[str, object] = {"__name__": "script"}
    text = replace(small, way=NamedWay("batched", Way())).script()
    with pytest.raises(SystemExit) as stopped:  # a way that is right
        exec(compile(text, "script", "exec"), scope)
    assert not stopped.value.code
