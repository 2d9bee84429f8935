"""What the README tells a reader to type is true: commands, links, and the vertex function."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from vertexrt.cli import run_folder
from vertexrt.cli.options import TASKS, parse
from vertexrt.cli.run_folder import WRITTEN
from vertexrt.data.load import FORMATS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
TEST_COMMAND = 'pip install -e ".[dev]" && pytest'


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert f"\n    {TEST_COMMAND}\n" in README
    assert f"\n    {TEST_COMMAND}\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


COMMAND_LINE = (ROOT / "docs" / "guide" / "command-line.md").read_text(encoding="utf-8")
PAGES = [README, BENCHMARKS]
PAGES += [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/guide").glob("*.md"))]
WHOLE = "\n".join(PAGES).replace("\\\n", "")
COMMANDS = re.findall(r"^    vertexrt (.+)$", WHOLE, flags=re.MULTILINE)


def test_the_page_of_the_command_line_has_every_task_format_and_code() -> None:
    for name in (*TASKS, *(row.name for row in FORMATS.values() if row.endings)):
        assert f"| `{name}`" in COMMAND_LINE, name
    for name in (*WRITTEN, run_folder.LOCK):
        assert f"| `{name}` |" in COMMAND_LINE, name


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(line: str) -> None:
    parse(shlex.split(line))


PAPERS = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
OF_BENCHMARKS = re.findall(
    r"^    python -m (benchmarks\.[\w.]+) (.+)$", BENCHMARKS + PAPERS, flags=re.MULTILINE
)


@pytest.mark.parametrize(("name", "line"), OF_BENCHMARKS)
def test_commands_of_benchmarks_are_understood(name: str, line: str) -> None:
    module = import_module(name)
    if hasattr(module, "__path__"):  # a package
        module = import_module(f"{name}.__main__")
    module.make_parser().parse_args(shlex.split(line))


def test_the_page_of_papers_has_every_command() -> None:
    files = (ROOT / "benchmarks" / "papers").glob("*.py")
    commands = {path.stem for path in files if "make_parser" in path.read_text(encoding="utf-8")}
    named = {line.split()[2] for line in PAPERS.splitlines() if line.startswith("    python -m")}
    assert {f"benchmarks.papers.{name}" for name in commands - {"__main__"}} <= named


def test_the_vertex_function_compiles(tmp_path: Path) -> None:
    declaration, use = re.findall(r"```python\n(.+?)```", README, flags=re.DOTALL)
    path = tmp_path / "tree_lstm.py"  # a file, so that messages can show its lines
    path.write_text(declaration, encoding="utf-8")
    names: dict[str, object] = {}
    exec(compile(declaration, str(path), "exec"), names)
    small = re.sub(r"embed=\d+, hidden=\d+", "embed=3, hidden=5", use)
    assert small != use
    exec(small, names)
    logits = names["logits"]
    assert isinstance(logits, np.ndarray)
    assert logits.shape == (3, 5)
    loss = names["loss"]
    assert np.isfinite(float(loss))
    assert loss < 3 * np.log(5)  # three vertices, five classes: better than a guess
