"""Run tests under a tool that makes a GPU slow: its waits are bounded by minutes, not by seconds.

    compute-sanitizer --tool racecheck --error-exitcode 9 python -m tests.patient FILE ...

A persistent kernel gives up a wait after two seconds; racecheck takes longer for one. Kernels have
the numbers of their lines, which the tool prints.
"""

from __future__ import annotations

import sys
from unittest import mock

import pytest

from vertexrt.kernels.cuda.compile import OPTIONS

BOUND = 120_000_000_000  # nanoseconds

if __name__ == "__main__":
    with (
        mock.patch("vertexrt.kernels.cuda.persistent_launch.PATIENCE", BOUND),
        mock.patch("vertexrt.kernels.cuda.compile.OPTIONS", (*OPTIONS, "--generate-line-info")),
    ):
        sys.exit(pytest.main(["-m", "gpu", "-n", "0", "-q", *sys.argv[1:]]))
