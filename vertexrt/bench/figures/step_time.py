"""The figure of a breakdown: shares of a step's time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertexrt.bench.figures.style import bar_style, figure
from vertexrt.bench.record import Entry

TOTALS = ("whole", "untraced", "device, busy")


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Draw a bar for each setting and batch size."""
    settings = list(dict.fromkeys(e.key["setting"] for e in entries))
    steps = [e.key for e in entries if e.key["variant"] == "whole"]
    pairs = dict.fromkeys((key["setting"], key["batch_size"]) for key in steps)
    bars = sorted(pairs, key=lambda pair: settings.index(pair[0]))  # sizes in their order
    parts = [p for p in dict.fromkeys(str(e.key["variant"]) for e in entries) if _adds_up(p)]
    of = {(e.key["setting"], e.key["batch_size"], e.key["variant"]): e for e in entries}

    def median(bar: tuple[Any, ...], part: str) -> float:
        return of[(*bar, part)].median if (*bar, part) in of else 0.0

    biggest = max(median(bar, p) for bar in bars for p in parts)
    shown = [p for p in parts if max(median(bar, p) for bar in bars) > 1e-3 * biggest]
    with figure(path, 1, 1, (7.0, 1.5 + 0.34 * len(bars))) as ((axes,),):
        for row, bar in enumerate(bars):
            total = sum(median(bar, p) for p in shown)
            start = 0.0
            for k, part in enumerate(shown):
                share = 100.0 * median(bar, part) / total
                name = part if row == 0 else None
                axes.barh(row, share, 0.7, left=start, label=name, **bar_style(k))
                start += share
            whole = of[(*bar, "whole")]
            low, high = whole.quartiles
            axes.text(
                101, row, f"{whole.median:,.0f} us ({low:,.0f}\u2013{high:,.0f})", va="center"
            )
        axes.set_yticks(range(len(bars)), [f"{setting}, batch {size}" for setting, size in bars])
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of a training step (%); at the right the step, median and quartiles")
        axes.grid(visible=False, axis="y")
        axes.figure.legend(loc="outside upper center", ncols=5)
        key = entries[0].key
        axes.set_title(f"{key['model']}, hidden {key['hidden']}", loc="left")


def _adds_up(part: str) -> bool:
    """Tell whether a part adds up to the step; a GPU's host works beside the device."""
    return part not in TOTALS and not part.startswith("host: ")
