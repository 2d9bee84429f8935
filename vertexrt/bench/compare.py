"""`vertexrt bench compare A.json B.json`: what got faster or slower, and what the noise hides.

Two results are compared where their keys and units are equal. Timings differ when their quartiles
do not overlap; since two runs of one machine also differ in speed as a whole, the median change of
all timings is said too, and a result that was compared inside each run has its ratio next to it:
that is what a change of the machine's speed leaves alone. What was counted differs when it is not
equal.
"""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from vertexrt.bench.record import (
    FASTER,
    HIDDEN,
    SLOWER,
    Entry,
    Results,
    number,
    read,
    spread_of,
    with_keys,
)
from vertexrt.errors import UsageError, one_line

SAME = "equal"
OTHER = "differs"
SHOWN = 80  # characters of what differs
SHOULD_AGREE = ("processor", "cores", "threads", "gpu", "versions", "python", "system")
FREE_OPTIONS = ("seconds", "out", "parts")


class Change(NamedTuple):
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
    a, b = before, after
    if before.better == "lower":
        a, b = b, a  # the first of the two is the one that should be smaller
    factor = b.median / a.median if a.median else 1.0
    if not before.better or len(before.samples) == len(after.samples) == 1:
        said = SAME if a.median == b.median else OTHER
    elif b.low > a.high:
        said = FASTER
    else:
        said = SLOWER if b.high < a.low else HIDDEN
    return Change(before, after, factor, said)


def warnings(before: Results, after: Results) -> list[str]:
    """List what makes a comparison doubtful: other machines, options or incomplete runs.

    Raises: UsageError, for files of two devices, which say nothing of each other.
    """
    devices = before.machine.get("device"), after.machine.get("device")
    if devices[0] != devices[1]:
        raise UsageError.at(
            "compare",
            "device {!r} and {!r}".format(*devices),
            "one device",
            "Run it on the same again",
        )
    found = []
    options = sorted({*before.options, *after.options} - set(FREE_OPTIONS))
    for what, names, mine, theirs in (
        ("machines", SHOULD_AGREE, before.machine, after.machine),
        ("commands", options, before.options, after.options),
    ):
        for name in names:
            first, second = json.dumps(mine.get(name)), json.dumps(theirs.get(name))
            if first != second:
                said = f"{first[:SHOWN]} and {second[:SHOWN]}"
                found.append(f"the {what} differ in {name}: {said}")
    return found + [f"{r.date} did not run to its end" for r in (before, after) if not r.complete]


def changes(before: Results, after: Results) -> list[Change]:
    """Compare all results that two runs have both.

    Raises: UsageError, when they have none.
    """

    def name(entry: Entry) -> str:
        return json.dumps([entry.key, entry.unit], sort_keys=True)

    known = {name(e): e for e in before.entries}
    found = [change_of(known[name(e)], e) for e in after.entries if name(e) in known]
    if not found:
        raise UsageError.at(
            "compare", "no result in both files", "runs of one job", "Give another file"
        )
    return found


def run(first: str, second: str) -> None:
    """Print warnings, the change as a whole and every change.

    Raises: DataError, UsageError, when the files cannot be compared.
    """
    before, after = read(Path(first)), read(Path(second))
    for text in warnings(before, after):
        print(f"warning: {one_line(text)}")
    found = changes(before, after)
    head = ["before", "after", "unit", "times better", "", "ratio before", "after"]
    rows = []
    for c in found:
        ratios = ["" if e.ratio is None else f"{e.ratio.median:.2f}" for e in (c.before, c.after)]
        row = [number(c.before.median), number(c.after.median), c.after.unit]
        rows.append([*row, f"{c.change:.2f}", c.verdict, *ratios])
    for line in with_keys([c.after for c in found], head, rows).split("\n"):
        print(one_line(line))
    timed = [c.change for c in found if c.verdict not in (SAME, OTHER)]
    if timed:
        whole = spread_of(timed)
        better = f"{whole.median:.2f} times better in the median"
        quartiles = f"quartiles {whole.low:.2f} - {whole.high:.2f}"
        print(f"all {len(timed)} timings: {better}, {quartiles}")
    for said, times in Counter(c.verdict for c in found).items():
        if said != SAME:
            print(f"{said}: {times} of {len(found)}")
