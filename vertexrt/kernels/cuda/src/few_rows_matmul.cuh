// Products of a weight with few rows, for which cuBLAS takes a kernel made for many, or two
// kernels.
//
// A block computes a tile of ROWS x 32 outputs. Operands are copied in chunks of 32 through four
// buffers of shared memory, so that loads overlap. Reads from shared memory are the bottleneck, so
// a thread computes 4 x 4 outputs (2 x 4 with 8 rows); the remaining warps share the depth, and
// their sums are added in order. Where this leaves most of the device idle, several blocks share
// the depth too, and the last one to finish adds up their sums, also in order.
#pragma once
#include "async_copy.cuh"
#include "row_ops.cuh"

#ifndef VRT_REAL  // float only: two buffers of doubles would not fit

constexpr int TILE = 32, CHUNK = 32, STAGES = 4, PRODUCT_THREADS = 256;
// A processor of a persistent kernel has a block at a time: it loads for several steps of a chunk.
#ifdef VRT_PERSISTENT
constexpr int STEPS_AT_ONCE = 8;
#else
constexpr int STEPS_AT_ONCE = 1;
#endif
constexpr int PITCH =
    CHUNK + 4;  // stride of a row in shared memory: 16 bytes of padding avoid bank conflicts

// Copy four floats to shared memory, of which `there` are there, in vectors of V; zeros for others.
template <int V>
__device__ __forceinline__ void copy_four(float* to, const float* from, int there) {
#pragma unroll
    for (int k = 0; k < 4; k += V) copy_or_zero<V>(to + k, k < there ? from + k : from, k < there);
}

// The buffers of a block that computes ROWS x 32 outputs.
template <int ROWS>
struct alignas(16) TileMemory {
    float x[STAGES][ROWS][PITCH];
    float w[STAGES][TILE][PITCH];
    int last;
};

// y[count, WIDE] = x[count, DEEP] times a weight: w[WIDE, DEEP]^T, or w[DEEP, WIDE] if TRANSPOSED.
// `x(i)` points to a row, or is null where the row is zero; `y(i, column, value)` stores a result.
// The block computes rows from ROWS * row_tile on. `block` numbers the tiles of 32 outputs, SPLITS
// times over: once for each split of the depth. Splits leave their sums in `partial`, and `arrived`
// counts them: an int for each tile, zero before and after. WIDE and DEEP are multiples of V.
template <int ROWS, bool TRANSPOSED, int WIDE, int DEEP, int SPLITS, int V, class X, class Y>
__device__ __forceinline__ void product_tile(TileMemory<ROWS>& memory, int row_tile, int block,
                                             int count, X x, const float* w, Y y, float* partial,
                                             int* arrived) {
    static_assert(ROWS == 8 || ROWS == 32, "threads are laid out for these");
    static_assert(WIDE % V == 0 && DEEP % V == 0, "copies are of V floats");
    constexpr int COLUMN_TILES = (WIDE + TILE - 1) / TILE, ALL = (DEEP + CHUNK - 1) / CHUNK;
    static_assert(SPLITS <= ALL, "each split has a chunk");
    const int column_tile = block % COLUMN_TILES, split = block / COLUMN_TILES;
    const int first_chunk = ALL * split / SPLITS, last_chunk = ALL * (split + 1) / SPLITS;
    const int row0 = row_tile * ROWS, column0 = column_tile * TILE;
    if (row0 >= count) return;
    const int piece = threadIdx.x % 8 * 4, line = threadIdx.x / 8;  // that a thread copies
    const float* const x_row = line < ROWS && row0 + line < count ? x(row0 + line) : nullptr;

    const auto fetch = [&](int chunk) {
        if (chunk < last_chunk) {
            const int k = chunk * CHUNK, stage = chunk % STAGES;
            if (line < ROWS) {
                const int there = x_row != nullptr ? DEEP - k - piece : 0;
                const float* const from = there > 0 ? x_row + k + piece : w;
                copy_four<V>(&memory.x[stage][line][piece], from, there);
            }
            const int row = TRANSPOSED ? k + line : column0 + line;
            const int at = TRANSPOSED ? column0 + piece : k + piece;
            constexpr int LINES = TRANSPOSED ? DEEP : WIDE, LENGTH = TRANSPOSED ? WIDE : DEEP;
            const int there = row < LINES ? LENGTH - at : 0;
            const float* const from = there > 0 ? w + (long long)row * LENGTH + at : w;
            copy_four<V>(&memory.w[stage][line][piece], from, there);
        }
        commit_copies();
    };

    constexpr int R = ROWS == 32 ? 4 : 2, C = 4;          // outputs of a thread
    constexpr int WARPS = ROWS / (4 * R);                 // that compute the tile
    constexpr int GROUPS = PRODUCT_THREADS / 32 / WARPS;  // that share the depth
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / WARPS;
    const int r = warp % WARPS * 4 * R + lane / 8;       // rows r, r + 4, ...
    const int c = TRANSPOSED ? lane % 8 * C : lane % 8;  // columns c, c + 1, ... or c, c + 8, ...
    constexpr int NEXT = TRANSPOSED ? 1 : 8;
    float sum[R][C];
#pragma unroll
    for (int a = 0; a < R; ++a)
#pragma unroll
        for (int b = 0; b < C; ++b) sum[a][b] = 0.0f;

    for (int chunk = 0; chunk < STAGES - 1; ++chunk) fetch(first_chunk + chunk);
    for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        fetch(chunk + STAGES - 1);  // into the buffer whose readers the barrier has waited for
        const int stage = chunk % STAGES;
#pragma unroll STEPS_AT_ONCE
        for (int step = 0; step < CHUNK / 4; step += GROUPS) {
            const int k = (step + group) * 4;
            float xk[R][4], wk[C][4];
#pragma unroll
            for (int a = 0; a < R; ++a) {
                const Vec<4> v = load<4>(&memory.x[stage][r + 4 * a][k]);
#pragma unroll
                for (int q = 0; q < 4; ++q) xk[a][q] = v.v[q];
            }
#pragma unroll
            for (int b = 0; b < 4; ++b) {
                const Vec<4> v = load<4>(TRANSPOSED ? &memory.w[stage][k + b][c]
                                                    : &memory.w[stage][c + b * NEXT][k]);
#pragma unroll
                for (int q = 0; q < 4; ++q) (TRANSPOSED ? wk[q][b] : wk[b][q]) = v.v[q];
            }
#pragma unroll
            for (int q = 0; q < 4; ++q)
#pragma unroll
                for (int a = 0; a < R; ++a)
#pragma unroll
                    for (int b = 0; b < C; ++b) sum[a][b] += xk[a][q] * wk[b][q];
        }
    }

    float* const parts = &memory.w[0][0][0];  // [GROUPS][ROWS][TILE]
    static_assert(GROUPS * ROWS * TILE <= STAGES * TILE * PITCH,
                  "the sums fit where the weight was");
    __syncthreads();
#pragma unroll
    for (int a = 0; a < R; ++a)
#pragma unroll
        for (int b = 0; b < C; ++b) {
            parts[(group * ROWS + r + 4 * a) * TILE + c + b * NEXT] = sum[a][b];
        }
    __syncthreads();
    const int tile = row_tile * COLUMN_TILES + column_tile;
    float* const left = partial + (long long)tile * SPLITS * ROWS * TILE;
    const auto finish = [&](int at, float total) {
        const int row = row0 + at / TILE, column = column0 + at % TILE;
        if (row < count && column < WIDE) y(row, column, total);
    };
    for (int at = threadIdx.x; at < ROWS * TILE; at += PRODUCT_THREADS) {
        float total = 0.0f;
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) total += parts[g * ROWS * TILE + at];
        if (SPLITS == 1) {
            finish(at, total);
        } else {
            left[split * ROWS * TILE + at] = total;
        }
    }
    if (SPLITS == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool last = atomicAdd(&arrived[tile], 1) == SPLITS - 1;
        if (last) arrived[tile] = 0;
        memory.last = last;
    }
    __syncthreads();
    if (!memory.last) return;
    __threadfence();
    for (int at = threadIdx.x; at < ROWS * TILE; at += PRODUCT_THREADS) {
        float total = 0.0f;
#pragma unroll 16
        for (int k = 0; k < SPLITS; ++k) total += __ldcg(&left[k * ROWS * TILE + at]);
        finish(at, total);
    }
}

// Sum four numbers over the 32 lanes: lane 8 r ends with the sum of number r.
__device__ __forceinline__ float sum_of_four(const float (&x)[4]) {
    const int lane = threadIdx.x % 32;
    const bool upper = lane & 16, odd = lane & 8;
    float pair[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const float keep = upper ? x[k + 2] : x[k], give = upper ? x[k] : x[k + 2];
        pair[k] = keep + __shfl_xor_sync(0xffffffffu, give, 16);
    }
    const float keep = odd ? pair[1] : pair[0], give = odd ? pair[0] : pair[1];
    float sum = keep + __shfl_xor_sync(0xffffffffu, give, 8);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    return sum;
}

// y[count, WIDE] = x[count, DEEP] w[WIDE, DEEP]^T for at most 32 rows, where tiles would leave most
// warps idle: each warp computes COLUMNS columns, and its lanes hold the weights. `x(i)` points to
// a row, or is null where the row is zero; each lane looks one up, since that may take several
// dependent loads.
template <int WIDE, int DEEP, int COLUMNS, class X, class Y>
__device__ __forceinline__ void product_by_warps(int block, int count, X x, const float* w, Y y) {
    static_assert(DEEP % 4 == 0 && WIDE % COLUMNS == 0, "loads are of 16 bytes, warps have work");
    constexpr int EACH = (DEEP + 127) / 128,
                  ROWS = EACH <= 2 ? 8 : 4;  // vectors of a lane; rows in flight
    const int lane = threadIdx.x % 32;
    const int column = (block * (PRODUCT_THREADS / 32) + (int)threadIdx.x / 32) * COLUMNS;
    if (column >= WIDE) return;
    const auto part = [&](const float* row, int e) {
        const int k = (e * 32 + lane) * 4;
        Vec<4> v{};
        if (row != nullptr && (DEEP % 128 == 0 || k < DEEP)) v = load<4>(row + k);
        return v;
    };
    const unsigned long long mine =
        lane < count ? reinterpret_cast<unsigned long long>(x(lane)) : 0;
    Vec<4> weight[COLUMNS][EACH];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
        for (int e = 0; e < EACH; ++e) weight[c][e] = part(w + (long long)(column + c) * DEEP, e);
#pragma unroll 1
    for (int i = 0; i < count; i += ROWS) {
        Vec<4> v[ROWS][EACH];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float* const row =
                reinterpret_cast<const float*>(__shfl_sync(0xffffffffu, mine, i + r));
#pragma unroll
            for (int e = 0; e < EACH; ++e) v[r][e] = part(row, e);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            float sum[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                sum[r] = 0.0f;
#pragma unroll
                for (int e = 0; e < EACH; ++e)
#pragma unroll
                    for (int q = 0; q < 4; ++q) sum[r] += v[r][e].v[q] * weight[c][e].v[q];
            }
#pragma unroll
            for (int first = 0; first < ROWS; first += 4) {
                const float four[4] = {sum[first], sum[first + 1], sum[first + 2], sum[first + 3]};
                const float total = sum_of_four(four);
                const int row = i + first + lane / 8;
                if (lane % 8 == 0 && row < count) y(row, column + c, total);
            }
        }
    }
}

#endif
