"""Tables of results: their columns, for a page, and as text that is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vertexrt.bench.record import Entry

COUNTS = ("launches", "calls", "instructions", "kernels", "groups", "products", "rows")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers stand at the right."""

    head: str
    cells: tuple[str, ...]
    right: bool


def number(value: float) -> str:
    """Return a number in few digits: of small ones, decimals matter."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def tabulate(entries: Sequence[Entry]) -> tuple[str, list[Column]]:
    """Return entries as a table: key, speed, ratio, verdict, what runs.

    Returns: a caption, which is what all keys have in common, and the columns.
    """
    names = list(dict.fromkeys(n for e in entries for n in e.key if n != "variant"))
    common = [n for n in names if len({str(e.key.get(n, "")) for e in entries}) == 1]
    names = [n for n in names if n not in common]
    caption = ", ".join(f"{n.replace('_', ' ')} {entries[0].key.get(n, '')}" for n in common)
    head = [*names, "variant", "median", "quartiles", "ratio", "quartiles", "against", "shows"]
    rows = []
    for e in entries:
        ratio = ["", ""]
        if e.ratio is not None:
            ratio = [f"{e.ratio.median:.2f}", f"{e.ratio.low:.2f} - {e.ratio.high:.2f}"]
        row = [str(e.key.get(n, "")) for n in (*names, "variant")]
        row += [f"{number(e.median)} {e.unit}"]
        row += [f"{number(e.quartiles[0])} - {number(e.quartiles[1])}", *ratio]
        row += [e.against or "", e.verdict or ""]
        row += [number(e.counts[n]) if n in e.counts else "" for n in COUNTS]
        rows.append(row)
    return caption, columns([*head, *COUNTS], rows)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Column]:
    """Return the columns of rows, without those in which nothing stands."""
    found = []
    for name, *cells in zip(head, *rows, strict=True):
        right = all(not cell or cell[0] in "0123456789" for cell in cells)
        if any(cells):
            found.append(Column(name, tuple(cells), right))
    return found


def table(entries: Sequence[Entry]) -> str:
    """Return entries as a table of text, under its caption."""
    caption, found = tabulate(entries)
    return caption + "\n" + aligned(found)


def aligned(found: Sequence[Column]) -> str:
    """Return columns as lines of text."""
    padded = []
    for column in found:
        cells = (column.head, *column.cells)
        width = max(map(len, cells))
        padded.append([c.rjust(width) if column.right else c.ljust(width) for c in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))
