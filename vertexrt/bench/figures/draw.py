"""Draw what a record has figures for."""

from __future__ import annotations

import re
from pathlib import Path

from vertexrt.bench.figures.style import can_draw
from vertexrt.bench.record import Record
from vertexrt.bench.run import say


def draw(record: Record, path: Path) -> list[Path]:
    """Write the figures of a record as PNG files; without matplotlib, say so and write none.

    Args:
        path: of the record; figures lie beside it.
    """
    if not can_draw():
        say('no figures: matplotlib is not installed (`pip install "vertexrt[plot]"`)')
        return []
    from vertexrt.bench.figures import ablation, lines, step_time

    found = []
    parts = list(dict.fromkeys(str(e.key.get("part", "")) for e in record.entries))
    for part in parts:
        name = re.sub(r"[^\w-]", "_", part)
        figure = path.with_name(f"{path.stem}-{name}.png" if len(parts) > 1 else f"{path.stem}.png")
        entries = [e for e in record.entries if str(e.key.get("part", "")) == part]
        if record.benchmark == "ablation":
            ablation.draw(record, figure)
        elif part == "time" and any(e.key["variant"] == "whole" for e in entries):
            step_time.draw(entries, figure)
        else:
            lines.draw(entries, figure)
        found.append(figure)
        say(f"drawn: {figure}")
    return found
