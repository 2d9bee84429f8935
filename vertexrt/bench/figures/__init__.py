"""Draw figures of results, as a paper prints them: axes with units, medians with quartiles.

They read in grey: bars differ by hatches, lines by markers and strokes. Drawing needs matplotlib
(extra `plot`), which is imported when a figure is drawn and not before.
"""

from __future__ import annotations

from pathlib import Path

from vertexrt.bench.figures import ablation, step_time
from vertexrt.bench.figures.style import can_draw
from vertexrt.bench.record import Results
from vertexrt.bench.run import say

FIGURES = {"ablation": ablation.draw, "breakdown": step_time.draw}


def draw(record: Results, path: Path) -> Path | None:
    """Write the figure of a record as a PNG file; without matplotlib, say so and write none.

    Args:
        path: of the record; the figure goes to the same folder.
    Returns: the path of the figure, None where there is none.
    """
    if record.benchmark not in FIGURES or not record.entries or not can_draw():
        return None
    figure = path.with_suffix(".png")
    FIGURES[record.benchmark](record, figure)
    say(f"drawn: {figure}")
    return figure
