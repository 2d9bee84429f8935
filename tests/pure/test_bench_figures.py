"""In the figure of an ablation nothing is cut off, and no name lies over another."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from vertexrt.bench import figures
from vertexrt.bench.ablation import ONE_OFF, ONE_ON
from vertexrt.bench.record import HIDDEN, Results, Spread, read
from vertexrt.pictures import STYLE

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
COMMITTED = sorted(RESULTS.glob("*/ablation-*.json"))


def draw(record: Results, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Draw, and return the two panels as they were written."""
    pytest.importorskip("matplotlib", reason="no matplotlib (extra `plot`)")
    from matplotlib.figure import Figure

    kept: list[Any] = []
    write = Figure.savefig

    def keep(self: Any, path: Path) -> None:
        write(self, path)
        kept.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        figures.draw_ablation(record, folder / "a.png")
    (whole,) = kept
    left, right = whole.axes
    left.figure.set_dpi(STYLE["savefig.dpi"])  # pixels of the picture from here on
    return left, right


def look(axes: Any, record: Results, family: str) -> None:
    """Look at a panel's limits, marks and names."""
    low, high = axes.get_xlim()
    for entry in record.select(family=family):
        if entry.ratio is not None:
            assert low < entry.ratio.low <= entry.ratio.high < high, entry.key
    inside = axes.get_window_extent()
    for mark in axes.texts:
        box = mark.get_window_extent()
        assert inside.x0 < box.x0 < box.x1 < inside.x1
        assert inside.y0 < box.y0 < box.y1 < inside.y1
    names = [text.get_window_extent() for text in axes.get_yticklabels()]
    assert len(names) > 10
    for above, below in pairwise(names):
        assert above.y0 > below.y1


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_whiskers_marks_and_names_have_room(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read(path)
    left, right = draw(record, tmp_path, monkeypatch)
    look(left, record, ONE_ON)
    look(right, record, ONE_OFF)


def test_a_long_whisker_of_what_is_hidden_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read(RESULTS / "h200" / "ablation-tree-lstm.json")
    for k, entry in enumerate(record.entries):
        if entry.key["variant"] in ("+ 2 streams", "groups of 8"):
            record.entries[k] = replace(entry, ratio=Spread(0.9, (0.01, 5_000.0)), verdict=HIDDEN)
    left, right = draw(record, tmp_path, monkeypatch)
    look(left, record, ONE_ON)
    look(right, record, ONE_OFF)
