// Products on the path by matrix units.
#pragma once
#include "resident_weights.cuh"
#include "mac.cuh"

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

#ifdef VRT_TENSOR_CORES
// Split a weight no earlier than here: the parts of all weights would not fit in registers.
__device__ __forceinline__ void split_here(float& weight) {
#ifdef __CUDACC_RTC__
    asm volatile("" : "+f"(weight));
#endif
}
// Blocks of the depth, of 16 elements each, whose products are summed inside the matrix units. One
// takes more registers than two.
constexpr int FEW_BLOCKS = 2;

// As `multiply_by_lanes`, for up to eight rows by matrix units: head tail + tail head + head head.
// The units truncate what they add, always towards zero, and a level of the path goes through two
// such products. So heads of x are rounded, weights fit a head and a tail exactly, a sum leaves the
// units soon, and small terms have a sum of their own.
//
// Where a warp has one slab, each term has a sum of its own, so that no instruction waits for the
// one before it: 256 trees in groups of 16 took 0.96 of the time to infer, and 0.98 to train.
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
        Vec<4> v[FEW_BLOCKS];
#pragma unroll
        for (int b = 0; b < FEW_BLOCKS; ++b) {
            const int column = L::first_column(warp, (at + b) / B) + (at + b) % B * 16 + t * 4;
            if (2 * b < steps) v[b] = part_of_row<L, READ>(from, column);
        }
#ifdef VRT_PAIRS
        FragmentSums few[L::SLABS];
#pragma unroll
        for (int b = 0; b < FEW_BLOCKS; ++b) {
            if (2 * b >= steps) break;
            const unsigned x0 = pair_of(v[b].v[0], v[b].v[1]), x1 = pair_of(v[b].v[2], v[b].v[3]);
            const int block = at + b;
#pragma unroll
            for (int s = 0; s < L::SLABS; ++s) {
                unsigned weight[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const bool mine = L::FOLD == 1 || own_part == block / B;
                    weight[e] = L::has(s, e % 2) && mine
                                    ? share.pair(L::quartet(s, e % 2, block % B), e / 2)
                                    : 0;
                }
                few[s].add_pairs(weight, x0, x1);
            }
        }
#pragma unroll
        for (int s = 0; s < L::SLABS; ++s) sums[s].move(few[s]);
#else
        // Element `e` of the fragment of a slab; zero for rows beyond, and for lanes that have
        // another part of the depth.
        const auto element = [&](int s, int step, int e) {
            const int block = at + step / 2;
            if (!L::has(s, e % 2)) return 0.0f;
            const float w = share.at(L::quartet(s, e % 2, block % B), step % 2 * 2 + e / 2);
            return L::FOLD == 1 || own_part == block / B ? w : 0.0f;
        };
        constexpr int SUMS = L::SLABS == 1 ? 3 : 1, PASSES = SUMS == 1 ? 2 : 1;
        FragmentSums few[L::SLABS][SUMS];
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
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
                        split_here(w);
                        weight.put(e, w);
                    }
#pragma unroll
                    for (int term = 0; term < 3; ++term)
                        if (PASSES == 1 || (term == 2) == (pass == 1))
                            few[s][term % SUMS].add(term, weight, x);
                }
            }
#pragma unroll
        for (int s = 0; s < L::SLABS; ++s)
#pragma unroll
            for (int k = 0; k < SUMS; ++k) sums[s].move(few[s][k]);
#endif
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
