// A product of many rows, float32, by the matrix units of Hopper: twice as fast as cuBLAS without
// TF32, and more exact.
//
// A block makes a tile of MATMUL_DOWN x MATMUL_ACROSS elements, of which each of its two warp
// groups has 64 rows. All threads load the chunk after the next one into registers while the units
// work, split the next one and store it. A float32 is split as in mac.cuh: the units sum
// the three products of heads and tails of one chunk, and these sums are added outside them.
//
// It has to be a part of the kernel: units wait for each product in a function that is called. In a
// kernel of which it is one of many parts, the others spill.
#pragma once
#include "wide_product.cuh"

// Take columns j and j + 1 of a row i of the result.
__device__ __forceinline__ void take(const WideProduct& p, int i, int j, float x, float y) {
    if (i >= p.a.rows || j >= p.b.rows) return;
    float* const to = p.to + i * p.pitch + j;
    if (p.vector > 1) {
        Vec<2> pair{{x, y}};
        if (p.adds) {
            const Vec<2> there = load<2>(to);
            pair.v[0] += there.v[0], pair.v[1] += there.v[1];
        }
        store<2>(to, pair);
        return;
    }
    to[0] = p.adds ? to[0] + x : x;
    if (j + 1 < p.b.rows) to[1] = p.adds ? to[1] + y : y;
}

// The head of a float, rounded to nearest. What is infinite, or no number, is a tail: the tail of
// an infinite head would be no number. And nothing is rounded up to what is infinite.
__device__ __forceinline__ float wide_head(float x) {
    constexpr unsigned INFINITE = 0x7f800000u, KEPT = 0xffffe000u;
    const unsigned bits = __float_as_uint(x), rounded = (bits + 0x1000u) & KEPT;
    if ((bits & INFINITE) == INFINITE) return 0.0f;
    return __uint_as_float((rounded & INFINITE) == INFINITE ? bits & KEPT : rounded);
}

// A thread's part of a chunk of an operand in registers: four lines of four neighbours in memory.
// They are steps of the depth and, in the operand that lies along its rows, four rows; or four rows
// and steps of the depth.
template <bool ALONG>
struct LoadedChunk {
    static constexpr int LINES = 4, NEAR = 4;
    static_assert(LINES * NEAR * MATMUL_THREADS == MATMUL_DOWN * DEPTH, "of both operands");
    float x[LINES][NEAR];

    static __device__ __forceinline__ int row() {
        return ALONG ? (int)threadIdx.x % (MATMUL_DOWN / 4) * 4 : (int)threadIdx.x / (DEPTH / 4);
    }
    static __device__ __forceinline__ int step() {
        return (ALONG ? (int)threadIdx.x / (MATMUL_DOWN / 4) : (int)threadIdx.x % (DEPTH / 4)) * 4;
    }
    // Rows from one line to the next, where lines are rows.
    static constexpr int FAR = MATMUL_THREADS / (DEPTH / 4);

    // Load from row `i0` and step `k0` of the depth on; zeros beyond the end.
    __device__ __forceinline__ void fetch(const Factor& from, int vector, int i0, int k0,
                                          int deep) {
        const int i = i0 + row(), k = k0 + step();
        const float* const first = from.first + (ALONG ? k * from.pitch + i : i * from.pitch + k);
        const long long pitch = ALONG ? from.pitch : FAR * from.pitch;
        const int lines = ALONG ? deep - k : ((int)from.rows - i + FAR - 1) / FAR,
                  near = ALONG ? (int)from.rows - i : deep - k;
        if (vector == 4)
            fetch_lines<4>(first, pitch, lines, near);
        else if (vector == 2)
            fetch_lines<2>(first, pitch, lines, near);
        else
            fetch_lines<1>(first, pitch, lines, near);
    }
    template <int V>
    __device__ __forceinline__ void fetch_lines(const float* first, long long pitch, int lines,
                                                int near) {
#pragma unroll
        for (int l = 0; l < LINES; ++l)
#pragma unroll
            for (int c = 0; c < NEAR; c += V) {
                Vec<V> some;
#pragma unroll
                for (int v = 0; v < V; ++v) some.v[v] = 0;
                if (l < lines && c < near) some = load<V>(first + l * pitch + c);
#pragma unroll
                for (int v = 0; v < V; ++v) x[l][c + v] = some.v[v];
            }
    }
    // Call `put(at, four)` for each row and four steps of its depth.
    template <class Put>
    __device__ __forceinline__ void each_row(Put put) const {
        const int at = OperandChunk::at(row(), step());
        if (ALONG) {
#pragma unroll
            for (int r = 0; r < NEAR; ++r)
                put(at + OperandChunk::at(r, 0), Vec<4>{{x[0][r], x[1][r], x[2][r], x[3][r]}});
        } else {
#pragma unroll
            for (int l = 0; l < LINES; ++l)
                put(at + OperandChunk::at(l * FAR, 0),
                    Vec<4>{{x[l][0], x[l][1], x[l][2], x[l][3]}});
        }
    }
    __device__ __forceinline__ void store_whole(float* to) const {
        each_row([&](int at, const Vec<4>& four) { store<4>(to + at, four); });
    }
    __device__ __forceinline__ void store_split(float* heads, float* tails) const {
        each_row([&](int at, const Vec<4>& four) {
            Vec<4> head, tail;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                head.v[c] = wide_head(four.v[c]);
                tail.v[c] = four.v[c] - head.v[c];
            }
            store<4>(heads + at, head);
            store<4>(tails + at, tail);
        });
    }
};

// A thread's sums of a tile.
struct TileSums {
    float sum[SUMS_EACH];

    __device__ __forceinline__ TileSums() {
#pragma unroll
        for (int e = 0; e < SUMS_EACH; ++e) sum[e] = 0;
    }
    // Begin to multiply a chunk: what the units sum is there after `finish`.
    static __device__ __forceinline__ void begin(const MatmulBuffer& chunk,
                                                 float (&few)[SUMS_EACH]) {
        Split<4, true> x[STEPS];
#pragma unroll
        for (int e = 0; e < 4 * STEPS; ++e) {
            const int k = e / 4 * 8 + e % 4 / 2 * 4 + (int)threadIdx.x % 4;
            const float whole = chunk.a[OperandChunk::at(row(e % 2 * 2), k)];
            x[e / 4].head[e % 4] = wide_head(whole);
            x[e / 4].tail[e % 4] = whole - x[e / 4].head[e % 4];
        }
#ifdef __CUDACC_RTC__
        constexpr unsigned long long NEXT = 2 * OperandChunk::FOUR / 4;
        const unsigned long long heads = description(chunk.head);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        const unsigned long long tails = description(chunk.tail);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            group_mma(few, x[k].tail, heads + k * NEXT, k > 0);
            group_mma(few, x[k].head, tails + k * NEXT, 1);
        }
#pragma unroll
        for (int k = 0; k < STEPS; ++k) group_mma(few, x[k].head, heads + k * NEXT, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
        for (int e = 0; e < SUMS_EACH; ++e) {
            const int i = row(e), j = column(e);
            float large = 0, small = 0;
            for (int k = 0; k < DEPTH; ++k) {
                const float whole = chunk.a[OperandChunk::at(i, k)], head = wide_head(whole),
                            other = chunk.head[OperandChunk::at(j, k)];
                large += head * other;
                small += (whole - head) * other + head * chunk.tail[OperandChunk::at(j, k)];
            }
            few[e] = large + small;
        }
#endif
    }
    __device__ __forceinline__ void finish(float (&few)[SUMS_EACH]) {
#ifdef __CUDACC_RTC__
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
#pragma unroll
        for (int e = 0; e < SUMS_EACH; ++e) {
#ifdef __CUDACC_RTC__
            asm volatile("" : "+f"(few[e])::"memory");  // not read before it is there
#endif
            sum[e] += few[e];
        }
    }
    // The row and column of sum `e` in the tile; after an even one comes its neighbour.
    static __device__ __forceinline__ int row(int e) {
        return (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4 + e / 2 % 2 * 8;
    }
    static __device__ __forceinline__ int column(int e) {
        return e / 4 * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
    }
};

// Leave the sums of a split; the block of a tile that comes last adds up those of all, in their
// order. Returns whether it is this one.
__device__ __forceinline__ bool sum_splits(const WideProduct& p, TileSums& sums, int number) {
    const int tiles = (int)(p.down * p.across), tile = number % tiles, splits = (int)p.splits;
    const auto left = [&](int at) {
        return p.partial + (long long)at * (SUMS_EACH * MATMUL_THREADS) + threadIdx.x;
    };
    float* const own = left(number);
#pragma unroll
    for (int e = 0; e < SUMS_EACH; ++e) own[e * MATMUL_THREADS] = sums.sum[e];
    if (!is_last(p.arrived + tile, splits)) return false;
    sums = TileSums();
#pragma unroll 1
    for (int split = 0; split < splits; ++split) {
        const float* const some = left(split * tiles + tile);
#pragma unroll
        for (int e = 0; e < SUMS_EACH; ++e) sums.sum[e] += __ldcg(&some[e * MATMUL_THREADS]);
    }
    return true;
}

// Make what the block has, chunk after chunk: while the last sums of a tile are stored, the first
// chunks of the next one are on their way.
template <bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void multiply(const WideProduct& p) {
    VRT_SHARED(MatmulMemory, memory);
    const int all = Place::all(p);
    LoadedChunk<A_ALONG> of_a;
    LoadedChunk<B_ALONG> of_b;
    Place from(p, (int)blockIdx.x);
    bool loaded = true;
    const auto fetch_next = [&]() {
        loaded = from.number < all;
        if (!loaded) return;
        of_a.fetch(p.a, (int)p.vector, from.i0, from.k, from.end);
        of_b.fetch(p.b, (int)p.vector, from.j0, from.k, from.end);
        from.k += DEPTH;
        if (from.k >= from.end) from = Place(p, from.number + (int)gridDim.x);
    };
    const auto store_next = [&](int buffer) {
        MatmulBuffer& to = memory->buffers[buffer];
        of_a.store_whole(to.a);
        of_b.store_split(to.head, to.tail);
        has_stored(memory->stored + buffer);
    };
    TileSums sums;
    make_barriers(memory->stored);
    fetch_next();
    store_next(0);
    fetch_next();
    int read = 0, parity = 0;
    Place at(p, (int)blockIdx.x);
#pragma unroll 1
    while (at.number < all) {
        const int next = read + 1 == CHUNKS_STORED ? 0 : read + 1;
        float few[SUMS_EACH];
        wait_until_stored(memory->stored + read, parity);
        sums.begin(memory->buffers[read], few);
        if (loaded) store_next(next);
        fetch_next();
        sums.finish(few);
        parity ^= next == 0;
        read = next;
        at.k += DEPTH;
        if (at.k < at.end) continue;
        if (p.splits == 1 || sum_splits(p, sums, at.number)) {
#pragma unroll
            for (int e = 0; e < SUMS_EACH; e += 2)
                take(p, at.i0 + TileSums::row(e), at.j0 + TileSums::column(e), sums.sum[e],
                     sums.sum[e + 1]);
        }
        sums = TileSums();
        at = Place(p, at.number + (int)gridDim.x);
    }
}
