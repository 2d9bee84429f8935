"""The stress of launches runs each job, and counts results that are others than at first."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form
from benchmarks.stress import JOBS, chains, main, stress
from tests.devices import gpu, require
from tests.runs import Way
from vertexrt.api.parameters import Parameters


def test_a_job_says_how_many_launches_there_were(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--jobs", "alone", "--launches", "1"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"alone: {JOBS['alone'].what}"
    assert "672 launches" in last
    assert "0 wrong" in last


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_levels_repeat_with_the_same_bits(device: str) -> None:
    require(device)
    subject = chains(Form("LSTM", 6))()
    way = Way(device=device, engine="persistent", processors=2)
    assert stress(way.compile(subject.function), subject, 1) == 0


def test_results_with_other_bits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are others each time that they are set, a little further off."""
    subject, times, exact = chains(Form("LSTM", 6))(), itertools.count(), Parameters.update

    def update(self: Parameters, values: dict[str, Any]) -> None:
        drift = 1 + 1e-3 * next(times)
        exact(self, {name: value * drift for name, value in values.items()})

    monkeypatch.setattr(Parameters, "update", update)
    net = vrt.compile(subject.function, device="cpu", threads=1)
    assert stress(net, subject, 1) > 300  # all outputs of 84 minibatches, four times
