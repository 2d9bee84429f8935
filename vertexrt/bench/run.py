"""What every benchmark does first and last: pin threads, make the folder, describe the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vertexrt.bench.machine import describe
from vertexrt.bench.record import Record
from vertexrt.config import config
from vertexrt.errors import UsageError, message

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def pinned(threads: int | None) -> Iterator[int]:
    """Bound the threads of BLAS and OpenMP, also of libraries that are loaded already.

    Args:
        threads: by default VERTEXRT_THREADS, or the number of cores.
    """
    from threadpoolctl import threadpool_limits

    count = threads or config().threads
    for name in THREAD_VARIABLES:  # for libraries that are loaded from here on
        os.environ[name] = str(count)
    with threadpool_limits(limits=count):
        yield count


def open_folder(out: str) -> Path:
    """Return the folder for results, made if need be.

    Raises: UsageError, when it cannot be written.
    """
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            message("--out", f"{folder}: {error.strerror}", "a folder to write in", "Give another")
        ) from error
    return folder


@contextmanager
def recording(
    benchmark: str, command: list[str], options: Mapping[str, Any], threads: int, device: str
) -> Iterator[tuple[Record, Path]]:
    """Collect results; write them at the end, also of a run that breaks off.

    Args:
        options: with `out`, the folder, and `name`, what the file is called beside the benchmark.
    """
    folder = open_folder(options["out"])
    kept = {name: value for name, value in options.items() if name not in ("out", "name")}
    record = Record(benchmark, command, kept)
    name = options.get("name", "")
    path = folder / (f"{benchmark}-{name}.json" if name else f"{benchmark}.json")
    try:
        yield record, path
        record.complete = True
    finally:
        record.machine = describe(threads, device)
        record.write(path)
        say(f"written: {path}")


def say(text: str) -> None:
    """Report progress on stderr."""
    print(text, file=sys.stderr, flush=True)
