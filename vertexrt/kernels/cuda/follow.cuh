// How a processor follows scripts: that of all processors, and on the path its group's.
#pragma once
#include "meeting.cuh"

// A launch of the batched engine.
#define VRT_STEP(name, Args, threads) __device__ __forceinline__ void name(const Args& a)

// Where the arguments of a step lie: all threads read the same.
template <class Arguments>
__device__ __forceinline__ Arguments& step_arguments() {
    static_assert(sizeof(Arguments) <= sizeof(Near::arguments), "arguments fit where they belong");
    return *reinterpret_cast<Arguments*>(near().arguments);
}

// What a segment of the path is given.
struct Tile {
    int n, lo, m, elo;
};

// Copy a word to shared memory without waiting; `end_of_copies` waits for the thread's own.
__device__ __forceinline__ void copy_word(int* to, const int* from) {
#ifdef __CUDACC_RTC__
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
    *to = *from;
#endif
}
// The same for W reals, 16 bytes or one; where temporaries do not fit in shared memory it waits.
template <int W>
__device__ __forceinline__ void copy_ahead(real* to, const real* from) {
#ifdef __CUDACC_RTC__
    if (__isShared(to)) {
        const unsigned address = (unsigned)__cvta_generic_to_shared(to);
        if (W * sizeof(real) == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(sizeof(real))
                         : "memory");
        }
        return;
    }
#endif
    store<W>(to, load<W>(from));
}
__device__ __forceinline__ void end_of_copies() {
#ifdef __CUDACC_RTC__
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Copy what all processors are to do, and the arguments of the kernel, to shared memory: an instruction
// is there at once then, whatever waits have thrown out of the first cache.
template <class Work>
__device__ __forceinline__ const Work& come_near(const Work& job) {
    static_assert(sizeof(Work) <= sizeof(Near::job), "the arguments fit where they belong");
    const long long* const from = reinterpret_cast<const long long*>(&job);
    long long* const to = reinterpret_cast<long long*>(near().job);
    for (int k = threadIdx.x; k < (int)(sizeof(Work) / 8); k += PROCESSOR) to[k] = from[k];
    const int count = (int)(job.o.instructions < NEAR_INSTRUCTIONS ? job.o.instructions : NEAR_INSTRUCTIONS);
    int* const common = reinterpret_cast<int*>(near().common);
    const int* const script = reinterpret_cast<const int*>(job.o.script);
    for (int k = threadIdx.x; k < count * INSTRUCTION_WORDS; k += PROCESSOR) common[k] = script[k];
    __syncthreads();
    return *reinterpret_cast<const Work*>(to);
}

__device__ __forceinline__ Instruction instruction(const Orders& o, int at) {
    return at < NEAR_INSTRUCTIONS ? near().common[at] : o.script[at];
}

// Run the blocks of a launch, each processor those whose turn it is; `fill` writes its arguments.
template <class Fill, class Step>
__device__ __forceinline__ void take_turns(const Instruction& in, Fill fill, Step step) {
    const int blocks = in.across * in.down, turn = (int)(in.before % gridDim.x);
    const int first = (int)(blockIdx.x + gridDim.x - turn) % (int)gridDim.x;
    if (first >= blocks) return;
    __syncthreads();  // the last step's arguments are no longer read
    if (threadIdx.x == 0) fill();
    for (int block = first; block < blocks; block += gridDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) {
            near().turn.block = {(unsigned)(block % in.across), (unsigned)(block / in.across), 0};
            near().turn.grid = {(unsigned)in.across, (unsigned)in.down, 1};
        }
        __syncthreads();
        step();
    }
}

__device__ __forceinline__ void update_pieces(const Orders& o) {
    const long long step = (long long)gridDim.x * WARPS;
    for (long long first = (long long)blockIdx.x * WARPS; first < o.store.pieces; first += step) {
        switch (o.rule) {
            case 0: update<Sgd>(o.store, first); break;
            case 1: update<Momentum>(o.store, first); break;
            case 2: update<Adagrad>(o.store, first); break;
            default: update<Adam>(o.store, first); break;
        }
    }
}

__device__ __forceinline__ void square_pieces(const Orders& o) {
    const long long step = (long long)gridDim.x * WARPS;
    for (long long first = (long long)blockIdx.x * WARPS; first < o.store.pieces; first += step) {
        sum_squares(o.store, first);
    }
}

// What a segment reads of the schedule, by absolute numbers: copies in shared memory, where they fit.
struct Indices {
    const int *edge_ptr, *child_row, *parent_ptr, *parent_edge;

    __device__ __forceinline__ void fetch(const Instruction& in, TileIndices& to) const {
        const int t = threadIdx.x;
        if (t < TILE_POINTERS) {
            if (t <= in.n && in.n < TILE_POINTERS) copy_word(&to.edge_ptr[t], edge_ptr + in.lo + t);
        } else if (t < 2 * TILE_POINTERS) {
            const int at = t - TILE_POINTERS;
            if (at <= in.n && in.n < TILE_POINTERS) copy_word(&to.parent_ptr[at], parent_ptr + in.lo + at);
        } else {
            const int at = t - 2 * TILE_POINTERS;
            if (at < in.m && in.m <= TILE_EDGES) copy_word(&to.child_row[at], child_row + in.elo + at);
            if (at < in.parents && in.parents <= TILE_EDGES) {
                copy_word(&to.parent_edge[at], parent_edge + in.first_parent + at);
            }
        }
    }
    __device__ __forceinline__ Indices at_hand(const Instruction& in, const TileIndices& from) const {
        const bool rows = in.n < TILE_POINTERS;
        return {rows ? from.edge_ptr - in.lo : edge_ptr, in.m <= TILE_EDGES ? from.child_row - in.elo : child_row,
                rows ? from.parent_ptr - in.lo : parent_ptr,
                in.parents <= TILE_EDGES ? from.parent_edge - in.first_parent : parent_edge};
    }
};

// One side of the path for a processor: `run(in)` executes an instruction of the group's script, and
// `behind(in)` what nobody waits for: it runs when this processor has come to the next meeting, before
// it waits for the others.
template <int PROCESSORS, class Run, class Behind>
__device__ __forceinline__ bool follow(const Orders& o, int side_of_path, int group, Meetings& meetings,
                                       Stamps& stamps, const Indices& indices, Run run, Behind behind) {
    const int* const section = o.sections + side_of_path * (o.groups + 1);
    const int begin = section[group], end = section[group + 1];
    const int* const script = reinterpret_cast<const int*>(o.script);
    auto copy_instruction = [&](int k) {
        const int word = threadIdx.x;
        if (k < end && word < INSTRUCTION_WORDS) {
            int* const slot = reinterpret_cast<int*>(&near().group[k % SCRIPT_AHEAD]);
            copy_word(slot + word, script + (long long)k * INSTRUCTION_WORDS + word);
        }
    };
    auto fetch_indices = [&](int k) {
        if (k < end) indices.fetch(near().group[k % SCRIPT_AHEAD], near().indices[k % INDICES_AHEAD]);
    };
    auto look_back = [&](int k) {
        if (k < begin) return;
        const Instruction in = near().group[k % SCRIPT_AHEAD];
        behind(in, indices.at_hand(in, near().indices[k % INDICES_AHEAD]));
    };
    for (int k = begin; k < begin + SCRIPT_AHEAD - 2; ++k) copy_instruction(k);
    end_of_copies();
    __syncthreads();
    fetch_indices(begin);
    for (int k = begin; k < end; ++k) {
        end_of_copies();
        __syncthreads();  // what was copied is there, and the last instruction is over
        const bool waits = PROCESSORS > 1 && near().group[k % SCRIPT_AHEAD].wait;
        stamps.begin(k);
        if (waits) meetings.come<PROCESSORS>(o);
        copy_instruction(k + SCRIPT_AHEAD - 2);
        fetch_indices(k + 1);
        look_back(k - 1);
        const Instruction in = near().group[k % SCRIPT_AHEAD];  // not before: registers
        if (waits && !meetings.wait<PROCESSORS>(o, k)) return false;
        stamps.waited();
        run(in, indices.at_hand(in, near().indices[k % INDICES_AHEAD]));
        stamps.end();
    }
    __syncthreads();
    look_back(end - 1);
    __syncthreads();  // what is behind the path may have its memory
    return true;
}
