// Repeated instructions: levels of chains that follow each other, as one instruction of the script.
// No instruction and no index is fetched between them.
//
// Repetition t is about rows `first + t step` and on, a few of them; edges and children move on by
// the same step. The states of children are in the rows of the ring that the repetition before has
// put there, or in memory where a side has no ring. Operands are copied REPEAT_BUFFERS - 1
// repetitions ahead, each into temporaries of its own. `repeats.py` writes such instructions, and
// says when.
//
// Synchronisation. A processor alone has a barrier between two repetitions. Members of a group send
// the rows that they make as their last work on what they have read; so when all rows have come,
// all threads of all members have finished the repetition before, and only the barrier of the ring
// is waited for, by each thread by itself. Without a ring they meet as between two instructions.
// Temporaries are used again three repetitions later. The group of copies that a repetition waits
// for is the last but one: each commits one group. The second half of the threads copies: the first
// ones make the rows.
#pragma once
#include "ring.cuh"

constexpr int REPEAT_BUFFERS = 3, REPEATED_ROWS = 4, COPYING_THREADS = PROCESSOR / 2;

// The rows of a repetition, in a form in which the compiler sees how many they can be: it drops
// what is done for more.
struct OneRow {
    __device__ __forceinline__ operator int() const { return 1; }
};
struct FewRows {
    static_assert((REPEATED_ROWS & (REPEATED_ROWS - 1)) == 0, "a mask keeps the rows as they are");
    int rows;
    __device__ __forceinline__ operator int() const {
        return 1 + ((rows - 1) & (REPEATED_ROWS - 1));
    }
};

// Where vertices have several edges, the one that is read stands for its row: of each row there is
// one, whatever its number.
struct EdgeOfRow {
    int row;
    __device__ __forceinline__ EdgeOfRow operator+(int) const { return *this; }
    __device__ __forceinline__ bool operator<(EdgeOfRow end) const { return row < end.row; }
};
struct EdgesOfRows {
    int by;
    __device__ __forceinline__ EdgeOfRow operator[](int k) const { return {k}; }
};

// Numbers that rise by one: element k is k + by.
struct Rising {
    int by;
    __device__ __forceinline__ int operator[](int k) const { return k + by; }
};

// The same, never negative: the compiler drops what would be done otherwise.
struct RisingRows {
    int by;
    __device__ __forceinline__ int operator[](int k) const {
        const int found = k + by;
#ifdef __CUDACC_RTC__
        __builtin_assume(found >= 0);
#endif
        return found;
    }
    __device__ __forceinline__ int operator[](EdgeOfRow edge) const { return (*this)[edge.row]; }
};

template <int SLOT>
struct EdgeNumbers {
    typedef EdgesOfRows Pointers;
    static __device__ __forceinline__ int first(const Instruction& in) { return in.first; }
};
template <>
struct EdgeNumbers<0> {
    typedef Rising Pointers;
    static __device__ __forceinline__ int first(const Instruction& in) { return in.first_edge; }
};

// What a segment reads of the schedule, of the rows of a repetition: as `Indices`, of the children
// in a slot. `buffer` says which of the temporaries are its own; `to_next` is how far it is to the
// next repetition's.
template <int SLOT>
struct RepeatedIndices {
    typename EdgeNumbers<SLOT>::Pointers edge_ptr;
    RisingRows child_row, child_slot;
    Rising parent_ptr, parent_edge;
    int buffer;
    __device__ __forceinline__ int to_next() const {
        return buffer + 1 == REPEAT_BUFFERS ? 1 - REPEAT_BUFFERS : 1;
    }
};

// How a side of the path repeats segments: `run(in, rows, indices, wait_for_operands,
// prefetch_next)` executes one, and calls both; `ahead(in, rows, indices, first)` copies operands,
// for the first repetition also those that the others are left by the one before; `begin()` copies
// weights to registers that other code has no room to hold there.
template <int RING_ROWS, int SLOT, class Run, class Ahead, class Begin>
struct Repeats {
    static constexpr bool ANY = true, IN_RING = RING_ROWS > 0;
    static constexpr int ROWS = RING_ROWS, OF_EDGE = SLOT;
    Run run;
    Ahead ahead;
    Begin begin;
};
template <int RING_ROWS, int SLOT, class Run, class Ahead, class Begin>
__device__ __forceinline__ Repeats<RING_ROWS, SLOT, Run, Ahead, Begin> make_repeats(Run run,
                                                                                    Ahead ahead,
                                                                                    Begin begin) {
    return {run, ahead, begin};
}
struct NoRepeats {
    static constexpr bool ANY = false;
};

// The rows of a repetition: an instruction, and the rows of the ring where their children are.
template <int SLOT>
struct RepeatedRows {
    typedef EdgeNumbers<SLOT> Numbers;
    Instruction in;
    RepeatedIndices<SLOT> indices;

    __device__ __forceinline__ RepeatedRows(const Instruction& first, const Indices& at_hand)
        : in(first) {
        const int edge = in.first_edge + SLOT, number = Numbers::first(in),
                  parent = in.first_parent;
        indices.edge_ptr.by = in.first_edge - in.first;
        indices.child_row.by = at_hand.child_row != nullptr ? at_hand.child_row[edge] - number : 0;
        indices.child_slot.by =
            at_hand.child_slot != nullptr ? at_hand.child_slot[edge] - number : 0;
        indices.parent_ptr.by = parent - in.first;
        indices.parent_edge.by =
            at_hand.parent_edge != nullptr ? at_hand.parent_edge[parent] - parent : 0;
        indices.buffer = 0;
    }
    template <int RING_ROWS>
    __device__ __forceinline__ void move_on(int rows) {
        indices.child_slot.by = in.slot - (Numbers::first(in) + in.step);
        in.first += in.step;
        in.first_edge += in.step;
        in.first_parent += in.step;
        in.slot = in.slot + 2 * rows > RING_ROWS ? 0 : in.slot + rows;
        indices.buffer += indices.to_next();
    }
};

// Execute a repeated instruction, the script's number `at`, after a barrier of all threads; `rows`
// are those of a repetition. Returns false when another member did not send its rows in time.
template <int PROCESSORS, class Rows, class Repeats>
__device__ __forceinline__ bool repeat(const Orders& o, const Instruction& first, Rows rows, int at,
                                       const Indices& at_hand, GroupBarrier& group_barrier,
                                       const Repeats& repeats) {
    RepeatedRows<Repeats::OF_EDGE> now(first, at_hand), later = now;
    const bool copies = this_thread() >= PROCESSOR - COPYING_THREADS;
    int copied = 0;
    auto copy_next = [&]() {
        if (!copies) return;
        if (copied < first.times) repeats.ahead(later.in, rows, later.indices, copied == 0);
        commit_copies();
        later.template move_on<Repeats::ROWS>(rows);
        ++copied;
    };
    for (int k = 0; k < REPEAT_BUFFERS - 1; ++k) copy_next();
    repeats.begin();
    bool gone = false;  // some thread did not wait until the rows had come
#pragma unroll 1
    for (int left = first.times; left > 0; --left) {
        if (left < first.times) {
            if (PROCESSORS == 1) {
                __syncthreads();  // the last repetition is over
            } else if (!Repeats::IN_RING) {
                __syncthreads();
                group_barrier.come<PROCESSORS>(o, true, 0);
                if (!group_barrier.wait<PROCESSORS>(o, true, at)) return false;
            } else {
                group_barrier.come<PROCESSORS>(o, false, first.expect);
                group_barrier.wait_each(o, at);
                if (gone) return false;  // not sooner: all have looked during the wait
            }
        }
        repeats.run(
            now.in, rows, now.indices, []() { wait_for_copies<REPEAT_BUFFERS - 2>(); }, copy_next);
        gone = PROCESSORS > 1 && Repeats::IN_RING && group_barrier.gave_up();
        now.template move_on<Repeats::ROWS>(rows);
    }
    return !gone;
}
