"""Figures of results, as a paper prints them: axes with units, medians with quartiles.

They read in grey: bars differ by hatches, lines by markers and strokes. Drawing needs matplotlib
(extra `plot`), which is imported when a figure is drawn and not before.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertexrt.bench.ablation import AGAIN, ALL_ON, BASELINE, ONE_OFF, ONE_ON
from vertexrt.bench.record import HIDDEN, Entry, Results, Spread
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
HEADS = {ONE_ON: BASELINE, ONE_OFF: ALL_ON}
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
    rows: dict[str, dict[str, str]] = {}  # family -> variant -> what its row is called
    for family in TITLES:
        entries = record.select(family=family)
        names = dict.fromkeys(str(e.key["variant"]) for e in entries)
        rows[family] = {n: row_label(n, entries, family) for n in names if n != HEADS[family]}
    most = max(map(len, rows.values()))
    with figure(path, 1, 2, (WIDTH, 1.0 + most * ROW_INCHES)) as ((left, right),):
        for axes, family in ((left, ONE_ON), (right, ONE_OFF)):
            _panel(axes, record.select(family=family), family, rows[family])
        handles, labels = left.get_legend_handles_labels()
        left.figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        key, machine = record.entries[0].key, record.machine
        where = machine["gpu"]["name"] if machine.get("gpu") else machine.get("processor", "")
        count = int(machine.get("threads", 1))
        threads = number_of(count, "thread")
        caption = (
            f"{key['model']}, hidden {key['hidden']}, training; {where}, {threads}; "
            f"whiskers: quartiles over rounds; {MARK}: hidden by the spread"
        )
        left.figure.supxlabel(caption, fontsize=6.5)


def row_label(name: str, entries: Sequence[Entry], family: str) -> str:
    """Return what a bar is called: a variant, and what it is compared with if not the head."""
    if name.endswith(AGAIN):
        return "control: the same again"
    others = {e.against for e in entries if e.key["variant"] == name} - {HEADS[family], None}
    text = name + "".join(f"\n(over {other})" for other in others)
    return text.replace("- ", "\u2212 ")


def _panel(axes: Any, entries: Sequence[Entry], family: str, rows: dict[str, str]) -> None:
    sizes = list(dict.fromkeys(e.key["batch_size"] for e in entries))
    thick = THICK / max(len(sizes), 1)
    for k, size in enumerate(sizes):
        mine = [
            (e, e.ratio) for e in entries if e.key["batch_size"] == size and e.ratio is not None
        ]
        at = (k + 0.5) * thick - THICK / 2
        places = [[*rows].index(str(e.key["variant"])) + at for e, _ in mine]
        medians, spread = errors([ratio for _, ratio in mine])
        lengths = [m - 1.0 for m in medians]
        style = {"xerr": spread, "error_kw": WHISKER, **bar_style(k)}
        axes.barh(places, lengths, thick, left=1.0, label=f"batch {size}", **style)
        for place, (entry, ratio) in zip(places, mine, strict=True):
            if entry.verdict == HIDDEN:
                end = max(ratio.high, 1.0)
                axes.annotate(MARK, (end, place), (3, -3), textcoords="offset points")
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
    name_rows(axes, list(rows.values()))
    axes.set_xlabel(AXES[family])
    axes.set_title(TITLES[family], loc="left")


def name_rows(axes: Any, names: Sequence[str]) -> None:
    """Name the rows of bars, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


# Breakdowns: shares of a step's time.


def draw_step_time(record: Results, path: Path) -> None:
    """Draw a bar for each setting and batch size."""
    steps: dict[tuple[str, int], dict[str, Entry]] = {}
    longest: dict[str, float] = {}
    for entry in record.select(part="time"):
        bar, part = (str(entry.key["setting"]), int(entry.key["batch_size"])), entry.key["variant"]
        steps.setdefault(bar, {})[str(part)] = entry
        # What adds up to a step; on a GPU the host works at the same time as the device.
        if part not in TOTALS and not str(part).startswith("host: "):
            longest[str(part)] = max(longest.get(str(part), 0.0), entry.median)
    least = LEAST * max(longest.values(), default=0.0)
    parts = [part for part, median in longest.items() if median > least]
    settings = list(dict.fromkeys(setting for setting, _ in steps))
    bars = sorted(steps, key=lambda bar: settings.index(bar[0]))  # sizes in their order
    with figure(path, 1, 1, (7.0, 1.5 + 0.34 * len(bars))) as ((axes,),):
        for row, bar in enumerate(bars):
            step, start = steps[bar], 0.0
            medians = [step[part].median if part in step else 0.0 for part in parts]
            for k, (part, median) in enumerate(zip(parts, medians, strict=True)):
                share = 100.0 * median / sum(medians)
                label = part if row == 0 else None
                axes.barh(row, share, 0.7, left=start, label=label, **bar_style(k))
                start += share
            if "whole" in step:
                whole = step["whole"]
                low, high = whole.quartiles
                text = f"{whole.median:,.0f} \u00b5s ({low:,.0f}\u2013{high:,.0f})"
                axes.text(101, row, text, va="center")
        name_rows(axes, [f"{setting}, batch {size}" for setting, size in bars])
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
