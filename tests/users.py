"""Other users of the machine, whom the superuser can be for a while."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
as_root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only the superuser can be another user"
)


def as_user(user: int, *words: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python as a user who may read everything and write what is his; skip where none can."""
    ability = "+dac_read_search"  # the interpreter may lie in a folder of the superuser
    command = ["setpriv", f"--reuid={user}", "--clear-groups"]
    command += [f"--inh-caps={ability}", f"--ambient-caps={ability}"]
    if shutil.which("setpriv") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("setpriv cannot make another user of this one")
    return subprocess.run(
        [*command, sys.executable, *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
