// Asynchronous copies to shared memory on the path.
#pragma once
#include "async_copy.cuh"
#include "processor.cuh"

// Copy a word to shared memory asynchronously; `wait_for_all_copies` waits for the thread's own.
__device__ __forceinline__ void copy_word(int* to, const int* from) {
#ifdef __CUDACC_RTC__
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
    *to = *from;
#endif
}
// Copy W reals, 16 bytes or one real. Synchronous where temporaries lie outside shared memory.
template <int W>
__device__ __forceinline__ void copy_ahead(real* to, const real* from) {
#ifdef __CUDACC_RTC__
    if (__isShared(to)) {
        const unsigned address = (unsigned)__cvta_generic_to_shared(to);
        if (W * sizeof(real) == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from)
                         : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from),
                         "n"(sizeof(real))
                         : "memory");
        }
        return;
    }
#endif
    store<W>(to, load<W>(from));
}
__device__ __forceinline__ void wait_for_all_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
