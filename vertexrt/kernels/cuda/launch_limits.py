"""The numbers that decide in which form a GPU runs products and sums over rows."""

from __future__ import annotations


class LaunchLimits:
    """Sizes and numbers of rows at which another form is taken.

    Attributes:
        few_rows, shared_rows, many_rows: of products. A kernel for few rows has tiles of
            `few_tile` rows up to `few_rows`, of `tile` above, and blocks share the depth up to
            `shared_rows`; up to `many_rows` it runs where it saves launches; above, a kernel for
            many rows does, or cuBLAS.
        heavy, heavy_rows: of a weight of so many elements cuBLAS takes more rows than these;
            in a persistent kernel, the kernel for many rows more than `heavy_alone`.
        light, light_rows: of a weight up to that wide and deep a persistent kernel has the kernel
            for few rows up to so many rows, which needs no copy before it and no sum after it.
        warp_rows: up to so many a warp makes columns, where the rest of a persistent kernel waits.
        deepest_row, deepest_pair: elements of a row of the weight of which a warp can hold one, and
            two.
        two_columns: how long a warp takes for two columns at once, in times of one: 6.4 and 4.4 us
            (`overlap_h200.txt`).
        blocks: to aim at, about one for each multiprocessor; in_clusters: processors of a launch
            whose groups are clusters, of 132: 7 clusters of 16 run at once, or 15 of 8 (H200).
        deep_split, most_blocks: a block of such a kernel takes no more of the depth, unless there
            are so many blocks: those of a multiprocessor wait for weights side by side.
        chunk, tile: of the depth, and columns of a block, as in products.cuh; a block takes
            at least two chunks.
        beside: what a block takes beside its chunks, in chunks: a beginning, an end, and a sum of
            splits. By the times of 2600 x 650 and 800 x 200 with 64 rows it is 4 (H200); twice
            that is taken, so that only depths that gain clearly are made in several turns.
        product_threads: of a block.
        large_rows, large_columns: of the tile of a block, as in products.cuh.
        row_splits: most of the depth of a product of many rows, each of `split_depth` or more; with
            at most `split_tiles` tiles across.
        short: elements of a result that a warp makes at once.
        splits: most of the rows of an outer product, each of `rows_a_split` or more.
        partial: most elements that they leave.
        counters: of tiles whose depth blocks share, all that a launch may need.
        chunks: most of a sum over rows, each of `rows_a_chunk` or more.
        sum_threads, sum_columns: of a block of such a sum.
    """

    few_rows = 16
    shared_rows = 128
    many_rows = 256
    heavy = 3 << 20
    heavy_rows = 32
    heavy_alone = 64
    light = (256, 64)
    light_rows = 2048
    warp_rows = 32
    deepest_row = 1024
    deepest_pair = 512
    two_columns = 1.45
    blocks = 128
    in_clusters = 112
    deep_split = 512
    most_blocks = 1024
    chunk = 32
    beside = 8
    few_tile = 8
    tile = 32
    product_threads = 256
    large_rows = 128
    large_columns = 64
    row_splits = 8
    split_depth = 1024
    split_tiles = 48
    short = 16
    splits = 16
    rows_a_split = 128
    partial = 1 << 22
    counters = 1 << 16
    chunks = 32
    rows_a_chunk = 64
    sum_threads = 256
    sum_columns = 128


LIMITS = LaunchLimits
