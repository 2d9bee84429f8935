"""`vertexrt bench compare A.json B.json`: what got faster or slower, and what the noise hides.

Two results are compared where their keys and units are equal. Timings differ when their quartiles
do not overlap; since two runs of one machine also differ in speed as a whole, the median change of
all timings is said too, and a result that was compared inside each run has its ratio beside it:
that is what a change of the machine's speed leaves alone. What was counted differs when it is not
equal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vertexrt.bench.read_record import read
from vertexrt.bench.record import Entry, Record
from vertexrt.bench.spread import FASTER, HIDDEN, SLOWER
from vertexrt.bench.text import aligned, columns, number
from vertexrt.errors import UsageError, message

SAME = "equal"
OTHER = "differs"
# Of the machine, what makes two runs incomparable, and what is only said.
MUST_AGREE = ("device",)
SHOULD_AGREE = ("processor", "cores", "threads", "gpu", "versions", "python", "system")
FREE_OPTIONS = ("seconds", "out", "parts")


@dataclass(frozen=True, slots=True)
class Change:
    """One result in two runs.

    Attributes:
        change: how many times better the second is: its speed over the first's, or the inverse
            where lower is better.
        verdict: FASTER, SLOWER, HIDDEN; SAME or OTHER of what was counted.
    """

    before: Entry
    after: Entry
    change: float
    verdict: str


def change_of(before: Entry, after: Entry) -> Change:
    """Compare two results of one key."""
    a, b = before.spread, after.spread
    if not before.better or len(before.samples) == len(after.samples) == 1:
        factor = b.median / a.median if a.median else 1.0
        if before.better == "lower" and b.median:
            factor = a.median / b.median
        return Change(before, after, factor, SAME if a.median == b.median else OTHER)
    if before.better == "lower":
        factor = a.median / b.median if b.median else 1.0
        better, worse = b.high < a.low, b.low > a.high
    else:
        factor = b.median / a.median if a.median else 1.0
        better, worse = b.low > a.high, b.high < a.low
    said = FASTER if better else SLOWER if worse else HIDDEN
    return Change(before, after, factor, said)


def warnings(before: Record, after: Record) -> list[str]:
    """List what makes a comparison doubtful: other machines, options or incomplete runs.

    Raises: UsageError, for files of two benchmarks or two devices, which say nothing of each other.
    """
    if before.benchmark != after.benchmark:
        got = f"a file of `bench {before.benchmark}` and one of `bench {after.benchmark}`"
        raise UsageError(message("compare", got, "two of one benchmark", "Give another file"))
    for name in MUST_AGREE:
        if before.machine.get(name) != after.machine.get(name):
            got = f"{name} {before.machine.get(name)!r} and {after.machine.get(name)!r}"
            raise UsageError(message("compare", got, f"one {name}", "Run it on the same again"))
    found = []
    for name in SHOULD_AGREE:
        mine, theirs = before.machine.get(name), after.machine.get(name)
        if mine != theirs:
            found.append(f"the machines differ in {name}: {_short(mine)} and {_short(theirs)}")
    for name in sorted({*before.options, *after.options} - set(FREE_OPTIONS)):
        mine, theirs = before.options.get(name), after.options.get(name)
        if json.dumps(mine) != json.dumps(theirs):
            found.append(f"the commands differ in {name}: {_short(mine)} and {_short(theirs)}")
    found += [f"{r.date} did not run to its end" for r in (before, after) if not r.complete]
    return found


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."


def changes(before: Record, after: Record) -> list[Change]:
    """Compare all results that two runs have both.

    Raises: UsageError, when they have none.
    """

    def name(entry: Entry) -> str:
        return json.dumps([entry.key, entry.unit], sort_keys=True)

    known = {name(e): e for e in before.entries}
    found = [change_of(known[name(e)], e) for e in after.entries if name(e) in known]
    if not found:
        raise UsageError(
            message("compare", "no result in both files", "runs of one job", "Give another file")
        )
    return found


def table(found: list[Change]) -> str:
    """Print changes, one a line."""
    names = list(dict.fromkeys(n for c in found for n in c.after.key))
    varied = [n for n in names if len({str(c.after.key.get(n, "")) for c in found}) > 1]
    rows = []
    for c in found:
        ratios = ["" if e.ratio is None else f"{e.ratio.median:.2f}" for e in (c.before, c.after)]
        row = [str(c.after.key.get(n, "")) for n in varied]
        row += [number(c.before.median), number(c.after.median), c.after.unit]
        rows.append([*row, f"{c.change:.2f}", c.verdict, *ratios])
    head = [*varied, "before", "after", "unit", "times better", "", "ratio before", "after"]
    return aligned(columns(head, rows))


def run(first: str, second: str) -> None:
    """Print warnings, the change as a whole and every change.

    Raises: DataError, UsageError, when the files cannot be compared.
    """
    before, after = read(Path(first)), read(Path(second))
    for text in warnings(before, after):
        print(f"warning: {text}")
    found = changes(before, after)
    print(table(found))
    timed = [c.change for c in found if c.verdict not in (SAME, OTHER)]
    if timed:
        low, middle, high = np.percentile(timed, [25, 50, 75])
        print(
            f"all {len(timed)} timings: {middle:.2f} times better in the median, quartiles "
            f"{low:.2f} - {high:.2f}"
        )
    for said in (FASTER, SLOWER, HIDDEN, OTHER):
        count = sum(c.verdict == said for c in found)
        if count:
            print(f"{said}: {count} of {len(found)}")
