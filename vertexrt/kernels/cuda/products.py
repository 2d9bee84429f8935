"""Products of few rows as kernels: which rows they take, and how their grid is laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertexrt.ir.program import Node
from vertexrt.kernels.cuda.row_text import WARP, RowText
from vertexrt.kernels.cuda.steps import (
    ALWAYS,
    BY_EDGE,
    BY_ROW,
    CHUNKED,
    SPLITS,
    TEMPORARY,
    TILES,
    TRANSPOSED,
    ChildRows,
    Gemm,
    Kernel,
    Lookup,
    OperandRows,
    Tiles,
)
from vertexrt.kernels.layout import PAD
from vertexrt.lower.places import Temporary

FLOATS = 4  # of 16 bytes

# Products of few rows are made by a kernel of ours, independent ones in one launch: up to so
# many rows with 8 or 32 rows a block, and blocks sharing the depth; up to the last bound without,
# where that saves launches; above by cuBLAS.
FEW_ROWS, SHARED_ROWS, MANY_ROWS = 16, 128, 256
WARP_ROWS = 32  # up to so many a warp makes a column, where the rest of the kernel waits for it
WARPS = 8  # of a block
DEEPEST_ROW = 1024  # elements of a row of the weight that a warp holds
BLOCKS = 128  # to aim at: about one for each multiprocessor
CHUNK = 32  # of the depth, see few_rows_matmul.cuh; a block takes at least two
TILE = 32  # outputs of a block, see few_rows_matmul.cuh
PRODUCT_THREADS = 256
BIG = 64  # rows and columns of a tile, see tiled_matmul.cuh
EVERYTHING = 1 << 40
SHORT = 16  # elements of a result that a warp makes at once
ADDED_EACH = 4096  # elements of a gradient to which a block adds splits, see tiled_matmul.cuh
MOST_SPLITS = 16  # of the rows of an outer product
MOST_PARTIAL = 1 << 22  # elements of sums that they leave
ARRIVED = 1 << 16  # counters of blocks that share a tile, all that a launch may need


def tiled(g: Gemm) -> bool:
    """Tell whether the rows of a product can be copied 16 bytes at a time."""
    return g.m % FLOATS == 0 and g.k % FLOATS == 0 and g.x.start % FLOATS == 0


def splits_of(wide: int, deep: int, tiles: Tiles) -> int:
    """Return how many blocks share the depth of a product, so that the device is busy."""
    if tiles.high > SHARED_ROWS:
        return 1
    row_tiles = 1 if tiles.rows == 8 else 2
    wanted = BLOCKS // (row_tiles * -(-wide // TILE))
    return max(1, min(wanted, deep // (2 * CHUNK)))


def rows_of(node: Node) -> int:
    """Return how many rows a product has for each row (or edge) of a launch, given its result."""
    return node.type.shape[0] if len(node.type.shape) == 2 else 1


def few_rows_products(
    gemms: Sequence[Gemm], partial: Temporary, warps: bool
) -> tuple[list[Kernel], int, Tiles]:
    """Write independent products of few rows as kernels, each for a range of rows.

    Args:
        partial: where blocks that share the depth leave their sums.
        warps: of the fewest rows a warp makes a column, if it can.
    Returns: the kernels, how many elements they need there, and of which rows there are none.
    """
    per_row, per_edge = (
        max((g.times for g in gemms if g.edges == edges), default=0) for edges in (False, True)
    )
    kernels, most = [], 0
    ranges = [(0, FEW_ROWS, 8), (FEW_ROWS, SHARED_ROWS, 32)]
    if warps and all(by_warps(g) for g in gemms):
        ranges = [(WARP_ROWS, SHARED_ROWS, 32)]
        kernels.append(product_by_warps(gemms, Tiles(per_row, per_edge, 0, WARP_ROWS, WARP_ROWS)))
    if len(gemms) > 1:  # one launch instead of several
        ranges.append((SHARED_ROWS, MANY_ROWS, 32))
    for low, high, rows in ranges:
        kernel, elements = product_kernel(gemms, Tiles(per_row, per_edge, low, high, rows), partial)
        kernels.append(kernel)
        most = max(most, elements)
    return kernels, most, Tiles(per_row, per_edge, ranges[-1][1], EVERYTHING)


def product_kernel(gemms: Sequence[Gemm], tiles: Tiles, partial: Temporary) -> tuple[Kernel, int]:
    """Write independent products as one kernel: each has its range of blocks across the grid.

    Args:
        partial: where blocks that share the depth leave their sums.
    Returns: the kernel, and how many elements it needs there.
    """
    t = RowText()
    t.line(f"VRT_SCRATCH(TileMemory<{tiles.rows}>, memory, 1);")
    blocks, used, counted = 0, 0, 0
    for g in gemms:
        wide, deep = (g.k, g.m) if g.form == TRANSPOSED else (g.m, g.k)
        splits = splits_of(wide, deep, tiles)
        mine = -(-wide // TILE) * splits
        count = f"(int)a.{'m' if g.edges else 'n'} * {g.times}"
        kind = f"{tiles.rows}, {str(g.form == TRANSPOSED).lower()}, {wide}, {deep}, {splits}"
        weight = t.word(g.weight, "const real*")
        left = arrived = "nullptr"
        if splits > 1:
            left = t.temporary(partial) + f" + {used}"
            arrived = t.word("arrived", "int*") + f" + {counted}"
            row_tiles = -(-tiles.high // tiles.rows)
            used += row_tiles * mine * tiles.rows * TILE
            counted += row_tiles * (mine // splits)
        block = f"(int)VRT_BLOCK.x - {blocks}" if blocks else "(int)VRT_BLOCK.x"
        t.line(f"if (VRT_BLOCK.x < {blocks + mine}) {{")
        t.line(f"  product_tile<{kind}>(memory[0], VRT_BLOCK.y, {block}, {count},")
        t.line(f"    {_source(t, g, deep)}, {weight},")
        t.line(f"    {_target(t, g, wide)}, {left}, {arrived});")
        t.line("  return;")
        t.line("}")
        blocks += mine
    assert counted <= ARRIVED, f"{counted} tiles of products in a launch"
    body = t.kernel(PRODUCT_THREADS)
    words = tuple(t.words)
    return Kernel(body, words, TILES, blocks, PRODUCT_THREADS, tiles=tiles), used


def product_by_warps(gemms: Sequence[Gemm], tiles: Tiles) -> Kernel:
    """Write independent products of a few rows as one kernel in which a warp makes a column."""
    t = RowText()
    blocks = 0
    for g in gemms:
        mine = -(-g.m // WARPS)
        count = f"(int)a.{'m' if g.edges else 'n'} * {g.times}"
        weight = t.word(g.weight, "const real*")
        block = f"(int)VRT_BLOCK.x - {blocks}" if blocks else "(int)VRT_BLOCK.x"
        t.line(f"if (VRT_BLOCK.x < {blocks + mine}) {{")
        t.line(f"  product_by_warps<{g.m}, {g.k}>({block}, {count},")
        t.line(f"    {_source(t, g, g.k)}, {weight}, {_target(t, g, g.m)});")
        t.line("  return;")
        t.line("}")
        blocks += mine
    body = t.kernel(PRODUCT_THREADS)
    return Kernel(body, tuple(t.words), TILES, blocks, PRODUCT_THREADS, tiles=tiles)


def by_warps(g: Gemm) -> bool:
    """Tell whether a warp can make a column of a product: it holds that row of the weight."""
    return g.form != TRANSPOSED and tiled(g) and g.k <= DEEPEST_ROW


def large_product(g: Gemm, block: int, vector: int) -> Kernel:
    """Write a product of many rows as a kernel of tiles, or of rows where results are short.

    Args:
        block: threads.
        vector: elements that may be loaded at once.
    """
    t = RowText()
    weight = t.word(g.weight, "const real*")
    x, y = _first(t, g.x), _first(t, g.y)
    count = f"(int)a.{'m' if g.edges else 'n'} * {g.times}"
    turned = g.form == TRANSPOSED
    wide, deep = (g.k, g.m) if turned else (g.m, g.k)
    if wide <= SHORT and not turned:
        across, rows = 1, block // WARP
        t.line(f"short_rows<{wide}, {deep}>({count}, {x}, {weight}, {y});")
    else:
        across, rows = -(-wide // BIG), BIG
        w = f"k * {wide} + j" if turned else f"j * {deep} + k"
        t.line("VRT_SCRATCH(MatmulMemory, memory, 1);")
        t.line(f"const real* const x = {x};")
        t.line(f"real* const y = {y};")
        width = vector if tiled(g) and g.y.start % FLOATS == 0 else 1
        t.line(
            f"matmul_tile<false, {str(turned).lower()}, {width}>(memory[0], VRT_BLOCK.y, "
            f"VRT_BLOCK.x, {count}, {wide}, {deep},"
        )
        t.line(f"  [&](int i, int k) {{ return x + (long long)i * {deep} + k; }},")
        t.line(f"  [&](int j, int k) {{ return {weight} + (long long){w}; }},")
        t.line(f"  [&](int i, int j, real v) {{ y[(long long)i * {wide} + j] = v; }});")
    tiles = replace(g.tiles or _all_rows(g), rows=rows)
    return Kernel(t.kernel(block), tuple(t.words), TILES, across, block, tiles=tiles)


def outer_product(g: Gemm, partial: Temporary, block: int, vector: int) -> tuple[list[Kernel], int]:
    """Write a sum of outer products over rows: tiles, and rows in splits that are then added up.

    Args:
        partial: where the splits leave their sums.
        block: threads.
        vector: elements that may be loaded at once.
    Returns: two kernels, and the elements that they need there.
    """
    size, columns = g.m * g.k, -(-g.k // BIG)
    splits = max(1, min(MOST_SPLITS, MOST_PARTIAL // size))
    count = f"(int)a.{'m' if g.edges else 'n'} * {g.times}"
    tiles = replace(_all_rows(g), rows=splits)
    found = []
    for second in (False, True):
        t = RowText()
        gradient = t.word(g.weight, "real*")
        left = t.temporary(partial)
        if second:
            each = -(-size // ADDED_EACH)
            t.line(f"add_splits({gradient}, {left}, {size}, (int)a.chunks);")
        else:
            each = -(-g.m // BIG) * columns
            d, x = _first(t, g.y), _first(t, g.x)
            t.line("VRT_SCRATCH(MatmulMemory, memory, 1);")
            t.line(f"const long long count = {count};")
            t.line("const long long begin = count * VRT_BLOCK.y / VRT_GRID.y;")
            t.line("const long long end = count * (VRT_BLOCK.y + 1) / VRT_GRID.y;")
            t.line(f"real* const part = {left} + VRT_BLOCK.y * {size}ll;")
            t.line(f"const real* const d = {d} + begin * {g.m};")
            t.line(f"const real* const x = {x} + begin * {g.k};")
            width = vector if tiled(g) and g.y.start % FLOATS == 0 else 1
            t.line(
                f"matmul_tile<true, true, {width}>(memory[0], VRT_BLOCK.x / {columns}, "
                f"VRT_BLOCK.x % {columns}, {g.m}, {g.k}, (int)(end - begin),"
            )
            t.line(f"  [&](int i, int k) {{ return d + (long long)k * {g.m} + i; }},")
            t.line(f"  [&](int j, int k) {{ return x + (long long)k * {g.k} + j; }},")
            t.line("  [&](int i, int j, real v) {")
            t.line(f"    const long long at = (long long)i * {g.k} + j;")
            t.line(f"    if (a.chunks > 1) part[at] = v; else {gradient}[at] += v;")
            t.line("  });")
        body, words = t.kernel(block), tuple(t.words)
        when = CHUNKED if second else ALWAYS
        found.append(Kernel(body, words, SPLITS, each, block, when, tiles=tiles, adds=True))
    return found, splits * (-(-size // PAD) * PAD)


def _all_rows(g: Gemm) -> Tiles:
    """Return that a step is there for any number of rows."""
    return Tiles(0 if g.edges else g.times, g.times if g.edges else 0, 0, EVERYTHING)


def _source(t: RowText, g: Gemm, deep: int) -> str:
    """Return a function from the number of a row to the row."""
    if g.gathered is None:
        x = _first(t, g.x)
        return f"[&](int i) -> const float* {{ return {x} + (long long)i * {deep}; }}"
    if isinstance(g.gathered, Lookup):
        table, pull = t.word(g.gathered.word, "const real*"), t.word(g.gathered.pull, "const int*")
        rows, order = t.word("rows", "const int*"), t.word("order", "const int*")
        row = f"const int row = a.lo >= 0 ? (int)a.lo + i : {rows}[a.at + i];"
        at = f"const int at = {pull}[{order}[row]];"
        found = f"at >= 0 ? {table} + (long long)at * {deep} : nullptr"
        return f"[&](int i) -> const float* {{ {row} {at} return {found}; }}"
    child, tensor = _child(t, g.gathered), t.word(g.gathered.word, "real*")
    row = f"{tensor} + (long long)child_row[e] * {deep}"
    return f"[&](int i) -> const float* {{ {child} return there ? {row} : nullptr; }}"


def _target(t: RowText, g: Gemm, wide: int) -> str:
    """Return a function that takes a result, given the numbers of its row and column."""
    if g.scattered is None:
        y = _first(t, g.y)
        return f"[&](int i, int j, float v) {{ ({y})[(long long)i * {wide} + j] = v; }}"
    child, tensor = _child(t, g.scattered), t.word(g.scattered.word, "real*")
    store = f"if (there) {tensor}[(long long)e * {wide} + j] = v;"
    return f"[&](int i, int j, float v) {{ {child} {store} }}"


def _child(t: RowText, slot: ChildRows) -> str:
    """Return statements that find the edge `e` of a slot, and whether a child is `there`."""
    first, child = t.word("edge_ptr", "const int*"), t.word("child_row", "const int*")
    row = "const int row = (int)a.lo + i;"
    edge = f"const int e = {first}[row] + {slot.slot};"
    return f"{row} {edge} const bool there = e < {first}[row + 1] && {child}[e] >= 0;"


def _first(t: RowText, operand: OperandRows) -> str:
    """Return the pointer to the first row of an operand."""
    at = operand.temporary
    start = f" + {operand.start}" if operand.start else ""
    if operand.by == TEMPORARY:
        return t.temporary(at) + start
    word = t.word(operand.word, "real*")
    if operand.by == BY_EDGE:
        return f"{word} + a.elo * {operand.step}{start}"
    rows = f"{word} + a.lo * {operand.step}{start}"
    if operand.by == BY_ROW:
        return rows
    packed = t.temporary(at)
    return f"(a.lo >= 0 ? {rows} : {packed})"
