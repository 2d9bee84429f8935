"""Pictures as PNG files, in one style; matplotlib (extra `plot`) is imported when one is drawn."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vertexrt.plain_files import write_atomically

HOW_TO_DRAW = "matplotlib is not installed; get it with: pip install -e '.[plot]' in the checkout"
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
    """Tell whether matplotlib is installed; `HOW_TO_DRAW` says how to get it."""
    return find_spec("matplotlib") is not None


@contextmanager
def figure(
    path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any
) -> Iterator[Any]:
    """Yield axes [rows, columns] of a figure, and write it as a PNG. Raises: OSError.

    Args:
        size: width and height in inches.
        options: of `matplotlib.figure.Figure.subplots`.
    """
    # The figure is made without pyplot: no window system, no global state.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):  # type: ignore[arg-type]
        whole = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(whole)
        yield whole.subplots(rows, columns, squeeze=False, **options)
        picture = io.BytesIO()
        whole.savefig(picture)
    write_atomically(path, picture.getvalue())
