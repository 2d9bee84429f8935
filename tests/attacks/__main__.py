"""Run attacks: `python -m tests.attacks batches --count 1000000 --seed 1 --jobs 2`.

Exit code 1 where a case fails; the same seed and number make the same case again.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import time

# By name the number of cases; a module of the name says what it does, and takes other options.
COUNTS = {
    "batches": 100_000,
    "cache": 1000,
    "checkpoints": 20_000,
    "command_lines": 2000,
    "interrupts": 5000,
    "kills": 40,
}
OPTIONS = {
    "jobs": "processes at once",
    "device": "of batches: cpu or reference",
    "epochs": "of a run that is killed: two saves each",
    "variants": "of such runs; the first: NumPy",
}


def main() -> int:
    """Read the command line and run an attack."""
    p = argparse.ArgumentParser("python -m tests.attacks", description=__doc__)
    p.add_argument("what", choices=COUNTS)
    p.add_argument("--count", type=int, help=f"cases (default: {COUNTS})")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, help="number of the first case")
    for name, told in OPTIONS.items():
        p.add_argument(f"--{name}", type=str if name == "device" else int, help=told)
    given = {name: x for name, x in vars(p.parse_args()).items() if x is not None}
    what = given.pop("what")
    attack = importlib.import_module(f"tests.attacks.{what}").attack
    strange = sorted(given.keys() - inspect.signature(attack).parameters)
    if strange:
        p.error(f"{what} takes no --{strange[0]}")
    start = time.perf_counter()
    tally = attack(**{"count": COUNTS[what], **given})
    print(tally.table())
    cases, seconds = sum(tally.counts.values()), time.perf_counter() - start
    print(f"{cases} cases in {seconds:.0f} s, {len(tally.failures)} failed")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
