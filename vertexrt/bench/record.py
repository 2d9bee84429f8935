"""The JSON file of a benchmark: its form, and how it is written and read.

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

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
FASTER, SLOWER, HIDDEN = "faster", "slower", "hidden by the spread"


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float


def spread_of(samples: Sequence[float]) -> Spread:
    """Return median and quartiles of at least one sample."""
    low, median, high = np.percentile(np.asarray(samples, np.float64), [25, 50, 75])
    return Spread(float(median), float(low), float(high))


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
class Entry:
    """One result; see the module."""

    key: Key
    unit: str
    better: str
    median: float
    quartiles: tuple[float, float]
    samples: tuple[float, ...]
    against: str | None = None
    ratio: Spread | None = None
    verdict: str | None = None
    counts: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it is written."""
        found = asdict(self)
        r = self.ratio
        found["ratio"] = None if r is None else {"median": r.median, "quartiles": [r.low, r.high]}
        return found

    @property
    def spread(self) -> Spread:
        """Return median and quartiles."""
        return Spread(self.median, *self.quartiles)


def make_entry(key: Key, samples: Sequence[float], unit: str, better: str = "higher") -> Entry:
    """Summarise samples: of a time or a speed several, of what was counted one."""
    samples = tuple(float(f"{x:.6g}") for x in samples)  # more digits only make files long
    s = spread_of(samples)
    return Entry(key, unit, better, s.median, (s.low, s.high), samples)


@dataclass(slots=True)
class Results:
    """A benchmark's results while they are collected, and as they are read back."""

    benchmark: str
    command: list[str]
    options: dict[str, Any]
    date: str = ""
    complete: bool = False
    machine: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.date = self.date or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def write(self, path: Path) -> None:
        """Write the file."""
        names = [each.name for each in fields(self) if each.name != "entries"]
        whole = {"schema": SCHEMA} | {name: getattr(self, name) for name in names}
        entries = ",\n  ".join(json.dumps(entry.to_json()) for entry in self.entries)
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
        entry = make_entry({**key, "variant": name}, values, "graphs/s")
        entry = replace(entry, counts=dict(counts.get(name, NOTHING)))
        other = against.get(name, first)
        if name != first and other in samples:
            ratio = ratio_of(entry.samples, samples[other])
            entry = replace(entry, against=other, ratio=ratio, verdict=verdict(ratio, noise))
        found.append(entry)
    return found


# Reading, every field with its type.


def read(path: Path) -> Results:
    """Read a file that a benchmark wrote.

    Raises: DataError, when it cannot be read, is no such file, or is of another form.
    """
    try:
        stored = parse_json(read_plain(path))
    except OSError as error:
        raise _refused(path, str(error)) from error
    except ValueError as error:
        raise _refused(path, f"not the form of a benchmark's file ({error})") from error
    fields = JsonRecord(stored, str(path), action=ACTION, error=DataError)
    if fields.whole("schema", 0, LARGEST) != SCHEMA:
        raise _refused(path, f"schema {stored['schema']}")
    benchmark = fields.text("benchmark")
    return Results(
        benchmark,
        list(fields.texts("command")),
        fields.record("options").plain(),
        fields.text("date"),
        fields.flag("complete"),
        _machine(fields.record("machine")),
        _texts(fields.record("jobs")),
        [_check(each) for each in fields.records("checks")],
        [_texts(each, ("name", "because")) for each in fields.records("missing")],
        [_entry(each, benchmark) for each in fields.records("entries")],
    )


def _refused(path: Path, got: str) -> DataError:
    expected = f"a file of `vertexrt bench`, schema {SCHEMA}"
    return DataError.at(str(path), got, expected, ACTION)


def _entry(fields: JsonRecord, benchmark: str) -> Entry:
    ratio = None
    if not fields.null("ratio"):
        r = fields.record("ratio")
        ratio = Spread(r.real("median"), *_quartiles(r))
    counts = fields.record("counts")
    return Entry(
        _key(fields.record("key"), benchmark),
        fields.text("unit"),
        fields.text("better", ("higher", "lower", "")),
        fields.real("median"),
        _quartiles(fields),
        fields.reals("samples"),
        None if fields.null("against") else fields.text("against"),
        ratio,
        None if fields.null("verdict") else fields.text("verdict"),
        {name: counts.real(name) for name in counts.unread()},
    )


def _key(fields: JsonRecord, benchmark: str) -> Key:
    key: Key = {}
    for name in fields.unread():
        key[name] = fields.whole(name, 0, LARGEST) if name in COUNTED else fields.text(name)
    needed = OF_ABLATION if benchmark == "ablation" else ()
    for name in OF_STEP_TIME if key.get("part") == "time" else needed:
        if name not in key:
            fields.text(name)  # says that it is missing
    return key


def _quartiles(fields: JsonRecord) -> tuple[float, float]:
    found = fields.reals("quartiles")
    if len(found) != 2:
        fields.refuse("quartiles", "two numbers")
    return found[0], found[1]


def _machine(fields: JsonRecord) -> dict[str, Any]:
    """Return what is said of a machine; GPU and versions are records where they are there."""
    found = fields.plain()
    if found.get("gpu"):
        fields.record("gpu").text("name")
    if "versions" in found:
        fields.record("versions")
    if "threads" in found:
        fields.whole("threads", 0, LARGEST)
    return found


def _check(fields: JsonRecord) -> dict[str, Any]:
    fields.real("largest_difference")
    return fields.plain()


def _texts(fields: JsonRecord, names: tuple[str, ...] = ()) -> dict[str, str]:
    return {name: fields.text(name) for name in names or fields.unread()}
