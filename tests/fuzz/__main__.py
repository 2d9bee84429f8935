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
from pathlib import Path

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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    p = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    p.add_argument("what", nargs="?", choices=RUNS, default="functions")
    p.add_argument("--count", type=int, default=100, help="networks (default: 100)")
    p.add_argument("--seed", type=int, default=0, help="of the first network (default: 0)")
    p.add_argument("--device", choices=DEVICES, default="reference")
    p.add_argument("--dtype", choices=DTYPES, default="float64")
    p.add_argument(
        "--ways", default="", help="names or their beginnings, with commas (default: all)"
    )
    p.add_argument("--per", type=int, default=2, help="ways or sequences of each network (2)")
    p.add_argument("--most", type=int, default=6, help="vertices of a graph (default: 6)")
    p.add_argument("--nodes", type=int, default=MOST_NODES, help="of a network, about")
    p.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    p.add_argument("--shrink", type=float, default=20.0, help="seconds a failure, or 0 (20)")
    p.add_argument("--seconds", type=float, help="begin no network after this time")
    p.add_argument("--out", type=Path, help="file to which scripts of failures are appended")
    p.add_argument("--list", action="store_true", help="list the ways and stop")
    return p


def show(finding: Finding, out: Path | None) -> None:
    """Print a failure, and append it to a file."""
    text = f"# seed {finding.seed}, {finding.way}: {finding.text}\n{finding.script}\n"
    tqdm.write(text)
    if out is not None:
        with out.open("a") as file:
            file.write(text)


def main() -> int:
    """Run what the command line asks for."""
    a = parser().parse_args()
    settings = Settings(a.device, a.dtype, a.ways, a.per, a.most, a.nodes, a.shrink)
    if not settings.listed():
        sys.exit(f"no way begins with {a.ways!r}; --list names them")
    if a.list:
        print("\n".join(way.name for way in settings.listed()))
        return 0
    total, start = Tally(), time.monotonic()
    end = start + (math.inf if a.seconds is None else a.seconds)
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
