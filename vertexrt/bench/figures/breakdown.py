"""The figures of a breakdown, one a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vertexrt.bench.figures.style import WHISKER, bar_style, errors, figure, line_style
from vertexrt.bench.record import Entry, Record

TOTALS = ("whole", "untraced", "device, busy")


def draw(record: Record, folder: Path) -> list[Path]:
    """Draw the parts that a record has."""
    found = []
    for part, one in PARTS.items():
        entries = record.select(part=part)
        if entries:
            path = folder / f"breakdown-{part}-{record.options.get('model', 'model')}.png"
            one(entries, path)
            found.append(path)
    return found


def _values(entries: list[Entry]) -> tuple[list[float], list[list[float]]]:
    medians = [e.median for e in entries]
    lows, highs = zip(*(e.quartiles for e in entries), strict=True)
    return medians, errors(medians, list(lows), list(highs))


def _lines(axes: Any, entries: list[Entry], x: str, series: str, scale: float = 1.0) -> None:
    """Draw a line for each value of `series` over the numbers of `x`."""
    for k, name in enumerate(dict.fromkeys(e.key[series] for e in entries)):
        mine = [e for e in entries if e.key[series] == name]
        medians, spread = _values(mine)
        axes.errorbar(
            [e.key[x] for e in mine],
            [m * scale for m in medians],
            yerr=[[d * scale for d in side] for side in spread],
            label=str(name),
            capsize=2.0,
            elinewidth=0.8,
            **line_style(k),
        )


def _log(axes: Any) -> None:
    """Make the second axis logarithmic, with numbers as they are written."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _powers(axes: Any, entries: list[Entry], x: str) -> None:
    from matplotlib.ticker import NullLocator

    numbers = sorted({int(e.key[x]) for e in entries})
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [f"{n:,}" for n in numbers])
    axes.xaxis.set_minor_locator(NullLocator())


def time(entries: list[Entry], path: Path) -> None:
    """Draw the shares of a step's time, a bar for each setting and batch size."""
    settings = dict.fromkeys(e.key["setting"] for e in entries)
    pairs = dict.fromkeys((e.key["setting"], e.key["batch_size"]) for e in entries)
    bars = [pair for setting in settings for pair in pairs if pair[0] == setting]
    parts = [p for p in dict.fromkeys(str(e.key["variant"]) for e in entries) if _stacked(p)]
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


def _stacked(part: str) -> bool:
    """Tell whether a part adds up to the step; a GPU's host works beside the device."""
    return part not in TOTALS and not part.startswith("host: ")


def schedule(entries: list[Entry], path: Path) -> None:
    """Draw the time of scheduling and its share of a step."""
    panels = (("leaves", "leaves", "leaves of a tree"), ("batch size", "batch_size", "batch size"))
    with figure(path, 2, 2, (6.6, 4.2), sharex="col") as grid:
        for column, (against, x, text) in enumerate(panels):
            mine = [e for e in entries if e.key["against"] == against]
            if not mine:
                continue
            times = [e for e in mine if e.unit.startswith("us")]
            shares = [e for e in mine if e.unit.startswith("%")]
            top, bottom = grid[0][column], grid[1][column]
            _lines(top, times, x, "variant", 1e-3)
            _lines(bottom, shares, x, "variant")
            _powers(bottom, mine, x)
            _log(top)
            key = mine[0].key
            graphs = f", batch {key['batch_size']}" if against == "leaves" else ""
            top.set_title(f"{key['model']}, hidden {key['hidden']}{graphs}", loc="left")
            top.set_ylabel("time of a step (ms)")
            bottom.set_ylabel("scheduling (% of a step)")
            bottom.set_ylim(bottom=0)
            bottom.set_xlabel(text)
            top.legend()


def throughput(entries: list[Entry], path: Path) -> None:
    """Draw throughput against batch size and hidden size."""
    panels = (("batch size", "batch_size"), ("hidden size", "hidden"))
    with figure(path, 1, 2, (6.6, 2.6)) as ((left, right),):
        for axes, (against, x) in zip((left, right), panels, strict=True):
            mine = [e for e in entries if e.key["against"] == against]
            if not mine:
                continue
            _lines(axes, mine, x, "variant")
            _powers(axes, mine, x)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_xlabel(against)
            axes.set_ylabel("training (graphs/s)")
            fixed = "hidden" if x == "batch_size" else "batch_size"
            word = "hidden" if x == "batch_size" else "batch"
            axes.set_title(f"{mine[0].key['model']}, {word} {mine[0].key[fixed]}", loc="left")
        left.legend()


def weights(entries: list[Entry], path: Path) -> None:
    """Draw the bytes of weights that products ask for."""
    with figure(path, 1, 1, (4.6, 3.1)) as ((axes,),):
        _lines(axes, entries, "batch_size", "variant")
        _powers(axes, entries, "batch_size")
        _log(axes)
        axes.set_xlabel("batch size")
        axes.set_ylabel("weights loaded (MB a step, log scale)")
        key = entries[0].key
        axes.set_title(f"{key['model']}, hidden {key['hidden']}, training", loc="left")
        axes.figure.legend(loc="outside upper center", ncols=2)


def compile(entries: list[Entry], path: Path) -> None:
    """Draw what compiling takes, with an empty cache and with a full one."""
    states = list(dict.fromkeys((e.key["engine"], e.key["cache"]) for e in entries))
    phases = list(dict.fromkeys(str(e.key["variant"]) for e in entries))
    of = {(e.key["engine"], e.key["cache"], e.key["variant"]): e for e in entries}
    with figure(path, 1, 1, (4.6, 1.1 + 0.32 * len(states))) as ((axes,),):
        each = 0.8 / len(phases)
        for k, phase in enumerate(phases):
            mine = [of[(*state, phase)] for state in states]
            medians, spread = _values(mine)
            places = [row - 0.4 + (k + 0.5) * each for row in range(len(states))]
            axes.barh(
                places,
                medians,
                each,
                xerr=spread,
                error_kw=WHISKER,
                label=phase,
                **bar_style(k),
            )
            for place, median, high in zip(places, medians, spread[1], strict=True):
                axes.text((median + high) * 1.15, place, f"{median:.3g} s", va="center", fontsize=7)
        axes.set_xscale("log")
        axes.margins(x=0.25)
        axes.set_yticks(range(len(states)), [f"{engine}, {cache}" for engine, cache in states])
        axes.set_ylim(len(states) - 0.5, -0.5)
        axes.set_xlabel("seconds (log scale)")
        key = entries[0].key
        axes.set_title(f"{key['model']}, hidden {key['hidden']}", loc="left")
        axes.grid(visible=False, axis="y")
        axes.figure.legend(loc="outside upper center", ncols=len(phases))


PARTS = {
    "time": time,
    "schedule": schedule,
    "throughput": throughput,
    "weights": weights,
    "compile": compile,
}
