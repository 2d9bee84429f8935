// Copies to shared memory that nobody waits for (cp.async) come in lots.
#pragma once
#include "vertexrt.cuh"

// End a thread's lot of copies: what it asks for from now on belongs to the next.
__device__ __forceinline__ void commit_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `LEFT` of the thread's lots are still on their way.
template <int LEFT>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
