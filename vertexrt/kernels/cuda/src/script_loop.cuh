// Execution of scripts: the one of all processors and, on the path, the one of the processor's
// group.
#pragma once
#include "repeats.cuh"

// A launch of the batched engine.
#define VRT_STEP(name, Args, threads) __device__ __noinline__ void name(const Args& a)

// The arguments of a step, in shared memory: all threads read the same.
template <class Arguments>
__device__ __forceinline__ Arguments& step_arguments() {
    static_assert(sizeof(Arguments) <= sizeof(SharedState::arguments),
                  "arguments fit where they belong");
    return *reinterpret_cast<Arguments*>(shared_state().arguments);
}

// Arguments of a segment of the path. `slot` and what follows are about rows of the ring, see
// ring.cuh; what the segment sends is counted at barrier `turn`, or has it as a flag.
struct Tile {
    int n, lo, m, elo, slot;
    unsigned turn;
    bool in_ring, puts, sends, children;
    FlaggedWord* words = nullptr;  // of the group, where rows are handed on so
};

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
    if (threadIdx.x == 0) shared_state().turn.gave_up = 0;
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
// threads. Processors of groups have no blocks of an overlapped step, see overlap.cuh.
template <int PROCESSORS, class Fill, class Step>
__device__ __forceinline__ void run_blocks(const Orders& o, const Instruction& in, Fill fill,
                                           Step step) {
    const bool overlapped = OVERLAP && in.overlap;
    const int busy = overlapped ? (int)o.groups * PROCESSORS : 0, all = (int)gridDim.x - busy;
    const int blocks = in.across * in.down, turn = (int)((unsigned)in.before % (unsigned)all);
    const int first = ((int)blockIdx.x - busy + all - turn) % all;
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
        if (overlapped) count_block<PROCESSORS>(o, block / in.across);
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
    for (int k = this_thread(); k < COUNT; k += PROCESSOR) own[k] = w[numbers[k]];
    __syncthreads();
    return own;
}

// Begin a side of the path without waiting for an overlapped step before it. Returns false where
// the step before it is not overlapped.
template <int PROCESSORS>
__device__ __forceinline__ bool begin_overlapped(const Orders& o, int at, unsigned& met,
                                                 GroupBarrier& group_barrier) {
    if (!OVERLAP) return false;
    const Instruction in = instruction(o, at);
    if (in.overlap == 0) return false;
    group_barrier.set_pending(in, tile_counters<PROCESSORS>(o));
    met += gridDim.x;  // this processor has come, and does not wait
    return true;
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

// Work between two instructions: `send` sends rows of the ring that the last one has written;
// `fetch` copies children that are not in the ring into it; `ahead` prefetches operands that only
// this processor writes; `deferred` is work of the last instruction that no other processor waits
// for: it runs when this processor has arrived at the next barrier, before it waits for the others.
template <class Send, class Fetch, class Ahead, class Deferred>
struct BetweenInstructions {
    Send send;
    Fetch fetch;
    Ahead ahead;
    Deferred deferred;
};
template <class Send, class Fetch, class Ahead, class Deferred>
__device__ __forceinline__ BetweenInstructions<Send, Fetch, Ahead, Deferred> make_between(
    Send send, Fetch fetch, Ahead ahead, Deferred deferred) {
    return {send, fetch, ahead, deferred};
}

// One side of the path for a processor: `run(in, indices, wait_for_operands, prefetch_next)`
// executes an instruction of the group's script and calls `prefetch_next`, which loads the next
// instruction and its indices, where some threads are idle; `hand` is the work between two
// instructions; `repeats` executes those that are repeated.
template <int PROCESSORS, class Run, class BetweenInstructions, class Repeats>
__device__ __forceinline__ bool follow(const Orders& o, int side_of_path, int group,
                                       GroupBarrier& group_barrier, Timestamps& stamps,
                                       const Indices& indices, Run run, BetweenInstructions hand,
                                       Repeats repeats) {
    const int* const section = o.sections + side_of_path * (o.groups + 1);
    const int begin = section[group], end = section[group + 1];
    const int* const script = reinterpret_cast<const int*>(o.script);
    auto copy_instruction = [&](int k) {
        const int word = PROCESSOR - 1 - this_thread();
        if (k < end && word < INSTRUCTION_WORDS) {
            int* const slot = reinterpret_cast<int*>(&shared_state().group[k % SCRIPT_AHEAD]);
            copy_word(slot + word, script + (long long)k * INSTRUCTION_WORDS + word);
        }
    };
    auto fetch_indices = [&](int k) {
        if (k < end)
            indices.fetch(shared_state().group[k % SCRIPT_AHEAD],
                          shared_state().indices[k % INDICES_AHEAD]);
    };
    auto look_back = [&](int k) {
        if (k < begin) return;
        const Instruction in = shared_state().group[k % SCRIPT_AHEAD];
        hand.deferred(in, indices.at_hand(in, shared_state().indices[k % INDICES_AHEAD]));
    };
    for (int k = begin; k < begin + SCRIPT_AHEAD - 2; ++k) copy_instruction(k);
    wait_for_all_copies();
    __syncthreads();
    fetch_indices(begin);
    Sent sent{0, 0, 0};
    for (int k = begin; k < end; ++k) {
        wait_for_all_copies();
        __syncthreads();  // copies have arrived, and the last instruction is over
        const Instruction& next = shared_state().group[k % SCRIPT_AHEAD];
        const bool waits = PROCESSORS > 1 && next.wait != NO_WAIT, for_all = next.wait == FOR_ALL;
        const bool far = next.far != 0;
        stamps.begin(k);
        if (PROCESSORS > 1 && sent.n > 0) hand.send(sent, group_barrier.turn + 1);
        if (waits) group_barrier.come<PROCESSORS>(o, for_all, next.expect);
        if (far) hand.fetch(next, indices.at_hand(next, shared_state().indices[k % INDICES_AHEAD]));
        commit_copies();
        if (!Repeats::ANY || next.times == 1) {
            group_barrier.wait_for_rows(o, next.first + next.rows, k);
            hand.ahead(next, indices.at_hand(next, shared_state().indices[k % INDICES_AHEAD]));
        }
        commit_copies();
        look_back(k - 1);
        const Instruction in =
            shared_state().group[k % SCRIPT_AHEAD];  // not loaded earlier, to save registers
        sent = {in.op, in.uses & IS_SENT ? in.rows : 0, in.slot};
        if (waits) {
            if (!group_barrier.wait<PROCESSORS>(o, for_all, k)) return false;
        } else if (far) {
            wait_for_copies<1>();
            __syncthreads();
        }
        stamps.waited();
        if constexpr (Repeats::ANY) {
            if (in.times > 1) {
                copy_instruction(k + SCRIPT_AHEAD - 2);
                fetch_indices(k + 1);
                const auto at_hand = indices.at_hand(in, shared_state().indices[k % INDICES_AHEAD]);
                const bool there =
                    in.rows == 1
                        ? repeat<PROCESSORS>(o, in, OneRow{}, k, at_hand, group_barrier, repeats)
                        : repeat<PROCESSORS>(o, in, FewRows{in.rows}, k, at_hand, group_barrier,
                                             repeats);
                if (!there) return false;
                stamps.end();
                continue;
            }
        }
        run(
            in, indices.at_hand(in, shared_state().indices[k % INDICES_AHEAD]),
            []() { wait_for_all_copies(); },
            [&]() {
                copy_instruction(k + SCRIPT_AHEAD - 2);
                fetch_indices(k + 1);
            });
        stamps.end();
    }
    __syncthreads();
    look_back(end - 1);
    __syncthreads();  // steps after the path may reuse its memory
    return true;
}
