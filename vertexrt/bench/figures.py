"""Figures of results, as a paper prints them: axes with units, medians with quartiles.

They read in grey: bars differ by hatches, lines by markers and strokes. Drawing needs matplotlib
(extra `plot`), which is imported when a figure is drawn and not before.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vertexrt.bench.ablation import AGAIN, HEADS, ONE_OFF, ONE_ON
from vertexrt.bench.record import HIDDEN, Results, Spread
from vertexrt.bench.run import say
from vertexrt.errors import number_of
from vertexrt.pictures import HOW_TO_DRAW, can_draw, figure

HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++", "oo", "--", "**", "||")
FILLS = ("0.25", "0.75", "0.95", "0.55", "1.0", "0.85", "0.4", "0.65", "0.9", "0.7")
INK = {"edgecolor": "black", "linewidth": 0.6}
WHISKER = {"ecolor": "black", "elinewidth": 0.9, "capsize": 2.0}

# Of ablations.
TITLES = {ONE_ON: "(a) one switch on", ONE_OFF: "(b) one switch off"}
AXES = {ONE_ON: "speed over baseline, all off (log scale)", ONE_OFF: "speed over all on"}
THICK = 0.8  # of the bars of a switch together
ROW_INCHES, WIDTH = 0.28, 7.2
MARGIN = 0.12  # of an axis, before the first whisker and after the last: for a mark
MARK = "\u2248"

# Of breakdowns.
TOTALS = ("whole", "untraced", "device, busy")
LEAST = 1e-3  # of the longest part: what never takes more is not shown


def bar_style(k: int) -> dict[str, Any]:
    """Return the looks of the k-th kind of bar."""
    return {"color": FILLS[k % len(FILLS)], "hatch": HATCHES[k % len(HATCHES)], **INK}


def errors(spreads: Sequence[Spread]) -> tuple[list[float], list[list[float]]]:
    """Return medians, and their distances to the quartiles as matplotlib takes them."""
    below = [s.median - s.low for s in spreads]
    above = [s.high - s.median for s in spreads]
    return [s.median for s in spreads], [below, above]


# Ablations: each switch alone, and each left out.


def draw_ablation(record: Results, path: Path) -> None:
    """Draw the ratios of a record, a panel a family: a bar for each switch and batch size."""
    found = {family: record.select(family=family) for family in TITLES}
    rows = {  # variant -> what it is compared with
        family: {str(e.key["variant"]): e.against for e in entries}
        for family, entries in found.items()
    }
    for family, head in HEADS.items():
        rows[family].pop(head, None)
    height = 1.0 + max(map(len, rows.values())) * ROW_INCHES
    with figure(path, 1, 2, (WIDTH, height)) as (panels,):
        for axes, (family, entries) in zip(panels, found.items(), strict=True):
            names = list(rows[family])
            sizes = list(dict.fromkeys(e.key["batch_size"] for e in entries))
            thick = THICK / max(len(sizes), 1)
            for k, size in enumerate(sizes):
                mine = [
                    (names.index(str(e.key["variant"])), e.ratio, e.verdict)
                    for e in entries
                    if e.key["batch_size"] == size and e.ratio is not None
                ]
                at = (k + 0.5) * thick - THICK / 2
                medians, spread = errors([ratio for _, ratio, _ in mine])
                lengths = [m - 1.0 for m in medians]
                style = {"xerr": spread, "error_kw": WHISKER, **bar_style(k)}
                places = [row + at for row, _, _ in mine]
                axes.barh(places, lengths, thick, left=1.0, label=f"batch {size}", **style)
                for row, ratio, verdict in mine:
                    if verdict == HIDDEN:
                        end = max(ratio.high, 1.0)
                        axes.annotate(MARK, (end, row + at), (3, -3), textcoords="offset points")
            axes.axvline(1.0, color="black", linewidth=0.8)
            # Room for all whiskers, and for a mark after the longest.
            if family == ONE_OFF:
                axes.set_xlim(0.0, axes.dataLim.x1 * (1.0 + MARGIN))
            else:
                axes.use_sticky_edges = False  # where all bars begin there is a margin, too
                axes.margins(x=MARGIN)
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter("{x:g}")
                axes.minorticks_off()
            name_rows(axes, [row_label(name, rows[family][name], family) for name in names])
            axes.set_xlabel(AXES[family])
            axes.set_title(TITLES[family], loc="left")
        handles, labels = panels[0].get_legend_handles_labels()
        whole, key, machine = panels[0].figure, record.entries[0].key, record.machine
        whole.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        where = machine["gpu"]["name"] if machine.get("gpu") else machine.get("processor", "")
        caption = (
            f"{key['model']}, hidden {key['hidden']}, training; {where}, "
            f"{number_of(int(machine.get('threads', 1)), 'thread')}; "
            f"whiskers: quartiles over rounds; {MARK}: hidden by the spread"
        )
        whole.supxlabel(caption, fontsize=6.5)


def row_label(name: str, against: str | None, family: str) -> str:
    """Return what a bar is called: a variant, and what it is compared with if not the head."""
    if name.endswith(AGAIN):
        return "control: the same again"
    other = "" if against in (HEADS[family], None) else f"\n(over {against})"
    return (name + other).replace("- ", "\u2212 ")


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Name the rows of bars, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


# Breakdowns: shares of a step's time.


def draw_step_time(record: Results, path: Path) -> None:
    """Draw a bar for each setting and batch size."""
    entries = record.select(part="time")
    settings = list(dict.fromkeys(e.key["setting"] for e in entries))
    entries.sort(key=lambda e: settings.index(e.key["setting"]))  # sizes in their order
    labels = [f"{e.key['setting']}, batch {e.key['batch_size']}" for e in entries]
    bars = list(dict.fromkeys(labels))
    # What adds up to a step; on a GPU the host works at the same time as the device.
    parts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(bars)))
    for entry, label in zip(entries, labels, strict=True):
        part = str(entry.key["variant"])
        if part not in TOTALS and not part.startswith("host: "):
            parts[part][bars.index(label)] = entry.median
    least = LEAST * max((medians.max() for medians in parts.values()), default=0.0)
    shown = {part: medians for part, medians in parts.items() if medians.max() > least}
    ends = np.zeros(len(bars))
    with figure(path, 1, 1, (7.0, 1.5 + 0.34 * len(bars))) as ((axes,),):
        for k, (part, medians) in enumerate(shown.items()):
            shares = 100.0 * medians / sum(shown.values())
            axes.barh(range(len(bars)), shares, 0.7, left=ends, label=part, **bar_style(k))
            ends = ends + shares
        for entry, label in zip(entries, labels, strict=True):
            if entry.key["variant"] == "whole":
                quartiles = f"{entry.low:,.0f}\u2013{entry.high:,.0f}"
                text = f"{entry.median:,.0f} \u00b5s ({quartiles})"
                axes.text(101, bars.index(label), text, va="center")
        name_rows(axes, bars)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of a training step (%); at the right the step, median and quartiles")
        axes.figure.legend(loc="outside upper center", ncols=5)
        key = record.entries[0].key
        axes.set_title(f"{key['model']}, hidden {key['hidden']}", loc="left")


FIGURES = {"ablation": draw_ablation, "breakdown": draw_step_time}


def draw(record: Results, path: Path) -> Path | None:
    """Write the figure of a record as a PNG file; without matplotlib, say so and write none.

    Args:
        path: of the record; the figure goes to the same folder.
    Returns: the path of the figure, None where there is none.
    """
    if record.benchmark not in FIGURES or not record.entries:
        return None
    if not can_draw():
        say(f"no figures: {HOW_TO_DRAW}")
        return None
    figure = path.with_suffix(".png")
    FIGURES[record.benchmark](record, figure)
    say(f"drawn: {figure}")
    return figure
