// Products outside the path, for which cuBLAS takes a kernel made for many rows, or two kernels; in
// a persistent kernel all of them, and gradients of weights.
#pragma once
#include "tile_product.cuh"

// Products of few rows: tiles of ROWS x 32, with 4 x 4 sums a thread (2 x 4 with 8 rows).
constexpr int FEW_COLUMNS = 32;
template <int ROWS, bool TRANSPOSED>
using FewRowsTile =
    TileProduct<Fma<ROWS == 32 ? 4 : 2, 4, 4>, ROWS, FEW_COLUMNS, false, TRANSPOSED, 4, 4>;

template <int ROWS>
using FewRowsMemory = typename FewRowsTile<ROWS, false>::Memory;

// y[count, WIDE] = x[count, DEEP] times a weight: w[WIDE, DEEP]^T, or w[DEEP, WIDE] if TRANSPOSED.
// `x(i)` points to a row, or is null where the row is zero; `y(i, column, value)` stores a result.
// The block computes rows from ROWS * row_tile on. `block` numbers the tiles of 32 outputs, SPLITS
// times over: once for each split of the depth. `arrived` has a counter for each tile. WIDE and
// DEEP are multiples of V.
template <int ROWS, bool TRANSPOSED, int WIDE, int DEEP, int SPLITS, int V, class X, class Y>
__device__ __forceinline__ void product_tile(FewRowsMemory<ROWS>& memory, int row_tile, int block,
                                             int count, X x, const real* w, Y y, real* partial,
                                             int* arrived) {
    static_assert(WIDE % V == 0 && DEEP % V == 0, "copies are of V reals");
    constexpr int ACROSS = (WIDE + FEW_COLUMNS - 1) / FEW_COLUMNS;
    const int i = row_tile * ROWS, across = block % ACROSS;
    if (i >= count) return;
    // A thread copies of one row, which it looks up once: that may take several dependent loads.
    const int own = threadIdx.x / (CHUNK / 4);
    const real* const row = own < ROWS && i + own < count ? x(i + own) : nullptr;
    constexpr int LENGTH = TRANSPOSED ? WIDE : DEEP;
    FewRowsTile<ROWS, TRANSPOSED>::template make<V>(
        memory, Lines{row != nullptr ? row : w, 1, row != nullptr ? DEEP : 0, 0},
        Lines{w, TRANSPOSED ? DEEP : WIDE, LENGTH, LENGTH},
        TileWork{i, across * FEW_COLUMNS, count, WIDE, DEEP, row_tile * ACROSS + across,
                 block / ACROSS, SPLITS, partial, arrived},
        [&](int i, int j, Vec<1> v) { y(i, j, v.v[0]); });
}

// Sum N numbers, a power of two, over the 32 lanes: lanes from 32 / N r on end with the sum of
// number r.
template <int DISTANCE = 16, int N>
__device__ __forceinline__ real sums_over_lanes(const real (&x)[N]) {
    if constexpr (DISTANCE == 0) {
        return x[0];
    } else {
        constexpr int LEFT = N > 1 ? N / 2 : 1;
        const bool upper = threadIdx.x & DISTANCE;
        real sum[LEFT];
#pragma unroll
        for (int k = 0; k < LEFT; ++k) {
            const real keep = upper ? x[k + N - LEFT] : x[k], give = upper ? x[k] : x[k + N - LEFT];
            sum[k] = keep + __shfl_xor_sync(0xffffffffu, give, DISTANCE);
        }
        return sums_over_lanes<DISTANCE / 2>(sum);
    }
}

// A lane's part of a row of DEEP elements.
template <int DEEP>
struct LanePartOfRow {
    static constexpr int EACH = (DEEP + 127) / 128;
    Vec<4> v[EACH];

    __device__ __forceinline__ void take(const real* row) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int k = (e * 32 + (int)threadIdx.x % 32) * 4;
            v[e] = Vec<4>{};
            if (row != nullptr && (DEEP % 128 == 0 || k < DEEP)) v[e] = load<4>(row + k);
        }
    }
    __device__ __forceinline__ real times(const LanePartOfRow& other) const {
        real sum = 0;
#pragma unroll
        for (int k = 0; k < 4 * EACH; ++k) sum += v[k / 4].v[k % 4] * other.v[k / 4].v[k % 4];
        return sum;
    }
};

// y[count, WIDE] = x[count, DEEP] w[WIDE, DEEP]^T for at most 32 rows, where tiles would leave most
// warps idle: each warp computes COLUMNS columns, and its lanes hold the weights. `x(i)` points to
// a row, or is null where the row is zero; each lane looks one up, since that may take several
// dependent loads.
template <int WIDE, int DEEP, int COLUMNS, class X, class Y>
__device__ __forceinline__ void product_by_warps(int block, int count, X x, const real* w, Y y) {
    static_assert(DEEP % 4 == 0 && WIDE % COLUMNS == 0, "loads are of 16 bytes, warps have work");
    typedef LanePartOfRow<DEEP> Part;
    constexpr int ROWS = Part::EACH <= 2 ? 8 : 4;  // in flight
    const int lane = threadIdx.x % 32;
    const int column = (block * (PRODUCT_THREADS / 32) + (int)threadIdx.x / 32) * COLUMNS;
    if (column >= WIDE) return;
    const long long mine = lane < count ? reinterpret_cast<long long>(x(lane)) : 0;
    Part weight[COLUMNS], rows[ROWS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) weight[c].take(w + (long long)(column + c) * DEEP);
#pragma unroll 1
    for (int i = 0; i < count; i += ROWS) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            rows[r].take(reinterpret_cast<const real*>(__shfl_sync(0xffffffffu, mine, i + r)));
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            real sum[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) sum[r] = rows[r].times(weight[c]);
            const real total = sums_over_lanes(sum);
            const int row = i + lane / (32 / ROWS);
            if (lane % (32 / ROWS) == 0 && row < count) y(row, column + c, total);
        }
    }
}

#ifdef VRT_PERSISTENT
// Products of many rows and gradients of weights in a persistent kernel.
constexpr int MANY_DOWN = 128, MANY_ACROSS = 64, MANY_STAGES = VRT_SHARED_BYTES < 128 << 10 ? 2 : 4;
#ifdef VRT_TENSOR_CORES
using ManyRowsMac = MatrixUnits<4, 4>;
#else
using ManyRowsMac = Fma<8, 8, 1>;
#endif

// c[rows, columns] = a b^T, or c += a b^T if A_ALONG. Operands are [rows, deep] and [columns, deep]
// in memory or, along their rows, [deep, rows] and [deep, columns]. There are blocks for all tiles,
// as often as there are splits. In the direction of neighbours in memory, sizes are multiples of V.
// One function for all sizes, since a training kernel has as many of these as weights.
template <bool A_ALONG, bool B_ALONG, int V>
__device__ __noinline__ void many_rows_product(real* c, real* left, int* arrived, const real* a,
                                               const real* b, int rows, int columns, int deep) {
    using Tile = TileProduct<ManyRowsMac, MANY_DOWN, MANY_ACROSS, A_ALONG, B_ALONG, 0, MANY_STAGES>;
    VRT_SCRATCH(typename Tile::Memory, memory, 1);
    // Of a product the grid may have more rows of tiles: it is for the product with most rows.
    const int across = (columns + MANY_ACROSS - 1) / MANY_ACROSS;
    const int down = A_ALONG ? (rows + MANY_DOWN - 1) / MANY_DOWN : VRT_GRID.y;
    const int tiles = across * down, number = VRT_BLOCK.y * VRT_GRID.x + VRT_BLOCK.x;
    const int tile = number % tiles, i = tile / across * MANY_DOWN, j = tile % across * MANY_ACROSS;
    const int split = number / tiles, splits = VRT_GRID.x * VRT_GRID.y / tiles;
    if (i >= rows) return;
    const int of_a = A_ALONG ? rows : deep, of_b = B_ALONG ? columns : deep;
    Tile::template make<V>(memory[0], Lines{a, A_ALONG ? deep : rows, of_a, of_a},
                           Lines{b, B_ALONG ? deep : columns, of_b, of_b},
                           TileWork{i, j, rows, columns, deep, tile, split, splits, left, arrived},
                           [&](int i, int j, const Vec<Tile::N>& x) {
                               real* const to = c + (long long)i * columns + j;
                               if (!A_ALONG) {
                                   store_some<V>(to, x, columns - j);
                                   return;
                               }
        // No other block adds here now; but nothing waits for an atomic.
#pragma unroll
                               for (int n = 0; n < Tile::N; ++n)
                                   if (j + n < columns) add_at(to + n, x.v[n]);
                           });
}
#endif
