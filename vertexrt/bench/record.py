"""The JSON file of a benchmark: its form, how it is written and read, and shown as a table.

schema      1, the version of this form
benchmark   "ablation", "breakdown", or another's name
command     the words of the command line
date        ISO 8601, UTC
complete    false where the run broke off
options     by name
machine     processor, cores, threads, load, versions, BLAS with its threads, GPU, revision
jobs        name -> what is computed, and on what
checks      comparisons before timing: where, against, largest_difference, bound
missing     what this device has no form of: name, because
entries     the results, one of each:
    key         what identifies it: words and numbers by name
    unit        of median, quartiles and samples; better: "higher", "lower" or "" (a count)
    median, quartiles, samples
    against     the value of key["variant"] that it is compared with, or null
    ratio       {median, quartiles} over rounds of this speed by the reference's (1: equal, 2:
                twice as fast), or null
    verdict     "faster", "slower", "hidden by the spread", or null
    counts      what runs: launches, kernels, rows, ... by name
"""

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np

from vertexrt.api.json_record import JsonRecord, parse_json
from vertexrt.errors import DataError
from vertexrt.plain_files import read_plain, write_atomically

SCHEMA = 1
Key = dict[str, str | int]
NOTHING: Mapping[str, Any] = MappingProxyType({})
ACTION = "Give another file"
LARGEST = 2**53
COUNTED = ("hidden", "batch_size", "leaves")  # of a key, what is a number
# What the keys have at least that a figure of its own is drawn by.
OF_ABLATION = ("model", "hidden", "batch_size", "family", "variant")
OF_STEP_TIME = ("model", "hidden", "setting", "batch_size", "variant")
COUNTS = ("launches", "calls", "instructions", "kernels", "groups", "products", "rows")  # shown
FASTER, SLOWER, HIDDEN = "faster", "slower", "hidden by the spread"


Quartiles = Annotated[tuple[float, float], JsonRecord.each, 2, JsonRecord.real]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    quartiles: Quartiles

    @property
    def low(self) -> float:
        """Return the first quartile."""
        return self.quartiles[0]

    @property
    def high(self) -> float:
        """Return the third quartile."""
        return self.quartiles[1]


def spread_of(samples: Sequence[float]) -> Spread:
    """Return median and quartiles of at least one sample."""
    low, median, high = np.percentile(np.asarray(samples, np.float64), [25, 50, 75])
    return Spread(float(median), (float(low), float(high)))


def ratio_of(samples: Sequence[float], reference: Sequence[float]) -> Spread:
    """Return the spread of samples over the reference's of the same rounds.

    Taken round by round, so that a change of the machine's speed between rounds cancels.
    """
    assert len(samples) == len(reference), (len(samples), len(reference))
    return spread_of((np.asarray(samples) / np.asarray(reference)).tolist())


def noise_of(control: Spread) -> float:
    """Return how far a ratio of equals strays from 1, as a factor.

    Args:
        control: the ratio of the reference to itself, run once more under another name.
    """
    return math.exp(max(abs(math.log(control.low)), abs(math.log(control.high))))


def verdict(ratio: Spread, noise: float = 1.0) -> str:
    """Say what a ratio of speeds shows.

    Args:
        noise: of `noise_of`: a median within this factor of 1 shows nothing.
    Returns: FASTER or SLOWER, or HIDDEN where the quartiles lie on both sides of 1 or the median is
        within the noise.
    """
    within = 1.0 / noise <= ratio.median <= noise
    if within or ratio.low <= 1.0 <= ratio.high:
        return HIDDEN
    return FASTER if ratio.median > 1.0 else SLOWER


@dataclass(frozen=True, slots=True)
class Entry(Spread):
    """One result; see the module."""

    key: Key
    unit: str
    better: Annotated[str, JsonRecord.text, ("higher", "lower", "")]
    samples: Annotated[tuple[float, ...], JsonRecord.each, 0, JsonRecord.real]
    against: str | None = None
    ratio: Spread | None = None
    verdict: str | None = None
    counts: dict[str, float] = field(default_factory=dict)


def make_entry(
    key: Key, samples: Sequence[float], unit: str, better: str = "higher", **more: Any
) -> Entry:
    """Summarise samples: of a time or a speed several, of what was counted one.

    Args:
        more: other fields of the entry.
    """
    samples = tuple(float(f"{x:.6g}") for x in samples)  # more digits only make files long
    s = spread_of(samples)
    return Entry(s.median, s.quartiles, key, unit, better, samples, **more)


@dataclass(slots=True)
class Results:
    """A benchmark's results while they are collected, and as they are read back."""

    benchmark: str
    command: Annotated[tuple[str, ...], JsonRecord.texts]
    options: dict[str, Any]
    date: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    complete: bool = False
    machine: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file."""
        whole = {"schema": SCHEMA, **asdict(self)}
        entries = ",\n  ".join(map(json.dumps, whole.pop("entries")))
        head = json.dumps(whole, indent=1).removesuffix("\n}")
        text = f'{head},\n "entries": [\n  {entries}\n ]\n}}\n'  # one line an entry
        write_atomically(path, text.encode())

    def select(self, **wanted: str | int) -> list[Entry]:
        """Return the entries whose key has these values."""
        return [e for e in self.entries if all(e.key.get(n) == v for n, v in wanted.items())]


def compared(
    key: Key,
    samples: Mapping[str, Sequence[float]],
    control: str | None = None,
    counts: Mapping[str, Mapping[str, float]] = NOTHING,
    against: Mapping[str, str] = NOTHING,
) -> list[Entry]:
    """Return an entry in graphs/s for each variant, all but the first with a ratio.

    Args:
        samples: by variant, of the same rounds.
        control: the variant that is the first once more: its ratio is the noise.
        counts: by variant.
        against: what a variant is compared with, if not with the first.
    """
    first = next(iter(samples))
    noise = 1.0
    if control is not None and control in samples:
        noise = noise_of(ratio_of(samples[control], samples[first]))
    found = []
    for name, values in samples.items():
        more: dict[str, Any] = {"counts": dict(counts.get(name, NOTHING))}
        other = against.get(name, first)
        if name != first and other in samples:
            ratio = ratio_of(values, samples[other])
            more |= {"against": other, "ratio": ratio, "verdict": verdict(ratio, noise)}
        found.append(make_entry({**key, "variant": name}, values, "graphs/s", **more))
    return found


def read(path: Path) -> Results:
    """Read a file that a benchmark wrote, every field with its type.

    Raises: DataError, when it cannot be read, is no such file, or is of another form.
    """

    def refused(got: str) -> DataError:
        return DataError.at(str(path), got, f"a file of `vertexrt bench`, schema {SCHEMA}", ACTION)

    try:
        stored = parse_json(read_plain(path))
    except OSError as error:
        raise refused(str(error)) from error
    except ValueError as error:
        raise refused(f"not the form of a benchmark's file ({error})") from error
    fields = JsonRecord(stored, str(path), "", ACTION, DataError)
    if fields.whole("schema", 0, LARGEST) != SCHEMA:
        raise refused(f"schema {stored['schema']}")
    found = fields.build(Results)
    machine = fields.record("machine")
    if found.machine.get("gpu"):
        machine.record("gpu").text("name")
    if "versions" in found.machine:
        machine.record("versions")
    if "threads" in found.machine:
        machine.whole("threads", 0, LARGEST)
    for check in fields.records("checks"):
        check.real("largest_difference")
    for lack in fields.records("missing"):
        for name in ("name", "because"):
            lack.text(name)
    needed = OF_ABLATION if found.benchmark == "ablation" else ()
    for entry in fields.records("entries"):
        key = entry.record("key")
        known = key.plain()
        for name in (*known, *(OF_STEP_TIME if known.get("part") == "time" else needed)):
            if name in COUNTED:
                key.whole(name, 0, LARGEST)
            else:
                key.text(name)
    return found


def number(value: float) -> str:
    """Return a number in few digits: of small ones, decimals matter."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def table(entries: Sequence[Entry]) -> str:
    """Return entries as a table under its caption: key, speed, ratio, verdict, what runs."""
    rows = []
    for e in entries:
        low, high = map(number, e.quartiles)
        row = [f"{number(e.median)} {e.unit}", f"{low} - {high}"]
        r = e.ratio
        row += ["", ""] if r is None else [f"{r.median:.2f}", f"{r.low:.2f} - {r.high:.2f}"]
        row += [e.against or "", e.verdict or ""]
        rows.append(row + [number(e.counts[n]) if n in e.counts else "" for n in COUNTS])
    head = ["median", "quartiles", "ratio", "quartiles", "against", "shows", *COUNTS]
    return with_keys(entries, head, rows)


def with_keys(entries: Sequence[Entry], head: list[str], rows: Sequence[list[str]]) -> str:
    """Return a table with a row for each entry: what their keys do not share, and other columns."""
    caption, names = in_common(entries)
    names.append("variant")
    keys = ([str(entry.key.get(name, "")) for name in names] for entry in entries)
    whole = [key + row for key, row in zip(keys, rows, strict=True)]
    return caption + "\n" + aligned(names + head, whole)


def in_common(entries: Sequence[Entry]) -> tuple[str, list[str]]:
    """Return a caption, which is what all keys have in common, and the names of the others."""
    names = list(dict.fromkeys(n for e in entries for n in e.key if n != "variant"))
    values = {name: {str(entry.key.get(name, "")) for entry in entries} for name in names}
    said = [f"{name.replace('_', ' ')} {one}" for name, (one, *more) in values.items() if not more]
    return ", ".join(said), [name for name in names if len(values[name]) > 1]


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines under their heads, without empty columns; numbers stand at the right."""
    columns = []
    for name, *cells in zip(head, *rows, strict=True):
        if any(cells):
            width = max(len(name), *map(len, cells))
            right = all(not cell or cell[0] in "0123456789" for cell in cells)
            columns.append([c.rjust(width) if right else c.ljust(width) for c in (name, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))
