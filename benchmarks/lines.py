"""Figures of results: lines over a number, or bars where no number varies."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertexrt.bench.figures import WHISKER, bar_style, errors, name_rows
from vertexrt.bench.record import Entry, Results, in_common, number
from vertexrt.bench.run import say
from vertexrt.pictures import HOW_TO_DRAW, can_draw, figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STROKES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
GREYS = ("0.0", "0.35", "0.5", "0.15", "0.6", "0.25")
DECADE = 20.0  # times the smallest: from there on an axis is logarithmic


def draw(record: Results, path: Path) -> list[Path]:
    """Write a figure for each part of a record as a PNG file; none without matplotlib.

    Args:
        path: of the record; figures go to the same folder.
    """
    if not can_draw():
        say(f"no figures: {HOW_TO_DRAW}")
        return []
    parts: dict[str, list[Entry]] = {}
    for entry in record.entries:
        parts.setdefault(str(entry.key.get("part", "")), []).append(entry)
    found = []
    for part, entries in parts.items():
        name = "-" + re.sub(r"[^\w-]", "_", part) if len(parts) > 1 else ""
        found.append(path.with_name(f"{path.stem}{name}.png"))
        draw_part(entries, found[-1])
        say(f"drawn: {found[-1]}")
    return found


def draw_part(entries: Sequence[Entry], path: Path) -> None:
    """Draw a panel for each unit and for what the words of the keys say, a line a variant."""
    words = varied(entries, str)
    panels: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        said = (*(str(entry.key.get(name, "")) for name in words), entry.unit)
        panels.setdefault(said, []).append(entry)
    lines = all(varied(mine, int) for mine in panels.values())
    if not lines:
        panels = {(entries[0].unit,): list(entries)}
    count = min(len(panels), 2)
    rows = math.ceil(len(panels) / count)
    height = 2.4 * rows + 0.2 if lines else 1.1 + 0.25 * len(entries)
    with figure(path, rows, count, (3.4 * count + 0.4 + (not lines), height)) as grid:
        every = [axes for row in grid for axes in row]
        for axes, (said, mine) in zip(every, panels.items(), strict=False):
            if lines:
                _lines(axes, mine, varied(mine, int)[0])
                axes.set_ylabel(said[-1])
            else:
                _bars(axes, mine, [*words, "variant"])
                axes.set_xlabel(said[-1])
            axes.set_title(", ".join(said[:-1]), loc="left")
        for axes in every[len(panels) :]:
            axes.remove()
        every[0].figure.supxlabel(in_common(entries)[0], fontsize=6.5)


def varied(entries: Sequence[Entry], kind: type[int] | type[str]) -> list[str]:
    """Return the names in the keys, but "variant", whose words or numbers are not all equal."""
    names = dict.fromkeys(n for e in entries for n in e.key if n != "variant")
    return [
        name
        for name in names
        if all(isinstance(e.key.get(name), kind) for e in entries)
        and len({e.key[name] for e in entries}) > 1
    ]


def _lines(axes: Any, entries: Sequence[Entry], x: str) -> None:
    from matplotlib.ticker import NullLocator

    for k, name in enumerate(dict.fromkeys(e.key.get("variant") for e in entries)):
        grey = GREYS[k % len(GREYS)]
        style = {
            "color": grey,
            "marker": MARKERS[k % len(MARKERS)],
            "linestyle": STROKES[k % len(STROKES)],
            "markersize": 4,
            "linewidth": 1.1,
            "markerfacecolor": "white" if k % 2 else grey,
        }
        mine = [e for e in entries if e.key.get("variant") == name]
        medians, spread = errors(mine)
        places = [e.key[x] for e in mine]
        axes.errorbar(places, medians, spread, label=name, capsize=2, elinewidth=0.8, **style)
    numbers = sorted({int(e.key[x]) for e in entries})
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [f"{n:,}" for n in numbers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(x.replace("_", " "))
    _scale(axes, axes.yaxis, axes.set_ylim, entries)
    axes.legend()


def _bars(axes: Any, entries: Sequence[Entry], names: Sequence[str]) -> None:
    medians, spread = errors(entries)
    places = range(len(entries))
    axes.barh(places, medians, 0.7, xerr=spread, error_kw=WHISKER, **bar_style(1))
    name_rows(axes, [", ".join(str(e.key.get(n, "")) for n in names) for e in entries])
    _scale(axes, axes.xaxis, axes.set_xlim, entries)


def _scale(axes: Any, axis: Any, limit: Any, entries: Sequence[Entry]) -> None:
    """Let an axis begin at 0, or be logarithmic where values are far apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    low, high = min(e.quartiles[0] for e in entries), max(e.quartiles[1] for e in entries)
    if low <= 0.0 or high < DECADE * low:
        limit(0.0, None)
        return
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < DECADE**3 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))  # the scale took it
    axis.set_minor_locator(NullLocator())
