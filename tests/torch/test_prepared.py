"""Passes that are prepared give what others give, look at what they are given, and do less."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import vertexrt as vrt  # noqa: E402
from tests.devices import shim  # noqa: E402
from tests.torch.test_gpu import ENGINES, assert_near  # noqa: E402
from tests.torch.test_kept import (  # noqa: E402
    HIDDEN,
    INPUT,
    PLACES,
    CountingDevice,
    assert_same_gradients,
    layers,
    packs,
    total,
)
from vertexrt.errors import UsageError  # noqa: E402

LENGTHS = (3, 1, 2)
PACKAGE = str(Path(vrt.__file__).parent)
MOST_CALLS = 115  # of functions of the package, in a step whose lengths came before


def part_of(found: Any, which: str) -> Any:
    """Return a number that depends on some of the results."""
    out, (h, c) = found
    parts = {"out": out.data, "h": h, "c": c}
    return sum((parts[name] * (1 + parts[name])).sum() for name in which.split())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
def test_other_results_get_gradients_in_turn(
    engine: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, judge = layers(place, engine, monkeypatch)
    where = next(mine.parameters()).device
    for _ in range(4):
        for which in ("out", "h", "out c", "c", "out h c"):
            ours, theirs = packs(LENGTHS, where)
            for layer, given in ((mine, ours), (judge, theirs)):
                layer.zero_grad()
                part_of(layer(given), which).backward()
            assert_same_gradients(mine, judge, ours, theirs)


@pytest.mark.parametrize("place", PLACES)
def test_states_and_frozen_parts_in_turn(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given, and what of it gets a gradient, differs between calls of one layout."""
    mine, judge = layers(place, "batched", monkeypatch)
    where = next(mine.parameters()).device
    for _ in range(4):
        for given, wanted in ((True, True), (False, True), (True, False)):
            ours, theirs = packs(LENGTHS, where)
            h, c = torch.randn(2, 1, len(LENGTHS), 2 * HIDDEN)[..., ::2]  # views
            ours.data.requires_grad_(wanted)
            theirs.data.requires_grad_(wanted)
            states: Any = (h.to(where), c.to(where)) if given else None
            judged: Any = (h.double(), c.double()) if given else None
            for layer, (x, hx) in ((mine, (ours, states)), (judge, (theirs, judged))):
                layer.zero_grad()
                total(layer(x, hx)).backward()
            if wanted:
                assert_same_gradients(mine, judge, ours, theirs)
            for p, q in zip(mine.parameters(), judge.parameters(), strict=True):
                assert_near(p.grad, q.grad)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_given_is_looked_at_each_time(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = layers(place, "batched", monkeypatch)
    given = packs(LENGTHS, next(mine.parameters()).device)[0]
    wide = torch.stack([given.data.detach(), given.data.detach() + 1], 2)
    for _ in range(4):
        wanted = mine(given)[0].data
        assert torch.equal(mine(given._replace(data=wide[..., 0]))[0].data, wanted)
        longer = torch.cat([given.data.detach(), wide[:1, :, 1]]).requires_grad_()
        found = mine(given._replace(data=longer))[0].data
        assert torch.equal(found, wanted)
        found.sum().backward()
        assert longer.grad is not None
        assert longer.grad[:-1].all()
        assert not longer.grad[-1].any()
        with pytest.raises(UsageError, match="5 steps; 6, as batch_sizes say"):
            mine(given._replace(data=given.data[1:]))
        with pytest.raises(RuntimeError, match=f"got {INPUT - 1}"):
            mine(given._replace(data=given.data[:, 1:]))
        with pytest.raises((RuntimeError, ValueError), match=r"(?i)double|float64"):
            mine(given._replace(data=given.data.double()))


@shim
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_goes_up_for_states_that_are_not_given(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels read states, since they were given once: zeros are there, and stay there."""
    mine, judge = layers("shim", engine, monkeypatch)
    mine(packs(LENGTHS, "cpu")[0], (torch.ones(1, len(LENGTHS), HIDDEN),) * 2)
    for k in range(7):
        ours, theirs = packs(LENGTHS, "cpu")
        before = CountingDevice.uploaded
        for layer, given in ((mine, ours), (judge, theirs)):
            layer.zero_grad()
            total(layer(given)).backward()
        assert_same_gradients(mine, judge, ours, theirs)
        assert k < 4 or CountingDevice.uploaded == before


@shim
def test_a_step_like_one_before_does_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time cannot be tested; calls of functions of the package can be counted."""
    mine, _ = layers("shim", "persistent", monkeypatch)
    given = packs(LENGTHS, "cpu")[0]
    calls = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    def step() -> int:
        nonlocal calls
        calls = 0
        out = mine(given)[0].data
        sys.setprofile(count)
        try:
            out = mine(given)[0].data
            out.backward(out)
        finally:
            sys.setprofile(None)
        return calls

    counts = [step() for _ in range(4)]
    assert counts[-1] == counts[-2] <= MOST_CALLS, counts


@pytest.mark.parametrize("place", PLACES)
def test_a_penalty_of_gradients_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, _ = layers(place, "batched", monkeypatch)
    for _ in range(4):  # the last ones are prepared
        given, _ = packs(LENGTHS, mine.weight_hh_l0.device)
        x = given.data.detach().requires_grad_()
        out = mine(given._replace(data=x))[0].data
        (found,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        with pytest.raises(UsageError, match="twice"):
            found.norm().backward()
