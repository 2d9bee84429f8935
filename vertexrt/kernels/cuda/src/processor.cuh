// A processor of a persistent kernel: a block, one a multiprocessor. Its arguments, and what lies
// at the start of its shared memory.
#pragma once
#define VRT_PERSISTENT
#include "instruction.cuh"
#include "vertexrt.cuh"

#define VRT_BLOCK (shared_state().turn.block)
#define VRT_GRID (shared_state().turn.grid)
#define VRT_SCRATCH(type, name, count)                                              \
    static_assert(SHARED_STATE_BYTES + sizeof(type) * (count) <= VRT_SHARED_BYTES,  \
                  "a block has the shared memory that steps outside the path use"); \
    type* const name = reinterpret_cast<type*>(shared_memory() + SHARED_STATE_BYTES)
#define VRT_PART(type, name, count) type* const name = reinterpret_cast<type*>(shared_state().part)

constexpr int PROCESSOR = 256, WARPS_EACH = PROCESSOR / 32;  // threads of a processor

// The start of a processor's dynamic shared memory. After it lies the scratch of steps outside the
// path; on the path, weights and what the cells keep.
constexpr int SHARED_INSTRUCTIONS = 64;  // of the script of all processors
struct alignas(128) SharedState {
    struct {
        uint3 block, grid;
        int alive;
    } turn;                                    // of a launch whose blocks are distributed
    double part[32];                           // sums of warps
    alignas(16) unsigned char arguments[768];  // of a launch
    Instruction common[SHARED_INSTRUCTIONS];   // the first of the script of all processors
    alignas(16) unsigned char job[4096];       // the arguments of the kernel, if they fit
    unsigned long long ring[2], all[2];  // barriers of a group that is a cluster, used in turn
};
constexpr int SHARED_STATE_BYTES = sizeof(SharedState);

__device__ __forceinline__ unsigned char* shared_memory() {
    VRT_SHARED(unsigned char, all);
    return all;
}
__device__ __forceinline__ SharedState& shared_state() {
    return *reinterpret_cast<SharedState*>(shared_memory());
}

#include "update.cuh"

enum { FINE, GRID_WAIT, GROUP_WAIT };

typedef unsigned long long FlaggedWord;  // see flagged.cuh: the element is in the lower half

template <int WORDS>
struct Job {
    Orders o;
    long long w[WORDS];
};

// The number of the thread, read anew at each call: what follows from it is then computed where it
// is needed, and not kept for all instructions in registers that weights should have.
__device__ __forceinline__ int this_thread() {
#ifdef __CUDACC_RTC__
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return (int)(thread %
                 PROCESSOR);  // so that quotients and remainders of it are shifts and masks
#else
    return (int)threadIdx.x;
#endif
}
__device__ __forceinline__ int this_processor() {
#ifdef __CUDACC_RTC__
    unsigned block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return (int)(block & 0xffff);
#else
    return (int)blockIdx.x;
#endif
}
