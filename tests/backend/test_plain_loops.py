"""Training with VERTEXRT_PLAIN=1, where the loops of the host are Python, and kernels are not."""

import os
import subprocess
import sys
from pathlib import Path

import vertexrt as vrt
from tests.functions import FUNCTIONS
from tests.strategies import with_pulls
from vertexrt.config import config

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
from tests.backend.test_plain_loops import losses
from vertexrt.config import config

print(config().plain, *losses())
"""


def losses() -> list[str]:
    """Train a little with each engine."""
    batch = with_pulls([[[], [], [0, 1], [], [2, 3]], [[], [0]]])
    found = []
    for options in ({}, {"engine": "persistent", "processors": 2}):
        function = FUNCTIONS["tree-lstm"][0]()
        net = vrt.compile(function, device="cpu", threads=2, **options)
        optimizer = vrt.Adam(lr=0.01)
        found += [float(net.step(batch, optimizer)).hex() for _ in range(3)]
    return found


def test_steps_are_those_of_compiled_loops() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRAIN],
        env={**os.environ, "VERTEXRT_PLAIN": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", *losses()]
    assert not config().plain
