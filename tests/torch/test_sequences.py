"""Random sequences of calls on networks of several types agree with PyTorch float64.

`python -m tests.fuzz.sequences` plays more of them; failures are printed as small scripts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from tests.devices import require
from tests.fuzz.calls import WEIGHTS, Difference, Player, Rule, draw_calls
from tests.fuzz.sequences import (
    Counts,
    Played,
    play,
    run_one,
    script,
    shrink,
    ways_of,
)
from tests.fuzz.typed import draw_network, source
from tests.fuzz.typed_batches import draw_graph
from tests.runs import Way
from tests.shim import build as shim


def run(first: int, networks: int, device: str, dtype: str = "float64", per: int = 10) -> None:
    """Play sequences and fail with the scripts of those that do not agree."""
    ways, total = ways_of(device, dtype), Counts()
    for seed in range(first, first + networks):
        total.add(run_one(seed, ways, per, 0.02, 20.0))
    found = [f"seed {seed}: {text}\n{shown}" for seed, _, text, shown in total.findings]
    assert not found, "\n\n".join(found)
    assert total.refused <= networks // 4


@pytest.mark.parametrize("first", [0, 6, 12])
def test_reference(first: int) -> None:
    run(first, 6, "reference")


def test_reference_in_float32() -> None:
    run(30, 5, "reference", "float32")


def test_cpu() -> None:
    run(40, 5, "cpu")


@pytest.mark.skipif(not shim.available(), reason="needs a C++ compiler")
def test_kernels_of_a_gpu_on_the_shim() -> None:
    run(50, 2, "shim", per=3)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [60, 62])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gpu(dtype: str, seed: int) -> None:
    require("cuda")
    run(seed, 2, "cuda", dtype)


# The fuzzer itself.


def test_types_share_names_and_differ_in_size() -> None:
    specs = [draw_network(np.random.default_rng([seed])) for seed in range(60)]
    assert {len(spec.types) for spec in specs} == {1, 2, 3, 4, 5}
    shared = [
        spec
        for spec in specs
        for one, two in zip(spec.types, spec.types[1:], strict=False)
        if any(spec.ints(two).get(name, n) != n for name, n in spec.ints(one).items())
    ]
    assert len(shared) > 10
    assert any(not trained for spec in specs for _, trained in spec.parameters.values())
    texts = "".join(map(source, specs))
    for part in ("(x * self.gather(", "gather_all", "label_smoothing", "softmax", "straight"):
        assert part in texts


def test_each_call_is_drawn() -> None:
    rng = np.random.default_rng(0)
    spec = next(s for s in (draw_network(rng) for _ in range(100)) if "memory" in s.pushes())
    drawn = [call for _ in range(200) for call in draw_calls(rng, spec, 4, True)]
    assert {call[0] for call in drawn} == {*WEIGHTS, "carried", "module"} - {"other"}


@dataclass(frozen=True, slots=True)
class MovedWay(Way):
    """A way that is wrong: `zero_grad` moves a parameter."""

    def compile(self, function: Any, seed: int = 3) -> Any:
        net = Way.compile(self, function, seed)

        def moves() -> None:
            for name in list(net.parameters)[:1]:
                net.parameters[name] = net.parameters[name] + 1.0

        net.zero_grad = moves  # type: ignore[method-assign]
        return net


def test_failures_become_small() -> None:
    rng = np.random.default_rng(4)
    spec = replace(draw_network(rng, 0.0), reduction="mean_graphs")
    batches = tuple((draw_graph(rng, spec), draw_graph(rng, spec)) for _ in range(4))
    calls = (("step", 0, (), False), ("forward", 1, ("loss",), ""), ("zero",), ("step", 1, ()))
    one = Played(spec, batches, calls, Rule("SGD", {"lr": 0.25}), MovedWay())
    found = play(one)
    assert found is not None
    assert found.kind.startswith("zero: parameter")
    small = shrink(one, found, 30.0)
    assert small.calls == (("zero",),)
    assert len(small.spec.types) == 1
    assert all(sum(graph.sizes.values()) == 1 for batch in small.batches for graph in batch)
    scope: dict[str, object] = {"__name__": "script"}
    text = script(replace(small, way=Way()), found.text)
    with pytest.raises(SystemExit) as stopped:  # a way that is right
        exec(compile(text, "script", "exec"), scope)
    assert not stopped.value.code


def test_what_is_off_is_seen() -> None:
    rng = np.random.default_rng(1)
    spec = draw_network(rng, 0.0)
    player = Player(spec, [(draw_graph(rng, spec),)] * 4, Way())
    player.start = {name: value + 1e-6 for name, value in player.start.items()}
    player.reset(Rule("SGD", {"lr": 0.25}))
    player.sides[0].net.parameters.update({n: x + 1e-9 for n, x in player.start.items()})
    with pytest.raises(Difference, match="parameter"):
        player.check()
