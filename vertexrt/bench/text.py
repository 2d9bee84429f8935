"""Tables of results, as they are printed."""

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
    """Return entries that have a variant as a table: key, speed, ratio, verdict, what runs.

    What all keys have in common stands once, above.
    """
    counted = [name for name in COUNTS if any(name in e.counts for e in entries)]
    names = list(dict.fromkeys(n for e in entries for n in e.key if n != "variant"))
    common = [n for n in names if len({str(e.key.get(n, "")) for e in entries}) == 1]
    names = [n for n in names if n not in common]
    caption = ", ".join(f"{n.replace('_', ' ')} {entries[0].key[n]}" for n in common)
    head = [*names, "variant", "median", "quartiles", "ratio", "quartiles", "against", "shows"]
    rows = []
    for e in entries:
        ratio = ["", ""]
        if e.ratio is not None:
            ratio = [f"{e.ratio.median:.2f}", f"{e.ratio.low:.2f} - {e.ratio.high:.2f}"]
        row = [str(e.key.get(n, "")) for n in names]
        row += [str(e.key.get("variant", "")), f"{number(e.median)} {e.unit}"]
        row += [f"{number(e.quartiles[0])} - {number(e.quartiles[1])}", *ratio]
        row += [e.against or "", e.verdict or ""]
        row += [number(e.counts[n]) if n in e.counts else "" for n in counted]
        rows.append(row)
    return caption + "\n" + aligned([*head, *counted], rows)


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of words in columns; columns of numbers are aligned to the right."""
    whole = [list(head), *map(list, rows)]
    kept = [k for k in range(len(head)) if any(row[k] for row in rows)]
    lines = []
    for row in whole:
        cells = []
        for k in kept:
            width = max(len(r[k]) for r in whole)
            right = all(not r[k] or r[k][0] in "0123456789" for r in rows)
            cells.append(row[k].rjust(width) if right else row[k].ljust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
