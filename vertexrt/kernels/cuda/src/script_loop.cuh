// Execution of the script of all processors.
#pragma once
#include "cluster.cuh"

// A launch of the batched engine.
#define VRT_STEP(name, Args, threads) __device__ __noinline__ void name(const Args& a)

// The arguments of a step, in shared memory: all threads read the same.
template <class Arguments>
__device__ __forceinline__ Arguments& step_arguments() {
    static_assert(sizeof(Arguments) <= sizeof(SharedState::arguments),
                  "arguments fit where they belong");
    return *reinterpret_cast<Arguments*>(shared_state().arguments);
}

// Tell whether a wait ran out in a launch before this one that began the same script.
__device__ __forceinline__ bool gave_up_before(const Orders& o) {
    return o.begin > 0 && o.record->code != FINE;
}

// Copy what is to run of the common script and the arguments of the kernel to shared memory, where
// loads are fast even after a wait has invalidated the first-level cache. Arguments for which there
// is no room stay where they are: those of stacks of many layers, whose functions copy what is
// theirs.
template <class Work>
__device__ __forceinline__ const Work& load_shared_state(const Work& job) {
    constexpr bool FITS = sizeof(Work) <= sizeof(SharedState::job);
    const long long* const from = reinterpret_cast<const long long*>(&job);
    long long* const to = reinterpret_cast<long long*>(shared_state().job);
    if (FITS)
        for (int k = threadIdx.x; k < (int)(sizeof(Work) / 8); k += PROCESSOR) to[k] = from[k];
    const long long rest = job.o.end - job.o.begin;
    const int count = (int)(rest < SHARED_INSTRUCTIONS ? rest : SHARED_INSTRUCTIONS);
    int* const common = reinterpret_cast<int*>(shared_state().common);
    const int* const script = reinterpret_cast<const int*>(job.o.script + job.o.begin);
    for (int k = threadIdx.x; k < count * INSTRUCTION_WORDS; k += PROCESSOR) common[k] = script[k];
    __syncthreads();
    return FITS ? *reinterpret_cast<const Work*>(to) : job;
}

__device__ __forceinline__ Instruction instruction(const Orders& o, int at) {
    const int k = at - (int)o.begin;
    return k < SHARED_INSTRUCTIONS ? shared_state().common[k] : o.script[at];
}

// Write the arguments of a step: its word k is word words[k] of the kernel. The instruction says
// where its temporaries begin, after word `temporary`, and its counters, after word `arrived`.
__device__ __forceinline__ void fill_arguments(const Instruction& in, const long long* w,
                                               const short* words, int count, int temporary,
                                               int arrived) {
    Args<1>& s = step_arguments<Args<1>>();
    const int k = threadIdx.x;
    if (k < count) {
        const int word = words[k];
        const long long more = word == temporary ? in.temporary * (long long)sizeof(real)
                               : word == arrived ? in.counter * (long long)sizeof(int)
                                                 : 0;
        s.w[k] = w[word] + more;
    }
    if (k == 0) {
        s.n = in.rows, s.lo = in.first, s.at = in.listed, s.m = in.edges, s.elo = in.first_edge;
        s.first = in.start;
    }
}

// Run the blocks of a launch that fall to this processor; `fill` writes the arguments, with all
// threads.
template <class Fill, class Step>
__device__ __forceinline__ void run_blocks(const Instruction& in, Fill fill, Step step) {
    const int all = (int)gridDim.x;
    const int blocks = in.across * in.down, turn = (int)((unsigned)in.before % (unsigned)all);
    const int first = ((int)blockIdx.x + all - turn) % all;
    if (first >= blocks) return;
    __syncthreads();  // readers of the last step's arguments are done
    fill();
    for (int block = first; block < blocks; block += all) {
        __syncthreads();
        if (threadIdx.x == 0) {
            shared_state().turn.block = {(unsigned)(block % in.across),
                                         (unsigned)(block / in.across), 0};
            shared_state().turn.grid = {(unsigned)in.across, (unsigned)in.down, 1};
        }
        __syncthreads();
        step();
    }
}

// Call `each` for the first of every eight pieces that fall to this processor.
template <class Each>
__device__ __forceinline__ void for_each_piece(const Orders& o, Each each) {
    const long long step = (long long)gridDim.x * WARPS;
    for (long long first = (long long)blockIdx.x * WARPS; first < o.store.pieces; first += step)
        each(first);
}

// The words of a kernel that a side of the path is given, where several sides have one function.
// They lie where the arguments of a step do: there is none on the path. Called by all threads.
template <int COUNT>
__device__ __forceinline__ const long long* own_words(const long long* w, const short* numbers) {
    static_assert(COUNT * sizeof(long long) <= sizeof(SharedState::arguments), "there is room");
    long long* const own = reinterpret_cast<long long*>(shared_state().arguments);
    __syncthreads();  // readers of the last step's arguments are done
    for (int k = this_thread(); k < COUNT; k += PROCESSOR) own[k] = w[numbers[k]];
    __syncthreads();
    return own;
}

// Run a side of the path as a function of its own, with its own registers.
template <auto SIDE, class Work>
__device__ __noinline__ bool apart(const Work& job, int group, int side, bool waits, int at,
                                   unsigned& met, GroupBarrier& group_barrier, Timestamps& stamps) {
    unsigned own_met = met;
    GroupBarrier own_barrier = group_barrier;
    Timestamps own_stamps = stamps;
    const bool there = SIDE(job, group, side, waits, at, own_met, own_barrier, own_stamps);
    met = own_met;
    group_barrier = own_barrier;
    stamps = own_stamps;
    return there;
}
