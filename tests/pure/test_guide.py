"""The pages of the guide run as they stand, block after block."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vertexrt as vrt
from vertexrt.cli.main import main

GUIDE = sorted((Path(__file__).resolve().parents[2] / "docs" / "guide").glob("*.md"))


def commands_of(page: Path) -> list[str]:
    """Return the words after `vertexrt` of the commands that a page shows, whole."""
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    return re.findall(r"^    vertexrt (.+)$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where pages that show files write them
    monkeypatch.syspath_prepend(tmp_path)  # and import them from
    names: dict[str, object] = {}
    if page.stem == "command-line":
        for line in commands_of(page):
            if line.startswith(("new ", "train my_model.py:")) or " exported" in line:
                assert main(shlex.split(line)) == 0
    for number, block in enumerate(
        re.findall(r"```python\n(.+?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    ):
        if "import torch" in block and find_spec("torch") is None:
            continue  # what follows it runs without
        named = re.match(r"# (\w+\.py)\n", block)  # else a file so that messages show its lines
        path = tmp_path / (named[1] if named else f"block_{number}.py")
        path.write_text(block, encoding="utf-8")
        exec(compile(block, str(path), "exec"), names)
    if page.stem == "first-network":
        for line in commands_of(page):
            assert main(shlex.split(line)) == 0
        assert names["accuracy"] > 0.95  # type: ignore[operator]
        assert names["said"] == "yes"
        lines = Path("predictions.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line)["prediction"] for line in lines]
        given = Path("dev.jsonl").read_text(encoding="utf-8").splitlines()
        want = [json.loads(line)["pulls"]["label"][-1] for line in given]
        right = [one == label[-1] for label, one in zip(found, want, strict=True)]
        assert sum(right) > 0.95 * len(right)
    if page.stem == "command-line":
        right = names["logits"].argmax(axis=1) == names["graphs"].pulls["label"]  # type: ignore[attr-defined]
        assert right.mean() > 0.9
    if page.stem == "from-other-libraries":
        assert_gradients_are_differences(names)
    if page.stem == "speed":
        assert "rows: 6 of 7 vertices" in str(names["text"])
    if page.stem == "vertex-types":
        losses, tags = names["losses"], names["tags"]
        assert losses[-1] < 0.1 * losses[0]  # type: ignore[index]
        assert tags.tolist() == [1, 0, 0, 0, 0, 1]  # type: ignore[attr-defined]
    if page.stem == "data":
        assert names["train"].vocabularies["label"].words == ("+", "-", "0")  # type: ignore[attr-defined]
        assert names["dev"].batch.pulls["word"].tolist() == [0, 1]  # type: ignore[attr-defined]
        assert vrt.data.read_jsonl("again.jsonl.gz").batch.num_vertices == 2
        assert names["typed"].of_type("word").tolist() == [3, 4]  # type: ignore[attr-defined]
        assert names["trees"].batch.child[:6].tolist() == [0, 1, 3, 2, 4, 7]  # type: ignore[attr-defined]
        assert names["tagged"].batch.of_type("right").tolist() == [3, 4, 5, 7]  # type: ignore[attr-defined]
        assert names["dependencies"].batch.child.tolist() == [0, 1]  # type: ignore[attr-defined]
        assert names["found"].matrix.tolist()[1] == [0.5, 0.25]  # type: ignore[attr-defined]
        assert names["both"].sizes().tolist() == [1, 4, 3, 2]  # type: ignore[attr-defined]
        assert names["losses"][-1] < 0.1  # type: ignore[index]
        assert names["seen"] == [1, 1]


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
