"""Write below each block of the guide what it prints: `python docs/fill_guide.py [PAGE.md ...]`.

A block of Python that prints is followed by a block of text; `tests/pure/test_guide.py` compares.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vertexrt.cli.main import main as vertexrt

GUIDE = Path(__file__).resolve().parent / "guide"
BLOCK = re.compile(r"```python\n(.+?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def commands_of(page: Path) -> list[str]:
    """Return the words after `vertexrt` of the commands that a page shows, whole."""
    text = page.read_text(encoding="utf-8").replace("\\\n", "")
    return re.findall(r"^    vertexrt (.+)$", text, flags=re.MULTILINE)


def run(page: Path, names: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Run the blocks of a page, one after another, in the current folder.

    Args:
        names: what blocks define.
    Returns: of each block its text, what is shown below it, what it prints. Where PyTorch is not
        installed, those that import it are left out.
    """
    if page.stem == "command-line":
        for line in commands_of(page):
            if line.startswith(("new ", "train my_model.py:")) or " exported" in line:
                assert vertexrt(shlex.split(line)) == 0, line
    for number, (block, shown) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
        if "import torch" in block and find_spec("torch") is None:
            continue
        named = re.match(r"# (\w+\.py)\n", block)  # else a file so that messages show its lines
        path = Path(named[1] if named else f"block_{number}.py").resolve()
        path.write_text(block, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, str(path), "exec"), names)
        yield block, shown, printed.getvalue()


def main(pages: list[str]) -> None:
    """Fill pages, by default all of them."""
    for page in [Path(each).resolve() for each in pages] or sorted(GUIDE.glob("*.md")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            sys.path.insert(0, folder)  # blocks import files that they write
            text = page.read_text(encoding="utf-8")
            for block, shown, printed in run(page, {}):
                old = f"```python\n{block}```\n" + (f"\n```text\n{shown}```\n" if shown else "")
                new = f"```python\n{block}```\n" + (f"\n```text\n{printed}```\n" if printed else "")
                text = text.replace(old, new, 1)
            sys.path.remove(folder)
        page.write_text(text, encoding="utf-8")
        print(os.path.relpath(page))


if __name__ == "__main__":
    main(sys.argv[1:])
