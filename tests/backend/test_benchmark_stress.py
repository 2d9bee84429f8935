"""The stress of launches runs each job, and counts results that are others than at first."""

from __future__ import annotations

from typing import Any

import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form
from benchmarks.stress import JOBS, chains, main, stress
from tests.devices import gpu, require
from tests.runs import Way


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


class Shifted(dict[str, Any]):
    """Parameters of a network that are others each time that they are set, a little further off."""

    def __init__(self, net: vrt.Network) -> None:
        super().__init__(net.parameters)
        self._net, self._times = net, 0

    def update(self, values: dict[str, Any]) -> None:  # type: ignore[override]
        """Set others."""
        self._times += 1
        self._net.parameters.update({k: v * (1 + 1e-3 * self._times) for k, v in values.items()})


class Drifting:
    """A network with such parameters."""

    def __init__(self, net: vrt.Network) -> None:
        self.parameters, self.step, self._net = Shifted(net), net.step, net

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self._net(*given, **options)


def test_results_with_other_bits_are_counted() -> None:
    subject = chains(Form("LSTM", 6))()
    net: Any = Drifting(vrt.compile(subject.function, device="cpu", threads=1))
    assert stress(net, subject, 1) > 300  # all outputs of 84 minibatches, four times
