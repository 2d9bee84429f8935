"""The figure of an ablation: each switch alone, and each left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertexrt.bench.figures.style import WHISKER, bar_style, errors, figure
from vertexrt.bench.record import HIDDEN, Entry, Results
from vertexrt.bench.switches import AGAIN, ALL_ON, BASELINE, ONE_OFF, ONE_ON

TITLES = {ONE_ON: "(a) one switch on", ONE_OFF: "(b) one switch off"}
AXES = {ONE_ON: "speed over baseline, all off (log scale)", ONE_OFF: "speed over all on"}
HEADS = {ONE_ON: BASELINE, ONE_OFF: ALL_ON}
THICK = 0.8  # of the bars of a switch together
ROW_INCHES, WIDTH = 0.28, 7.2
MARGIN = 0.12  # of an axis, before the first whisker and after the last: for a mark
MARK = "\u2248"


def draw(record: Results, path: Path) -> None:
    """Draw the ratios of a record, a panel a family."""
    rows = {family: _rows(record, family) for family in TITLES}
    most = max(map(len, rows.values()))
    with figure(path, 1, 2, (WIDTH, 1.0 + most * ROW_INCHES)) as ((left, right),):
        for axes, family in ((left, ONE_ON), (right, ONE_OFF)):
            _panel(axes, record.select(family=family), family, rows[family])
        handles, labels = left.get_legend_handles_labels()
        left.figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        left.figure.supxlabel(_caption(record), fontsize=6.5)


def _caption(record: Results) -> str:
    key, machine = record.entries[0].key, record.machine
    where = machine["gpu"]["name"] if machine.get("gpu") else machine.get("processor", "")
    count = int(machine.get("threads", 1))
    threads = "1 thread" if count == 1 else f"{count} threads"
    return (
        f"{key['model']}, hidden {key['hidden']}, training; {where}, {threads}; "
        f"whiskers: quartiles over rounds; {MARK}: hidden by the spread"
    )


def _rows(record: Results, family: str) -> dict[str, str]:
    """Return the variants of a family, and what the row of each is called."""
    entries = record.select(family=family)
    names = dict.fromkeys(str(e.key["variant"]) for e in entries)
    return {n: label(n, entries, family) for n in names if n != HEADS[family]}


def label(name: str, entries: Sequence[Entry], family: str) -> str:
    """Return what a bar is called: a variant, and what it is compared with if not the head."""
    if name.endswith(AGAIN):
        return "control: the same again"
    others = {e.against for e in entries if e.key["variant"] == name} - {HEADS[family], None}
    text = name + "".join(f"\n(over {other})" for other in others)
    return text.replace("- ", "\u2212 ")


def _panel(axes: Any, entries: Sequence[Entry], family: str, rows: dict[str, str]) -> None:
    """Draw the bars of a family."""
    sizes = list(dict.fromkeys(e.key["batch_size"] for e in entries))
    for k, size in enumerate(sizes):
        mine = [e for e in entries if e.key["batch_size"] == size]
        _bars(axes, mine, list(rows), (k, len(sizes)))
    axes.axvline(1.0, color="black", linewidth=0.8)
    _limits(axes, family)
    axes.set_yticks(range(len(rows)), list(rows.values()))
    axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    axes.set_xlabel(AXES[family])
    axes.set_title(TITLES[family], loc="left")
    axes.grid(visible=False, axis="y")


def _bars(axes: Any, entries: Sequence[Entry], rows: list[str], which: tuple[int, int]) -> None:
    """Draw the bars of a batch size: number `which[0]` of the `which[1]` in each row."""
    k, count = which
    mine = [(e, e.ratio) for e in entries if e.ratio is not None]
    at = (k + 0.5) * THICK / count - THICK / 2
    places = [rows.index(str(e.key["variant"])) + at for e, _ in mine]
    medians, spread = errors([ratio for _, ratio in mine])
    lengths, label = [m - 1.0 for m in medians], f"batch {entries[0].key['batch_size']}"
    style = {"xerr": spread, "error_kw": WHISKER, **bar_style(k)}
    axes.barh(places, lengths, THICK / count, left=1.0, label=label, **style)
    for place, (entry, ratio) in zip(places, mine, strict=True):
        if entry.verdict == HIDDEN:
            end = max(ratio.high, 1.0)
            axes.annotate(MARK, (end, place), (3, -3), textcoords="offset points")


def _limits(axes: Any, family: str) -> None:
    """Give the axis room for all whiskers, and for a mark after the longest."""
    if family == ONE_OFF:
        axes.set_xlim(0.0, axes.dataLim.x1 * (1.0 + MARGIN))
        return
    axes.use_sticky_edges = False  # where all bars begin there is a margin, too
    axes.margins(x=MARGIN)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
