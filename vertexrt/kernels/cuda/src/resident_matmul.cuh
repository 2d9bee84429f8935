// Products on the path: rows of a tile times the weights that a processor holds in registers or
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

// Sums over this warp's part of the depth for N rows: part[row][own row], of MOST rows.
template <int N, int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ void multiply_by_lanes(const Share& share, int first, X x, real* part) {
    using L = Layout<ROWS, DEEP>;
    const int thread = this_thread(), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    const int column = L::first_column(warp, L::part_of(g)) + t * 4;
    constexpr int EACH = L::HALVES, SUMS = EACH * N, PADDED = (SUMS + 3) / 4 * 4;
    constexpr int B = L::BLOCKS, SOME = B < MOST_AT_ONCE ? B : MOST_AT_ONCE;
    real sum[PADDED];
#pragma unroll
    for (int k = 0; k < PADDED; ++k) sum[k] = 0;
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
    share_sums(sum);
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

constexpr int FEWEST_FOR_TENSOR_CORES = 5;  // rows

// Compute partial sums of the next rows, up to MANY_ROWS of them, in an area with room for MOST;
// return how many rows.
template <int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ int make_partial_sums(Share& share, int first, int left, X x,
                                                 real* part) {
    using L = Layout<ROWS, DEEP>;
    if (left <= 0) return 0;
#ifdef VRT_TENSOR_CORES
    if constexpr (L::FOLD == 1 && MOST >= MANY_ROWS) {
        if (left > TILE_ROWS) {
            const int n = left < MANY_ROWS ? left : MANY_ROWS;
            multiply_many_rows<L, L::HALVES, READ>(
                first, n, x, [&](int h, int b, int c) { return weight_of<L>(share, h, b, c); },
                [&](int h, int row, int column, float sum) {
                    partial_sum<L, MOST>(part, h, row, column) = sum;
                });
            return n;
        }
    }
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
        multiply_by_lanes<2, MOST, READ, ROWS, DEEP>(share, first + r, x, part + r * L::PADDED);
    if (r < n)
        multiply_by_lanes<1, MOST, READ, ROWS, DEEP>(share, first + r, x, part + r * L::PADDED);
    return n;
}

// Compute partial sums of all `count` rows, at most MOST, which `total_of_parts` adds up.
template <int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ void make_all_partial_sums(Share& share, int first, int count, X x,
                                                      real* part) {
#pragma unroll 1
    for (int made = 0; made < count;) {
        made += make_partial_sums<MOST, READ, ROWS, DEEP>(share, first + made, count - made, x,
                                                          part + made * Layout<ROWS, DEEP>::PADDED);
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

// The same by whole warps whose lanes from T on make the elements of the first T again: these lanes
// divide the parts among themselves.
template <int W, int MOST, int ROWS, int DEEP, int T>
__device__ __forceinline__ Vec<W> total_by_warp(const real* part, int row, int own) {
    using L = Layout<ROWS, DEEP>;
    constexpr int AGAIN = 32 / T < L::WIDE ? 32 / T : L::WIDE, EACH = L::WIDE / AGAIN;
    const int mine = this_thread() % 32 / T % AGAIN;
    Vec<W> sum = load<W>(part + (mine * MOST + row) * L::PADDED + own);
#pragma unroll
    for (int k = 1; k < EACH; ++k) {
        const Vec<W> more = load<W>(part + ((k * AGAIN + mine) * MOST + row) * L::PADDED + own);
#pragma unroll
        for (int c = 0; c < W; ++c) sum.v[c] += more.v[c];
    }
#pragma unroll
    for (int far = T; far < T * AGAIN; far *= 2)
#pragma unroll
        for (int c = 0; c < W; ++c) sum.v[c] += __shfl_xor_sync(0xffffffffu, sum.v[c], far);
    return sum;
}

// The same for two weights of one depth, and one operand, which is read once where there are many
// rows.
template <int MOST, int READ, int ROWS, int OTHER_ROWS, int DEEP, class Share, class Other, class X>
__device__ __forceinline__ void make_partial_sums_of_two(Share& share, Other& other, int first,
                                                         int count, X x, real* part, real* more) {
    using L = Layout<ROWS, DEEP>;
    using M = Layout<OTHER_ROWS, DEEP>;
    int made = 0;
#ifdef VRT_TENSOR_CORES
    if constexpr (L::FOLD == 1 && M::FOLD == 1 && L::WIDE == M::WIDE && MOST >= MANY_ROWS) {
        constexpr int H = L::HALVES;
#pragma unroll 1
        for (; count - made > TILE_ROWS; made += MANY_ROWS) {
            multiply_many_rows<L, H + M::HALVES, READ>(
                first + made, count - made, x,
                [&](int h, int b, int c) {
                    return h < H ? weight_of<L>(share, h, b, c) : weight_of<M>(other, h - H, b, c);
                },
                [&](int h, int row, int column, float sum) {
                    if (h < H) {
                        partial_sum<L, MOST>(part, h, made + row, column) = sum;
                    } else {
                        partial_sum<M, MOST>(more, h - H, made + row, column) = sum;
                    }
                });
        }
    }
#endif
    const int left = count - made;
    make_all_partial_sums<MOST, READ, ROWS, DEEP>(share, first + made, left, x,
                                                  part + made * L::PADDED);
    make_all_partial_sums<MOST, READ, OTHER_ROWS, DEEP>(other, first + made, left, x,
                                                        more + made * M::PADDED);
}

// y = x times a share of a weight: `x(i)` points to row i, `y(i, q, sum)` stores own row q of the
// result. There are partial sums of MOST rows at a time.
template <int MOST, int READ, int ROWS, int DEEP, class Share, class X, class Y>
struct Product {
    using L = Layout<ROWS, DEEP>;
    static constexpr int OWN = ROWS, PART = L::WIDE * MOST * L::PADDED;  // elements of partial sums
    Share& share;
    int count, first;
    X x;
    Y y;

    // How many rows are next.
    __device__ __forceinline__ int next() const {
        const int left = count - first;
        return left < 0 ? 0 : left < MOST ? left : MOST;
    }
    // Compute partial sums of the next rows; return how many.
    __device__ __forceinline__ int make(real* part) {
        const int n = next();
        make_all_partial_sums<MOST, READ, ROWS, DEEP>(share, first, n, x, part);
        return n;
    }
    // The same for another product of the same operand, too.
    template <class Other>
    __device__ __forceinline__ int make_both(real* part, Other& other, real* more) {
        const int n = next();
        make_partial_sums_of_two<MOST, READ, ROWS, Other::OWN, DEEP>(share, other.share, first, n,
                                                                     x, part, more);
        return n;
    }
    // Add up the partial sums of an element: own row `at % ROWS` of row `at / ROWS` of those
    // computed.
    __device__ __forceinline__ void take(int at, const real* part) const {
        const int r = at / ROWS, q = at % ROWS;
        real sum = 0;
#pragma unroll
        for (int k = 0; k < L::WIDE; ++k) sum += part[(k * MOST + r) * L::PADDED + q];
        y(first + r, q, sum);
    }
};

template <int MOST, int READ, int ROWS, int DEEP, class Share, class X, class Y>
__device__ __forceinline__ Product<MOST, READ, ROWS, DEEP, Share, X, Y> product(Share& share,
                                                                                int count, X x,
                                                                                Y y) {
    return {share, count, 0, x, y};
}

// Independent products, which share their barriers. Results are complete after the next barrier.
template <class One>
__device__ __forceinline__ void multiply(real* part, One one) {
#pragma unroll 1
    for (;;) {
        const int n = one.make(part);
        __syncthreads();
#pragma unroll 1
        for (int at = this_thread(); at < n * One::OWN; at += PROCESSOR) one.take(at, part);
        one.first += n;
        if (one.first >= one.count) return;
        __syncthreads();
    }
}
// With ONE_OPERAND both multiply the same rows.
template <bool ONE_OPERAND = false, class One, class Other>
__device__ __forceinline__ void multiply(real* part, One one, Other other) {
    real* const more = part + One::PART;
#pragma unroll 1
    for (;;) {
        int n, m;
        if constexpr (ONE_OPERAND) {
            n = m = one.make_both(part, other, more);
        } else {
            n = one.make(part);
            m = other.make(more);
        }
        const int own = n * One::OWN;
        __syncthreads();
#pragma unroll 1
        for (int at = this_thread(); at < own + m * Other::OWN; at += PROCESSOR) {
            if (at < own) {
                one.take(at, part);
            } else {
                other.take(at - own, more);
            }
        }
        one.first += n;
        other.first += m;
        if (one.first >= one.count && other.first >= other.count) return;
        __syncthreads();
    }
}
