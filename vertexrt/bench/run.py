"""What every benchmark works with, and does first and last.

A model of the catalogue on a data set; pinned threads, a folder, what describes the machine.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

import vertexrt as vrt
from vertexrt import data
from vertexrt.api.vertex_function import VertexFunction
from vertexrt.bench.record import Entry, Key, Results, table
from vertexrt.config import limit_threads, usable_threads
from vertexrt.data.load import format_of
from vertexrt.engine.devices import device_named
from vertexrt.engine.variant import Passes
from vertexrt.errors import UsageError, from_system, number_of
from vertexrt.graph import GraphBatch
from vertexrt.models.catalogue import is_own
from vertexrt.models.own import find

NOT_KEPT = ("out", "command", "action", "version")  # of the options: they say nothing of results
PACKAGES = ("vertexrt", "numpy", "llvmlite", "scipy", "torch", "dynet38", "cupy", "nvidia-cu")
GPU_FIELDS = ("name", "driver_version", "memory.total", "clocks.max.sm", "power.limit")
SMOOTH = ("tree-lstm", "lstm-lm")


class Job(NamedTuple):
    """A vertex function and the graphs that minibatches are drawn from.

    Attributes:
        model: its name.
        make: builds F for a hidden size; nothing in it is random but the initial parameters.
        description: what it computes, and on what.
        kinked: F is not smooth.
    """

    model: str
    make: Callable[[int], VertexFunction | vrt.Model]
    pool: GraphBatch
    description: str
    kinked: bool = False


def make_job(
    model: str,
    source: str | None = None,
    leaves: int | None = None,
    settings: Sequence[tuple[str, Any]] | None = None,
) -> Job:
    """Load the data of a model.

    Args:
        model: a name, or FILE.py:CLASS.
        source: data set, folder or file; by default the model's own.
        leaves: of each tree of tree-fc.
        settings: arguments of the model.
    Raises: UsageError, DataError, as `find` and `data.load` do.
    """
    if not source and is_own(model):
        raise UsageError.at(model, "no data", "expected graphs to measure", "give --data")
    spec = find(model, "loss", format_of(source) if source and is_own(model) else "")
    given = {"leaves": leaves, **spec.reading(spec.options)}
    dataset = data.load(source or spec.train["data"], format=spec.format, **given)
    pool = dataset.splits["train"]

    def make(hidden: int) -> VertexFunction | vrt.Model:
        wanted = {"hidden": hidden, "embed": hidden, "dropout": 0.0}
        known = spec.arguments()
        chosen = {name: value for name, value in wanted.items() if name in known}
        return spec.build(dataset, **chosen | dict(settings or ()))

    sizes = pool.sizes()
    description = (
        f"{spec.name}, {dataset.name}: {pool.num_graphs:,} graphs of {int(np.min(sizes))} to "
        f"{int(np.max(sizes))} vertices, {float(sizes.mean()):.1f} on average, "
        f"{len(dataset.vocabulary):,} words; a step is forward, backward and SGD"
    )
    return Job(spec.name, make, pool, description, kinked=model not in SMOOTH)


def first_graphs(job: Job, count: int) -> GraphBatch:
    """Return the first graphs of the pool, fewer where it has not as many."""
    return job.pool.take(np.arange(min(count, job.pool.num_graphs)))


@dataclass(frozen=True, slots=True)
class Setting(Passes):
    """One way to run: `Passes`, and what else is chosen.

    Attributes:
        processors: of a group of the persistent engine; None for one on a host, and on a GPU as
            the engine chooses.
        waits: each step is waited for.
    """

    policy: str = "frontier"
    engine: str = "persistent"
    processors: int | None = None
    waits: bool = False

    @property
    def passes(self) -> Passes:
        """Return the passes alone."""
        return Passes(**{each.name: getattr(self, each.name) for each in fields(Passes)})

    def compile(
        self, function: vrt.VertexFunction | vrt.Model, device: str, threads: int
    ) -> vrt.Network:
        """Compile F so; all settings draw the same initial parameters."""
        processors = self.processors or (None if device == "cuda" else 1)
        return vrt.compile(
            function,
            device=device,
            engine=self.engine,
            policy=self.policy,
            threads=threads,
            processors=processors if self.engine == "persistent" else None,
            passes=self.passes,
            seed=1,
        )


@dataclass(frozen=True)
class Recording:
    """What a benchmark works with, and writes."""

    options: Namespace
    device: str
    threads: int
    record: Results
    path: Path

    def keep(self, title: str, found: list[Entry]) -> None:
        """Print results, add them to the record and write it."""
        print(f"{title}\n{table(found)}\n" if title else table(found), flush=True)
        self.record.entries += found
        self.record.write(self.path)


@dataclass(frozen=True)
class Bench(Recording):
    """What a benchmark of one vertex function works with."""

    job: Job

    def compile(self, setting: Setting) -> vrt.Network:
        """Compile F in one way."""
        return setting.compile(self.job.make(self.options.hidden), self.device, self.threads)

    def key(self, **more: str | int) -> Key:
        """Return the key of a result."""
        return {**more, "model": self.job.model, "hidden": self.options.hidden}


@contextmanager
def opened(benchmark: str, options: Namespace, command: list[str]) -> Iterator[Bench]:
    """Yield what a benchmark of one vertex function works with; write the record at the end.

    Args:
        options: those of `vertexrt bench`, by name.
    Raises: UsageError, DataError, for a model, data, a device or a folder that cannot be had.
    """
    job = make_job(options.model, options.data, options.leaves, options.set)
    if max(options.batch_sizes) > job.pool.num_graphs:
        raise UsageError.at(
            "--batch-sizes",
            f"got {max(options.batch_sizes)}",
            f"at most {job.pool.num_graphs:,}, the graphs of {job.model}'s data",
            "Take smaller ones",
        )
    with recording(benchmark, options, command, f"-{job.model}") as made:
        made.record.jobs[job.model] = job.description
        threads = number_of(made.threads, "thread")
        say(f"{job.description}; hidden {options.hidden}, {made.device}, {threads}")
        yield Bench(**vars(made), job=job)
        for lack in made.record.missing:
            print(f"not available here: {lack['name']}, because {lack['because']}")


@contextmanager
def recording(
    benchmark: str, options: Namespace, command: list[str], name: str = ""
) -> Iterator[Recording]:
    """Collect results with pinned threads; write them at the end, also of a run that breaks off.

    Args:
        options: with `device`, `threads`, and `out`, the folder.
        name: what the name of the file ends with.
    Raises: UsageError, when the folder cannot be written.
    """
    device = device_named(options.device)
    kept = {each: value for each, value in vars(options).items() if each not in NOT_KEPT}
    record = Results(benchmark, tuple(command), kept | {"device": device})
    path = Path(options.out, f"{benchmark}{name}.json")
    with from_system(UsageError, "--out", str(path.parent), "a folder to write in", "Give another"):
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write(path)
    with pinned(options.threads) as threads:
        try:
            yield Recording(options, device, threads, record, path)
            record.complete = True
        finally:
            record.machine = describe(threads, device)
            record.write(path)
            say(f"written: {path}")


@contextmanager
def pinned(threads: int | None) -> Iterator[int]:
    """Bound the threads of BLAS and OpenMP, also of libraries that are loaded already.

    Args:
        threads: by default those of `usable_threads`.
    """
    count = threads or usable_threads()
    limit_threads(count)
    with threadpool_limits(limits=count):
        yield count


def say(text: str) -> None:
    """Report progress on stderr."""
    print(text, file=sys.stderr, flush=True)


# Where it runs.


def describe(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Return what identifies the machine and the software, for the JSON record of a benchmark.

    Args:
        device: "gpu" is described when this is "cuda".
    Returns: also `revision`, the commit, with `+changes` when files differ from it; "" outside a
        checkout.
    """
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    listing = Path("/proc/cpuinfo")
    text = listing.read_text(encoding="utf-8") if listing.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)", text, re.MULTILINE)
    git = ("git", "-C", str(Path(__file__).parent))
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no")
    return {
        "device": device,
        "gpu": gpu() if device == "cuda" else None,
        "processor": named[1].strip() if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {n: installed[n] for n in sorted(installed) if n.startswith(PACKAGES)},
        "blas": sorted(
            f"{entry['internal_api']} {entry['version']}, {entry['num_threads']} threads"
            for entry in threadpool_info()
        ),
        "revision": _output(*git, "rev-parse", "--short", "HEAD") + ("+changes" if changed else ""),
    }


def gpu() -> dict[str, str] | None:
    """Return name, driver and clocks of the first GPU that is seen, None where none is."""
    found = _output("nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader")
    return dict(zip(GPU_FIELDS, found.splitlines()[0].split(", "), strict=True)) if found else None


def _output(*words: str) -> str:
    """Return what a program prints, "" where it is not there or fails."""
    if shutil.which(words[0]) is None:
        return ""
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    return "" if run.returncode else run.stdout.strip()
