// The update at the end of a persistent kernel. A processor has too few warps to wait for memory
// one access after the other: each warp copies what comes next to shared memory, which the path has
// left, while it works on what has come.
#pragma once
#include "async_copy.cuh"
#include "processor.cuh"

constexpr int STAGED = 2048 / sizeof(real);  // elements of an array that a warp copies at a time
static_assert(STAGED % WIDTH == 0, "parts of an aligned piece are aligned");

// A part of piece `number`: `width` elements from `start` on, after which `left` more follow.
struct StageRange {
    long long number, start;
    int width, left;

    __device__ __forceinline__ StageRange(long long number, long long start, int count)
        : number(number),
          start(start),
          width(count < STAGED ? count : STAGED),
          left(count - width) {}
    __device__ __forceinline__ bool aligned() const {
        return start % WIDTH == 0 && width % WIDTH == 0;
    }
};

// The first part of a piece; an empty one where there is no such piece.
__device__ __forceinline__ StageRange first_stage(const Store& a, long long number) {
    if (number >= a.pieces) return {number, 0, 0};
    const Piece piece = piece_of(a, number);
    return {number, piece.start, piece.width};
}

// The part that a warp has after another: the rest of the piece, whose width has no bound (it may
// be a row of a table), then its next piece.
__device__ __forceinline__ StageRange next_stage(const Store& a, const StageRange& r) {
    if (r.left > 0) return {r.number, r.start + r.width, r.left};
    return first_stage(a, r.number + (long long)gridDim.x * WARPS);
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
    int buffer = 0;
    const auto fetch = [&](const StageRange& r, int buffer) {
        real(&to)[ARRAYS][STAGED] = stages[buffer * WARPS + warp];
        if (r.aligned()) {
#pragma unroll 1
            for (int i = lane * WIDTH; i < r.width; i += 32 * WIDTH) {
                copy_or_zero<WIDTH>(&to[0][i], a.gradients + r.start + i, true);
                copy_or_zero<WIDTH>(&to[1][i], a.values + r.start + i, true);
#pragma unroll
                for (int s = 0; s < Rule::SLOTS; ++s)
                    copy_or_zero<WIDTH>(&to[2 + s][i], a.moments + s * a.total + r.start + i, true);
            }
        }
        commit_copies();
    };
    StageRange r = first_stage(a, (long long)blockIdx.x * WARPS + warp);
    fetch(r, buffer);
#pragma unroll 1
    while (r.number < a.pieces) {
        const StageRange next = next_stage(a, r);
        fetch(next, buffer ^ 1);
        wait_for_copies<1>();  // a lane reads what it has copied itself
        const real(&from)[ARRAYS][STAGED] = stages[buffer * WARPS + warp];
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
        r = next;
        buffer ^= 1;
    }
    wait_for_copies<0>();
}
