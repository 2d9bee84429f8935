"""`python -m benchmarks.parallel` runs on a CPU: bits, then ratios of groups that take turns."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.train.cli_runs import ROOT


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_groups_are_compared() -> None:
    words = "--device cpu --models tree-lstm --batch 6 --steps 1 --rounds 2 --vocabulary 50"
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.parallel", *words.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "same bits after 4 steps of 6 with 1,2 processes" in found.stdout
    assert len(re.findall(r"2 to 1, (the same|its own) minibatch of [36]:", found.stdout)) == 2
