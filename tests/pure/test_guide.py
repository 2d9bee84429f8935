"""The pages of the guide run as they stand, block after block, and print what they show."""

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = sorted((DOCS / "guide").glob("*.md"))
BLOCKS = runpy.run_path(str(DOCS / "fill_guide.py"))
PICTURES = runpy.run_path(str(DOCS / "make_pictures.py"))["DRAWINGS"]
commands_of = BLOCKS["commands_of"]
each_page = pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)


@each_page
def test_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem == "pytorch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.chdir(tmp_path)  # where pages that show files write them
    monkeypatch.syspath_prepend(tmp_path)  # and import them from
    names: dict[str, Any] = {}
    for _, shown, printed in BLOCKS["run"](page, names):
        assert_prints(printed, shown)
    if page.stem == "first-network":
        for line in commands_of(page):
            assert main(shlex.split(line)) == 0
        lines = Path("predictions.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line)["prediction"] for line in lines]
        given = Path("dev.jsonl").read_text(encoding="utf-8").splitlines()
        want = [json.loads(line)["pulls"]["label"][-1] for line in given]
        right = [one == label[-1] for label, one in zip(found, want, strict=True)]
        assert sum(right) > 0.95 * len(right)
    if page.stem == "from-other-libraries":
        assert_gradients_are_differences(names)


@each_page
def test_pages_have_a_picture_that_is_what_the_script_draws(page: Path) -> None:
    (name,) = re.findall(r"!\[[^\]]+\]\(pictures/(\S+)\.svg\)", page.read_text(encoding="utf-8"))
    shown = (DOCS / f"guide/pictures/{name}.svg").read_text(encoding="utf-8")
    assert str(PICTURES[name]()) == shown


def assert_prints(printed: str, shown: str) -> None:
    """Compare what a block prints: real numbers may differ by one in the last digit shown."""
    number = re.compile(r"-?\d+\.\d+")
    assert number.sub("0.0", printed) == number.sub("0.0", shown)
    for found, wanted in zip(*map(number.findall, (printed, shown)), strict=True):
        digits = len(wanted.partition(".")[2])
        assert abs(float(found) - float(wanted)) < 1.5 * 10**-digits, (printed, shown)


def assert_gradients_are_differences(names: dict[str, Any]) -> None:
    """Compare the gradients that leave the page's network with central differences."""

    def loss(x: np.ndarray) -> float:
        graph = vrt.InputGraph.from_children(names["children"], {"x": x})
        logits = names["net"](vrt.GraphBatch.from_graphs([graph]))["logits"]
        return float((logits**2).sum())

    x, step = names["x"], 1e-5 * np.random.default_rng(2).standard_normal((5, 3))
    outputs = names["net"].record(names["batch"])
    d_x = outputs.backward({"logits": 2 * outputs.outputs["logits"]}).pulled["x"]
    assert np.isclose(2 * (d_x * step).sum(), loss(x + step) - loss(x - step), rtol=1e-6)
