"""How long it takes to compile, with an empty cache and with a full one (VPPS, Table II).

Each time in a process of its own, whose caches of generated code (ours and CUDA's) lie in
a folder that is empty for the first run and full for the second. `host` is a small network
before it: mostly what the package itself compiles once after it was installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.papers.in_turn import ENGINES
from vertexrt import data
from vertexrt.bench.measure import within
from vertexrt.bench.record import Entry, make_entry
from vertexrt.bench.run import Bench, say
from vertexrt.errors import DeviceError, message

GRAPHS = 16  # of the minibatch whose kinds of vertices are compiled
PHASES = ("host", "trace", "first step")
MOST = 5  # processes of each kind


def run(bench: Bench) -> list[Entry]:
    """Time cold and warm starts of both engines."""
    seconds = bench.options.seconds / len(ENGINES)
    entries = []
    for engine in ENGINES:
        samples: dict[tuple[str, str], list[float]] = {}
        for _ in within(seconds, 1, MOST):
            say(f"compiling for the {engine} engine with an empty cache")
            with tempfile.TemporaryDirectory() as folder:
                for state in ("cold", "warm"):
                    found = _one(bench, engine, Path(folder))
                    for phase in PHASES:
                        samples.setdefault((state, phase), []).append(found[phase])
        for (state, phase), values in samples.items():
            key = bench.key(part="compile", engine=engine, cache=state, variant=phase)
            entries.append(make_entry(key, values, "s", "lower"))
    return entries


def _one(bench: Bench, engine: str, cache: Path) -> dict[str, float]:
    options = bench.options
    words = [options.model, _source(bench), str(options.hidden), engine, bench.device]
    words += [str(bench.threads), str(GRAPHS)]
    environment = {
        **os.environ,
        "VERTEXRT_CACHE": str(cache / "vertexrt"),
        "CUDA_CACHE_DISABLE": "1",
    }
    module = "benchmarks.papers.compile_once"
    done = subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DeviceError(
            message("compile", f"a process ended with {last!r}", "a compiled model", "See above")
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _source(bench: Bench) -> str:
    """Return the data set as another cache folder finds it: downloaded ones by their folder."""
    name = bench.options.data
    for entry in data.catalogue():
        if entry.name == name and entry.source is not None:
            return str(entry.folder)
    return name or ""
