"""List and download data sets: `vertexrt data list` and `vertexrt data fetch NAME`."""

from argparse import Namespace

from vertexrt.bench.record import aligned
from vertexrt.data import catalogue
from vertexrt.data.download import fetch

HEADINGS = ("name", "format", "cached", "licence", "home")


def data(options: Namespace) -> int:
    """Run `vertexrt data`; return the exit code.

    Raises: UsageError, for an unknown name; DataError, when a download fails or has the wrong
        checksum.
    """
    if options.action == "fetch":
        print(fetch(options.name))
        return 0
    rows = []
    for entry in catalogue():
        cached = "yes" if entry.cached else "no"
        rows.append((entry.name, entry.format, cached, entry.licence, entry.home))
    print(aligned(HEADINGS, rows))
    return 0
