"""`python -m benchmarks.streams` compares bits, times and records."""

import json
from pathlib import Path

import pytest

from benchmarks import streams
from tests.backend.test_cuda import shim
from tests.shim_device import put_in_place
from vertexrt.bench import measure


@shim
def test_streams_are_compared_timed_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch)
    monkeypatch.setattr(measure, "BLOCK_SECONDS", 0.0)
    path = tmp_path / "streams.json"
    words = "--model tree-lstm --data generated --batch 2 --streams 2 --hidden 4 --seconds 0"
    assert streams.main([*words.split(), "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "tree-lstm, frontier, batch 2:     2 " in printed
    (result,) = json.loads(path.read_text())["results"]
    assert set(result["samples"]) == {"1", "again", "2"}
    assert result["ratios"]["1"] == [1.0, 1.0, 1.0]
    assert result["counts"]["2"]["beside"] > 0
