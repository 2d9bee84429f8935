"""Run hostile cases in child processes, so that a crash is an outcome like others, and tally them.

A case is a number: the same number and seed make the same case again. An outcome is a few words;
one that begins with FAILED is what must not happen.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

FAILED = "FAILED"
NOTHING = -1
OFTEN = 1.0  # seconds between two reports of a child

Cases = Callable[[int], tuple[str, str]]  # of a number: the name of the attack, and its outcome


@dataclass
class Tally:
    """How often each attack had each outcome, and the numbers of the cases that failed."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, number: int, attack: str, outcome: str) -> None:
        """Count a case; an outcome that failed is counted by its first line."""
        if outcome.startswith(FAILED):
            self.failures.append((number, attack, outcome))
            outcome = FAILED
        self.counts[attack, outcome] += 1

    def merge(self, other: Tally) -> None:
        """Add what another one counted."""
        self.counts.update(other.counts)
        self.failures.extend(other.failures)

    def table(self, shown: int = 10) -> str:
        """Return a row for each attack, a column for each outcome, and the first failures."""
        outcomes = sorted({outcome for _, outcome in self.counts})
        attacks = sorted({attack for attack, _ in self.counts})
        rows = [["attack", *outcomes, "all"]]
        for attack in attacks:
            found = [self.counts[attack, outcome] for outcome in outcomes]
            rows.append([attack, *map(str, found), str(sum(found))])
        sums = [sum(self.counts[a, outcome] for a in attacks) for outcome in outcomes]
        rows.append(["all", *map(str, sums), str(sum(sums))])
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        lines += [f"case {n}, {attack}: {text}" for n, attack, text in self.failures[:shown]]
        return "\n".join(lines)


@dataclass
class _Child:
    process: Any
    pipe: Connection
    at: Any  # number of the case that runs
    left: range  # cases that are not reported
    seen: tuple[int, float] = (NOTHING, 0.0)  # a case, and when it was met


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
    tally = Tally()
    end = first + count
    waiting = [range(a, min(a + chunk, end)) for a in range(first, end, chunk)][::-1]
    children: list[_Child] = []
    while waiting or children:
        while waiting and len(children) < jobs:
            children.append(_start(make, arguments, waiting.pop()))
        ready = wait([child.pipe for child in children], timeout=OFTEN)
        for child in list(children):
            died = child.pipe in ready and not _hear(child, tally)
            if died or _hangs(child, patience):
                waiting += _bury(child, tally, "" if died else f"no end within {patience:g} s")
            elif child.left:
                continue
            children.remove(child)
    return tally


def finish(tally: Tally, started: float) -> int:
    """Print a tally and how long it took; return what the process is to exit with."""
    print(tally.table())
    cases = sum(tally.counts.values())
    print(f"{cases} cases in {time.perf_counter() - started:.0f} s, {len(tally.failures)} failed")
    return 1 if tally.failures else 0


def _start(make: Callable[..., Cases], arguments: Sequence[Any], numbers: range) -> _Child:
    context = multiprocessing.get_context("spawn")
    at = context.Value(ctypes.c_long, NOTHING, lock=False)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(make, tuple(arguments), numbers, at, theirs))
    process.start()
    theirs.close()
    return _Child(process, ours, at, numbers)


def _work(
    make: Callable[..., Cases], arguments: Sequence[Any], numbers: range, at: Any, pipe: Any
) -> None:
    case = make(*arguments)
    tally, reported = Tally(), time.monotonic()
    for number in numbers:
        at.value = number
        tally.add(number, *case(number))
        if number == numbers[-1] or time.monotonic() - reported > OFTEN:
            pipe.send((tally, number + 1))
            tally, reported = Tally(), time.monotonic()
    pipe.close()
    os._exit(0)  # threads that a case has left behind are not waited for


def _hear(child: _Child, tally: Tally) -> bool:
    """Take what a child reports; False, when it has died."""
    try:
        found, after = child.pipe.recv()
    except EOFError:
        return False
    tally.merge(found)
    child.left = range(after, child.left.stop)
    if not child.left:
        child.process.join()
    return True


def _hangs(child: _Child, patience: float) -> bool:
    now, number = time.monotonic(), child.at.value
    if child.seen[0] != number or not child.seen[1]:
        child.seen = (number, now)
    return now - child.seen[1] > patience


def _bury(child: _Child, tally: Tally, why: str) -> list[range]:
    """Count the case at which a child ended; return the others, which are to run again."""
    if why:
        child.process.kill()
    child.process.join()
    number, code = child.at.value, child.process.exitcode
    if not why:
        died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        why = f"the process ended with {died}"
    if number == NOTHING:
        raise RuntimeError(f"a child could not start: {why}")
    tally.add(number, "(ended the process)", f"{FAILED}: {why}")
    rest = [range(number + 1, child.left.stop), range(child.left.start, number)]
    return [numbers for numbers in rest if numbers]
