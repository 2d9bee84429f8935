// Matrix units: products of two TF32 numbers each, summed in float32. A float32 is split into a
// head and a tail that TF32 can hold; head head + head tail + tail head keeps float32's accuracy
// (Markidis et al. 2018). With VRT_MANTISSA, the bits of an operand that are kept (10: TF32, 7:
// bfloat16, which TF32 can hold as well), heads are rounded to nearest and tails left out.
#pragma once
#include "vertexrt.cuh"

#ifndef VRT_REAL
#define VRT_TENSOR_CORES 1
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
    float head[N];
#ifndef VRT_MANTISSA
    float tail[N];
#endif

    __device__ __forceinline__ void put(int e, float x) {
        head[e] = head_of<ROUNDED>(x);
#ifndef VRT_MANTISSA
        tail[e] = x - head[e];
#endif
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
    // zero. Independent calls should lie between those of one sum.
    template <bool A, bool B>
    __device__ __forceinline__ void add_head_tail(const Split<4, A>& a, const Split<2, B>& b) {
#ifndef VRT_MANTISSA
        mma(sum, a.head, b.tail[0], b.tail[1], sum);
#endif
    }
    template <bool A, bool B>
    __device__ __forceinline__ void add_tail_head(const Split<4, A>& a, const Split<2, B>& b) {
#ifndef VRT_MANTISSA
        mma(sum, a.tail, b.head[0], b.head[1], sum);
#endif
    }
    template <bool A, bool B>
    __device__ __forceinline__ void add(const Split<4, A>& a, const Split<2, B>& b) {
        add_head_tail(a, b);
        add_tail_head(a, b);
        add_heads(a.head, b.head[0], b.head[1]);
    }
    // Small terms of a few steps first, then the large ones: sums inside the units are small most
    // of the time. Only the heads of `a` are read: the units truncate the rest.
    template <bool A, bool B>
    __device__ __forceinline__ void add_tails(const Split<4, A>& a, const Split<2, B>& b) {
        add_head_tail(a, b);
        add_tail_head(a, b);
    }
    __device__ __forceinline__ void add_heads(const float (&a)[4], float b0, float b1) {
        mma(sum, a, b0, b1, sum);
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
#endif
