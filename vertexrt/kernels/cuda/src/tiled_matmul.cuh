// Products outside the path: tiles of 64 x 64 by all threads of a processor, and sums of splits of
// the depth.
#pragma once
#include "processor.cuh"
#include "tensor_cores.cuh"

constexpr int MATMUL_TILE = 64, DEPTH = 32, MATMUL_PITCH = MATMUL_TILE + 8;
struct alignas(16) MatmulMemory {
    real a[2][DEPTH * (MATMUL_PITCH + 1)], b[2][DEPTH * (MATMUL_PITCH + 1)];
};

// Stride from one step of the depth to the next. Stores then have no bank conflicts, except those
// of vectors along the depth, and loads have few.
#ifdef VRT_REAL
constexpr int tile_pitch(bool) { return MATMUL_PITCH; }
#else
constexpr int tile_pitch(bool along) { return along ? MATMUL_PITCH : MATMUL_PITCH + 1; }
#endif

#ifdef VRT_TENSOR_CORES
constexpr int FEW_STEPS =
    2;  // of the depth, eight each, whose products are summed inside the units

// A warp's part of a tile, 32 x 16, by matrix units.
struct TileSums {
    FragmentSums sums[2][2];

    template <int A, int B>
    __device__ __forceinline__ void add(const float* a, const float* b) {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const int i = warp / 4 * 32 + g, j = warp % 4 * 16 + g;
#pragma unroll 1
        for (int k0 = 0; k0 < DEPTH; k0 += 8 * FEW_STEPS) {
            FragmentSums few[2][2];
#pragma unroll
            for (int k = k0; k < k0 + 8 * FEW_STEPS; k += 8) {
                Split<4> x[2];
                Split<2> y[2];
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        x[m].put(e, a[(k + t + e / 2 * 4) * A + i + m * 16 + e % 2 * 8]);
#pragma unroll
                for (int n = 0; n < 2; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) y[n].put(e, b[(k + t + e * 4) * B + j + n * 8]);
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int n = 0; n < 2; ++n) few[m][n].add(x[m], y[n]);
            }
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int n = 0; n < 2; ++n) sums[m][n].move(few[m][n]);
        }
    }
    template <class Take>
    __device__ __forceinline__ void give(Take take) const {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    take(warp / 4 * 32 + m * 16 + e / 2 * 8 + g,
                         warp % 4 * 16 + n * 8 + 2 * t + e % 2, sums[m][n].of(e));
                }
    }
};
#else
// A thread's part of a tile, 4 x 4.
struct TileSums {
    real sum[4][4];

    __device__ __forceinline__ TileSums() {
#pragma unroll
        for (int e = 0; e < 16; ++e) sum[e / 4][e % 4] = 0;
    }
    template <int A, int B>
    __device__ __forceinline__ void add(const real* a, const real* b) {
        const int y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
#pragma unroll 2
        for (int k = 0; k < DEPTH; ++k) {
            const Vec<4> u = load<4>(a + k * A + y), v = load<4>(b + k * B + x);
#pragma unroll
            for (int p = 0; p < 4; ++p)
#pragma unroll
                for (int q = 0; q < 4; ++q) sum[p][q] += u.v[p] * v.v[q];
        }
    }
    template <class Take>
    __device__ __forceinline__ void give(Take take) const {
        const int y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
#pragma unroll
        for (int e = 0; e < 16; ++e) take(y + e / 4, x + e % 4, sum[e / 4][e % 4]);
    }
};
#endif

// A thread's share of a chunk of a matrix, 64 x 32: vectors of V elements that are neighbours in
// memory.
template <bool ALONG, int V>
struct TilePart {
    static constexpr int COUNT = MATMUL_TILE * DEPTH / PROCESSOR / V, PITCH = tile_pitch(ALONG);
    Vec<V> held[COUNT];

    // Call `each(e, i, k)`: row and depth of the first element of each vector.
    template <class Each>
    __device__ __forceinline__ void places(Each each) {
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
            const int at = threadIdx.x + e * PROCESSOR;
            if (ALONG) {
                each(e, at % (MATMUL_TILE / V) * V, at / (MATMUL_TILE / V));
            } else {
                each(e, at / (DEPTH / V), at % (DEPTH / V) * V);
            }
        }
    }
    template <class From>
    __device__ __forceinline__ void fetch(int i0, int k0, int rows, int deep, From from) {
        places([&](int e, int i, int k) {
            if (i0 + i < rows && k0 + k < deep) {
                held[e] = load<V>(from(i0 + i, k0 + k));
            } else {
#pragma unroll
                for (int c = 0; c < V; ++c) held[e].v[c] = 0;
            }
        });
    }
    __device__ __forceinline__ void put(real* to) {
        places([&](int e, int i, int k) {
            if (ALONG) {
                store<V>(to + k * PITCH + i, held[e]);
            } else {
#pragma unroll
                for (int c = 0; c < V; ++c) to[(k + c) * PITCH + i] = held[e].v[c];
            }
        });
    }
};

// c(i, j) = sum over k of a(i, k) b(j, k), for i < rows and j < columns; the functions return the
// address of an element. With ALONG, neighbours in i are neighbours in memory, else neighbours in
// k; in that direction sizes are multiples of V. Computes tile (down, across) of the result.
template <bool A_ALONG, bool B_ALONG, int V, class A, class B, class C>
__device__ __forceinline__ void matmul_tile(MatmulMemory& memory, int down, int across, int rows,
                                            int columns, int deep, A a, B b, C c) {
    const int i0 = down * MATMUL_TILE, j0 = across * MATMUL_TILE;
    TilePart<A_ALONG, V> part_a;
    TilePart<B_ALONG, V> part_b;
    TileSums sums;
    part_a.fetch(i0, 0, rows, deep, a);
    part_b.fetch(j0, 0, columns, deep, b);
    part_a.put(memory.a[0]);
    part_b.put(memory.b[0]);
    __syncthreads();
    for (int k0 = 0, side = 0; k0 < deep; k0 += DEPTH, side ^= 1) {
        const bool more = k0 + DEPTH < deep;
        if (more) {
            part_a.fetch(i0, k0 + DEPTH, rows, deep, a);
            part_b.fetch(j0, k0 + DEPTH, columns, deep, b);
        }
        sums.template add<tile_pitch(A_ALONG), tile_pitch(B_ALONG)>(memory.a[side], memory.b[side]);
        if (more) {
            part_a.put(memory.a[side ^ 1]);
            part_b.put(memory.b[side ^ 1]);
        }
        __syncthreads();
    }
    sums.give([&](int i, int j, real sum) {
        if (i0 + i < rows && j0 + j < columns) c(i0 + i, j0 + j, sum);
    });
}

// Rows of a short result: a warp computes one row, and its lanes share the depth. `x` and `y` are
// the first rows.
template <int WIDE, int DEEP>
__device__ __forceinline__ void short_rows(int count, const real* x, const real* w, real* y) {
    const int i = VRT_BLOCK.y * WARPS_EACH + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= count) return;
    real sum[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; ++j) sum[j] = 0;
#pragma unroll 4
    for (int k = lane; k < DEEP; k += 32) {
        const real v = x[(long long)i * DEEP + k];
#pragma unroll
        for (int j = 0; j < WIDE; ++j) sum[j] += v * w[j * DEEP + k];
    }
#pragma unroll
    for (int j = 0; j < WIDE; ++j) {
        const real total = warp_sum(sum[j]);
        if (lane == 0) y[(long long)i * WIDE + j] = total;
    }
}

// A sum of outer products of rows, d[count, rows]^T x[count, columns]: this block's tile of its
// split of them. One split adds to the gradient at once; several leave partial sums. One function
// for all sizes, since a training kernel has as many of these as weights.
template <int V>
__device__ __noinline__ void outer_product(real* gradient, real* left, const real* d, const real* x,
                                           int rows, int columns, int count) {
    VRT_SCRATCH(MatmulMemory, memory, 1);
    const int begin = (int)((long long)count * VRT_BLOCK.y / VRT_GRID.y),
              end = (int)((long long)count * (VRT_BLOCK.y + 1) / VRT_GRID.y);
    const int across = (columns + MATMUL_TILE - 1) / MATMUL_TILE;
    const bool adds = VRT_GRID.y == 1;
    left += (long long)VRT_BLOCK.y * rows * columns;
    d += (long long)begin * rows;
    x += (long long)begin * columns;
    matmul_tile<true, true, V>(
        memory[0], VRT_BLOCK.x / across, VRT_BLOCK.x % across, rows, columns, end - begin,
        [&](int i, int k) { return d + (long long)k * rows + i; },
        [&](int j, int k) { return x + (long long)k * columns + j; },
        [&](int i, int j, real sum) {
            const long long at = (long long)i * columns + j;
            if (adds) {
                gradient[at] += sum;
            } else {
                left[at] = sum;
            }
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
