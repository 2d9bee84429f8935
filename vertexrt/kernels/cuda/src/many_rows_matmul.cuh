// Products of many rows, and gradients of weights, outside the path of a persistent kernel.
//
// One function for all sizes, since a training kernel has as many of these as weights.
#pragma once
#include "tiled_matmul.cuh"

// Store two neighbours, of which the second may be beyond the end of a row of `size`. With V > 1,
// rows have whole pairs, which are aligned.
template <int V>
__device__ __forceinline__ void store_pair(real* row, int j, int size, real x, real y) {
    if (V > 1) {
        store<2>(row + j, Vec<2>{{x, y}});
    } else {
        row[j] = x;
        if (j + 1 < size) row[j + 1] = y;
    }
}

// y[count, wide] = x[count, deep] times a weight: w[wide, deep]^T, or w[deep, wide] if TRANSPOSED.
// The grid has `across` tiles across for each split of the depth. Several splits leave sums
// y[count, splits, wide], which `add_row_splits` adds up.
template <bool TRANSPOSED, int V>
__device__ __noinline__ void many_rows_product(real* y, const real* x, const real* w, int count,
                                               int wide, int deep, int across) {
    VRT_SCRATCH(MatmulMemory, memory, 1);
    const int splits = VRT_GRID.x / across, split = VRT_BLOCK.x / across;
    const int chunks = (deep + DEPTH - 1) / DEPTH;
    const int begin = (int)((long long)chunks * split / splits) * DEPTH;
    const int next = (int)((long long)chunks * (split + 1) / splits) * DEPTH;
    const int end = next < deep ? next : deep;
    const Factor a{x + begin, deep, count};
    const Factor b{w + (TRANSPOSED ? (long long)begin * wide : begin), TRANSPOSED ? wide : deep,
                   wide};
    y += split * wide;
    matmul_tile<false, TRANSPOSED, V>(memory[0], VRT_BLOCK.y, VRT_BLOCK.x % across, a, b,
                                      end - begin, [&](int i, int j, real first, real second) {
                                          store_pair<V>(y + (long long)i * splits * wide, j, wide,
                                                        first, second);
                                      });
}

// Add up the sums of the splits of a product, in order, for this block's share of the rows.
__device__ __noinline__ void add_row_splits(real* y, const real* left, int count, int wide,
                                            int splits) {
    const long long all = (long long)count * wide;
    const long long begin = all * VRT_BLOCK.y / VRT_GRID.y,
                    end = all * (VRT_BLOCK.y + 1) / VRT_GRID.y;
#pragma unroll 1
    for (long long at = begin + threadIdx.x; at < end; at += PROCESSOR) {
        const real* const from = left + at / wide * splits * wide + at % wide;
        real sum = from[0];
#pragma unroll 4
        for (int k = 1; k < splits; ++k) sum += from[k * wide];
        y[at] = sum;
    }
}

// A sum of outer products of rows, d[count, rows]^T x[count, columns]: this block's tile of its
// split of them. One split adds to the gradient at once; several leave partial sums.
template <int V>
__device__ __noinline__ void outer_product(real* gradient, real* left, const real* d, const real* x,
                                           int rows, int columns, int count) {
    VRT_SCRATCH(MatmulMemory, memory, 1);
    const int begin = (int)((long long)count * VRT_BLOCK.y / VRT_GRID.y),
              end = (int)((long long)count * (VRT_BLOCK.y + 1) / VRT_GRID.y);
    const int across = (columns + MATMUL_ACROSS - 1) / MATMUL_ACROSS;
    const bool adds = VRT_GRID.y == 1;
    real* const to = adds ? gradient : left + (long long)VRT_BLOCK.y * rows * columns;
    const Factor a{d + (long long)begin * rows, rows, rows},
        b{x + (long long)begin * columns, columns, columns};
    matmul_tile<true, true, V>(memory[0], VRT_BLOCK.x / across, VRT_BLOCK.x % across, a, b,
                               end - begin, [&](int i, int j, real first, real second) {
                                   real* const row = to + (long long)i * columns;
                                   if (!adds) {
                                       store_pair<V>(row, j, columns, first, second);
                                       return;
                                   }
                                   // Nobody else adds here now; but an atomic is not waited for.
                                   atomicAdd(row + j, first);
                                   if (j + 1 < columns) atomicAdd(row + j + 1, second);
                               });
}

constexpr int ADDED_EACH = 4096;  // elements that a block adds up

// Add the partial sums of the splits to a gradient, in order. A thread has FOUR elements at once,
// whose loads do not wait for each other.
__device__ __noinline__ void add_splits(real* gradient, const real* left, int size, int splits) {
    constexpr int FOUR = 4;
    const int begin = VRT_BLOCK.x * ADDED_EACH,
              end = begin + ADDED_EACH < size ? begin + ADDED_EACH : size;
#pragma unroll 1
    for (int at = begin + threadIdx.x; at < end; at += FOUR * PROCESSOR) {
        real sum[FOUR];
#pragma unroll
        for (int e = 0; e < FOUR; ++e)
            sum[e] = at + e * PROCESSOR < end ? left[at + e * PROCESSOR] : real(0);
#pragma unroll 4
        for (int k = 1; k < splits; ++k) {
            const real* const part = left + (long long)k * size + at;
#pragma unroll
            for (int e = 0; e < FOUR; ++e)
                if (at + e * PROCESSOR < end) sum[e] += part[e * PROCESSOR];
        }
#pragma unroll
        for (int e = 0; e < FOUR; ++e)
            if (at + e * PROCESSOR < end) gradient[at + e * PROCESSOR] += sum[e];
    }
}
