"""What the pages on architecture and lowering show of their example is what is printed."""

import re
import shlex
from pathlib import Path

import pytest

from tests.backend.test_cuda import shim
from tests.shim_device import put_in_place
from vertexrt.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("architecture.md", "lowering.md")
TEXT = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
SHOWN = re.findall(r"```\n\$ vertexrt (explain \$TREE .+)\n((?:.*\n)+?)```", TEXT)
MULTIPROCESSORS = 132  # of an H200
COMMANDS = [
    pytest.param(command, marks=shim) if "--device cuda" in command else command
    for command in dict.fromkeys(command for command, _ in SHOWN)
]


def write_tree(folder: Path) -> None:
    """Do what the page says before its first command: one tree, as all splits."""
    found = re.search(r"^    echo '(.+)' \| tee (.+) > (.+)$", TEXT, re.MULTILINE)
    assert found
    for name in [*found[2].split(), found[3]]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(found[1] + "\n", encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_shows_what_is_printed(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_tree(tmp_path)
    monkeypatch.chdir(tmp_path)
    if "--device cuda" in command:
        put_in_place(monkeypatch, processors=MULTIPROCESSORS)
    tree = re.search(r'^    TREE="(.+)"$', TEXT, re.MULTILINE)
    assert tree
    assert main(shlex.split(command.replace("$TREE", tree[1]))) == 0
    printed = capsys.readouterr().out.splitlines()
    for shown in [block for given, block in SHOWN if given == command]:
        require_in_order(shown.splitlines(), printed)


def require_in_order(shown: list[str], printed: list[str]) -> None:
    """Find the lines of a block, in order; `...` stands for lines, or for the end of one."""
    at, gap = 0, True  # a block may begin anywhere
    for line in shown:
        if line.strip() == "...":
            gap = True
            continue
        head = line.removesuffix(" ...")
        candidates = range(at, len(printed) if gap else at + 1)
        fits = [k for k in candidates if printed[k : k + 1] and _fits(line, head, printed[k])]
        assert fits, f"not printed{'' if gap else ' next'}: {line!r}"
        at, gap = fits[0] + 1, False


def _fits(line: str, head: str, printed: str) -> bool:
    return printed == line if head == line else printed.startswith(head)


def test_there_are_blocks_of_both_engines_and_devices() -> None:
    assert len(SHOWN) >= 10
    commands = {command for command, _ in SHOWN}
    assert any("--device cuda" in c and "persistent" in c for c in commands)
    assert any("--device cpu" in c and "persistent" in c for c in commands)
    assert any("--kernels llvm" in c for c in commands)
