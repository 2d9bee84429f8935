"""`python -m benchmarks.engines` checks, times and records; engines share their memory."""

import json
from pathlib import Path

import pytest

from benchmarks import engines

SMALL = ["--data", "generated", "--device", "reference", "--hidden", "4", "--seconds", "0"]


def test_engines_are_checked_timed_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "SETTLING_STEPS", 2)
    monkeypatch.setattr(engines, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(engines, "ROUNDS", 1)
    path = tmp_path / "engines.json"
    assert engines.main([*SMALL, "--batch", "2", "--json", str(path)]) == 0
    assert "persistent/batched" in capsys.readouterr().out
    (result,) = json.loads(path.read_text())["results"]
    assert set(result["samples"]) == set(engines.CONTENDERS)
    assert result["better"] in ("batched", "persistent")
    assert "configurations by purpose" in result["auto"]
