"""Draw what a record has figures for."""

from __future__ import annotations

from pathlib import Path

from vertexrt.bench.figures.style import can_draw
from vertexrt.bench.record import Record
from vertexrt.bench.run import say


def draw(record: Record, folder: Path) -> list[Path]:
    """Write the figures of a record as PNG files; without matplotlib, say so and write none."""
    if not can_draw():
        say('no figures: matplotlib is not installed (`pip install "vertexrt[plot]"`)')
        return []
    from vertexrt.bench.figures import ablation, breakdown, peers

    kinds = {"ablation": ablation.draw, "breakdown": breakdown.draw, "peers": peers.draw}
    found = kinds[record.benchmark](record, folder) if record.entries else []
    for path in found:
        say(f"drawn: {path}")
    return found
