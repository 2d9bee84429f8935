"""Decide how products run: which kernels, for which numbers of rows, and how their grids are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from vertexrt.kernels.cuda.launch_limits import LIMITS, LaunchLimits
from vertexrt.kernels.cuda.row_text import WARP
from vertexrt.kernels.layout import PAD
from vertexrt.lower.kernel import MatrixProduct, Outer, Temporary, ValuePlace
from vertexrt.lower.launches import (
    BlockProduct,
    CopiedProduct,
    FewRowsProducts,
    LargeProduct,
    OuterProduct,
    RowRange,
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
    products: Sequence[CopiedProduct],
    partial: Temporary,
    processors: int = 0,
    limits: LaunchLimits = LIMITS,
) -> list[FewRowsProducts]:
    """Choose the kernels of independent products of few rows, each for a range of rows.

    Args:
        partial: where blocks that share the depth leave their sums.
        processors: of a persistent kernel, on which blocks take turns; of the fewest rows a warp
            makes columns, if it can. 0: blocks run side by side.
    """
    if processors:
        forms = _of_processors(products, processors, limits)
    else:
        forms = _of_launches(products, limits)
    return [_few_rows(products, form, partial, limits) for form in forms]


def _of_launches(products: Sequence[CopiedProduct], limits: LaunchLimits) -> list[_Tiles]:
    """Choose the forms of kernels that are launched, whose blocks run side by side."""
    size = limits.tile, limits.tile, limits.most_blocks
    fewest = _Tiles(0, limits.few_rows, limits.few_tile, limits.tile, limits.most_blocks)
    if _any_heavy(products, limits):
        return [fewest, _Tiles(limits.few_rows, limits.heavy_rows, *size)]
    # Of more rows than 64 blocks fill the device sooner; they run side by side.
    forms = [fewest, _Tiles(limits.few_rows, limits.shared_rows, *size, down=2)]
    if len(products) > 1:  # one launch instead of several
        forms.append(_Tiles(limits.shared_rows, limits.many_rows, *size))
    return forms


def _of_processors(
    products: Sequence[CopiedProduct], processors: int, limits: LaunchLimits
) -> list[_Tiles]:
    """Choose the forms in a persistent kernel, where blocks take turns on the processors.

    A second turn takes longer than the rest of the depth does, unless that is much. And what is
    heavy may be a product of many rows: a kernel of its own makes these sooner.
    """
    tile, blocks = limits.tile, limits.blocks
    heavy = _any_heavy(products, limits)
    most = limits.heavy_alone if heavy else limits.shared_rows
    size = tile, tile, blocks, -(-most // tile)
    forms = [
        _Tiles(0, limits.few_rows, limits.few_tile, tile, blocks),
        _Tiles(limits.few_rows, most, *size, turns=MOST_TURNS),
    ]
    if all(_is_by_warps(p.product, limits) for p in products):
        each = _warp_columns(products, processors, limits)
        columns = each * (limits.product_threads // WARP)
        forms = [
            _Tiles(0, limits.warp_rows, limits.warp_rows, columns, blocks, warp_columns=each),
            _Tiles(limits.warp_rows, most, *size, turns=MOST_TURNS),
        ]
    if len(products) > 1 and not heavy:
        forms.append(_Tiles(limits.shared_rows, limits.many_rows, tile, tile, blocks))
    if all(_is_light(p.product, forms[-1], limits) for p in products):
        forms[-1] = replace(forms[-1], high=limits.light_rows)
    return forms


def _is_light(p: MatrixProduct, form: _Tiles, limits: LaunchLimits) -> bool:
    """Tell whether a weight is so small that tiles of it are done soon, and each has one block."""
    wide, deep = limits.light
    small = p.wide <= wide and p.deep <= deep and not is_short(p, limits)
    return small and _splits_of(p, form, limits) == 1


def _any_heavy(products: Sequence[CopiedProduct], limits: LaunchLimits) -> bool:
    """Tell whether a weight is so large that few rows of it are much work."""
    return any(p.product.m * p.product.n >= limits.heavy for p in products)


def _is_by_warps(p: MatrixProduct, limits: LaunchLimits) -> bool:
    """Tell whether a warp can make a column of a product: it holds that row of the weight."""
    return not p.transposed and is_tiled(p) and p.n <= limits.deepest_row


def _warp_columns(products: Sequence[CopiedProduct], processors: int, limits: LaunchLimits) -> int:
    """Return how many columns a warp makes at once, one or two: the last block ends sooner so."""
    if max(p.product.deep for p in products) > limits.deepest_pair:
        return 1

    def turns(columns: int) -> int:
        width = columns * (limits.product_threads // WARP)
        return -(-sum(-(-p.product.wide // width) for p in products) // processors)

    return 2 if limits.two_columns * turns(2) < turns(1) else 1


def _few_rows(
    products: Sequence[CopiedProduct], form: _Tiles, partial: Temporary, limits: LaunchLimits
) -> FewRowsProducts:
    """Give each product its range of blocks across the grid, its partial sums and its counters."""
    row_tiles = -(-form.high // form.rows)
    parts, first, used, counted = [], 0, 0, 0
    for of in products:
        tiles, splits = -(-of.product.wide // form.columns), _splits_of(of.product, form, limits)
        width = _width(of.product, of.product.y.place.start, FLOATS)
        parts.append(BlockProduct(of, first, tiles * splits, splits, used, counted, width))
        first += tiles * splits
        if splits > 1:
            used += row_tiles * tiles * splits * form.rows * form.columns
            counted += row_tiles * tiles
    every = all_rows(*(of.product for of in products))
    rows = RowRange(every.per_row, every.per_edge, form.low, form.high)
    size, threads = (form.rows, form.columns), limits.product_threads
    return FewRowsProducts(tuple(parts), rows, *size, form.warp_columns, threads, partial, used)


def _splits_of(p: MatrixProduct, form: _Tiles, limits: LaunchLimits) -> int:
    """Return how many blocks share the depth of a product, so that all of the device is busy."""
    if form.warp_columns or form.high > limits.shared_rows:
        return 1
    tiles = form.down * -(-p.wide // form.columns)
    busy = _busy_splits(p.deep // limits.chunk, tiles, form.turns, limits)
    deep = min(form.blocks // tiles, p.deep // limits.deep_split)
    return max(1, busy, deep)


def _busy_splits(chunks: int, tiles: int, turns: int, limits: LaunchLimits) -> int:
    """Return into how many splits of a depth the blocks of tiles are done first.

    Args:
        turns: most in which processors take them; each begins a pipeline of chunks anew.
    """
    best, least = 1, math.inf
    for taken in range(1, turns + 1):
        splits = max(1, min(taken * limits.blocks // tiles, chunks // 2))
        chunks_in_all = taken * (chunks / splits + limits.beside)
        if chunks_in_all < least:
            best, least = splits, chunks_in_all
    return best


def is_short(p: MatrixProduct, limits: LaunchLimits = LIMITS) -> bool:
    """Tell whether a warp makes a row of the result at once."""
    return p.wide <= limits.short and not p.transposed


def is_odd_and_short(p: MatrixProduct, limits: LaunchLimits = LIMITS) -> bool:
    """Tell whether a product has a short result, and rows that are no whole vectors."""
    return is_short(p, limits) and not is_tiled(p)


def row_splits(p: MatrixProduct, limits: LaunchLimits = LIMITS) -> int:
    """Return how many blocks share the depth of a tile of a product of many rows.

    Few tiles across would leave most of the device idle, however deep they are.
    """
    across, splits = -(-p.wide // limits.large_columns), 1
    while 2 * splits <= limits.row_splits and p.deep >= 2 * splits * limits.split_depth:
        if across * 2 * splits > limits.split_tiles:
            break
        splits *= 2
    return 1 if is_short(p, limits) else splits


def large_product(
    p: MatrixProduct,
    rows: RowRange | None,
    block: int,
    vector: int,
    partial: ValuePlace | None = None,
    limits: LaunchLimits = LIMITS,
) -> LargeProduct:
    """Choose the kernel of a product of many rows: tiles, or rows where results are short.

    Args:
        rows: None for any number of rows.
        block: threads.
        vector: elements that may be loaded at once.
        partial: where splits of the depth leave their sums, if there are several.
    """
    given = rows or all_rows(p)
    if is_short(p, limits):
        return LargeProduct(p, given, 1, block // WARP, block, 1, True)
    across, width = -(-p.wide // limits.large_columns), _width(p, p.y.place.start, vector)
    splits, size = row_splits(p, limits), (limits.large_rows, block, width)
    return LargeProduct(p, given, across, *size, False, splits, partial)


def outer_product(
    p: Outer, partial: Temporary, block: int, vector: int, limits: LaunchLimits = LIMITS
) -> OuterProduct:
    """Choose how a sum of outer products over rows is split.

    Args:
        partial: where the splits leave their sums.
        block: threads.
        vector: elements that may be loaded at once.
    """
    size = p.m * p.n
    splits = max(1, min(limits.splits, limits.partial // size))
    return OuterProduct(
        p,
        all_rows(p),
        splits,
        partial,
        splits * (-(-size // PAD) * PAD),
        -(-p.m // limits.large_rows) * -(-p.n // limits.large_columns),
        -(-size // limits.added_each),
        block,
        _width(p, p.d.place.start, vector),
    )


def _width(p: MatrixProduct | Outer, start: int, vector: int) -> int:
    """Return how many elements of the operands are loaded at once; `start` is of the other one."""
    return gcd(vector, p.m, p.n, p.x.place.start, start)
