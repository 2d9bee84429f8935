"""List and download data sets: `vertexrt data list` and `vertexrt data fetch NAME`."""

from __future__ import annotations

import argparse

from vertexrt.data import catalogue, fetch

HEADINGS = ("name", "task", "cached", "licence", "home")


def data(options: argparse.Namespace) -> int:
    """Run `vertexrt data`; return the exit code.

    Raises: UsageError, for an unknown name; DataError, when a download fails or has the wrong
        checksum.
    """
    if options.action == "fetch":
        print(fetch(options.name))
        return 0
    rows: list[tuple[str, ...]] = [HEADINGS]
    for entry in catalogue():
        cached = "yes" if entry.cached else "no"
        rows.append((entry.name, entry.task, cached, entry.licence, entry.home))
    print(table(rows))
    return 0


def table(rows: list[tuple[str, ...]]) -> str:
    """Return rows of words as text in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = (
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
