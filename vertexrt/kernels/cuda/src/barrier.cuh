// Barriers of the processors of a persistent kernel, and time stamps of what each of them ran.
#pragma once
#include "processor.cuh"

// Loads and stores that order others, and clocks.
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
__device__ __forceinline__ long long cycles() { return clock64(); }
__device__ __forceinline__ void back_off() {}
#else
inline unsigned load_acquire(const unsigned* at) { return *at; }
inline void add_release(unsigned* at, unsigned x) { atomicAdd(at, x); }
inline long long nanoseconds() {  // of a clock that advances with each call of a first thread
    static long long t = 0;
    return t += threadIdx.x == 0 ? 1000000 : 0;
}
inline long long cycles() { return nanoseconds(); }
inline void back_off() { __nanosleep(20); }
#endif

// When a processor ran what, if a network is traced: for each instruction its number in the script,
// and the clock at its start, after its wait and at its end. The first row is the clock and the
// time in nanoseconds at the start of the kernel, the last row those at its end.
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

// Wait until `look()` returns `value` or more. Returns false when the time is up or another
// processor has given up.
template <class Look>
__device__ __forceinline__ bool wait_until(const Orders& o, Look look, unsigned value, int code,
                                           int instruction) {
    unsigned reached = look();
    if ((int)(reached - value) >= 0) return true;
    // A wait inside a group gives up first: other processors wait for those of that group.
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
            *o.gave_up = 1;
        }
        return false;
    }
}

// Barrier of all members, by a counter that each of them increments, in two halves: what lies
// between them needs nothing of other members. The second returns false when one did not arrive in
// time.
__device__ __forceinline__ void come_to(unsigned* counter) {
    __syncthreads();
    if (threadIdx.x == 0) add_release(counter, 1);
}
__device__ __forceinline__ bool wait_for(const Orders& o, unsigned* counter, unsigned value,
                                         int code, int instruction) {
    if (threadIdx.x == 0) {
        shared_state().turn.alive =
            wait_until(o, [&]() { return load_acquire(counter); }, value, code, instruction);
    }
    __syncthreads();
    return shared_state().turn.alive;
}

// Barrier of all processors; `met` counts the arrivals so far.
__device__ __forceinline__ void come_to_grid(const Orders& o) { come_to(o.counters); }
__device__ __forceinline__ bool wait_for_grid(const Orders& o, unsigned& met, int instruction) {
    met += gridDim.x;
    return wait_for(o, o.counters, met, GRID_WAIT, instruction);
}
__device__ __forceinline__ bool grid_barrier(const Orders& o, unsigned& met, int instruction) {
    come_to_grid(o);
    return wait_for_grid(o, met, instruction);
}
