"""The pages of the guide run as they stand, block after block."""

import re
from pathlib import Path

import pytest

GUIDE = sorted((Path(__file__).resolve().parents[2] / "docs" / "guide").glob("*.md"))


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_pages_run(page: Path, tmp_path: Path) -> None:
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
