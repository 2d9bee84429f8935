"""The figure of a breakdown: shares of a step's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vertexrt.bench.figures.style import bar_style, figure
from vertexrt.bench.record import Entry, Results

TOTALS = ("whole", "untraced", "device, busy")
LEAST = 1e-3  # of the longest part: what never takes more is not shown


def draw(record: Results, path: Path) -> None:
    """Draw a bar for each setting and batch size."""
    steps: dict[tuple[str, int], dict[str, Entry]] = {}
    for entry in record.select(part="time"):
        bar = str(entry.key["setting"]), int(entry.key["batch_size"])
        steps.setdefault(bar, {})[str(entry.key["variant"])] = entry
    settings = list(dict.fromkeys(setting for setting, _ in steps))
    bars = sorted(steps, key=lambda bar: settings.index(bar[0]))  # sizes in their order
    with figure(path, 1, 1, (7.0, 1.5 + 0.34 * len(bars))) as ((axes,),):
        parts = _parts([steps[bar] for bar in bars])
        for row, bar in enumerate(bars):
            _bar(axes, row, steps[bar], parts)
        axes.set_yticks(range(len(bars)), [f"{setting}, batch {size}" for setting, size in bars])
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of a training step (%); at the right the step, median and quartiles")
        axes.grid(visible=False, axis="y")
        axes.figure.legend(loc="outside upper center", ncols=5)
        key = record.entries[0].key
        axes.set_title(f"{key['model']}, hidden {key['hidden']}", loc="left")


def _parts(steps: list[dict[str, Entry]]) -> list[str]:
    """Return what adds up to a step; on a GPU the host works at the same time as the device."""
    longest: dict[str, float] = {}
    for step in steps:
        for part, entry in step.items():
            if part not in TOTALS and not part.startswith("host: "):
                longest[part] = max(longest.get(part, 0.0), entry.median)
    least = LEAST * max(longest.values(), default=0.0)
    return [part for part, median in longest.items() if median > least]


def _bar(axes: Any, row: int, step: dict[str, Entry], parts: list[str]) -> None:
    medians = [step[part].median if part in step else 0.0 for part in parts]
    start = 0.0
    for k, (part, median) in enumerate(zip(parts, medians, strict=True)):
        share = 100.0 * median / sum(medians)
        label = part if row == 0 else None
        axes.barh(row, share, 0.7, left=start, label=label, **bar_style(k))
        start += share
    if "whole" in step:
        whole = step["whole"]
        low, high = whole.quartiles
        text = f"{whole.median:,.0f} us ({low:,.0f}\u2013{high:,.0f})"
        axes.text(101, row, text, va="center")
