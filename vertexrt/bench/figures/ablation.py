"""The figure of an ablation: each switch alone, and each left out."""

from __future__ import annotations

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
ROW_INCHES, WIDTH = 0.235, 7.2


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
    rows = max(len(n) for n in names.values())
    with figure(path, 1, 2, (WIDTH, 1.0 + rows * ROW_INCHES)) as ((left, right),):
        for axes, family in ((left, ONE_ON), (right, ONE_OFF)):
            _panel(axes, entries, family, names[family], sizes)
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
            "whiskers: quartiles over rounds; \u2248: hidden by the spread",
            fontsize=6.5,
        )


def _names(entries: list[Entry], family: str) -> list[str]:
    found = dict.fromkeys(str(e.key["variant"]) for e in entries if e.key["family"] == family)
    return [n for n in found if n != HEADS[family]]


def _panel(
    axes: Any, entries: list[Entry], family: str, names: list[str], sizes: list[Any]
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    each = THICK / len(sizes)
    for k, size in enumerate(sizes):
        found = {
            str(e.key["variant"]): e
            for e in entries
            if e.key["family"] == family and e.key["batch_size"] == size
        }
        places, middle, low, high = [], [], [], []
        for row, name in enumerate(names):
            ratio = found[name].ratio if name in found else None
            if ratio is None:
                continue
            places.append(row - THICK / 2 + (k + 0.5) * each)
            middle.append(ratio.median)
            low.append(ratio.low)
            high.append(ratio.high)
            if found[name].verdict == HIDDEN:
                end = max(ratio.high, 1.0)
                axes.annotate("\u2248", (end, places[-1]), (3, -3), textcoords="offset points")
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
    if family == ONE_ON:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2))
        axes.xaxis.set_major_formatter(FuncFormatter(_power_of_two))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(left=0.0)
    axes.set_yticks(range(len(names)), [label(n, entries, family) for n in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(AXES[family])
    axes.set_title(TITLES[family], loc="left")
    axes.grid(visible=False, axis="y")


def label(name: str, entries: list[Entry], family: str) -> str:
    """Return what a bar is called: a variant, and what it is compared with if not the head."""
    if name.endswith(AGAIN):
        return "control: the same again"
    text = name.replace("- ", "\u2212 ")
    others = {e.against for e in entries if e.key["variant"] == name and e.key["family"] == family}
    others -= {HEADS[family], None}
    return text + "".join(f"\n(over {str(o).replace('- ', chr(0x2212) + ' ')})" for o in others)
