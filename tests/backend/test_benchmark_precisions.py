"""The benchmark of precisions compares results first, and prints a line for each size and use."""

from __future__ import annotations

import numpy as np
import pytest

import vertexrt as vrt
from benchmarks.papers.stacks import Form, Stack, stack_batch
from benchmarks.precisions import check, main
from tests.devices import SHIM_AND_GPU, require
from tests.shim_device import put_in_place

SMALL = [
    "--hidden",
    "16",
    "--batch",
    "6",
    "--steps",
    "3",
    "--times",
    "1",
    "--rounds",
    "1",
    "--precisions",
    "bf16",
]


@pytest.mark.parametrize("device", SHIM_AND_GPU)
def test_lines_have_the_ratio_and_the_error(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require(device)
    if device == "shim":
        put_in_place(monkeypatch, processors=2, precision="bf16")
    main(["--device", "cuda", *SMALL])
    train, evaluate = capsys.readouterr().out.splitlines()
    assert train.startswith("LSTM h 16, batch   6, train    float32")
    assert evaluate.startswith("LSTM h 16, batch   6, evaluate float32")
    for line in (train, evaluate):
        assert "bf16" in line
        assert "off by" in line


def test_a_wrong_result_ends_it() -> None:
    form = Form("LSTM", 8)
    nets = {n: vrt.compile(Stack(form), device="cpu", threads=1) for n in ("float32", "tf32")}
    batch = stack_batch(form, np.ones((2, 3, 8), np.float32))
    assert check(nets, batch) == {"float32": 0.0, "tf32": 0.0}

    class Wrong:
        parameters = nets["float32"].parameters

        def __call__(self, *_: object, **__: object) -> dict[str, np.ndarray]:
            """Return zeros."""
            return {"h": np.zeros((6, 8), np.float32)}

    with pytest.raises(AssertionError, match="tf32"):
        check(nets | {"tf32": Wrong()}, batch)  # type: ignore[dict-item]
