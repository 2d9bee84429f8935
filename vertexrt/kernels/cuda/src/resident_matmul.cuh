// Products on the path: rows of a level times the weights that a processor holds in registers or
// shared memory.
#pragma once
#include "resident_tensor_cores.cuh"

// Sum N numbers (a multiple of 4) over the four lanes of a row: lane t ends with a quarter of the
// sums, from t N / 4 on.
template <int N>
__device__ __forceinline__ void share_sums(real (&sum)[N]) {
    const int t = threadIdx.x % 4;
    const bool upper = t & 2, odd = t & 1;
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
        const real keep = upper ? sum[k + N / 2] : sum[k], give = upper ? sum[k] : sum[k + N / 2];
        sum[k] = keep + __shfl_xor_sync(0xffffffffu, give, 2);
    }
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
        const real keep = odd ? sum[k + N / 4] : sum[k], give = odd ? sum[k] : sum[k + N / 4];
        sum[k] = keep + __shfl_xor_sync(0xffffffffu, give, 1);
    }
}

constexpr int TILE_ROWS = 8;  // the fewest of a product for which there is room at a time

constexpr int MOST_AT_ONCE = 8;  // blocks of a row's columns that a lane loads before it uses them

// Sums over this warp's part of the depth for N rows, in three steps, so that several products of a
// level may take each step together: what one of them stores would hold up the loads of the next.
template <int N, int READ, int ROWS, int DEEP>
struct LaneSums {
    using L = Layout<ROWS, DEEP>;
    static constexpr int EACH = L::HALVES, SUMS = EACH * N, PADDED = (SUMS + 3) / 4 * 4;
    real sum[PADDED] = {};

    template <class Share, class X>
    __device__ __forceinline__ void multiply(const Share& share, int first, X x, int thread) {
        const int g = thread % 32 / 4, t = thread % 4;
        const int column = L::first_column(thread / 32, L::part_of(g)) + t * 4;
        constexpr int B = L::BLOCKS, SOME = B < MOST_AT_ONCE ? B : MOST_AT_ONCE;
#pragma unroll
        for (int at = 0; at < B; at += SOME) {
            Vec<4> v[N][SOME];
#pragma unroll
            for (int r = 0; r < N; ++r) {
                const auto row = x(first + r);
#pragma unroll
                for (int b = 0; b < SOME; ++b)
                    if (at + b < B) v[r][b] = part_of_row<L, READ>(row, column + (at + b) * 16);
            }
#pragma unroll
            for (int b = 0; b < SOME; ++b)
#pragma unroll
                for (int c = 0; c < 4; ++c)
#pragma unroll
                    for (int k = 0; k < SUMS; ++k) {
                        if (at + b >= B) break;
                        const int q = L::quartet(k % EACH / 2, k % EACH % 2, at + b);
                        sum[k] += share.at(q, c) * v[k / EACH][b].v[c];
                    }
        }
    }
    __device__ __forceinline__ void add_up() { share_sums(sum); }
    // Store them: part[row][own row], of MOST rows.
    template <int MOST>
    __device__ __forceinline__ void put(real* part, int thread) const {
        const int warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
#pragma unroll
        for (int k = 0; k < PADDED / 4; ++k) {
            const int index = t * (PADDED / 4) + k, row = N == 1 ? 0 : index / EACH;
            const int own = N == 1 ? index : index % EACH;  // a division costs more than it looks
            const int q = L::own(warp, own / 2, own % 2, g);
            const real total = L::over_parts(sum[k]);
            if (index < SUMS && L::part_of(g) == 0)
                part[(warp % L::WIDE * MOST + row) * L::PADDED + q] = total;
        }
    }
};
template <int N, int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ void multiply_by_lanes(const Share& share, int first, X x, real* part,
                                                  int thread) {
    LaneSums<N, READ, ROWS, DEEP> sums;
    sums.multiply(share, first, x, thread);
    sums.add_up();
    sums.template put<MOST>(part, thread);
}

constexpr int FEWEST_FOR_TENSOR_CORES = 5;  // rows

// Compute partial sums of the next rows, up to TILE_ROWS of them, in an area with room for MOST;
// return how many rows.
template <int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ int make_partial_sums(Share& share, int first, int left, X x, real* part,
                                                 int thread) {
    using L = Layout<ROWS, DEEP>;
    if (left <= 0) return 0;
#ifdef VRT_TENSOR_CORES
    if (MOST >= FEWEST_FOR_TENSOR_CORES && left >= FEWEST_FOR_TENSOR_CORES) {
        const int n = left < TILE_ROWS ? left : TILE_ROWS;
        multiply_by_tensor_cores<MOST, READ, ROWS, DEEP>(share, first, n, x, part);
        return n;
    }
#endif
    const int n = left < FEWEST_FOR_TENSOR_CORES ? left : FEWEST_FOR_TENSOR_CORES - 1;
    // Two rows at a time, or one: more code would not stay in the instruction cache.
    int r = 0;
#pragma unroll 1
    for (; r + 1 < n; r += 2)
        multiply_by_lanes<2, MOST, READ, ROWS, DEEP>(share, first + r, x, part + r * L::PADDED,
                                                     thread);
    if (r < n)
        multiply_by_lanes<1, MOST, READ, ROWS, DEEP>(share, first + r, x, part + r * L::PADDED,
                                                     thread);
    return n;
}

// Compute partial sums of all `count` rows, at most MOST, which `total_of_parts` adds up.
template <int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ void make_all_partial_sums(Share& share, int first, int count, X x,
                                                      real* part, int thread = this_thread()) {
#pragma unroll 1
    for (int made = 0; made < count;) {
        made += make_partial_sums<MOST, READ, ROWS, DEEP>(
            share, first + made, count - made, x, part + made * Layout<ROWS, DEEP>::PADDED, thread);
    }
}
template <int W, int MOST, int ROWS, int DEEP>
__device__ __forceinline__ Vec<W> total_of_parts(const real* part, int row, int own) {
    using L = Layout<ROWS, DEEP>;
    Vec<W> sum = load<W>(part + row * L::PADDED + own);
#pragma unroll
    for (int k = 1; k < L::WIDE; ++k) {
        const Vec<W> more = load<W>(part + (k * MOST + row) * L::PADDED + own);
#pragma unroll
        for (int c = 0; c < W; ++c) sum.v[c] += more.v[c];
    }
    return sum;
}

// Set sums to zero, and add products over rows to them, row by row: x(r, q), where q is an own row,
// times all of d(r).
template <class Share>
__device__ __forceinline__ void clear_sums(Share& sums) {
#pragma unroll
    for (int n = 0; n < Share::FLOATS; ++n) sums.put(n / 4, n % 4, real(0));
}
template <int ROWS, int DEEP, class Share, class D, class X>
__device__ __forceinline__ void add_to_sums(Share& sums, int count, D d, X x, int thread) {
    using L = Layout<ROWS, DEEP>;
    const int g = thread % 32 / 4;
    const int column = L::first_column(thread / 32, L::part_of(g)) + thread % 4 * 4;
#pragma unroll 1
    for (int r = 0; r < count; ++r) {
        const auto row = d(r);
#pragma unroll
        for (int k = 0; k < L::FLOATS / 4; ++k) {
            const int half = k / L::BLOCKS, q = L::own(thread / 32, half / 2, half % 2, g);
            const Vec<4> v = part_of_row<L, 4>(row, column + k % L::BLOCKS * 16);
            const real own = q < ROWS ? x(r, q) : real(0);
#pragma unroll
            for (int c = 0; c < 4; ++c) sums.put(k, c, sums.at(k, c) + own * v.v[c]);
        }
    }
}
