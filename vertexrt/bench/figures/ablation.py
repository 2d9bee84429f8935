"""The figure of an ablation: each switch alone, and each left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertexrt.bench.figures.style import WHISKER, bar_style, errors, figure
from vertexrt.bench.record import Entry, Record
from vertexrt.bench.spread import HIDDEN
from vertexrt.bench.switches import AGAIN, ALL_ON, BASELINE, ONE_OFF, ONE_ON

TITLES = {
    ONE_ON: "(a) one switch on",
    ONE_OFF: "(b) one switch off",
}
AXES = {
    ONE_ON: "speed over baseline, all off (log scale)",
    ONE_OFF: "speed over all on",
}
HEADS = {ONE_ON: BASELINE, ONE_OFF: ALL_ON}
THICK = 0.8  # of the bars of a switch together
LINE = 0.45  # rows that another line of a name takes
ROW_INCHES, WIDTH = 0.235, 7.2
BEFORE, BEHIND = 0.03, 0.1  # of an axis, before the first whisker and behind the last: for a mark
MARK = "\u2248"


def _power_of_two(x: float, _: int) -> str:
    """Write a tick, a small one as a fraction, which is shorter."""
    return f"{x:g}" if x >= 1 else f"1/{1 / x:g}"


def draw(record: Record, folder: Path) -> list[Path]:
    """Draw one figure for each model and hidden size of a record."""
    found = []
    for model, hidden in dict.fromkeys((e.key["model"], e.key["hidden"]) for e in record.entries):
        mine = [e for e in record.entries if (e.key["model"], e.key["hidden"]) == (model, hidden)]
        path = folder / f"ablation-{model}.png"
        _draw(mine, record, path)
        found.append(path)
    return found


def _draw(entries: list[Entry], record: Record, path: Path) -> None:
    sizes = list(dict.fromkeys(e.key["batch_size"] for e in entries))
    names = {family: _names(entries, family) for family in TITLES}
    labels = {family: [label(n, entries, family) for n in names[family]] for family in TITLES}
    rows = max(row_edges(texts)[-1] for texts in labels.values())
    with figure(path, 1, 2, (WIDTH, 1.0 + rows * ROW_INCHES)) as ((left, right),):
        for axes, family in ((left, ONE_ON), (right, ONE_OFF)):
            mine = [e for e in entries if e.key["family"] == family]
            _panel(axes, mine, family, dict(zip(names[family], labels[family], strict=True)), sizes)
        handles, labels = left.get_legend_handles_labels()
        left.figure.legend(handles, labels, loc="outside upper center", ncols=len(sizes))
        where = record.machine.get("processor", "")
        if record.machine.get("gpu"):
            where = record.machine["gpu"]["name"]
        first = entries[0].key
        count = int(record.machine.get("threads", 1))
        threads = "1 thread" if count == 1 else f"{count} threads"
        left.figure.supxlabel(
            f"{first['model']}, hidden {first['hidden']}, training; {where}, {threads}; "
            f"whiskers: quartiles over rounds; {MARK}: hidden by the spread",
            fontsize=6.5,
        )


def _names(entries: list[Entry], family: str) -> list[str]:
    found = dict.fromkeys(str(e.key["variant"]) for e in entries if e.key["family"] == family)
    return [n for n in found if n != HEADS[family]]


def row_edges(texts: Sequence[str]) -> list[float]:
    """Return where rows begin, and where the last ends; names of several lines take more."""
    edges = [0.0]
    for text in texts:
        edges.append(edges[-1] + 1.0 + LINE * text.count("\n"))
    return edges


def _panel(
    axes: Any, entries: list[Entry], family: str, names: dict[str, str], sizes: list[Any]
) -> None:
    """Draw the bars of a family.

    Args:
        names: variant -> what its row is called, in the order of the rows.
    """
    edges = row_edges(list(names.values()))
    rows = {n: (edges[k] + edges[k + 1]) / 2 for k, n in enumerate(names)}
    each = THICK / len(sizes)
    for k, size in enumerate(sizes):
        found = [e for e in entries if e.key["batch_size"] == size and e.key["variant"] in rows]
        places, middle, low, high = [], [], [], []
        for entry in found:
            ratio = entry.ratio
            if ratio is None:
                continue
            places.append(rows[str(entry.key["variant"])] - THICK / 2 + (k + 0.5) * each)
            middle.append(ratio.median)
            low.append(ratio.low)
            high.append(ratio.high)
            if entry.verdict == HIDDEN:
                end = max(ratio.high, 1.0)
                axes.annotate(MARK, (end, places[-1]), (3, -3), textcoords="offset points")
        axes.barh(
            places,
            [m - 1.0 for m in middle],
            each,
            left=1.0,
            xerr=errors(middle, low, high),
            error_kw=WHISKER,
            label=f"batch {size}",
            **bar_style(k),
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    _limits(axes, entries, family)
    axes.set_yticks(list(rows.values()), list(names.values()))
    axes.set_ylim(edges[-1], edges[0])
    axes.set_xlabel(AXES[family])
    axes.set_title(TITLES[family], loc="left")
    axes.grid(visible=False, axis="y")


def _limits(axes: Any, entries: list[Entry], family: str) -> None:
    """Give the axis room for all whiskers, and for a mark behind the longest."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ratios = [e.ratio for e in entries if e.ratio is not None]
    low = min([1.0, *(r.low for r in ratios)])
    high = max([1.0, *(r.high for r in ratios)])
    if family == ONE_ON:
        begin, end = math.log2(low), math.log2(high)
        whole = max(end - begin, 1.0) / (1 - BEFORE - BEHIND)
        axes.set_xscale("log", base=2)
        axes.set_xlim(2 ** (begin - BEFORE * whole), 2 ** (end + BEHIND * whole))
        axes.xaxis.set_major_locator(LogLocator(base=2))
        axes.xaxis.set_major_formatter(FuncFormatter(_power_of_two))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0.0, high / (1 - BEHIND))


def label(name: str, entries: list[Entry], family: str) -> str:
    """Return what a bar is called: a variant, and what it is compared with if not the head."""
    if name.endswith(AGAIN):
        return "control: the same again"
    text = name.replace("- ", "\u2212 ")
    others = {e.against for e in entries if e.key["variant"] == name and e.key["family"] == family}
    others -= {HEADS[family], None}
    return text + "".join(f"\n(over {str(o).replace('- ', chr(0x2212) + ' ')})" for o in others)
