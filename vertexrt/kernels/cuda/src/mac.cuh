// Multiply and add: what the lanes of a warp do with two chunks in shared memory. One policy is
// FMA, of floats or doubles. The other is matrix units: products of two TF32 numbers each, summed
// in float32. A float32 is split into a head and a tail that TF32 can hold; head head + head tail +
// tail head keeps float32's accuracy (Markidis et al. 2018). With VRT_MANTISSA, the bits of an
// operand that are kept (10: TF32, 7: bfloat16, which TF32 can hold as well), heads are rounded to
// nearest and tails left out.
#pragma once
#include "vertexrt.cuh"

#ifndef VRT_REAL
#define VRT_TENSOR_CORES 1
#ifdef VRT_MANTISSA
constexpr bool HAS_TAILS = false;
#else
constexpr bool HAS_TAILS = true;
#endif
// Weights that a processor holds are pairs of bfloat16, in half the room; and so are operands.
#if defined(VRT_MANTISSA) && VRT_MANTISSA == 7
#define VRT_PAIRS 1
#endif

// d = c + a b of a warp: 16 x 8 x 8. The units do not round: they truncate operands to TF32, and
// sums to float32.
__device__ __forceinline__ void mma(float (&d)[4], const float (&a)[4], float b0, float b1,
                                    const float (&c)[4]) {
#ifdef __CUDACC_RTC__
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)), "f"(c[0]),
          "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
    shim::multiply_matrices(d, a, b0, b1, c, {"mma", __FILE__, __LINE__});
#endif
}

#ifdef VRT_PAIRS
// Two floats as a pair, each rounded to nearest, and what a pair has.
__device__ __forceinline__ unsigned pair_of(float low, float high) {
#ifdef __CUDACC_RTC__
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    const auto rounded = [](float x) {
        const unsigned bits = __float_as_uint(x);
        if (x != x) return bits >> 16 | 0x40u;
        return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
    };
    return rounded(high) << 16 | rounded(low);
#endif
}
__device__ __forceinline__ float low_of(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(unsigned pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

// d += a b of a warp: 16 x 8 x 16, of pairs. What one has of rows g and g + 8, and columns 4 t and
// on, are the four pairs of `a`, the columns one after the other; `b` has those of column g.
__device__ __forceinline__ void mma_of_pairs(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
#ifdef __CUDACC_RTC__
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const float low[4] = {low_of(a[0]), low_of(a[1]), low_of(a[2]), low_of(a[3])};
    const float high[4] = {high_of(a[0]), high_of(a[1]), high_of(a[2]), high_of(a[3])};
    mma(d, low, low_of(b0), low_of(b1), d);
    mma(d, high, high_of(b0), high_of(b1), d);
#endif
}
#endif

// The head of a float. With a tail the head is truncated, so that it can be a second operand. Or it
// is rounded to nearest (ROUNDED): then what the units truncate of the tail, and the product of two
// tails, which is left out, are as often positive as negative, so errors do not add up. That takes
// registers.
template <bool ROUNDED = false>
__device__ __forceinline__ float head_of(float x) {
    const unsigned bits = __float_as_uint(x);
#ifdef VRT_MANTISSA
    constexpr unsigned REST = 1u << (23 - VRT_MANTISSA);
    return __uint_as_float((bits + REST / 2 - 1 + (bits / REST & 1)) &
                           ~(REST - 1));  // ties to even
#else
    return __uint_as_float((ROUNDED ? bits + 0x1000u : bits) & 0xffffe000u);
#endif
}

// Operands of `mma`; N of a lane.
template <int N, bool ROUNDED = false>
struct Split {
    float head[N], tail[N];

    __device__ __forceinline__ void put(int e, float x) {
        head[e] = head_of<ROUNDED>(x);
        if (HAS_TAILS) tail[e] = x - head[e];
    }
};

// Sums of a warp, 16 x 8.
struct FragmentSums {
    float sum[4];

    __device__ __forceinline__ FragmentSums() {
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k] = 0;
    }
    // Sum inside the units: their truncation error grows with the number of calls, always towards
    // zero. Independent calls should lie between those of one sum; small terms, head tail and tail
    // head, should come before the large one, so that sums inside the units are small most of the
    // time.
    template <bool A, bool B>
    __device__ __forceinline__ void add(int term, const Split<4, A>& a, const Split<2, B>& b) {
        if (term == 0 && HAS_TAILS) mma(sum, a.head, b.tail[0], b.tail[1], sum);
        if (term == 1 && HAS_TAILS) mma(sum, a.tail, b.head[0], b.head[1], sum);
        if (term == 2) mma(sum, a.head, b.head[0], b.head[1], sum);
    }
#ifdef VRT_PAIRS
    __device__ __forceinline__ void add_pairs(const unsigned (&a)[4], unsigned b0, unsigned b1) {
        mma_of_pairs(sum, a, b0, b1);
    }
#endif
    // Add sums made inside the units to sums of any length, and clear them.
    __device__ __forceinline__ void move(FragmentSums& few) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            sum[k] += few.sum[k];
            few.sum[k] = 0;
        }
    }
    __device__ __forceinline__ float of(int k) const { return sum[k]; }
};

// Sums of a warp by matrix units: M x N fragments of 16 x 8.
template <int M, int N>
struct MatrixUnits {
    static constexpr int DOWN = 16 * M, ACROSS = 8 * N, SUMS = 4 * M * N;
    static constexpr int STEP = 16;  // of the depth, whose products are summed inside the units
    static constexpr int NEIGHBOURS = 2;  // sums of a lane next to each other in a row
    static constexpr int PAD = 8;         // of lines along the rows: lanes read different banks

    // Of the products of chunks A and B.
    template <class A, class B>
    struct Sums {
        FragmentSums sums[M * N];

        // Add a step of the depth, from `k0` on, for the rows from `i` and `j` on.
        __device__ __forceinline__ void add(const float* a, const float* b, int i, int j, int k0) {
            const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
            FragmentSums few[M * N];
#pragma unroll
            for (int k = k0; k < k0 + STEP; k += 8) {
                Split<4, true> x[M];  // rounded, so that errors do not add up
                Split<2, true> y[N];
#pragma unroll
                for (int e = 0; e < 4 * M; ++e)
                    x[e / 4].put(e % 4,
                                 a[A::at(i + g + e / 4 * 16 + e % 2 * 8, k + t + e % 4 / 2 * 4)]);
#pragma unroll
                for (int e = 0; e < 2 * N; ++e)
                    y[e / 2].put(e % 2, b[B::at(j + g + e / 2 * 8, k + t + e % 2 * 4)]);
#pragma unroll
                for (int term = 0; term < 3; ++term)
#pragma unroll
                    for (int f = 0; f < M * N; ++f) few[f].add(term, x[f / N], y[f % N]);
            }
#pragma unroll
            for (int f = 0; f < M * N; ++f) sums[f].move(few[f]);
        }
        __device__ __forceinline__ real of(int e) const { return sums[e / 4].of(e % 4); }
        static __device__ __forceinline__ int row(int e) {
            return e / 4 / N * 16 + e / 2 % 2 * 8 + (int)threadIdx.x % 32 / 4;
        }
        static __device__ __forceinline__ int column(int e) {
            return e / 4 % N * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
        }
    };
};
#endif

// Which rows of a chunk a lane has, of LANES that share them, N each: where neighbours in memory
// are rows, W next to each other, which are loaded at once; else steps of the depth are.
template <class Chunk, int N, int LANES, int W>
struct LaneRows {
    static constexpr int NEXT = Chunk::ALONG ? W : 1;
    static __device__ __forceinline__ int row(int n, int lane) {
        return (n / NEXT * LANES + lane) * NEXT + n % NEXT;
    }
    // Load W steps of the depth, from `k` on.
    static __device__ __forceinline__ void load_steps(real (&x)[W][N], const real* chunk, int first,
                                                      int lane, int k) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
            const int n = Chunk::ALONG ? e % (N / W) * W : e, q = Chunk::ALONG ? e / (N / W) : 0;
            const Vec<W> v = load<W>(chunk + Chunk::at(first + row(n, lane), k + q));
#pragma unroll
            for (int c = 0; c < W; ++c) (Chunk::ALONG ? x[q][n + c] : x[c][n]) = v.v[c];
        }
    }
};

// Sums of a warp by FMA: a lane has M rows, of those that 4 lanes share, and N columns of 8 lanes'.
// Reads from shared memory are the bottleneck: they are of W reals.
template <int M, int N, int W>
struct Fma {
    static constexpr int DOWN = 4 * M, ACROSS = 8 * N, SUMS = M * N, STEP = W;
    static constexpr int NEIGHBOURS = 1, PAD = 4;

    template <class A, class B>
    struct Sums {
        using Rows = LaneRows<A, M, 4, W>;
        using Columns = LaneRows<B, N, 8, W>;
        real sum[SUMS];

        __device__ __forceinline__ Sums() {
#pragma unroll
            for (int e = 0; e < SUMS; ++e) sum[e] = 0;
        }
        __device__ __forceinline__ void add(const real* a, const real* b, int i, int j, int k) {
            const int lane = (int)threadIdx.x % 32;
            real x[W][M], y[W][N];
            Rows::load_steps(x, a, i, lane / 8, k);
            Columns::load_steps(y, b, j, lane % 8, k);
#pragma unroll
            for (int q = 0; q < W; ++q)
#pragma unroll
                for (int e = 0; e < SUMS; ++e) sum[e] += x[q][e / N] * y[q][e % N];
        }
        __device__ __forceinline__ real of(int e) const { return sum[e]; }
        static __device__ __forceinline__ int row(int e) {
            return Rows::row(e / N, (int)threadIdx.x % 32 / 8);
        }
        static __device__ __forceinline__ int column(int e) {
            return Columns::row(e % N, (int)threadIdx.x % 8);
        }
    };
};
