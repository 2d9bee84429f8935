"""The pages of the guide run as they stand, block after block."""

import re
from pathlib import Path

import pytest

import vertexrt as vrt

GUIDE = sorted((Path(__file__).resolve().parents[2] / "docs" / "guide").glob("*.md"))


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where pages that show files write them
    names: dict[str, object] = {}
    for number, block in enumerate(
        re.findall(r"```python\n(.+?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    ):
        path = tmp_path / f"block_{number}.py"  # a file, so that messages can show its lines
        path.write_text(block, encoding="utf-8")
        exec(compile(block, str(path), "exec"), names)
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
