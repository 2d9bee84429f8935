// Asynchronous copies to shared memory (cp.async), committed in groups.
#pragma once
#include "vertexrt.cuh"

// Copy V reals (4, 8 or 16 bytes) to shared memory asynchronously, or zeros where nothing is there;
// `from` is an address that may be read all the same.
template <int V>
__device__ __forceinline__ void copy_or_zero(real* to, const real* from, bool there) {
    constexpr int BYTES = V * sizeof(real);
    VRT_CHECK_ALIGNED(from, Vec<V>);
#ifdef __CUDACC_RTC__
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(there ? 16 : 0)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from),
                     "n"(BYTES), "r"(there ? BYTES : 0)
                     : "memory");
    }
#else
    for (int k = 0; k < V; ++k) to[k] = there ? from[k] : real(0);
#endif
}

// End a group of copies: what the thread copies from now on belongs to the next group.
__device__ __forceinline__ void commit_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `LEFT` of the thread's groups are still in flight.
template <int LEFT>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
