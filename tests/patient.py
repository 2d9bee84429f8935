"""Run tests under a tool that makes a GPU slow: its waits are bounded by minutes, not by seconds.

    compute-sanitizer --tool racecheck --error-exitcode 9 python -m tests.patient FILE ...

A persistent kernel gives up a wait after two seconds; racecheck takes longer for one.
"""

from __future__ import annotations

import sys
from unittest import mock

import pytest

BOUND = 120_000_000_000  # nanoseconds

if __name__ == "__main__":
    with mock.patch("vertexrt.kernels.cuda.persistent_launch.PATIENCE", BOUND):
        sys.exit(pytest.main(["-m", "gpu", "-n", "0", "-q", *sys.argv[1:]]))
