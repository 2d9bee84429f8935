// Products of a weight with few rows, where cuBLAS takes a kernel made for many, or two kernels.
//
// A block makes a tile of ROWS x 32 outputs; the sum goes over chunks of 32 that arrive through four
// buffers of shared memory, so that loads overlap. Each output is one sum in ascending order: the
// result does not depend on how many rows there are.
#pragma once
#include "row.cuh"

#ifndef VRT_REAL  // for float only: two buffers of doubles would not fit

constexpr int TILE = 32, CHUNK = 32, STAGES = 4, PRODUCT_THREADS = 256;
constexpr int PITCH = CHUNK + 4;  // of a row in shared memory: 16 bytes on, so that 8 rows do not clash

// Copy 16 bytes to shared memory without waiting, or zeros where there is nothing to copy.
__device__ __forceinline__ void copy_async(float* to, const float* from, bool there) {
#ifdef __CUDACC_RTC__
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
#else
    for (int k = 0; k < 4; ++k) to[k] = there ? from[k] : 0.0f;
#endif
}

__device__ __forceinline__ void end_of_stage() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `LEFT` stages are still on their way.
template <int LEFT>
__device__ __forceinline__ void wait_for_stages() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// y[count, WIDE] = x[count, DEEP] times a weight: w[WIDE, DEEP]^T, or w[DEEP, WIDE] if TRANSPOSED.
// The block makes rows from ROWS * row_tile and outputs from 32 * column_tile on.
template <int ROWS, bool TRANSPOSED, int WIDE, int DEEP>
__device__ __forceinline__ void product_tile(int row_tile, int column_tile, int count,
                                             const float* x, const float* w, float* y) {
    static_assert(ROWS == 8 || ROWS == 32, "threads are laid out for these");
    static_assert(WIDE % 4 == 0 && DEEP % 4 == 0, "copies are of 16 bytes");
    constexpr int CHUNKS = (DEEP + CHUNK - 1) / CHUNK;
    alignas(16) __shared__ float xs[STAGES][ROWS][PITCH];
    alignas(16) __shared__ float ws[STAGES][TILE][PITCH];
    const int row0 = row_tile * ROWS, column0 = column_tile * TILE;
    if (row0 >= count) return;
    const int piece = threadIdx.x % 8 * 4, line = threadIdx.x / 8;  // of what a thread copies

    const auto fetch = [&](int chunk) {
        if (chunk < CHUNKS) {
            const int k = chunk * CHUNK, stage = chunk % STAGES;
            if (line < ROWS) {
                const bool there = row0 + line < count && k + piece < DEEP;
                const float* const from = there ? x + (long long)(row0 + line) * DEEP + k + piece : x;
                copy_async(&xs[stage][line][piece], from, there);
            }
            if (TRANSPOSED) {
                const bool there = k + line < DEEP && column0 + piece < WIDE;
                const float* const from = there ? w + (long long)(k + line) * WIDE + column0 + piece : w;
                copy_async(&ws[stage][line][piece], from, there);
            } else {
                const bool there = column0 + line < WIDE && k + piece < DEEP;
                const float* const from = there ? w + (long long)(column0 + line) * DEEP + k + piece : w;
                copy_async(&ws[stage][line][piece], from, there);
            }
        }
        end_of_stage();
    };

    // A warp makes 4 rows x 8 columns at once (x 2 x 2 with 32 rows), so that each read of shared
    // memory has at most 8 different addresses.
    constexpr int R = ROWS == 32 ? 2 : 1, C = ROWS == 32 ? 2 : 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int across = TILE / (8 * C);
    const int r = warp / across * 4 + lane / 8;
    const int c = (warp % across * 8 + lane % 8) * (TRANSPOSED ? C : 1);
    constexpr int NEXT_R = ROWS / R, NEXT_C = TRANSPOSED ? 1 : TILE / C;
    float sum[R][C];
#pragma unroll
    for (int a = 0; a < R; ++a)
#pragma unroll
        for (int b = 0; b < C; ++b) sum[a][b] = 0.0f;

    for (int chunk = 0; chunk < STAGES - 1; ++chunk) fetch(chunk);
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        wait_for_stages<STAGES - 2>();
        __syncthreads();
        fetch(chunk + STAGES - 1);  // into the buffer that was read before the barrier
        const int stage = chunk % STAGES;
#pragma unroll
        for (int k = 0; k < CHUNK; k += 4) {
            float xk[R][4], wk[C][4];
#pragma unroll
            for (int a = 0; a < R; ++a) {
                const Vec<4> v = load<4>(&xs[stage][r + a * NEXT_R][k]);
#pragma unroll
                for (int q = 0; q < 4; ++q) xk[a][q] = v.v[q];
            }
            if (TRANSPOSED) {
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const Vec<C> v = load<C>(&ws[stage][k + q][c]);
#pragma unroll
                    for (int b = 0; b < C; ++b) wk[b][q] = v.v[b];
                }
            } else {
#pragma unroll
                for (int b = 0; b < C; ++b) {
                    const Vec<4> v = load<4>(&ws[stage][c + b * NEXT_C][k]);
#pragma unroll
                    for (int q = 0; q < 4; ++q) wk[b][q] = v.v[q];
                }
            }
#pragma unroll
            for (int q = 0; q < 4; ++q)
#pragma unroll
                for (int a = 0; a < R; ++a)
#pragma unroll
                    for (int b = 0; b < C; ++b) sum[a][b] += xk[a][q] * wk[b][q];
        }
    }
#pragma unroll
    for (int a = 0; a < R; ++a) {
        const int row = row0 + r + a * NEXT_R;
#pragma unroll
        for (int b = 0; b < C; ++b) {
            const int column = column0 + c + b * NEXT_C;
            if (row < count && column < WIDE) y[(long long)row * WIDE + column] = sum[a][b];
        }
    }
}

#endif
