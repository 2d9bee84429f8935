"""Training with VERTEXRT_PLAIN=1, where the loops of the host are Python, and kernels are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import sys
import vertexrt as vrt
from vertexrt.config import config
from tests.functions import FUNCTIONS
from tests.strategies import with_pulls

batch = with_pulls([((), (), (0, 1), (), (2, 3)), ((), (0,))])
engine = {"engine": "persistent", "processors": 2} if "persistent" in sys.argv else {}
net = vrt.compile(FUNCTIONS["tree-lstm"][0](), device="cpu", threads=2, **engine)
optimizer = vrt.Adam(lr=0.01)
print(config().plain, *(float(net.step(batch, optimizer)).hex() for _ in range(3)))
"""


@pytest.mark.parametrize("engine", ["batched", "persistent"])
def test_steps_are_those_of_compiled_loops(engine: str) -> None:
    def run(plain: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", TRAIN, engine],
            env={**os.environ, "VERTEXRT_PLAIN": plain},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    plain, compiled = run("1"), run("0")
    assert (plain[0], compiled[0]) == ("True", "False")
    assert len(plain) == 4
    assert plain[1:] == compiled[1:]
