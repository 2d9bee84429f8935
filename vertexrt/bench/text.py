"""Tables of results, as text."""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.bench.record import Entry

COUNTS = ("launches", "calls", "instructions", "kernels", "groups", "products", "rows")


def number(value: float) -> str:
    """Return a number in few digits: of small ones, decimals matter."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def table(entries: Sequence[Entry]) -> str:
    """Return entries as a table under its caption: key, speed, ratio, verdict, what runs."""
    caption, names = in_common(entries)
    head = [*names, "variant", "median", "quartiles", "ratio", "quartiles", "against", "shows"]
    rows = [_row(entry, names) for entry in entries]
    return caption + "\n" + aligned([*head, *COUNTS], rows)


def in_common(entries: Sequence[Entry]) -> tuple[str, list[str]]:
    """Return a caption, which is what all keys have in common, and the names of the others."""
    names = list(dict.fromkeys(n for e in entries for n in e.key if n != "variant"))
    others = [name for name in names if len(_values(entries, name)) > 1]
    common = [name for name in names if name not in others]
    said = [f"{name.replace('_', ' ')} {_values(entries, name).pop()}" for name in common]
    return ", ".join(said), others


def _values(entries: Sequence[Entry], name: str) -> set[str]:
    """Return what the keys have under a name, each once."""
    return {str(entry.key.get(name, "")) for entry in entries}


def _row(entry: Entry, names: Sequence[str]) -> list[str]:
    row = [str(entry.key.get(n, "")) for n in (*names, "variant")]
    row += [f"{number(entry.median)} {entry.unit}", "{} - {}".format(*map(number, entry.quartiles))]
    r = entry.ratio
    row += ["", ""] if r is None else [f"{r.median:.2f}", f"{r.low:.2f} - {r.high:.2f}"]
    row += [entry.against or "", entry.verdict or ""]
    return row + [number(entry.counts[n]) if n in entry.counts else "" for n in COUNTS]


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines under their heads, without empty columns; numbers stand at the right."""
    columns = []
    for name, *cells in zip(head, *rows, strict=True):
        if any(cells):
            width = max(len(name), *map(len, cells))
            right = all(not cell or cell[0] in "0123456789" for cell in cells)
            columns.append([c.rjust(width) if right else c.ljust(width) for c in (name, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))
