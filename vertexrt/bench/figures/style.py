"""Fonts, greys, hatches and markers of all figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vertexrt.bench.record import Spread
from vertexrt.bench.run import say

HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++", "oo", "--", "**", "||")
FILLS = ("0.25", "0.75", "0.95", "0.55", "1.0", "0.85", "0.4", "0.65", "0.9", "0.7")
INK = {"edgecolor": "black", "linewidth": 0.6}
WHISKER = {"ecolor": "black", "elinewidth": 0.9, "capsize": 2.0}

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "ytick.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 160,
}


def can_draw() -> bool:
    """Tell whether matplotlib is installed; say how to get it where it is not."""
    if importlib.util.find_spec("matplotlib") is not None:
        return True
    say('no figures: matplotlib is not installed (`pip install "vertexrt[plot]"`)')
    return False


@contextmanager
def figure(
    path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any
) -> Iterator[Any]:
    """Yield axes [rows, columns] of a figure, and write it as a PNG.

    Args:
        size: width and height in inches.
        options: of `matplotlib.figure.Figure.subplots`.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):  # type: ignore[arg-type]
        whole = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(whole)
        yield whole.subplots(rows, columns, squeeze=False, **options)
        whole.savefig(path)


def bar_style(k: int) -> dict[str, Any]:
    """Return the looks of the k-th kind of bar."""
    return {"color": FILLS[k % len(FILLS)], "hatch": HATCHES[k % len(HATCHES)], **INK}


def errors(spreads: Sequence[Spread]) -> tuple[list[float], list[list[float]]]:
    """Return medians, and their distances to the quartiles as matplotlib takes them."""
    below = [s.median - s.low for s in spreads]
    above = [s.high - s.median for s in spreads]
    return [s.median for s in spreads], [below, above]
