"""Say in words what a task program launches on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vertexrt.ir.passes.fuse import TaskProgram
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
from vertexrt.kernels.cuda.task_launches import write_launches
from vertexrt.kernels.layout import Binding

Table = npt.NDArray[np.int64]

UNBOUNDED = 1 << 30  # rows that no launch has


def describe(task: TaskProgram, binding: Binding, itemsize: int) -> list[str]:
    """Return a line for each launch; which of the products' run depends on the rows.

    Args:
        itemsize: bytes of an element.
    """
    return describe_steps(write_launches(task, binding, 16 // itemsize).steps)


def describe_steps(steps: Sequence[Kernel | Gemm]) -> list[str]:
    """Return a line for each step."""
    return [_step(step) for step in steps]


def count_launches(
    tasks: Sequence[TaskProgram], binding: Binding, itemsize: int, table: Table
) -> tuple[int, int]:
    """Count what a launch table launches, as the driver's loop decides: kernels, and cuBLAS.

    Args:
        table: see `layout`. What ends a step comes on top.
    """
    programs = [write_launches(task, binding, 16 // itemsize).steps for task in tasks]
    kernels = products = 0
    for launch in table:
        program, rows, first, _, edges, _ = (int(x) for x in launch)
        for step in programs[program]:
            if not _runs(step, rows, edges, listed=first < 0):
                continue
            kernels += isinstance(step, Kernel)
            products += isinstance(step, Gemm)
    return kernels, products


def _runs(step: Kernel | Gemm, rows: int, edges: int, listed: bool) -> bool:
    """Tell whether the driver launches a step; each table that is looked up in counts as used."""
    t = step.tiles
    if t is not None and not t.low < max(rows * t.per_row, edges * t.per_edge) <= t.high:
        return False
    if isinstance(step, Gemm):
        return (edges if step.edges else rows) > 0
    return step.over == TILES or _kernel_runs(step, rows, edges, listed)


def _kernel_runs(step: Kernel, rows: int, edges: int, listed: bool) -> bool:
    if step.over in (ROWS, SEGMENTS):
        return rows > 0 and (listed or step.when != LISTED)
    count = edges if step.edges or step.over == EDGES else rows
    return count > (ROWS_A_CHUNK if step.when == CHUNKED else 0)


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
