// What every kernel is written with: the form of a kernel, vectors of reals, sums over a warp.
//
// The same text is compiled by NVRTC for the device and, through shim.h, by a C++ compiler for the
// host, where each CUDA thread is a fiber. There is no standard library: NVRTC has none.
//
//     struct Scale { real* y; const real* x; int n; };
//
//     VRT_KERNEL(scale, Scale, 256) {
//         int i = blockIdx.x * blockDim.x + threadIdx.x;
//         if (i < a.n) a.y[i] = real(2) * a.x[i];
//     }
//
// - VRT_KERNEL(name, Args, threads): a kernel with one parameter, the trivially copyable struct
//   `a`; launched with at most `threads` threads a block.
// - VRT_SHARED(type, name): `type* name`, the dynamic shared memory of the block, aligned to 16
//   bytes.
// - VRT_SCRATCH(type, name, n): `type name[n]` in shared memory; VRT_PART: more of it, up to 32
//   doubles.
// - VRT_CHECK_ALIGNED(address, type): on the host, end the launch where a vector access is
//   misaligned.
// - VRT_REAL: the type of a real, double or (not defined) float.
// - VRT_BLOCKS: blocks that must fit on a multiprocessor at once; not defined, the compiler weighs
//   them against registers.
#pragma once

constexpr int ROWS_A_SUM =
    64;  // summed one by one; longer sums are sums of these, which loses fewer digits

// A lambda that is part of its caller however large it is: what it refers to stays in registers.
#define VRT_INLINED __attribute__((always_inline))

#ifdef __CUDACC_RTC__

#ifdef VRT_BLOCKS
#define VRT_BOUNDS(threads) __launch_bounds__(threads, VRT_BLOCKS)
#else
#define VRT_BOUNDS(threads) __launch_bounds__(threads)
#endif

#define VRT_KERNEL(name, Args, threads) \
    extern "C" __global__ void VRT_BOUNDS(threads) name(const __grid_constant__ Args a)

#define VRT_SHARED(type, name)                                   \
    extern __shared__ __align__(16) unsigned char vrt_shared_[]; \
    type* const name = reinterpret_cast<type*>(vrt_shared_)

#define VRT_CHECK_ALIGNED(address, type)  // the device reports it by itself

#else
#include "shim.h"  // the same macros for the host
#endif

// A block of a launch and its shared memory. In a persistent kernel, blocks of a launch are run by
// processors one after another and share what a processor has: see persistent.cuh.
#ifndef VRT_PERSISTENT
#define VRT_BLOCK blockIdx
#define VRT_GRID gridDim
#define VRT_SCRATCH(type, name, count) alignas(16) __shared__ type name[count]
#define VRT_PART(type, name, count) __shared__ type name[count]
#endif

#ifdef VRT_REAL
typedef VRT_REAL real;
#else
typedef float real;
#endif

// W reals that are loaded and stored together; W is a power of two. An access has at most 16 bytes,
// so the address must be a multiple of min(16, W * sizeof(real)) bytes.
template <int W>
struct alignas(W * sizeof(real) < 16 ? W * sizeof(real) : 16) Vec {
    static_assert(W > 0 && (W & (W - 1)) == 0, "a vector holds 1, 2, 4, 8, ... reals");
    real v[W];
};

template <int W>
__device__ __forceinline__ Vec<W> load(const real* from) {
    VRT_CHECK_ALIGNED(from, Vec<W>);
    return *reinterpret_cast<const Vec<W>*>(from);
}

template <int W>
__device__ __forceinline__ void store(real* to, Vec<W> x) {
    VRT_CHECK_ALIGNED(to, Vec<W>);
    *reinterpret_cast<Vec<W>*>(to) = x;
}

// Load what other blocks have stored: from the cache that all share.
template <int W>
__device__ __forceinline__ Vec<W> load_of_others(const real* from) {
    VRT_CHECK_ALIGNED(from, Vec<W>);
    Vec<W> x;
#ifdef __CUDACC_RTC__
    if constexpr (W == 4 && sizeof(real) == 4) {
        const float4 all = __ldcg(reinterpret_cast<const float4*>(from));
        return Vec<W>{{all.x, all.y, all.z, all.w}};
    }
#endif
#pragma unroll
    for (int k = 0; k < W; ++k) x.v[k] = __ldcg(from + k);
    return x;
}

// Add to memory by an atomic that nothing waits for. (Of an `atomicAdd` whose result nobody reads
// the compiler makes one beside fences that is waited for.)
__device__ __forceinline__ void add_at(real* to, real x) {
#ifndef __CUDACC_RTC__
    atomicAdd(to, x);
#elif defined(VRT_REAL)
    asm volatile("red.relaxed.gpu.global.add.f64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
                 "d"(x)
                 : "memory");
#else
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)),
                 "f"(x)
                 : "memory");
#endif
}

// Sum over the 32 lanes of a warp, in every lane the same bits: the lanes are paired at distances
// 16, 8, 4, 2, 1, and both of a pair add the same two numbers. All lanes must take part.
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
    for (int distance = 16; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    }
    return x;
}
