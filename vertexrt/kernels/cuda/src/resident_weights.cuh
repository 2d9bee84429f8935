// The weights that a processor holds in registers or in shared memory while a side of the path runs
// (Persistent RNN, ICML 2016; VPPS, MICRO 2018, section III-A1).
#pragma once
#include "processor.cuh"
#include "mac.cuh"

// How ROWS x DEEP elements lie over the threads: WIDE parts of the depth times TALL parts of the
// rows are the warps; of its part a warp has SLABS x BLOCKS fragments of 16 x 16. In a fragment
// lane 4 g + t has columns 4 t to 4 t + 3 of rows g and g + 8: operand A of `mma` with its columns
// in another order, the same for operand B. Where all warps share the depth, the last slab may have
// the first half of its rows alone: there are HALVES of 8 rows.
//
// The fewer warps share the depth, the fewer partial sums there are; but none may be left without
// rows, and a lane holds the columns of a few blocks of an operand: of more where no warps share
// the depth then, so that there is one partial sum, or where a warp then has two slabs. With one
// slab loads of operands take more than partial sums do.
//
// Where a processor owns 4 rows or fewer, a fragment would be empty for the most part. So the depth
// is folded: FOLD parts of it, each of SPAN columns, lie below each other, and a part has EACH of
// the 16 rows. Sums of the parts are added up between lanes. Folds leave work for all warps. Two
// parts would take no less than half a slab does.
constexpr int MOST_BLOCKS = 2, MOST_BLOCKS_OF_FEW = 4, MOST_FOLDS = 8;
constexpr int fold_of(int rows, int deep, int fold) {
    return 2 * fold <= MOST_FOLDS && rows * 2 * fold <= 16 && deep >= 2 * fold * 16 * WARPS_EACH
               ? fold_of(rows, deep, 2 * fold)
               : fold;
}
constexpr int power_below(int n) { return n < 2 ? 1 : 2 * power_below(n / 2); }
constexpr int blocks_of(int deep, int wide) { return ((deep + 15) / 16 + wide - 1) / wide; }
constexpr int slabs_of(int rows, int wide) {
    return ((rows + 15) / 16 * wide + WARPS_EACH - 1) / WARPS_EACH;
}
constexpr int most_blocks(int slabs, int wide) {
    return wide == 1 || slabs == 2 ? MOST_BLOCKS_OF_FEW : MOST_BLOCKS;
}
constexpr int narrowed(int rows, int deep, int wide) {
    return wide > 1 &&
                   blocks_of(deep, wide / 2) <= most_blocks(slabs_of(rows, wide / 2), wide / 2) &&
                   slabs_of(rows, wide / 2) * blocks_of(deep, wide / 2) <=
                       slabs_of(rows, wide) * blocks_of(deep, wide)
               ? narrowed(rows, deep, wide / 2)
               : wide;
}
template <int ROWS, int DEEP>
struct Layout {
    static constexpr int FOLDED = fold_of(ROWS, DEEP, 1);
    static constexpr int FOLD = FOLDED > 2 ? FOLDED : 1, EACH = 16 / FOLD;
    static constexpr int SPAN = FOLD == 1 ? DEEP : (DEEP + 16 * FOLD - 1) / (16 * FOLD) * 16;
    static constexpr int TALLEST = FOLD == 1 ? ROWS : 16;
    static constexpr int PARTS = (SPAN + 15) / 16, DEPTH = DEEP;
    static constexpr int WIDE =
        narrowed(TALLEST, SPAN, PARTS >= WARPS_EACH ? WARPS_EACH : power_below(PARTS));
    static constexpr bool WHOLE =
        DEEP % (16 * FOLD) == 0 && PARTS % WIDE == 0;  // no warp has columns beyond the depth
    static constexpr int TALL = WARPS_EACH / WIDE;
    static constexpr int SLABS = slabs_of(TALLEST, WIDE);
    static constexpr int BLOCKS = blocks_of(SPAN, WIDE);
    static constexpr int HALVES = FOLD == 1 && TALL == 1 ? (ROWS + 7) / 8 : 2 * SLABS;
    static constexpr int PADDED = FOLD == 1 ? HALVES * TALL * 8 : EACH > 4 ? EACH : 4;  // own rows
    static constexpr int FLOATS = HALVES * BLOCKS * 4;                                  // of a lane
    static_assert(FOLD == 1 || (TALL == 1 && SLABS == 1), "all warps share the depth of a fold");

    static __device__ __forceinline__ constexpr bool has(int slab, int half) {
        return 2 * slab + half < HALVES;
    }
    // Which of a lane's quartets is that of a block in half a slab.
    static __device__ __forceinline__ constexpr int quartet(int slab, int half, int block) {
        return (2 * slab + half) * BLOCKS + block;
    }
    // The part of the depth that the lanes 4 g to 4 g + 3 have.
    static __device__ __forceinline__ int part_of(int g) { return FOLD == 1 ? 0 : g / (EACH / 2); }
    // The own row that these have in rows g, or g + 8, of a slab.
    static __device__ __forceinline__ int own(int warp, int slab, int half, int g) {
        if (FOLD > 1) return half * (EACH / 2) + g % (EACH / 2);
        return (warp / WIDE * SLABS + slab) * 16 + half * 8 + g;
    }
    // The first column of a warp in a part of the depth; that of a lane is 4 t further on.
    static __device__ __forceinline__ int first_column(int warp, int part) {
        return part * SPAN + warp % WIDE * BLOCKS * 16;
    }
    // Add up what the parts of the depth have; the lanes of part 0 have the sum.
    static __device__ __forceinline__ real over_parts(real sum) {
#pragma unroll
        for (int g = EACH / 2; g < 8; g *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, 4 * g);
        return sum;
    }
};

// Columns of a block that a lane has: whole numbers, or pairs of bfloat16 in half the room, put in
// their order.
#ifdef VRT_PAIRS
struct alignas(8) Quartet {
    unsigned pair[2];
    __device__ __forceinline__ void put(int c, float x) {
        pair[c / 2] = c % 2 == 0 ? pair_of(x, 0) : pair_of(0, x) | pair[c / 2];
    }
    __device__ __forceinline__ float at(int c) const {
        return c % 2 == 0 ? low_of(pair[c / 2]) : high_of(pair[c / 2]);
    }
};
#else
struct Quartet : Vec<4> {
    __device__ __forceinline__ void put(int c, real x) { this->v[c] = x; }
    __device__ __forceinline__ real at(int c) const { return this->v[c]; }
};
#endif

// A share of a weight in registers.
template <int ROWS, int DEEP>
struct WeightsInRegisters : Layout<ROWS, DEEP> {
    using L = Layout<ROWS, DEEP>;
    static constexpr bool IN_REGISTERS = true;
    Quartet w[L::FLOATS / 4];
    __device__ __forceinline__ void put(int k, int c, real x) { w[k].put(c, x); }
    __device__ __forceinline__ real at(int k, int c) const { return w[k].at(c); }
#ifdef VRT_PAIRS
    __device__ __forceinline__ unsigned pair(int k, int p) const { return w[k].pair[p]; }
#endif
};

// A share in shared memory, for what registers have no room for.
template <int ROWS, int DEEP>
struct WeightsInSharedMemory : Layout<ROWS, DEEP> {
    using L = Layout<ROWS, DEEP>;
    static constexpr bool IN_REGISTERS = false;
    static constexpr int BYTES = L::FLOATS / 4 * PROCESSOR * sizeof(Quartet);
    Quartet* w;
    __device__ __forceinline__ void take(unsigned char* from) {
        w = reinterpret_cast<Quartet*>(from) + threadIdx.x;
    }
    __device__ __forceinline__ void put(int k, int c, real x) { w[k * PROCESSOR].put(c, x); }
    __device__ __forceinline__ real at(int k, int c) const { return w[k * PROCESSOR].at(c); }
#ifdef VRT_PAIRS
    __device__ __forceinline__ unsigned pair(int k, int p) const {
        return w[k * PROCESSOR].pair[p];
    }
#endif
};

// A share in both, for a weight that neither has room for: registers have the first KEPT quartets
// of a thread.
template <int ROWS, int DEEP, int KEPT>
struct WeightsInBoth : Layout<ROWS, DEEP> {
    using L = Layout<ROWS, DEEP>;
    static constexpr bool IN_REGISTERS = true;
    static constexpr int BYTES = (L::FLOATS / 4 - KEPT) * PROCESSOR * sizeof(Quartet);
    Quartet kept[KEPT];
    Quartet* others;
    __device__ __forceinline__ void take(unsigned char* from) {
        others = reinterpret_cast<Quartet*>(from) + threadIdx.x;
    }
    __device__ __forceinline__ const Quartet& of(int k) const {
        return k < KEPT ? kept[k < KEPT ? k : 0] : others[(k - KEPT) * PROCESSOR];
    }
    __device__ __forceinline__ void put(int k, int c, real x) {
        (k < KEPT ? kept[k < KEPT ? k : 0] : others[(k - KEPT) * PROCESSOR]).put(c, x);
    }
    __device__ __forceinline__ real at(int k, int c) const { return of(k).at(c); }
#ifdef VRT_PAIRS
    __device__ __forceinline__ unsigned pair(int k, int p) const { return of(k).pair[p]; }
#endif
};

// A number that need not stay next to those that it was loaded with: operands of matrix units are
// other quartets of registers. `nothing` is zero.
__device__ __forceinline__ float detached(float x, unsigned nothing) {
#ifdef __CUDACC_RTC__
    return __uint_as_float(__float_as_uint(x) ^ nothing);
#else
    return x;
#endif
}
__device__ __forceinline__ double detached(double x, unsigned) { return x; }
__device__ __forceinline__ unsigned zero_of_unknown() {
#ifdef __CUDACC_RTC__
    unsigned y;
    asm volatile("mov.u32 %0, %%tid.y;" : "=r"(y));  // blocks are lines of threads
    return y;
#else
    return 0;
#endif
}

// A weight as tensor cores can have it whole, in a head and a tail: 22 bits, rounded to the
// nearest. Of a longer tail they would cut off the rest, which makes every product a little too
// small.
__device__ __forceinline__ real in_two_parts(real x) {
#if defined(VRT_TENSOR_CORES) && !defined(VRT_MANTISSA)
    const unsigned bits = __float_as_uint(x);
    return __uint_as_float((bits + 1 + (bits >> 2 & 1)) & ~3u);  // ties to even
#else
    return x;
#endif
}

// Load a lane's columns of a block in half a slab: `own` is its row, negative where there is none.
template <bool TRANSPOSED, int DEEP, class Share>
__device__ __forceinline__ void load_block(Share& share, const real* weight, int pitch, int k,
                                           int own, int column, unsigned nothing) {
    if (!TRANSPOSED && DEEP % 4 == 0 && pitch % 4 == 0) {
        Vec<4> x{};
        if (own >= 0 && column < DEEP) x = load<4>(weight + (long long)own * pitch + column);
#pragma unroll
        for (int c = 0; c < 4; ++c) share.put(k, c, detached(in_two_parts(x.v[c]), nothing));
        return;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const bool there = own >= 0 && column + c < DEEP;
        const long long at = TRANSPOSED ? (long long)(column + c) * pitch + own
                                        : (long long)own * pitch + column + c;
        share.put(k, c, there ? in_two_parts(weight[at]) : real(0));
    }
}

// Load a share. `row(q)` is the weight's row (its column if TRANSPOSED) that own row q is, or
// negative; `pitch` is the length of the weight's rows. Of what registers do not hold a few blocks
// are loaded at a time: loads of all of them would not fit in registers either.
template <bool TRANSPOSED, int ROWS, int DEEP, class Share, class Row>
__device__ __forceinline__ void load_weights(Share& share, const real* weight, int pitch, Row row) {
    using L = Layout<ROWS, DEEP>;
    constexpr int UNROLLED = Share::IN_REGISTERS ? L::BLOCKS : 4;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned nothing = zero_of_unknown();
#pragma unroll
    for (int s = 0; s < L::SLABS; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (!L::has(s, half)) break;
            const int q = L::own(warp, s, half, g), part = L::part_of(g);
            const int mine = q < ROWS ? row(q) : -1;
#pragma unroll UNROLLED
            for (int b = 0; b < L::BLOCKS; ++b) {
                const int column = L::first_column(warp, part) + b * 16 + t * 4;
                const int own = L::FOLD == 1 || column < (part + 1) * L::SPAN ? mine : -1;
                const int k = L::quartet(s, half, b);
                load_block<TRANSPOSED, DEEP>(share, weight, pitch, k, own, column, nothing);
            }
        }
}
