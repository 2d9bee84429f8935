"""Random networks agree with the oracle, and with themselves; failures are printed as scripts.

`python -m tests.fuzz` runs more of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from tests.devices import gpu, require, shim
from tests.fuzz.__main__ import RUNS
from tests.fuzz.batches import draw_batch
from tests.fuzz.bounded import Array, Bounded
from tests.fuzz.calls import CALLS, draw_calls
from tests.fuzz.campaign import Settings, Tally, drawn, run_campaign
from tests.fuzz.compare import difference
from tests.fuzz.function import source
from tests.fuzz.generate import FUNCTION, OF_SEVERAL, draw_network
from tests.fuzz.shrink import Case, shrink, smaller_networks
from tests.fuzz.updates import PLAIN
from tests.fuzz.ways import NamedWay, ways_of
from tests.runs import Way
from vertexrt.engine.variant import Passes

DAILY = 10_000_000  # seeds of the day begin at this many times its number
MARKS: dict[str, Any] = {"shim": shim, "cuda": gpu}
SMALL = {"most": 4, "nodes": 8}  # what compiles in seconds
# What is run: seeds, and settings by device.
PLAN: list[tuple[str, Sequence[int], dict[str, Any]]] = [
    *(("functions", range(k, k + 50), {"per": 1}) for k in range(0, 150, 50)),
    ("functions", range(30), {"dtype": "float32", "per": 1}),
    *(("functions", range(8), {"device": "cpu", "ways": w, "per": 1}) for w in ("b", "p")),
    ("functions", range(4), {"device": "shim", "per": 1, **SMALL}),
    *(("relations", range(k, k + 15), {}) for k in range(0, 30, 15)),
    ("relations", range(100, 104), {"dtype": "float32"}),
    ("relations", range(200, 260, 10), {"device": "cpu", "nodes": 12}),
    ("relations", range(300, 348, 12), {"device": "shim", **SMALL}),
    ("wide", range(10), {"per": 1}),
    ("wide", range(20, 23), {"device": "cpu", "per": 1}),
    # Issue 52: on the persistent engine, columns from 1,024 on were never updated.
    ("wide", (5,), {"device": "shim", "per": 1}),
    *(("sequences", range(k, k + 6), {"per": 10}) for k in range(0, 18, 6)),
    ("sequences", range(30, 35), {"dtype": "float32", "per": 10}),
    ("sequences", range(40, 45), {"device": "cpu", "per": 10}),
    ("sequences", range(50, 52), {"device": "shim", "per": 3}),
    ("optimizers", range(9), {"per": 6}),
    ("optimizers", range(100, 103), {"device": "cpu", "per": 2}),
    ("optimizers", range(200, 202), {"device": "shim", "per": 3}),
]
for _dtype in ("float32", "float64"):
    _gpu = {"device": "cuda", "dtype": _dtype}
    PLAN += [
        ("functions", range(5), {**_gpu, "ways": w, "per": 1, "nodes": 12}) for w in ("b", "p")
    ]
    PLAN.append(("relations", range(400, 416), {**_gpu, "nodes": 12}))
    # In parts, since compiling them takes minutes.
    PLAN += [("wide", range(k, 20, 5), {**_gpu, "per": 1}) for k in range(5)]
    PLAN += [("sequences", range(k, k + 2), {**_gpu, "per": 10}) for k in (60, 62)]
PLAN.append(("optimizers", range(300, 324), {"device": "cuda", "per": 1}))
OF_TORCH = ("sequences", "optimizers")  # judge updates by it


def run(what: str, seeds: Sequence[int], settings: Settings, note: str = "") -> None:
    """Run networks and fail with the scripts of those that do not agree."""
    require(settings.device)
    if what in OF_TORCH:
        pytest.importorskip("torch", reason="PyTorch is an optional extra")
    total = Tally()
    for tally in run_campaign(seeds, settings, 1, RUNS[what]):
        total.add(tally)
    found = [f"seed {f.seed}, {f.way}: {f.text}\n{f.script}" for f in total.findings]
    assert not found, f"{note}\n{total.table()}\n\n" + "\n".join(found)
    assert total.networks >= 0.7 * len(seeds), f"{note}\n{total.table()}"
    for left_out in (total.refused, total.vague):
        assert left_out.total() <= 0.3 * total.tried.total(), total.table()


# Of PyTorch's schedules: they do not see that their optimizer is another's judge.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize(
    ("what", "seeds", "settings"),
    [
        pytest.param(
            what,
            seeds,
            Settings(**given),
            id="-".join([what, *map(str, given.values()), str(seeds[0])]),
            marks=MARKS.get(given.get("device", ""), ()),
        )
        for what, seeds, given in PLAN
    ],
)
def test_networks(what: str, seeds: Sequence[int], settings: Settings) -> None:
    run(what, seeds, settings)


def test_functions_of_the_day() -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    first = today.toordinal() * DAILY
    note = f"functions of {today}, seeds from {first}"
    run("functions", range(first, first + 40), Settings(per=1), note)


# The fuzzer itself.


def test_each_pass_is_turned_somewhere() -> None:
    names = {way.name for device in ("reference", "shim") for way in ways_of(device, "float64")}
    for field in Passes.__dataclass_fields__:
        assert any(field in name for name in names), f"no way turns {field}"


def test_graphs_may_have_more_vertices_than_any_has_children() -> None:
    """So that launches have the rows of products by other means, see `choose_products`."""
    batches = [batch for seed in range(40) for batch in drawn(seed, 40, types=0)[1]]
    assert 30 < max(len(graph.children) for batch in batches for graph in batch.graphs) <= 40


def test_types_share_parameters_some_are_frozen_and_each_call_is_drawn() -> None:
    rng = np.random.default_rng(0)
    networks = [draw_network(rng, OF_SEVERAL) for _ in range(60)]
    assert {len(network.types) for network in networks} == {1, 2, 3, 4, 5}
    assert any(network.frozen for network in networks)
    counts = [sum(len(f.parameters) for f in network.types.values()) for network in networks]
    assert any(n > len(each.parameters) for n, each in zip(counts, networks, strict=True))
    carrying = next(network for network in networks if "memory" in network.pushes())
    calls = [call for _ in range(200) for call in draw_calls(rng, carrying, 4, "cpu")]
    assert {call[0] for call in calls} == {*CALLS}


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-10), ("float32", 1e-4)])
def test_what_is_off_is_seen(dtype: str, off: float) -> None:
    want = Bounded(np.array([1.0, -2.0]), np.array([3.0, 3.0]))
    assert difference(want.value.astype(dtype), want, dtype, "x") == ""
    assert "x: off by" in difference(want.value + np.array([off, 0.0]), want, dtype, "x")
    assert difference(np.array([1.0, np.nan]), want, dtype, "x") == "x: not finite"
    assert difference(np.array([1.0]), want, dtype, "x") == "x: shape (1,), not (2,)"


@dataclass(frozen=True, slots=True)
class MovedWay(NamedWay):
    """A way that is wrong: its networks' `zero_grad` moves a matrix, but at the beginning."""

    def compile(
        self, function: Any, parameters: dict[str, Array] | None, shuffle: int, reduction: str = ""
    ) -> vrt.Network:
        net = NamedWay.compile(self, function, parameters, shuffle, reduction)
        zeroed = []

        def moves() -> None:
            zeroed.append(True)
            for name in [n for n, x in net.parameters.items() if x.ndim == 2 and zeroed[1:]][:1]:
                net.parameters[name] = net.parameters[name] + 0.01

        net.zero_grad = moves  # type: ignore[method-assign]
        return net


@pytest.mark.parametrize("types", [0, 3])
def test_failures_become_small(types: int) -> None:
    style = replace(FUNCTION, types={types: 1.0}, wide=0.0)
    rng = np.random.default_rng(types)
    drawn = (draw_network(rng, style) for _ in range(100))
    network = next(n for n in drawn if any(n.names()[p] for p, s in n.parameters.items() if s[1:]))
    batches = tuple(draw_batch(rng, network, 4) for _ in range(3))
    every = tuple(network.pushes())
    calls = (("own", 0, every), ("forward", 1, every, ""), ("zero",), ("own", 2, every))
    case, way = Case(network, batches, calls, PLAIN), MovedWay("moved", Way())
    outcome = case.play(way)
    assert outcome.kind == "zero: parameter"
    assert outcome.number == 2
    small = shrink(case, way, 1, outcome, seconds=20.0)
    assert small.play(way).kind == outcome.kind
    assert small.calls == (("zero",),)
    assert len(small.network.types) == 1
    assert small.network.weight()[1] <= 8
    assert [len(g.children) for batch in small.batches for g in batch.graphs] == [1]
    scope: dict[str, object] = {"__name__": "script"}
    text = small.script(NamedWay("batched", Way()), 1, outcome.text)  # a way that is right
    with pytest.raises(SystemExit) as stopped:
        exec(compile(text, "script", "exec"), scope)
    assert not stopped.value.code


def test_smaller_networks_can_be_written() -> None:
    """Also without the only function whose vertices are children by a relation."""
    network = draw_network(np.random.default_rng(2), OF_SEVERAL)
    texts = [source(less) for less in smaller_networks(network)]
    assert any("'] = ()" in text for text in texts)
    for text in texts:
        compile(text, "script", "exec")
