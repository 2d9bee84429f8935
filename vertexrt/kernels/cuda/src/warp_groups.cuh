// The matrix units of Hopper (wgmma): a warp group, four warps, multiplies rows in its registers by
// a chunk of another operand in shared memory, and can go on meanwhile. And the barriers by which
// threads say that they have stored a chunk.
#pragma once
#include "mac.cuh"
#include "row_ops.cuh"

constexpr int MATMUL_THREADS = 256, MATMUL_DOWN = 128, MATMUL_ACROSS = 128, DEPTH = 32;
constexpr int STEPS = DEPTH / 8;  // of the depth that the units take at once
constexpr int CHUNKS_STORED = 3;  // one is read, one is stored, and one may still be read
constexpr int SUMS_EACH = MATMUL_ACROSS / 2;  // of a thread

// A chunk of an operand in shared memory: four neighbours of the depth of eight rows are 128 bytes,
// as the units want them. Then come the next eight rows, then the next four of the depth, each with
// an offset by which the stores of eight threads differ in their banks.
struct OperandChunk {
    static constexpr int EIGHT = 36, FOUR = MATMUL_DOWN / 8 * EIGHT + 4, SIZE = DEPTH / 4 * FOUR;
    static_assert(MATMUL_DOWN == MATMUL_ACROSS, "both operands have as many rows");
    static __device__ __forceinline__ int at(int i, int k) {
        return k / 4 * FOUR + i / 8 * EIGHT + i % 8 * 4 + k % 4;
    }
};
struct alignas(16) MatmulBuffer {
    float a[OperandChunk::SIZE], head[OperandChunk::SIZE], tail[OperandChunk::SIZE];
};
struct alignas(16) MatmulMemory {
    MatmulBuffer buffers[CHUNKS_STORED];
    unsigned long long stored[CHUNKS_STORED];  // barriers: all threads have stored a chunk
};

#ifdef __CUDACC_RTC__
__device__ __forceinline__ unsigned in_shared(const void* at) {
    return (unsigned)__cvta_generic_to_shared(at);
}
// Barriers of all threads that are arrived at before they are waited for.
__device__ __forceinline__ void make_barriers(unsigned long long* barriers) {
    if (threadIdx.x < CHUNKS_STORED)
        asm volatile(
            "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(in_shared(barriers + threadIdx.x)),
            "n"(MATMUL_THREADS)
            : "memory");
    __syncthreads();
}
// What the thread has stored may be read by the matrix units of threads that wait for it.
__device__ __forceinline__ void has_stored(unsigned long long* barrier) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(in_shared(barrier)) : "memory");
}
__device__ __forceinline__ void wait_until_stored(unsigned long long* barrier, int parity) {
    constexpr int MOST = 1 << 24;  // tries, each of which may wait; no thread waits for long
    unsigned there = 0;
#pragma unroll 1
    for (int k = 0; k < MOST && !there; ++k)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, "
            "0, p; }"
            : "=r"(there)
            : "r"(in_shared(barrier)), "r"(parity)
            : "memory");
}
#define VRT_EIGHT(d, k)                                                                         \
    "+f"(d[k]), "+f"(d[k + 1]), "+f"(d[k + 2]), "+f"(d[k + 3]), "+f"(d[k + 4]), "+f"(d[k + 5]), \
        "+f"(d[k + 6]), "+f"(d[k + 7])
// d = a b, or d + a b if `adds`, of a warp group: 64 x 128 x 8. `b` describes a matrix in shared
// memory. Which lane has which element of d and a is as for `mma`, sixteen rows a warp.
__device__ __forceinline__ void group_mma(float (&d)[SUMS_EACH], const float (&a)[4],
                                          unsigned long long b, int adds) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1; }"
        : VRT_EIGHT(d, 0), VRT_EIGHT(d, 8), VRT_EIGHT(d, 16), VRT_EIGHT(d, 24), VRT_EIGHT(d, 32),
          VRT_EIGHT(d, 40), VRT_EIGHT(d, 48), VRT_EIGHT(d, 56)
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "l"(b), "r"(adds));
}
#undef VRT_EIGHT
// Where a chunk lies, and how far four more of the depth and eight more rows are, in units of 16
// bytes; nothing is swizzled.
__device__ __forceinline__ unsigned long long description(const float* chunk) {
    return (unsigned long long)(in_shared(chunk) >> 4 & 0x3fff) |
           (unsigned long long)(OperandChunk::FOUR / 4) << 16 |
           (unsigned long long)(OperandChunk::EIGHT / 4) << 32;
}
#else
inline void make_barriers(unsigned long long*) {}
inline void has_stored(unsigned long long*) {}
inline void wait_until_stored(unsigned long long*, int) { __syncthreads(); }
#endif
