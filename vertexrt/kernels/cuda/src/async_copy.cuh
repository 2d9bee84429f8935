// Asynchronous copies to shared memory (cp.async), committed in groups.
#pragma once
#include "vertexrt.cuh"

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
