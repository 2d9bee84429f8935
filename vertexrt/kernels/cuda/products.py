"""Decide how products run: which kernels, for which numbers of rows, and how their grids are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.lower.kernel import MatrixProduct, Outer, Temporary
from vertexrt.lower.launches import (
    BlockProduct,
    CopiedProduct,
    FewRowsProducts,
    RowRange,
    TiledProduct,
)

FLOATS = 4  # of 16 bytes
MOST_TURNS = 2  # in which the processors of a persistent kernel take the blocks of few rows


def is_tiled(p: MatrixProduct | Outer) -> bool:
    """Tell whether the rows of a product can be copied 16 bytes at a time."""
    return p.m % FLOATS == 0 and p.n % FLOATS == 0 and p.x.place.start % FLOATS == 0


def all_rows(*products: MatrixProduct | Outer) -> RowRange:
    """Return that a step with products is there for any number of rows."""
    per_row, per_edge = (
        max((p.each for p in products if p.edges == edges), default=0) for edges in (False, True)
    )
    return RowRange(per_row, per_edge)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """A form of a kernel for few rows.

    Attributes:
        low, high: for which numbers of rows; rows, columns: of the tile of a block.
        down: tiles of rows, at most, where blocks share the depth.
        blocks: most that share the depth, as far as it is too much for one.
        turns: most in which processors take the blocks, where a deep product is done sooner so.
    """

    low: int
    high: int
    rows: int
    columns: int
    blocks: int
    down: int = 1
    warp_columns: int = 0
    turns: int = 1


def few_rows_products(
    products: Sequence[CopiedProduct], partial: Temporary, processors: int = 0
) -> list[FewRowsProducts]:
    """Choose the kernels of independent products of few rows, each for a range of rows.

    Args:
        partial: where blocks that share the depth leave their sums.
        processors: of a persistent kernel, on which blocks take turns; of the fewest rows a warp
            makes columns, if it can. 0: blocks run side by side.
    """
    forms = _of_processors(products, processors) if processors else _of_launches(products)
    return [_few_rows(products, form, partial) for form in forms]


def _of_launches(products: Sequence[CopiedProduct]) -> list[_Tiles]:
    """Choose the forms of kernels that are launched, whose blocks run side by side."""
    size = LIMITS.tile, LIMITS.tile, LIMITS.most_blocks
    fewest = _Tiles(0, LIMITS.few_rows, LIMITS.few_tile, LIMITS.tile, LIMITS.most_blocks)
    if _any_heavy(products):
        return [fewest, _Tiles(LIMITS.few_rows, LIMITS.heavy_rows, *size)]
    # Of more rows than 64 blocks fill the device sooner; they run side by side.
    forms = [fewest, _Tiles(LIMITS.few_rows, LIMITS.shared_rows, *size, down=2)]
    if len(products) > 1:  # one launch instead of several
        forms.append(_Tiles(LIMITS.shared_rows, LIMITS.many_rows, *size))
    return forms


def _of_processors(products: Sequence[CopiedProduct], processors: int) -> list[_Tiles]:
    """Choose the forms in a persistent kernel, where blocks take turns on the processors.

    A second turn takes longer than the rest of the depth does, unless that is much. And what is
    heavy may be a product of many rows: a kernel of its own makes these sooner.
    """
    tile, blocks = LIMITS.tile, LIMITS.blocks
    heavy = _any_heavy(products)
    most = LIMITS.heavy_alone if heavy else LIMITS.shared_rows
    size = tile, tile, blocks, -(-most // tile)
    forms = [
        _Tiles(0, LIMITS.few_rows, LIMITS.few_tile, tile, blocks),
        _Tiles(LIMITS.few_rows, most, *size, turns=MOST_TURNS),
    ]
    every = [of.product for of in products]
    # A warp that makes a column of a product holds that row of the weight.
    if all(not p.transposed and is_tiled(p) and p.n <= LIMITS.deepest_row for p in every):
        each = _warp_columns(products, processors)
        columns = each * (LIMITS.product_threads // WARP)
        forms = [
            _Tiles(0, LIMITS.warp_rows, LIMITS.warp_rows, columns, blocks, warp_columns=each),
            _Tiles(LIMITS.warp_rows, most, *size, turns=MOST_TURNS),
        ]
    if len(products) > 1 and not heavy:
        forms.append(_Tiles(LIMITS.shared_rows, LIMITS.many_rows, tile, tile, blocks))
    wide, deep = LIMITS.light
    light = all(p.wide <= wide and p.deep <= deep and not is_short(p) for p in every)
    # Tiles of small weights are done soon, where each has one block.
    if light and all(_splits_of(p, forms[-1]) == 1 for p in every):
        forms[-1] = replace(forms[-1], high=LIMITS.light_rows)
    return forms


def _any_heavy(products: Sequence[CopiedProduct]) -> bool:
    """Tell whether a weight is so large that few rows of it are much work."""
    return any(p.product.m * p.product.n >= LIMITS.heavy for p in products)


def _warp_columns(products: Sequence[CopiedProduct], processors: int) -> int:
    """Return how many columns a warp makes at once, one or two: the last block ends sooner so."""
    if max(p.product.deep for p in products) > LIMITS.deepest_pair:
        return 1

    def turns(columns: int) -> int:
        width = columns * (LIMITS.product_threads // WARP)
        return -(-sum(-(-p.product.wide // width) for p in products) // processors)

    return 2 if LIMITS.two_columns * turns(2) < turns(1) else 1


def _few_rows(
    products: Sequence[CopiedProduct], form: _Tiles, partial: Temporary
) -> FewRowsProducts:
    """Give each product its range of blocks across the grid, its partial sums and its counters."""
    row_tiles = -(-form.high // form.rows)
    parts, first, used, counted = [], 0, 0, 0
    for of in products:
        tiles, splits = -(-of.product.wide // form.columns), _splits_of(of.product, form)
        width = _width(of.product, of.product.y.place.start, FLOATS)
        parts.append(BlockProduct(of, first, tiles * splits, splits, used, counted, width))
        first += tiles * splits
        if splits > 1:
            used += row_tiles * tiles * splits * form.rows * form.columns
            counted += row_tiles * tiles
    every = all_rows(*(of.product for of in products))
    rows = RowRange(every.per_row, every.per_edge, form.low, form.high)
    size, threads = (form.rows, form.columns), LIMITS.product_threads
    return FewRowsProducts(tuple(parts), rows, *size, form.warp_columns, threads, partial, used)


def _splits_of(p: MatrixProduct, form: _Tiles) -> int:
    """Return how many blocks share the depth of a product, so that all of the device is busy."""
    if form.warp_columns or form.high > LIMITS.shared_rows:
        return 1
    tiles = form.down * -(-p.wide // form.columns)
    busy = _busy_splits(p.deep // LIMITS.chunk, tiles, form.turns)
    deep = min(form.blocks // tiles, p.deep // LIMITS.deep_split)
    return max(1, busy, deep)


def _busy_splits(chunks: int, tiles: int, turns: int) -> int:
    """Return into how many splits of a depth the blocks of tiles are done first.

    Args:
        turns: most in which processors take them; each begins a pipeline of chunks anew.
    """
    best, least = 1, math.inf
    for taken in range(1, turns + 1):
        splits = max(1, min(taken * LIMITS.blocks // tiles, chunks // 2))
        chunks_in_all = taken * (chunks / splits + LIMITS.beside)
        if chunks_in_all < least:
            best, least = splits, chunks_in_all
    return best


def is_short(p: MatrixProduct) -> bool:
    """Tell whether a warp makes a row of the result at once."""
    return p.wide <= LIMITS.short and not p.transposed


def is_odd_and_short(p: MatrixProduct) -> bool:
    """Tell whether a product has a short result, and rows that are no whole vectors."""
    return is_short(p) and not is_tiled(p)


def _row_splits(p: MatrixProduct, across: int) -> int:
    """Return how many blocks share the depth of a tile of a product of many rows.

    Few tiles across would leave most of the device idle, however deep they are.
    """
    splits = 1
    while 2 * splits <= LIMITS.row_splits and p.deep >= 2 * splits * LIMITS.split_depth:
        if across * 2 * splits > LIMITS.split_tiles:
            break
        splits *= 2
    return splits


def tiled_product(
    p: MatrixProduct | Outer,
    rows: RowRange | None,
    partial: Temporary,
    block: int,
    vector: int,
    processors: int = LIMITS.blocks,
) -> TiledProduct:
    """Choose the kernel of a product of many rows, or of a gradient.

    Args:
        rows: None for any number of rows.
        partial: where splits of the depth leave their sums, if there are several.
        block: threads.
        vector: elements that may be loaded at once.
        processors: that share the blocks of a gradient: no more splits, since a second turn takes
            longer than the rows of a split do.
    """
    given = rows or all_rows(p)
    if isinstance(p, MatrixProduct) and is_short(p):
        return TiledProduct(p, given, 1, block // WARP, 0, block, 1, 1, partial, True)
    tile = LIMITS.large_rows * LIMITS.large_columns
    if isinstance(p, Outer):
        start = p.d.place.start
        across = -(-p.m // LIMITS.large_rows) * -(-p.n // LIMITS.large_columns)
        most = min(LIMITS.splits, processors // across, LIMITS.partial // (across * tile))
        splits = max(1, most)
    else:
        start, across = p.y.place.start, -(-p.wide // LIMITS.large_columns)
        splits = _row_splits(p, across)
    width = _width(p, start, vector)
    return TiledProduct(p, given, across, LIMITS.large_rows, tile, block, width, splits, partial)


def _width(p: MatrixProduct | Outer, start: int, vector: int) -> int:
    """Return how many elements of the operands are loaded at once; `start` is of the other one."""
    return gcd(vector, p.m, p.n, p.x.place.start, start)
