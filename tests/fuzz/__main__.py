"""Run random networks: `python -m tests.fuzz --count 1000 --device cpu`.

`functions` compares all that a network computes with the oracle, in every way to run it, and `wide`
does so with long vectors. `sequences` plays sequences of calls on networks of several types, and
`optimizers` sequences of updates. `relations` compares a network with itself, bit by bit.

Exit code 1 where one fails: its script, made small, is printed, and written to `--out`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

os.environ.setdefault("VERTEXRT_CHECK", "1")  # before the package reads its flags

from tqdm import tqdm

from tests.fuzz import campaign, relations
from tests.fuzz.campaign import Finding, RunOne, Settings, Tally, run_campaign
from tests.fuzz.generate import MOST_NODES
from tests.fuzz.ways import DEVICES, DTYPES

RUNS: dict[str, RunOne] = {
    "functions": campaign.run_functions,
    "wide": campaign.run_wide,
    "sequences": campaign.run_sequences,
    "optimizers": campaign.run_optimizers,
    "relations": relations.run_one,
}


# By name the default, and what it says; those of `Settings` are how each network is run.
OPTIONS: dict[str, tuple[Any, str]] = {
    "count": (100, "networks"),
    "seed": (0, "of the first network"),
    "jobs": (1, "processes"),
    "seconds": (math.inf, "begin no network after this time"),
    "device": ("reference", ", ".join(DEVICES)),
    "dtype": ("float64", ", ".join(DTYPES)),
    "ways": ("", "names of ways or their beginnings, with commas; all by default"),
    "per": (2, "ways or sequences of each network"),
    "most": (6, "vertices of a graph"),
    "nodes": (MOST_NODES, "of a network, about"),
    "shrink": (20.0, "seconds a failure, or 0"),
}


def show(finding: Finding, out: Path | None) -> None:
    """Print a failure, and append it to a file."""
    text = f"# seed {finding.seed}, {finding.way}: {finding.text}\n{finding.script}\n"
    tqdm.write(text)
    if out is not None:
        with out.open("a") as file:
            file.write(text)


def main() -> int:
    """Run what the command line asks for."""
    p = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    p.add_argument("what", nargs="?", choices=RUNS, default="functions")
    for name, (default, told) in OPTIONS.items():
        known = {"device": DEVICES, "dtype": DTYPES}.get(name)
        options = {"type": type(default), "default": default, "choices": known}
        p.add_argument(f"--{name}", help=f"{told} (default: {default})", **options)
    p.add_argument("--out", type=Path, help="file to which scripts of failures are appended")
    p.add_argument("--list", action="store_true", help="list the ways and stop")
    a = p.parse_args()
    settings = Settings(**{field.name: getattr(a, field.name) for field in fields(Settings)})
    if not settings.listed():
        sys.exit(f"no way begins with {a.ways!r}; --list names them")
    if a.list:
        print("\n".join(way.name for way in settings.listed()))
        return 0
    total, start = Tally(), time.monotonic()
    end = start + a.seconds
    seeds = range(a.seed, a.seed + a.count)
    begun = itertools.takewhile(lambda _: time.monotonic() < end, seeds)
    ended = contextlib.suppress(KeyboardInterrupt)  # what came of those so far is told
    with ended, tqdm(total=a.count, unit="networks", disable=None) as progress:
        for tally in run_campaign(begun, settings, a.jobs, RUNS[a.what]):
            total.add(tally)
            progress.update()
            progress.set_postfix(failed=len(total.findings))
            for finding in tally.findings:
                show(finding, a.out)
    print(total.table())
    print(f"seeds from {seeds.start}, {time.monotonic() - start:.0f} s")
    return 1 if total.findings else 0


if __name__ == "__main__":
    sys.exit(main())
