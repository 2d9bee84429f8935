// A product tile by tile, and how it is shared out over the warps of a block.
//
// A block makes a tile of c(i, j) = sum over k of a(i, k) b(j, k). Chunks of both operands pass
// through a ring of buffers in shared memory, so that loads overlap. Warps share the tile and,
// where they are more than it has parts, the depth of each chunk; the sums of these are added in
// order.
#pragma once
#include "async_copy.cuh"
#include "mac.cuh"
#include "row_ops.cuh"

constexpr int PRODUCT_THREADS = 256, CHUNK = 128 / sizeof(real);  // steps of the depth
// A processor of a persistent kernel has a block at a time: it loads for several steps of a chunk.
#if defined(VRT_PERSISTENT) && !defined(VRT_REAL)
constexpr int STEPS_AT_ONCE = 8;
#else
constexpr int STEPS_AT_ONCE = 1;
#endif

// The lines of an operand in memory: its rows or, along them, steps of the depth. With pitch 0 each
// thread copies of the one line that `first` is for it.
struct Lines {
    const real* first;
    int count, length, pitch;
};

// A chunk of an operand in shared memory, ROWS x CHUNK, as it lies in memory: in lines along the
// rows (ALONG), or along the depth. Of its pitch lanes that read a line each have different banks.
template <bool ALONG_, int ROWS, int PAD>
struct Chunk {
    static constexpr bool ALONG = ALONG_;
    static constexpr int LINES = ALONG ? CHUNK : ROWS, LENGTH = ALONG ? ROWS : CHUNK;
    static constexpr int PITCH = LENGTH + (ALONG ? PAD : 4), SIZE = LINES * PITCH;
    static __device__ __forceinline__ int at(int i, int k) {
        return ALONG ? k * PITCH + i : i * PITCH + k;
    }
    // Copy it, from row `i0` and step `k0` of the depth on, in vectors of V; zeros beyond the end.
    // A thread copies EACH neighbours of a line.
    template <int EACH, int V>
    static __device__ __forceinline__ void copy(real* to, const Lines& from, int i0, int k0) {
        constexpr int ALL = LINES * LENGTH / EACH,
                      COUNT = (ALL + PRODUCT_THREADS - 1) / PRODUCT_THREADS;
        constexpr int AT_ONCE = COUNT < 2 ? COUNT : 2;  // more addresses take many registers
#pragma unroll AT_ONCE
        for (int e = 0; e < COUNT; ++e) {
            const int part = (int)threadIdx.x + e * PRODUCT_THREADS;
            if (ALL % PRODUCT_THREADS != 0 && part >= ALL) break;
            const int l = part / (LENGTH / EACH), at = part % (LENGTH / EACH) * EACH;
            const int line = (ALONG ? k0 : i0) + l, begin = (ALONG ? i0 : k0) + at;
            const int there = from.pitch == 0 || line < from.count ? from.length - begin : 0;
            const real* const first = from.first + (long long)line * from.pitch + begin;
#pragma unroll
            for (int k = 0; k < EACH; k += V)
                copy_or_zero<V>(to + l * PITCH + at + k, k < there ? first + k : from.first,
                                k < there);
        }
    }
};

// Store neighbours of a row of which `left` elements are left. With V > 1, rows have whole pairs,
// which are aligned.
template <int V, int N>
__device__ __forceinline__ void store_some(real* to, const Vec<N>& x, int left) {
    if (V > 1) {
        store(to, x);
        return;
    }
#pragma unroll
    for (int n = 0; n < N; ++n)
        if (n < left) to[n] = x.v[n];
}

// Buffers of chunks of so many reals.
template <int STAGES, int A, int B>
struct alignas(16) TileMemory {
    static_assert(STAGES > 1, "one chunk is copied while another is read");
    real a[STAGES][A], b[STAGES][B];
};

// What a block makes of c[rows, columns], a sum over `deep`: the tile from row `i` and column `j`
// on, or a split of the depth of it. Splits leave their sums, those of a whole tile each, in
// `left`, and `arrived`, zero before and after, counts them: the last block adds them up, in order.
struct TileWork {
    int i, j, rows, columns, deep, tile, split, splits;
    real* left;
    int* arrived;
};

// A tile of ROWS x COLUMNS by a policy of mac.cuh. A thread copies EACH elements at once, 0 for a
// vector.
template <class Mac, int ROWS, int COLUMNS, bool A_ALONG, bool B_ALONG, int EACH, int STAGES>
struct TileProduct {
    using A = Chunk<A_ALONG, ROWS, Mac::PAD>;
    using B = Chunk<B_ALONG, COLUMNS, Mac::PAD>;
    using Sums = typename Mac::template Sums<A, B>;
    using Memory = TileMemory<STAGES, A::SIZE, B::SIZE>;
    static constexpr int ACROSS = COLUMNS / Mac::ACROSS, WARPS = ROWS / Mac::DOWN * ACROSS;
    static constexpr int GROUPS = PRODUCT_THREADS / 32 / WARPS;  // of warps: they share the depth
    static constexpr int OWN = Mac::SUMS / GROUPS;               // sums that a thread ends with
    static constexpr int N = Mac::NEIGHBOURS;

    // `out(i, j, x)` takes elements of a row of c next to each other, of which the last may be
    // beyond its end.
    template <int V, class Out>
    static __device__ __forceinline__ void make(Memory& memory, const Lines& a, const Lines& b,
                                                const TileWork& work, Out out) {
        const int chunks = (work.deep + CHUNK - 1) / CHUNK;
        const int begin = chunks * work.split / work.splits;
        const int end = chunks * (work.split + 1) / work.splits;
        const auto fetch = [&](int chunk) {
            if (chunk < end) {
                constexpr int COPIED = EACH > 0 ? EACH : V;
                const int k = chunk * CHUNK, buffer = (unsigned)chunk % STAGES;
                A::template copy<COPIED, V>(memory.a[buffer], a, work.i, k);
                B::template copy<COPIED, V>(memory.b[buffer], b, work.j, k);
            }
            commit_copies();
        };
        const int warp = threadIdx.x / 32, group = warp / WARPS;
        const int i = warp % WARPS / ACROSS * Mac::DOWN, j = warp % ACROSS * Mac::ACROSS;
        Sums sums;
#pragma unroll
        for (int ahead = 0; ahead < STAGES - 1; ++ahead) fetch(begin + ahead);
        for (int chunk = begin; chunk < end; ++chunk) {
            wait_for_copies<STAGES - 2>();
            __syncthreads();
            fetch(chunk + STAGES - 1);  // into the buffer whose readers the barrier has waited for
            const int read = (unsigned)chunk % STAGES;
#pragma unroll STEPS_AT_ONCE
            for (int step = 0; step < CHUNK / Mac::STEP; step += GROUPS)
                sums.add(memory.a[read], memory.b[read], i, j, (step + group) * Mac::STEP);
        }

        // A group of warps ends with the sums of its share of the tile, added in order. Of two
        // groups, each stores the share of the other; of more, all store everything, so that no
        // thread branches.
        constexpr int THREADS = 32 * WARPS;
        constexpr bool ALL = GROUPS > 2;
        static_assert(GROUPS > 1, "a share is half of the sums, or less");
        static_assert((ALL ? GROUPS : 1) * Mac::SUMS * THREADS <= STAGES * (A::SIZE + B::SIZE),
                      "the sums fit where the operands were");
        real* const given = &memory.a[0][0] + threadIdx.x % THREADS;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < (ALL ? Mac::SUMS : OWN); ++e) {
            const real x = ALL || group ? sums.of(e) : sums.of(e + OWN);
            given[(ALL ? group * Mac::SUMS + e : group * OWN + e) * THREADS] = x;
        }
        __syncthreads();
        real own[OWN];
#pragma unroll
        for (int e = 0; e < OWN; ++e) {
            own[e] = ALL ? real(0) : group ? sums.of(e + OWN) : sums.of(e);
#pragma unroll
            for (int g = 0; ALL && g < GROUPS; ++g)
                own[e] += given[(g * Mac::SUMS + group * OWN + e) * THREADS];
            if (!ALL) own[e] += given[((group ^ 1) * OWN + e) * THREADS];
        }
        if (work.splits > 1 && !add_splits(work, own)) return;
#pragma unroll
        for (int e = 0; e < OWN; e += N) {
            const int row = work.i + i + Sums::row(group * OWN + e);
            const int column = work.j + j + Sums::column(group * OWN + e);
            Vec<N> x;
#pragma unroll
            for (int n = 0; n < N; ++n) x.v[n] = own[e + n];
            if (row < work.rows && column < work.columns) out(row, column, x);
        }
    }

    // Leave the sums of a split; the last one takes all of them, in order. Return whether it is.
    static __device__ __forceinline__ bool add_splits(const TileWork& work, real (&own)[OWN]) {
        constexpr int W = OWN % 4 == 0 ? 4 : 1;
        constexpr int AT_ONCE = OWN < 8 ? 16 : 512 / (OWN * (int)sizeof(real));
        real* const mine = work.left + (long long)work.tile * work.splits * OWN * PRODUCT_THREADS;
        const auto at = [&](int split, int e) {
            return mine + (split * OWN + e) * PRODUCT_THREADS + threadIdx.x * W;
        };
#pragma unroll
        for (int e = 0; e < OWN; e += W) {
            Vec<W> x;
#pragma unroll
            for (int q = 0; q < W; ++q) x.v[q] = own[e + q];
            store(at(work.split, e), x);
        }
        if (!is_last(work.arrived + work.tile, work.splits)) return false;
#pragma unroll
        for (int e = 0; e < OWN; ++e) own[e] = 0;
        for (int first = 0; first < work.splits; first += AT_ONCE) {
            Vec<W> found[AT_ONCE][OWN / W];  // loads do not wait for each other
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
                for (int e = 0; e < OWN; e += W)
                    found[k][e / W] =
                        first + k < work.splits ? load_of_others<W>(at(first + k, e)) : Vec<W>{};
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
                for (int e = 0; e < OWN; ++e) own[e] += found[k][e / W].v[e % W];
        }
        return true;
    }
};
