"""The file that a benchmark of this folder writes for `--json`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertexrt.bench.machine import describe


def write(
    path: Path | None,
    benchmark: str,
    arguments: Sequence[str] | None,
    results: list[dict[str, Any]],
    threads: int = 1,
    device: str = "cpu",
    **more: str,
) -> None:
    """Write command, machine and results; nothing where there is no path.

    Args:
        benchmark: name of the module in this folder.
        arguments: of its command line; None for those of the process.
    """
    if path is None:
        return
    record = {
        "benchmark": benchmark,
        "command": ["python", "-m", f"benchmarks.{benchmark}", *(arguments or sys.argv[1:])],
        "machine": describe(threads, device),
        **more,
        "results": results,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
