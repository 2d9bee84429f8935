// Products on the path: rows of a tile times the weights that a processor holds in registers or
// shared memory.
#pragma once
#include "resident_weights.cuh"
#include "tensor_cores.cuh"

// The elements of an operand's row that a lane needs of a block: four from `column` on, READ of
// them at once, which divide the row. `row(column)` gives so many, where they are not in memory.
template <class L, int READ, class Row>
__device__ __forceinline__ Vec<4> part_of_row(const Row& row, int column) {
    static_assert(L::DEPTH % READ == 0, "a row ends where a read does");
    Vec<4> x;
#pragma unroll
    for (int k = 0; k < 4; k += READ) {
        Vec<READ> y{};
        if (L::WHOLE || column + k < L::DEPTH) y = row(column + k);
#pragma unroll
        for (int c = 0; c < READ; ++c) x.v[k + c] = y.v[c];
    }
    return x;
}
template <class L, int READ>
__device__ __forceinline__ Vec<4> part_of_row(const real* row, int column) {
    return part_of_row<L, READ>([row](int j) { return load<READ>(row + j); }, column);
}

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

constexpr int TILE_ROWS = 8;  // of a product at a time

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
        const int index = t * (PADDED / 4) + k, own = index % EACH;
        const int q = L::own(warp, own / 2, own % 2, g);
        const real total = L::over_parts(sum[k]);
        if (index < SUMS && L::part_of(g) == 0)
            part[(warp % L::WIDE * MOST + index / EACH) * L::PADDED + q] = total;
    }
}

#ifdef VRT_TENSOR_CORES
// Blocks of the depth, of 16 elements each, whose products are summed inside the matrix units. One
// takes more registers than two.
constexpr int FEW_BLOCKS = 2;

// As `multiply_by_lanes`, for up to eight rows by matrix units: head tail + tail head + head head.
// The units truncate what they add, always towards zero, and a level of the path goes through two
// such products. So heads of x are rounded, weights fit a head and a tail exactly, and a sum leaves
// the units soon.
template <int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ void multiply_by_tensor_cores(Share& share, int first, int count, X x,
                                                         float* part) {
    using L = Layout<ROWS, DEEP>;
    const int thread = this_thread(), warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
    const int own_part = L::part_of(g);
    FragmentSums sums[L::SLABS];
    const auto from = x(first + (g < count ? g : 0));  // of rows beyond, results are not used
#pragma unroll
    for (int at = 0; at < L::FOLD * L::BLOCKS; at += FEW_BLOCKS) {
        constexpr int B = L::BLOCKS;
        const int steps = 2 * (L::FOLD * B - at < FEW_BLOCKS ? L::FOLD * B - at : FEW_BLOCKS);
        FragmentSums few[L::SLABS];
        Vec<4> v[FEW_BLOCKS];
#pragma unroll
        for (int b = 0; b < FEW_BLOCKS; ++b) {
            const int column = L::first_column(warp, (at + b) / B) + (at + b) % B * 16 + t * 4;
            if (2 * b < steps) v[b] = part_of_row<L, READ>(from, column);
        }
        // Element `e` of the fragment of a slab; zero for rows beyond, and for lanes that have
        // another part of the depth.
        const auto element = [&](int s, int step, int e) {
            const int block = at + step / 2;
            if (!L::has(s, e % 2)) return 0.0f;
            const float w = share.at(L::quartet(s, e % 2, block % B), step % 2 * 2 + e / 2);
            return L::FOLD == 1 || own_part == block / B ? w : 0.0f;
        };
#pragma unroll
        for (int step = 0; step < 2 * FEW_BLOCKS; ++step) {
            if (step >= steps) break;
            Split<2, true> x;
            x.put(0, v[step / 2].v[step % 2 * 2]);
            x.put(1, v[step / 2].v[step % 2 * 2 + 1]);
#pragma unroll
            for (int s = 0; s < L::SLABS; ++s) {
                Split<4> weight;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    float w = element(s, step, e);
#ifdef __CUDACC_RTC__
                    asm volatile(
                        ""
                        : "+f"(
                            w));  // split here: the parts of all weights would not fit in registers
#endif
                    weight.put(e, w);
                }
                few[s].add_tails(weight, x);
            }
        }
#pragma unroll
        for (int step = 0; step < 2 * FEW_BLOCKS; ++step) {
            if (step >= steps) break;
            const float x0 = head_of<true>(v[step / 2].v[step % 2 * 2]);
            const float x1 = head_of<true>(v[step / 2].v[step % 2 * 2 + 1]);
#pragma unroll
            for (int s = 0; s < L::SLABS; ++s) {
                float weight[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    weight[e] = element(s, step, e);
#ifdef VRT_MANTISSA
                    weight[e] = head_of(weight[e]);
#endif
                }
                few[s].add_heads(weight, x0, x1);
            }
        }
#pragma unroll
        for (int s = 0; s < L::SLABS; ++s) sums[s].move(few[s]);
    }
#pragma unroll
    for (int s = 0; s < L::SLABS; ++s)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int q = L::own(warp, s, k / 2, g);
            const float total = L::over_parts(sums[s].of(k));
            if (own_part == 0 && L::has(s, k / 2))
                part[(warp % L::WIDE * MOST + 2 * t + k % 2) * L::PADDED + q] = total;
        }
}
#endif

constexpr int FEWEST_FOR_TENSOR_CORES = 5;  // rows

// Compute partial sums of up to TILE_ROWS rows, in an area with room for MOST; return how many
// rows.
template <int MOST, int READ, int ROWS, int DEEP, class Share, class X>
__device__ __forceinline__ int make_partial_sums(Share& share, int first, int left, X x,
                                                 real* part) {
    using L = Layout<ROWS, DEEP>;
    if (left <= 0) return 0;
#ifdef VRT_TENSOR_CORES
    if (left >= FEWEST_FOR_TENSOR_CORES) {
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

// y = x times a share of a weight: `x(i)` points to row i, `y(i, q, sum)` stores own row q of the
// result.
template <int READ, int ROWS, int DEEP, class Share, class X, class Y>
struct Product {
    using L = Layout<ROWS, DEEP>;
    static constexpr int OWN = ROWS,
                         PART = L::WIDE * TILE_ROWS * L::PADDED;  // elements of partial sums
    Share& share;
    int count, first;
    X x;
    Y y;

    // Compute partial sums of the next rows; return how many.
    __device__ __forceinline__ int make(real* part) {
        return make_partial_sums<TILE_ROWS, READ, ROWS, DEEP>(share, first, count - first, x, part);
    }
    // Add up the partial sums of an element: own row `at % ROWS` of row `at / ROWS` of those
    // computed.
    __device__ __forceinline__ void take(int at, const real* part) const {
        const int r = at / ROWS, q = at % ROWS;
        real sum = 0;
#pragma unroll
        for (int k = 0; k < L::WIDE; ++k) sum += part[(k * TILE_ROWS + r) * L::PADDED + q];
        y(first + r, q, sum);
    }
};

template <int READ, int ROWS, int DEEP, class Share, class X, class Y>
__device__ __forceinline__ Product<READ, ROWS, DEEP, Share, X, Y> product(Share& share, int count,
                                                                          X x, Y y) {
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
template <class One, class Other>
__device__ __forceinline__ void multiply(real* part, One one, Other other) {
    real* const more = part + One::PART;
#pragma unroll 1
    for (;;) {
        const int n = one.make(part), m = other.make(more), own = n * One::OWN;
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
