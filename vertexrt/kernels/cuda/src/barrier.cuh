// How processors of a persistent kernel wait for each other, and when each of them did what.
#pragma once
#include "processor.cuh"

// Reads and writes that order others, and time.
#ifdef __CUDACC_RTC__
__device__ __forceinline__ unsigned load_acquire(const unsigned* at) {
    unsigned x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
__device__ __forceinline__ void add_release(unsigned* at, unsigned x) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
__device__ __forceinline__ long long nanoseconds() {
    long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ long long cycles() {
    return clock64();
}
__device__ __forceinline__ void back_off() {}
#else
inline unsigned load_acquire(const unsigned* at) {
    return *at;
}
inline void add_release(unsigned* at, unsigned x) {
    atomicAdd(at, x);
}
inline long long nanoseconds() {  // of a clock that goes on when somebody looks at it
    static long long t = 0;
    return t += 1000000;
}
inline long long cycles() {
    return nanoseconds();
}
inline void back_off() {
    __nanosleep(20);
}
#endif

// When a processor ran what, if somebody wants to know: for each instruction its number in the
// script and the clock at its start, behind its wait and at its end. The first row is the clock and
// the time in nanoseconds at the start of the kernel, the last one those at its end.
struct Timestamps {
    long long* to;
    int left;

    __device__ __forceinline__ Timestamps(const Orders& o) : to(nullptr), left(0) {
        if (o.stamps == nullptr || threadIdx.x != 0) return;
        to = o.stamps + blockIdx.x * o.most_stamps * 4;
        left = (int)o.most_stamps - 1;
        both();
    }
    __device__ __forceinline__ void both() {
        if (to == nullptr) return;
        to[0] = -1;
        to[1] = cycles();
        to[2] = nanoseconds();
        to += 4;
    }
    __device__ __forceinline__ void begin(int instruction) {
        if (to == nullptr || left < 2) return;
        to[0] = instruction;
        to[1] = cycles();
    }
    __device__ __forceinline__ void waited() {
        if (to != nullptr && left >= 2) to[2] = cycles();
    }
    __device__ __forceinline__ void end() {
        if (to == nullptr || left < 2) return;
        to[3] = cycles();
        to += 4;
        --left;
    }
};

// Wait until `look()` has seen `value` or more; false, when it did not in time or somebody gave up.
template <class Look>
__device__ __forceinline__ bool wait_until(const Orders& o, Look look, unsigned value, int code,
                                           int instruction) {
    unsigned reached = look();
    if ((int)(reached - value) >= 0) return true;
    // Who waits for a group gives up first: the others wait for that group's processors.
    const long long limit = code == GROUP_WAIT ? o.patience / 2 : o.patience, start = nanoseconds();
    for (unsigned looks = 1;; ++looks) {
        back_off();
        reached = look();
        if ((int)(reached - value) >= 0) return true;
        if (looks % 64 != 0) continue;
        if (load_acquire(o.counters + 1) != 0) return false;
        if (nanoseconds() - start < limit) continue;
        if (atomicCAS(o.counters + 1, 0u, 1u) == 0u) {
            o.record->code = code;
            o.record->processor = blockIdx.x;
            o.record->instruction = instruction;
            o.record->reached = reached;
            o.record->found.refused = 1.0;
        }
        return false;
    }
}

// Meet all members at a counter that each adds one to; false, when somebody did not come.
__device__ __forceinline__ bool counter_barrier(const Orders& o, unsigned* counter, unsigned value,
                                                int code, int instruction) {
    __syncthreads();
    if (threadIdx.x == 0) {
        add_release(counter, 1);
        shared_state().turn.alive =
            wait_until(o, [&]() { return load_acquire(counter); }, value, code, instruction);
    }
    __syncthreads();
    return shared_state().turn.alive;
}

// Meet all processors, which have met so often before.
__device__ __forceinline__ bool grid_barrier(const Orders& o, unsigned& met, int instruction) {
    met += gridDim.x;
    return counter_barrier(o, o.counters, met, GRID_WAIT, instruction);
}
