"""Say in words what a task program launches on a device."""

from __future__ import annotations

from vertexrt.ir.passes.fuse import TaskProgram
from vertexrt.kernels.cuda.emit import emit
from vertexrt.kernels.cuda.steps import (
    CHUNKED,
    EDGES,
    FIXED,
    LISTED,
    ROWS,
    ROWS_A_CHUNK,
    SEGMENTS,
    TILES,
    Gemm,
    Kernel,
    Tiles,
)
from vertexrt.kernels.layout import Binding

UNBOUNDED = 1 << 30  # rows that no launch has


def describe(task: TaskProgram, binding: Binding, itemsize: int) -> list[str]:
    """Return a line for each launch; which of the products' run depends on the rows.

    Args:
        itemsize: bytes of an element.
    """
    return [_step(step) for step in emit(task, binding, 16 // itemsize).steps]


def _step(step: Kernel | Gemm) -> str:
    if isinstance(step, Gemm):
        what = "edges" if step.edges else "rows"
        return f"cuBLAS, weight [{step.m}, {step.k}], {what}{_rows(step.tiles)}"
    blocks = f"{step.each} block{'s' if step.each > 1 else ''} of {step.threads} threads"
    if step.over in (ROWS, EDGES):
        what = "row" if step.over == ROWS else "edge"
        share = step.threads // step.each
        text = f"kernel, {share} threads a {what}, {step.each} a block"
        return f"{text}, where rows are listed" if step.when == LISTED else text
    if step.over == SEGMENTS:
        return f"kernel, blocks of {step.threads} threads for each row that was looked up"
    if step.over == TILES:
        return f"kernel of products, {blocks} across{_rows(step.tiles)}"
    assert step.over == FIXED
    if step.when == CHUNKED:
        return f"kernel, adds the sums of chunks, {blocks}"
    return f"kernel, sums chunks of {ROWS_A_CHUNK} rows or more, {blocks} for each chunk"


def _rows(tiles: Tiles | None) -> str:
    if tiles is None:
        return ""
    if tiles.high >= UNBOUNDED:
        return f", above {tiles.low} rows"
    return f", {tiles.low + 1} to {tiles.high} rows"
