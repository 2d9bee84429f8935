"""The attacks on run folders, checkpoints and the command line, a few cases of each."""

import subprocess
import sys

import pytest

from tests.train.cli_runs import ROOT


@pytest.mark.parametrize(
    ("name", "count", "more"),
    [
        ("kills", 2, ("--epochs", "4", "--variants", "1")),
        ("checkpoints", 200, ()),
        ("command_lines", 40, ()),
    ],
)
def test_a_few_cases(name: str, count: int, more: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", f"tests.attacks.{name}", "--count", str(count), "--seed", "3"]
    command += more
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{count} cases in " in run.stdout
    assert ", 0 failed" in run.stdout
