"""Read the JSON file of a benchmark, every field with its type (`record` says what it holds)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vertexrt.api.json_record import JsonRecord, parse_json
from vertexrt.bench.record import SCHEMA, Entry, Key, Results, Spread
from vertexrt.errors import DataError
from vertexrt.plain_files import read_plain

ACTION = "Give another file"
LARGEST = 2**53
COUNTED = ("hidden", "batch_size", "leaves")  # of a key, what is a number
# What the keys have at least that a figure of its own is drawn by.
OF_ABLATION = ("model", "hidden", "batch_size", "family", "variant")
OF_STEP_TIME = ("model", "hidden", "setting", "batch_size", "variant")


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
        list(fields.texts("command", LARGEST)),
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
