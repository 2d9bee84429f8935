// The update at the end of a persistent kernel. A processor has too few warps to wait for memory
// one access after the other: each warp copies what comes next to shared memory, which the path has
// left, while it works on what has come.
#pragma once
#include "path_copies.cuh"

constexpr int STAGED = 2048 / sizeof(real);  // elements of an array that a warp copies at a time
static_assert(PIECE % STAGED == 0, "a piece is some stages");

// A part of a piece: `width` elements from `start` on, 0 for none.
struct StageRange {
    long long start;
    int width;

    __device__ __forceinline__ bool aligned() const {
        return start % WIDTH == 0 && width % WIDTH == 0;
    }
};

// The parts of the pieces that fall to a warp, one after another.
__device__ __forceinline__ StageRange stage_range(const Store& a, long long k) {
    constexpr int PARTS = PIECE / STAGED;
    const long long warp = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    const long long number = warp + k / PARTS * gridDim.x * WARPS;
    if (number >= a.pieces) return {0, 0};
    const int before = (int)(k % PARTS) * STAGED;
    long long start = number * PIECE, width = a.dense - start < PIECE ? a.dense - start : PIECE;
    if (number >= a.dense_pieces) {
        start = a.row_start[number - a.dense_pieces];
        width = a.row_width[number - a.dense_pieces];
    }
    width -= before;
    return {start + before, (int)(width < 0 ? 0 : width < STAGED ? width : STAGED)};
}

// Apply a rule to all pieces, and clear their gradients: `update` with all processors.
template <class Rule>
__device__ __forceinline__ void update_staged(const Store& a) {
    constexpr int ARRAYS = 2 + Rule::SLOTS;
    typedef real Stage[ARRAYS][STAGED];
    VRT_SCRATCH(Stage, stages, 2 * WARPS);
    tell_host(a);
    const bool refused = a.found->refused != 0.0;
    const real scale = real(a.found->scale);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long each = (long long)gridDim.x * WARPS;
    const long long parts = (a.pieces + each - 1) / each * (PIECE / STAGED);
    const auto fetch = [&](long long k) {
        const StageRange r = stage_range(a, k);
        real(&to)[ARRAYS][STAGED] = stages[k % 2 * WARPS + warp];
        if (r.aligned()) {
#pragma unroll 1
            for (int i = lane * WIDTH; i < r.width; i += 32 * WIDTH) {
                copy_ahead<WIDTH>(&to[0][i], a.gradients + r.start + i);
                copy_ahead<WIDTH>(&to[1][i], a.values + r.start + i);
#pragma unroll
                for (int s = 0; s < Rule::SLOTS; ++s)
                    copy_ahead<WIDTH>(&to[2 + s][i], a.moments + s * a.total + r.start + i);
            }
        }
        commit_copies();
    };
    fetch(0);
#pragma unroll 1
    for (long long k = 0; k < parts; ++k) {
        fetch(k + 1);
        wait_for_copies<1>();  // a lane reads what it has copied itself
        const StageRange r = stage_range(a, k);
        const real(&from)[ARRAYS][STAGED] = stages[k % 2 * WARPS + warp];
        if (r.aligned()) {
#pragma unroll 1
            for (int i = lane * WIDTH; i < r.width; i += 32 * WIDTH) {
                Updated<Rule, WIDTH> x;
                x.p = load<WIDTH>(&from[1][i]);
#pragma unroll
                for (int s = 0; s < Rule::SLOTS; ++s) x.state[s] = load<WIDTH>(&from[2 + s][i]);
                write_update<Rule>(a, r.start + i, load<WIDTH>(&from[0][i]), scale, refused, x);
            }
        } else {
#pragma unroll 1
            for (long long at = r.start + lane; at < r.start + r.width; at += 32) {
                const auto x = before_update<Rule, 1>(a, at);
                write_update<Rule>(a, at, load<1>(a.gradients + at), scale, refused, x);
            }
        }
    }
    wait_for_all_copies();
}
