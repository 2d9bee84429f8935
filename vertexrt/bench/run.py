"""What every benchmark does first and last: pin threads, make the folder, describe the machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import vertexrt as vrt
from vertexrt.bench.jobs import Job, JobOptions, make_job
from vertexrt.bench.machine import describe
from vertexrt.bench.record import Entry, Key, Results
from vertexrt.bench.switches import ALL, Setting
from vertexrt.bench.text import table
from vertexrt.config import config, limit_threads
from vertexrt.engine.devices import device_named
from vertexrt.engine.variant import Passes
from vertexrt.errors import UsageError

NOT_KEPT = ("out", "name")  # of the options, what says nothing of the results


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark of one vertex function works with."""

    options: JobOptions
    job: Job
    device: str
    threads: int
    record: Results
    path: Path

    def compile(
        self, engine: str, hidden: int | None = None, passes: Passes = ALL, job: Job | None = None
    ) -> vrt.Network:
        """Compile F for an engine, with groups of one processor on the CPU."""
        setting = Setting(
            engine=engine, passes=passes, processors=None if self.device == "cuda" else 1
        )
        function = (job or self.job).make(hidden or self.options.hidden)
        return setting.compile(function, self.device, self.threads)

    def key(self, **more: str | int) -> Key:
        """Return the key of a result."""
        return {**more, "model": self.job.model, "hidden": self.options.hidden}

    def time_key(self, engine: str, setting: str, batch_size: int) -> Key:
        """Return the key of the times of a step's parts."""
        return self.key(part="time", engine=engine, setting=setting, batch_size=batch_size)

    def keep(self, title: str, found: list[Entry]) -> None:
        """Print results, add them to the record and write it."""
        print(f"{title}\n{table(found)}\n" if title else table(found), flush=True)
        self.record.entries += found
        self.record.write(self.path)


@contextmanager
def opened(
    benchmark: str, options: JobOptions, command: list[str], job: Job | None = None
) -> Iterator[Bench]:
    """Yield what a benchmark of one vertex function works with; write the record at the end.

    Args:
        job: F and its graphs; by default the options' model on its data.
    Raises: UsageError, DataError, for a model, data, a device or a folder that cannot be had.
    """
    device = device_named(options.device)
    job = job or make_job(options.model, options.data, options.leaves)
    if max(options.batch_sizes) > job.pool.num_graphs:
        expected = f"at most {job.pool.num_graphs:,}, the graphs of {job.model}'s data"
        got = f"got {max(options.batch_sizes)}"
        raise UsageError.at("--batch-sizes", got, expected, "Take smaller ones")
    kept = asdict(options) | {"name": job.model, "device": device}
    with (
        pinned(options.threads) as threads,
        recording(benchmark, command, kept, threads, device) as (record, path),
    ):
        record.jobs[job.model] = job.description
        say(f"{job.description}; hidden {options.hidden}, {device}, {threads} threads")
        yield Bench(options, job, device, threads, record, path)
        for lack in record.missing:
            print(f"not available here: {lack['name']}, because {lack['because']}")


@contextmanager
def recording(
    benchmark: str, command: list[str], options: Mapping[str, Any], threads: int, device: str
) -> Iterator[tuple[Results, Path]]:
    """Collect results; write them at the end, also of a run that breaks off.

    Args:
        options: with `out`, the folder, and `name`, which the name of the file ends with.
    Raises: UsageError, when the folder cannot be written.
    """
    kept = {name: value for name, value in options.items() if name not in NOT_KEPT}
    record = Results(benchmark, command, kept)
    name = options.get("name", "")
    path = Path(options["out"], f"{benchmark}-{name}.json" if name else f"{benchmark}.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write(path)
    except OSError as error:
        got = f"{path.parent}: {error.strerror}"
        raise UsageError.at("--out", got, "a folder to write in", "Give another") from error
    try:
        yield record, path
        record.complete = True
    finally:
        record.machine = describe(threads, device)
        record.write(path)
        say(f"written: {path}")


@contextmanager
def pinned(threads: int | None) -> Iterator[int]:
    """Bound the threads of BLAS and OpenMP, also of libraries that are loaded already.

    Args:
        threads: by default VERTEXRT_THREADS, or the number of cores.
    """
    from threadpoolctl import threadpool_limits

    count = threads or config().threads
    limit_threads(count)
    with threadpool_limits(limits=count):
        yield count


def say(text: str) -> None:
    """Report progress on stderr."""
    print(text, file=sys.stderr, flush=True)
