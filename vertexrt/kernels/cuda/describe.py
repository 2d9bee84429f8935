"""Say in words what a task program launches on a device."""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.kernels.cuda.steps import (
    CHUNKED,
    EDGES,
    FIXED,
    LISTED,
    ROWS,
    ROWS_A_CHUNK,
    ROWS_A_SPLIT,
    SEGMENTS,
    SPLITS,
    TILES,
    Gemm,
    Kernel,
    Tiles,
)

UNBOUNDED = 1 << 30  # rows that no launch has


def describe(steps: Sequence[Kernel | Gemm]) -> list[str]:
    """Return a line for each step; which of the products' run depends on the rows."""
    return [_step(step) for step in steps]


def describe_kernels(steps: Sequence[Kernel | Gemm]) -> str:
    """Return what each step was printed from, or a line for it."""
    shown = (step.ir if isinstance(step, Kernel) and step.ir else _step(step) for step in steps)
    return "\n".join(map(str, shown))


def _step(step: Kernel | Gemm) -> str:
    if isinstance(step, Gemm):
        what = "edges" if step.edges else "rows"
        return f"cuBLAS, weight [{step.m}, {step.k}], {what}{_rows(step.tiles)}"
    blocks = f"{step.each} block{'s' if step.each > 1 else ''} of {step.threads} threads"
    if step.over in (ROWS, EDGES):
        return _group(step)
    if step.over == SEGMENTS:
        return f"kernel, blocks of {step.threads} threads for each row that was looked up"
    if step.over == TILES:
        return f"kernel of products, {blocks} across{_rows(step.tiles)}"
    return _outer(step, blocks) if step.over == SPLITS else _sum(step, blocks)


def _group(step: Kernel) -> str:
    what = "row" if step.over == ROWS else "edge"
    text = f"kernel, {step.threads // step.each} threads a {what}, {step.each} a block"
    return f"{text}, where rows are listed" if step.when == LISTED else text


def _outer(step: Kernel, blocks: str) -> str:
    if step.when == CHUNKED:
        return f"kernel, adds the splits of an outer product, {blocks}"
    assert step.tiles is not None
    splits = f"{step.tiles.rows} splits of {ROWS_A_SPLIT} rows or more"
    return f"kernel, an outer product in up to {splits}, {blocks} for each"


def _sum(step: Kernel, blocks: str) -> str:
    assert step.over == FIXED
    if step.when == CHUNKED:
        return f"kernel, adds the sums of chunks, {blocks}"
    return f"kernel, sums chunks of {ROWS_A_CHUNK} rows or more, {blocks} for each chunk"


def _rows(tiles: Tiles | None) -> str:
    if tiles is None:
        return ""
    if tiles.high >= UNBOUNDED:
        return f", above {tiles.low} rows" if tiles.low else ""
    return f", {tiles.low + 1} to {tiles.high} rows"
