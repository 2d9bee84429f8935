// Gradients of weights that the path multiplies by, summed on chip while its backward side runs:
// for the rows of a weight that a processor owns, it keeps the sums, over all rows of its group, of
// d_y times x (VPPS, MICRO 2018, section III-C). The sums are distributed over the threads as the
// rows of the weight are when the forward side begins (`Layout` of resident_weights.cuh), in
// registers or in shared memory.
//
// Each group stores its sums in memory; after the next barrier of all processors these are added to
// the gradient, in the order of the groups.
#pragma once
#include "resident_matmul.cuh"
#include "processor.cuh"

template <int ROWS, int DEEP>
using SumLayout = Layout<ROWS, DEEP, false>;

constexpr int FEWEST_TO_SUM_BY_UNITS = 2;  // rows; one is an outer product by plain FMA

// A lane's part of a share: own rows `row + 8 k`, and of each block the columns from `column` on.
template <int ROWS, int DEEP>
struct LanePart {
    using L = SumLayout<ROWS, DEEP>;
    int row, column, g, t;

    __device__ __forceinline__ LanePart() {
        const int thread = this_thread(), warp = thread / 32;
        g = thread % 32 / 4;
        t = thread % 4;
        row = warp / L::WIDE * L::SLABS * 16 + g;
        column = warp % L::WIDE * L::BLOCKS * 16;
    }
};

template <int ROWS, int DEEP, class Share>
__device__ __forceinline__ void clear(Share& sums) {
#pragma unroll
    for (int k = 0; k < SumLayout<ROWS, DEEP>::FLOATS; ++k) sums.put(k / 4, k % 4, real(0));
}

// Call `add(s, b, d, x)` for each slab s of own rows and each block b of columns. Operands of all
// slabs, `d(s)`, or of all blocks, `x(b)`, whichever are fewer, are loaded first; the others when
// they are needed.
template <int ROWS, int DEEP, class D, class X, class Add>
__device__ __forceinline__ void each_part(D d, X x, Add add) {
    using L = SumLayout<ROWS, DEEP>;
    if constexpr (L::SLABS <= L::BLOCKS) {
        decltype(d(0)) left[L::SLABS];
#pragma unroll
        for (int s = 0; s < L::SLABS; ++s) left[s] = d(s);
#pragma unroll
        for (int b = 0; b < L::BLOCKS; ++b) {
            const auto right = x(b);
#pragma unroll
            for (int s = 0; s < L::SLABS; ++s) add(s, b, left[s], right);
        }
    } else {
        decltype(x(0)) right[L::BLOCKS];
#pragma unroll
        for (int b = 0; b < L::BLOCKS; ++b) right[b] = x(b);
#pragma unroll
        for (int s = 0; s < L::SLABS; ++s) {
            const auto left = d(s);
#pragma unroll
            for (int b = 0; b < L::BLOCKS; ++b) add(s, b, left, right[b]);
        }
    }
}

// Add row i by plain FMA.
template <bool ALIGNED, int ROWS, int DEEP, class Share, class X, class D>
__device__ __forceinline__ void sum_by_lanes(Share& sums, int i, X x, D d) {
    using L = SumLayout<ROWS, DEEP>;
    const LanePart<ROWS, DEEP> mine;
    const real* const row = x(i);
    each_part<ROWS, DEEP>(
        [&](int s) {
            const int q = mine.row + s * 16;
            return Vec<2>{{d(i, q), d(i, q + 8)}};
        },
        [&](int b) {
            constexpr int READ = ALIGNED && DEEP % 4 == 0 ? 4 : 1;
            return part_of_row<L, READ>(row, mine.column + b * 16 + mine.t * 4);
        },
        [&](int s, int b, const Vec<2>& left, const Vec<4>& right) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const int k = L::quartet(s, half, b);
                    sums.put(k, c, sums.at(k, c) + left.v[half] * right.v[c]);
                }
        });
}

#ifdef VRT_TENSOR_CORES
// Two neighbours of a row of x.
template <class L, bool ALIGNED>
__device__ __forceinline__ Vec<2> pair_of_row(const float* row, int column, bool there) {
    Vec<2> x;
    if (ALIGNED && L::WHOLE) {
        x = load<2>(row + column);
        if (!there) x.v[0] = x.v[1] = 0;
        return x;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) x.v[c] = there && column + c < L::DEPTH ? row[column + c] : 0.0f;
    return x;
}

// Add up to eight rows by matrix units: the rows are the depth of a product of d_y transposed, 16
// own rows at a time, with x, 8 columns at a time. Column g of those is column 2 g + f of a block
// for f = 0, 1, so that a lane ends with four neighbours, as the layout has them. Units truncate
// their sums, so sums over many rows are made outside them.
template <bool ALIGNED, int ROWS, int DEEP, class Share, class X, class D>
__device__ __forceinline__ void sum_by_tensor_cores(Share& sums, int first, int count, X x, D d) {
    using L = SumLayout<ROWS, DEEP>;
    const LanePart<ROWS, DEEP> mine;
    const bool there[2] = {mine.t < count, mine.t + 4 < count};
    const int at[2] = {first + (there[0] ? mine.t : 0), first + (there[1] ? mine.t + 4 : 0)};
    const float* const row[2] = {x(at[0]), x(at[1])};
    each_part<ROWS, DEEP>(
        [&](int s) {
            Vec<4> left;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float v = d(at[e / 2], mine.row + s * 16 + e % 2 * 8);
                left.v[e] = there[e / 2] ? v : 0.0f;
            }
            return left;
        },
        [&](int b) {
            const int column = mine.column + b * 16 + mine.g * 2;
            const Vec<2> first = pair_of_row<L, ALIGNED>(row[0], column, there[0]);
            const Vec<2> second = pair_of_row<L, ALIGNED>(row[1], column, there[1]);
            return Vec<4>{{first.v[0], second.v[0], first.v[1], second.v[1]}};
        },
        [&](int s, int b, const Vec<4>& left, const Vec<4>& right) {
            Split<4> a;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float own = left.v[e];
#ifdef __CUDACC_RTC__
                asm volatile(
                    ""
                    : "+f"(own));  // split here: the parts of all would not fit in registers
#endif
                a.put(e, own);
            }
#pragma unroll
            for (int f = 0; f < 2; ++f) {
                Split<2> y;
                y.put(0, right.v[2 * f]);
                y.put(1, right.v[2 * f + 1]);
                FragmentSums more;
                more.add_tails(a, y);
                more.add_heads(a.head, y.head[0], y.head[1]);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int c = e % 2 * 2 + f;
                    const int k = L::quartet(s, e / 2, b);
                    sums.put(k, c, sums.at(k, c) + more.of(e));
                }
            }
        });
}
#endif

// Add the rows of a tile: `x(i)` points to row i of x, `d(i, q)` is the element of row i of d_y
// that belongs to own row q, zero where there is no such row.
template <bool ALIGNED, int ROWS, int DEEP, class Share, class X, class D>
__device__ __forceinline__ void accumulate(Share& sums, int count, X x, D d) {
    int first = 0;
#ifdef VRT_TENSOR_CORES
#pragma unroll 1
    for (; count - first >= FEWEST_TO_SUM_BY_UNITS; first += TILE_ROWS) {
        const int n = count - first < TILE_ROWS ? count - first : TILE_ROWS;
        sum_by_tensor_cores<ALIGNED, ROWS, DEEP>(sums, first, n, x, d);
    }
#endif
#pragma unroll 1
    for (; first < count; ++first) sum_by_lanes<ALIGNED, ROWS, DEEP>(sums, first, x, d);
}

// Store sums in memory: own rows one after another.
template <int ROWS, int DEEP, class Share>
__device__ __forceinline__ void leave(const Share& sums, real* to) {
    using L = SumLayout<ROWS, DEEP>;
    const LanePart<ROWS, DEEP> mine;
#pragma unroll
    for (int s = 0; s < L::SLABS * 2; ++s) {
        const int q = mine.row + 8 * s;
        if (q >= ROWS) continue;
#pragma unroll
        for (int b = 0; b < L::BLOCKS; ++b) {
            const int k = L::quartet(s / 2, s % 2, b), column = mine.column + b * 16 + mine.t * 4;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                if (column + c < DEEP) to[q * DEEP + column + c] = sums.at(k, c);
            }
        }
    }
}

// Tell whether a group has a tile on the backward side of the path, and so stores sums.
__device__ __forceinline__ bool has_backward(const Orders& o, int group) {
    const int* const section = o.sections + o.groups + 1;
    return section[group] < section[group + 1];
}

// Where a processor stores its sums: the last BYTES of its own memory.
template <int BYTES>
__device__ __forceinline__ real* left_by(const Orders& o, int processor) {
    return reinterpret_cast<real*>(o.spill + (processor + 1) * o.spill_bytes - BYTES);
}

// Add the sums of all groups for one gradient, in order; processors share its elements. `start` is
// where the sums begin in what a processor has stored, `row(rank, q)` the row of the weight that is
// own row q, or negative.
template <int PROCESSORS, int ROWS, int DEEP, int BYTES, class Row>
__device__ __forceinline__ void collect(const Orders& o, int start, real* gradient, Row row) {
    constexpr int V = DEEP % 4 == 0 ? 4 : 1, ALL = PROCESSORS * ROWS * DEEP;
    for (int e = (blockIdx.x * PROCESSOR + threadIdx.x) * V; e < ALL;
         e += gridDim.x * PROCESSOR * V) {
        const int rank = e / (ROWS * DEEP), at = e % (ROWS * DEEP), own = row(rank, at / DEEP);
        if (own < 0) continue;
        Vec<V> sum;
#pragma unroll
        for (int c = 0; c < V; ++c) sum.v[c] = 0;
#pragma unroll 4
        for (int g = 0; g < (int)o.groups; ++g) {
            if (!has_backward(o, g)) continue;
            const Vec<V> more = load<V>(left_by<BYTES>(o, g * PROCESSORS + rank) + start + at);
#pragma unroll
            for (int c = 0; c < V; ++c) sum.v[c] += more.v[c];
        }
        add_to<V>(gradient + (long long)own * DEEP + at % DEEP, sum);
    }
}
