"""Run hostile cases in child processes, so that a crash is an outcome like others, and tally them.

A case is a number: the same number and seed make the same case again. An outcome is a few words;
one that begins with FAILED is what must not happen.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

FAILED = "FAILED"

Cases = Callable[[int], tuple[str, str]]  # of a number: the name of the attack, and its outcome


@dataclass
class Tally:
    """How often each attack had each outcome, and the numbers of the cases that failed."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, number: int, attack: str, outcome: str) -> None:
        """Count a case; an outcome that failed is counted by its first word."""
        if outcome.startswith(FAILED):
            self.failures.append((number, attack, outcome))
            outcome = FAILED
        self.counts[attack, outcome] += 1

    def table(self, shown: int = 10) -> str:
        """Return a line for each attack and outcome, and the first failures."""
        width = max(len(attack) for attack, _ in self.counts)
        lines = [
            f"{a:<{width}} {n:>7} {outcome}" for (a, outcome), n in sorted(self.counts.items())
        ]
        lines += [f"case {n}, {attack}: {text}" for n, attack, text in self.failures[:shown]]
        return "\n".join(lines)


def run_in_children(
    make: Callable[..., Cases],
    arguments: Sequence[Any],
    count: int,
    *,
    jobs: int = 1,
    chunk: int = 10_000,
    patience: float = 120.0,
    first: int = 0,
) -> Tally:
    """Run cases first..first+count-1, each chunk of them in a process of its own.

    A child that dies or hangs fails the case at which it was; the others of its chunk run in the
    next child.

    Args:
        make: of `arguments` makes, in the child, the function that runs a case.
        jobs: children at once; chunk: cases a child; patience: seconds that a case may take.
    """
    tally, end = Tally(), first + count
    chunks = [range(a, min(a + chunk, end)) for a in range(first, end, chunk)]

    def run(numbers: range) -> Tally:
        found = Tally()
        while numbers:
            numbers = numbers[_run(make, tuple(arguments), numbers, patience, found) :]
        return found

    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(run, chunks):
            tally.counts.update(found.counts)
            tally.failures += found.failures
    return tally


def _run(
    make: Callable[..., Cases], arguments: Any, numbers: range, patience: float, tally: Tally
) -> int:
    """Run cases in one child until it ends; return how many that were, the last one included."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(make, arguments, numbers, theirs))
    process.start()
    theirs.close()
    try:
        ours.recv()
    except EOFError:
        raise RuntimeError("a child could not start") from None
    for done, number in enumerate(numbers, 1):
        why = ""
        try:
            if ours.poll(patience):
                tally.add(number, *ours.recv())
                continue
            why = f"no end within {patience:g} s"
            process.kill()
        except EOFError:
            pass  # it has died
        process.join()
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        why = why or f"the process ended with {how}"
        tally.add(number, "(ended the process)", f"{FAILED}: {why}")
        return done
    process.join()
    return len(numbers)


def _work(make: Callable[..., Cases], arguments: Any, numbers: range, pipe: Any) -> None:
    case = make(*arguments)
    pipe.send("ready")
    for number in numbers:
        pipe.send(case(number))
    pipe.close()
    os._exit(0)  # threads that a case has left behind are not waited for
