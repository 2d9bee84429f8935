// A tile of a product outside the path, by all threads of a processor.
#pragma once
#include "async_copy.cuh"
#include "processor.cuh"
#include "tensor_cores.cuh"

// A tile has MATMUL_DOWN x MATMUL_ACROSS elements. Its operands pass through shared memory in
// chunks of DEPTH. The halves of a processor take turns with the chunks, each with buffers and
// barriers of its own, so that one computes while the other waits; their sums are added in the end.
constexpr int MATMUL_DOWN = 128, MATMUL_ACROSS = 64, HALF = PROCESSOR / 2;
constexpr int SUMS_EACH = MATMUL_DOWN * MATMUL_ACROSS / HALF;  // of a thread
#ifdef VRT_REAL
constexpr int DEPTH = 8;
#else
constexpr int DEPTH = 16;
#endif

// A chunk of an operand in shared memory, ROWS x DEPTH, as it lies in memory: neighbours along the
// rows (ALONG), or along the depth. By the pitch the lanes of a warp, eight rows times four of the
// depth, read different banks.
template <bool ALONG, int ROWS>
struct Chunk {
    static constexpr int PITCH = ALONG ? ROWS + 8 : DEPTH + 4;
    static constexpr int SIZE = (ALONG ? DEPTH : ROWS) * PITCH;
    static __device__ __forceinline__ int at(int i, int k) {
        return ALONG ? k * PITCH + i : i * PITCH + k;
    }
};
template <int ROWS>
constexpr int largest_chunk() {
    return Chunk<true, ROWS>::SIZE > Chunk<false, ROWS>::SIZE ? Chunk<true, ROWS>::SIZE
                                                              : Chunk<false, ROWS>::SIZE;
}
struct alignas(16) MatmulBuffer {
    real a[largest_chunk<MATMUL_DOWN>()], b[largest_chunk<MATMUL_ACROSS>()];
};
constexpr int BUFFERS_THAT_FIT =
    (VRT_SHARED_BYTES - SHARED_STATE_BYTES) / 2 / (int)sizeof(MatmulBuffer);
constexpr int MATMUL_BUFFERS = BUFFERS_THAT_FIT < 4 ? BUFFERS_THAT_FIT : 4;
static_assert(MATMUL_BUFFERS > 1, "one chunk is copied while another is read");
union MatmulMemory {
    MatmulBuffer buffers[2][MATMUL_BUFFERS];  // of the halves
    real exchanged[2][SUMS_EACH / 2][HALF];
};

#ifdef VRT_TENSOR_CORES
// Steps of the depth, eight each, whose products are summed inside the matrix units.
constexpr int FEW_STEPS = 2;

// A thread's sums of a tile, of which a warp has 64 x 32, by matrix units.
struct TileSums {
    static constexpr int ACROSS = 2, M = MATMUL_DOWN / 2 / 16, N = MATMUL_ACROSS / ACROSS / 8;
    FragmentSums sums[M * N];

    template <class A, class B>
    __device__ __forceinline__ void add(const float* a, const float* b) {
        const int i = row(0), j = warp_column() + lane_row(), t = lane();
#pragma unroll
        for (int k0 = 0; k0 < DEPTH; k0 += 8 * FEW_STEPS) {
            FragmentSums few[M * N];
#pragma unroll
            for (int k = k0; k < k0 + 8 * FEW_STEPS; k += 8) {
                Split<4, true> x[M];  // rounded, so that errors do not add up
                Split<2, true> y[N];
#pragma unroll
                for (int e = 0; e < 4 * M; ++e)
                    x[e / 4].put(e % 4,
                                 a[A::at(i + e / 4 * 16 + e % 2 * 8, k + t + e % 4 / 2 * 4)]);
#pragma unroll
                for (int e = 0; e < 2 * N; ++e)
                    y[e / 2].put(e % 2, b[B::at(j + e / 2 * 8, k + t + e % 2 * 4)]);
#pragma unroll
                for (int f = 0; f < M * N; ++f) few[f].add_head_tail(x[f / N], y[f % N]);
#pragma unroll
                for (int f = 0; f < M * N; ++f) few[f].add_tail_head(x[f / N], y[f % N]);
#pragma unroll
                for (int f = 0; f < M * N; ++f)
                    few[f].add_heads(x[f / N].head, y[f % N].head[0], y[f % N].head[1]);
            }
#pragma unroll
            for (int f = 0; f < M * N; ++f) sums[f].move(few[f]);
        }
    }
    __device__ __forceinline__ real of(int e) const { return sums[e / 4].of(e % 4); }
    // The row and column of sum `e` in the tile; after an even one comes its neighbour.
    static __device__ __forceinline__ int row(int e) {
        const int warp = (int)threadIdx.x % HALF / 32;
        return (warp / ACROSS * M + e / 4 / N) * 16 + e / 2 % 2 * 8 + lane_row();
    }
    static __device__ __forceinline__ int column(int e) {
        return warp_column() + e / 4 % N * 8 + lane() * 2 + e % 2;
    }
    static __device__ __forceinline__ int warp_column() {
        return (int)threadIdx.x / 32 % ACROSS * N * 8;
    }
    static __device__ __forceinline__ int lane_row() { return (int)threadIdx.x % 32 / 4; }
    static __device__ __forceinline__ int lane() { return (int)threadIdx.x % 4; }
};
#else
// A thread's sums of a tile, 8 x 8.
struct TileSums {
    static constexpr int M = 8, N = 8, ACROSS = MATMUL_ACROSS / N;
    static_assert(M * N == SUMS_EACH, "the sums of all threads are a tile");
    real sum[M * N];

    __device__ __forceinline__ TileSums() {
#pragma unroll
        for (int e = 0; e < M * N; ++e) sum[e] = 0;
    }
    template <class A, class B>
    __device__ __forceinline__ void add(const real* a, const real* b) {
#pragma unroll 1
        for (int k = 0; k < DEPTH; ++k) {
            real x[M], y[N];
#pragma unroll
            for (int m = 0; m < M; ++m) x[m] = a[A::at(row(m * N), k)];
#pragma unroll
            for (int n = 0; n < N; ++n) y[n] = b[B::at(column(n), k)];
#pragma unroll
            for (int e = 0; e < M * N; ++e) sum[e] += x[e / N] * y[e % N];
        }
    }
    __device__ __forceinline__ real of(int e) const { return sum[e]; }
    static __device__ __forceinline__ int row(int e) {
        return (int)threadIdx.x % HALF / ACROSS * M + e / N;
    }
    static __device__ __forceinline__ int column(int e) {
        return (int)threadIdx.x % ACROSS * N + e % N;
    }
};
#endif

// An operand [rows, deep] in memory; with ALONG, its rows are columns there. `pitch`: from one row
// to the next or, with ALONG, from one step of the depth to the next.
struct Factor {
    const real* first;
    long long pitch;
    int rows;
};

// Copy a chunk of an operand, from row `i0` and step `k0` of the depth on, by this half, in vectors
// of V neighbours; zeros beyond the end.
template <bool ALONG, int ROWS, int V>
__device__ __forceinline__ void copy_chunk(real* to, const Factor& from, int i0, int k0, int deep) {
    constexpr int COUNT = ROWS * DEPTH / V / HALF, LINE = (ALONG ? ROWS : DEPTH) / V;
    constexpr int AT_ONCE = COUNT < 2 ? COUNT : 2;  // more addresses take many registers
    static_assert(COUNT * V * HALF == ROWS * DEPTH, "each thread copies as much");
#pragma unroll AT_ONCE
    for (int e = 0; e < COUNT; ++e) {
        const int vector = (int)threadIdx.x % HALF + e * HALF;
        const int near = vector % LINE * V, far = vector / LINE;
        const int i = ALONG ? near : far, k = ALONG ? far : near;
        const bool there = i0 + i < from.rows && k0 + k < deep;
        const long long at =
            ALONG ? (k0 + k) * from.pitch + i0 + i : (i0 + i) * from.pitch + k0 + k;
        copy_or_zero<V>(to + Chunk<ALONG, ROWS>::at(i, k), from.first + (there ? at : 0), there);
    }
}

// Make tile (down, across) of c(i, j) = sum over k of a(i, k) b(j, k), and `take` its elements: of
// a row i the columns j and j + 1, of which the second may be beyond the end. In the direction of
// neighbours in memory, sizes and pitches are multiples of V.
template <bool A_ALONG, bool B_ALONG, int V, class Take>
__device__ __forceinline__ void matmul_tile(MatmulMemory& memory, int down, int across,
                                            const Factor& a, const Factor& b, int deep, Take take) {
    constexpr int STEP = 2 * DEPTH, AHEAD = MATMUL_BUFFERS - 1, KEPT = SUMS_EACH / 2;
    const int i0 = down * MATMUL_DOWN, j0 = across * MATMUL_ACROSS;
    const int half = (int)threadIdx.x / HALF, thread = (int)threadIdx.x % HALF;
    MatmulBuffer* const mine = memory.buffers[half];
    const auto fetch = [&](int k0, int buffer) {
        if (k0 < deep) {
            copy_chunk<A_ALONG, MATMUL_DOWN, V>(mine[buffer].a, a, i0, k0, deep);
            copy_chunk<B_ALONG, MATMUL_ACROSS, V>(mine[buffer].b, b, j0, k0, deep);
        }
        commit_copies();
    };
    TileSums sums;
#pragma unroll 1
    for (int ahead = 0; ahead < AHEAD; ++ahead) fetch(half * DEPTH + ahead * STEP, ahead);
    int read = 0, free = AHEAD;
#pragma unroll 1
    for (int k0 = 0; k0 < deep; k0 += STEP) {
        const int k = k0 + half * DEPTH;
        wait_for_copies<AHEAD - 1>();
        __syncthreads();  // all copies are there, and the last chunks have been read
        fetch(k + AHEAD * STEP, free);
        if (k < deep) {
            sums.template add<Chunk<A_ALONG, MATMUL_DOWN>, Chunk<B_ALONG, MATMUL_ACROSS>>(
                mine[read].a, mine[read].b);
        }
        read = read + 1 == MATMUL_BUFFERS ? 0 : read + 1;
        free = free + 1 == MATMUL_BUFFERS ? 0 : free + 1;
    }
    __syncthreads();  // both halves have read
#pragma unroll
    for (int e = 0; e < KEPT; ++e)
        memory.exchanged[half][e][thread] = half ? sums.of(e) : sums.of(KEPT + e);
    __syncthreads();
#pragma unroll
    for (int e = 0; e < KEPT; e += 2) {
        real sum[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const real given = memory.exchanged[half ^ 1][e + c][thread];
            sum[c] = (half ? sums.of(KEPT + e + c) : sums.of(e + c)) + given;
        }
        const int at = half * KEPT + e, i = i0 + TileSums::row(at), j = j0 + TileSums::column(at);
        if (i < a.rows && j < b.rows) take(i, j, sum[0], sum[1]);
    }
}
