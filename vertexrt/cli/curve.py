"""Draw the learning curves of a run."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

from vertexrt.cli.measures import MEASURES, PER_CENT
from vertexrt.cli.run_folder import RunFolder
from vertexrt.plain_files import write_atomically

HINT = "no curve.png: matplotlib is not installed; get it with: pip install 'vertexrt[plot]'"
SPLITS = ("train", "dev")
PANEL_INCHES = (4.4, 3.4)


def draw(folder: RunFolder) -> str | None:
    """Write `curve.png`, one panel a value, from the metrics of a run.

    Returns: None, or one line that says why there is no picture.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return HINT
    records = folder.records()
    names = [name for name in MEASURES if any(name in record for record in records)]
    if not names:
        return "no curve.png: no epoch has ended yet"
    try:
        write_atomically(folder.curve, _picture(records, names, folder.path.resolve().name))
    except OSError as error:
        return f"no curve.png: it cannot be written ({error.strerror or error})"
    return None


def _picture(records: list[dict[str, Any]], names: list[str], title: str) -> bytes:
    """Return a PNG with a panel for each value; a ring marks the best dev value."""
    # The figure is made without pyplot: no window system, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(names), height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        _panel(axes, records, name)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120)
    return picture.getvalue()


def _panel(axes: Any, records: list[dict[str, Any]], name: str) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    share = name.endswith(PER_CENT)
    for split in SPLITS:
        epochs, values = series(records, split, name)
        axes.plot(epochs, values, marker="o", markersize=3, label=split)
        if split == "dev" and values:
            best = values.index((max if MEASURES[name].larger else min)(values))
            at, label = (epochs[best], values[best]), f"best, epoch {epochs[best]}"
            axes.plot(*at, "o", markersize=9, fillstyle="none", color="C1", label=label)
    axes.set_title("loss of a graph" if name == "loss" else name.replace("_", " "))
    axes.set_xlabel("epoch")
    axes.set_xlim(0.5, max(record["epoch"] for record in records) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.3)
    axes.legend()


def series(records: list[dict[str, Any]], split: str, name: str) -> tuple[list[int], list[float]]:
    """Return epochs and values of one split; epochs whose value is missing are left out."""
    chosen = [
        record for record in records if record["split"] == split and record.get(name) is not None
    ]
    return [record["epoch"] for record in chosen], [record[name] for record in chosen]
