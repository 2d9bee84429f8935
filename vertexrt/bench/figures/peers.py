"""The figure of a comparison with peers: throughput against batch size."""

from __future__ import annotations

from pathlib import Path

from vertexrt.bench.figures.breakdown import _lines, _log, _powers
from vertexrt.bench.figures.style import figure
from vertexrt.bench.record import Record

WORD = {"train": "training", "infer": "inference"}


def draw(record: Record, folder: Path) -> list[Path]:
    """Draw one figure of all suites and modes."""
    suites = list(dict.fromkeys(str(e.key["suite"]) for e in record.entries))
    modes = list(dict.fromkeys(str(e.key["mode"]) for e in record.entries))
    if not suites:
        return []
    path = folder / "peers.png"
    size = (0.4 + 3.2 * len(modes), 0.4 + 2.2 * len(suites))
    with figure(path, len(suites), len(modes), size) as grid:
        for row, suite in enumerate(suites):
            for column, mode in enumerate(modes):
                axes, mine = grid[row][column], record.select(suite=suite, mode=mode)
                _lines(axes, mine, "batch_size", "variant")
                _powers(axes, mine, "batch_size")
                _log(axes)
                axes.set_title(f"{suite}, {WORD.get(mode, mode)}", loc="left")
                axes.set_ylabel("graphs/s (log scale)")
                axes.set_xlabel("batch size")
                axes.legend()
    return [path]
