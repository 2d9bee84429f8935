"""The table that is printed and the entries that are written."""

from typing import Any

import numpy as np

from vertexrt.bench.measure import Timing
from vertexrt.bench.record import Entry, compared

HEADER = (
    f"{'suite':<10}  {'mode':<5}  {'batch':>5}  {'variant':<20}  {'graphs/s':>9}  "
    f"{'quartiles':>19}  {'ratio':>6}"
)


def summarise(suite: str, mode: str, timing: Timing, peers: list[str]) -> dict[str, Any]:
    """Return what the table shows of one timing.

    Args:
        peers: the variants that are not ours.
    Returns: for each variant median, quartiles, all samples, and `ratio`: the median over rounds of
        the first variant's speed divided by this one's; `best_peer` is the one of highest median.
    """
    first = np.array(next(iter(timing.samples.values())))
    variants: dict[str, Any] = {}
    for name, values in timing.samples.items():
        low, median, high = np.percentile(values, [25, 50, 75])
        variants[name] = {
            "median": float(median),
            "quartiles": [float(low), float(high)],
            "ratio": float(np.median(first / np.array(values))),
            "samples": values,
        }
    best = max(peers, key=lambda name: float(variants[name]["median"]), default=None)
    return {
        "suite": suite,
        "mode": mode,
        "batch_size": timing.batch_size,
        "steps_a_sample": timing.steps,
        "variants": variants,
        "best_peer": best,
        "ratio_to_best_peer": variants[best]["ratio"] if best else None,
    }


def entries(suite: str, mode: str, timing: Timing) -> list[Entry]:
    """Return the entries of one timing: all variants, compared with the first."""
    return compared({"suite": suite, "mode": mode, "batch_size": timing.batch_size}, timing.samples)


def table(result: dict[str, Any]) -> str:
    """Return the lines of one entry; a star marks the best peer."""
    lines = []
    for name, entry in result["variants"].items():
        low, high = entry["quartiles"]
        mark = "*" if name == result["best_peer"] else ""
        lines.append(
            f"{result['suite']:<10}  {result['mode']:<5}  {result['batch_size']:>5}  "
            f"{name:<20}  {speed(entry['median']):>9}  "
            f"{speed(low) + ' - ' + speed(high):>19}  {entry['ratio']:>6.2f}{mark}"
        )
    return "\n".join(lines)


def speed(graphs_per_second: float) -> str:
    """Return a speed in few digits: of slow ones, decimals matter."""
    digits = 0 if graphs_per_second >= 100 else 2
    return f"{graphs_per_second:,.{digits}f}"
