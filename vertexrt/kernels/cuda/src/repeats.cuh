// Repeated instructions: levels of chains that follow each other, as one instruction of the script.
// No instruction and no index is fetched between them.
//
// Repetition t is about rows `first + t step` and on, a few of them; edges and children move on by
// the same step. The states of children are in the rows of the ring that the repetition before has
// put there, or in memory where a side has no ring. Operands are copied REPEAT_BUFFERS - 1
// repetitions ahead, each into temporaries of its own. `repeats.py` writes such instructions, and
// says when.
//
// A level may have two parts: the members of a group meet between them, and the second multiplies
// what all members have made in the first. That is how levels of large groups are on the way back.
//
// Synchronisation. A processor alone has a barrier between two repetitions. Members of a group send
// the rows that they make as their last work on what they have read; so when all rows have come,
// all threads of all members have finished the repetition before, and only the barrier of the ring
// is waited for, by each thread by itself. In groups too large to be clusters elements of rows are
// sent with flags (`flagged.cuh`) if there is room for a ring; without one members meet as between
// two instructions.
// Between two parts they always do; so the second part of a level and the first one of the next
// have a barrier of the processor's threads between them. Temporaries are used again three
// repetitions later. The group of copies that a repetition waits for is the last but one: each
// commits one group. The second half of the threads copies: the first ones make the rows.
#pragma once
#include "flagged.cuh"

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
// one, whatever its number, which says where gradients of children are left.
struct EdgeOfRow {
    int row, number;
    __device__ __forceinline__ EdgeOfRow operator+(int slot) const { return {row, number + slot}; }
    __device__ __forceinline__ bool operator<(EdgeOfRow end) const { return row < end.row; }
    __device__ __forceinline__ explicit operator long long() const { return number; }
};
struct EdgesOfRows {
    int by, each;
    __device__ __forceinline__ EdgeOfRow operator[](int k) const { return {k, by + k * each}; }
};

// Numbers that rise by one: element k is k + by.
struct Rising {
    int by;
    __device__ __forceinline__ int operator[](int k) const { return k + by; }
};

// The edges to the parents of rows, one or two of each row: where they begin, and their numbers,
// which rise from each row of a repetition to the next.
struct ParentPointers {
    int by, two;
    __device__ __forceinline__ int operator[](int row) const { return (row << two) + by; }
};
struct ParentEdges {
    int first, two, at[2], rise[2];
    __device__ __forceinline__ int operator[](int p) const {
        const int row = (p - first) >> two, which = (p - first) & two;
        return which ? at[1] + row * rise[1] : at[0] + row * rise[0];
    }
};

// Rows of children, never negative: the compiler drops what would be done otherwise.
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
    static __device__ __forceinline__ Pointers of(const Instruction& in) {
        const int each = in.edges / in.rows;
        return {in.first_edge - in.first * each, each};
    }
    static __device__ __forceinline__ int first(const Instruction& in) { return in.first; }
};
template <>
struct EdgeNumbers<0> {
    typedef Rising Pointers;
    static __device__ __forceinline__ Pointers of(const Instruction& in) {
        return {in.first_edge - in.first};
    }
    static __device__ __forceinline__ int first(const Instruction& in) { return in.first_edge; }
};

// What a segment reads of the schedule, of the rows of a repetition: as `Indices`, of the children
// in a slot. `buffer` says which of the temporaries are its own; `to_next` is how far it is to the
// next repetition's.
template <int SLOT>
struct RepeatedIndices {
    typename EdgeNumbers<SLOT>::Pointers edge_ptr;
    RisingRows child_row, child_slot;
    ParentPointers parent_ptr;
    ParentEdges parent_edge;
    int buffer;
    __device__ __forceinline__ int to_next() const {
        return buffer + 1 == REPEAT_BUFFERS ? 1 - REPEAT_BUFFERS : 1;
    }
};

// How a side of the path repeats segments: `run(in, rows, indices, wait_for_operands,
// prefetch_next)` executes one, and calls both; `ahead(in, rows, indices, first)` copies operands,
// for the first repetition also those that the others are left by the one before; `begin()` copies
// weights to registers that other code has no room to hold there; `second(in, rows, indices,
// wait_for_operands)` executes the second part of a level of two. Where rows come with flags,
// `copy(in, rows, slot, from)` copies states of rows from `from` on to the ring, and
// `receive(in, rows, slot, flag, at)` waits for what is sent there.
enum { IN_MEMORY, IN_RING, FLAGGED };  // where members of a group find what others have made
template <int RING_ROWS, int SLOT, int LEVEL, int WAY, class Run, class Ahead, class Begin,
          class Second, class Copy, class Receive>
struct Repeats {
    static constexpr bool ANY = true, TWO_PARTS = LEVEL > 1;
    static constexpr int ROWS = RING_ROWS, OF_EDGE = SLOT, MEETING = WAY;
    Run run;
    Ahead ahead;
    Begin begin;
    Second second;
    Copy copy;
    Receive receive;
};
template <int RING_ROWS, int SLOT, int LEVEL, int WAY, class Run, class Ahead, class Begin,
          class Second, class Copy, class Receive>
__device__ __forceinline__
    Repeats<RING_ROWS, SLOT, LEVEL, WAY, Run, Ahead, Begin, Second, Copy, Receive>
    make_repeats(Run run, Ahead ahead, Begin begin, Second second, Copy copy, Receive receive) {
    return {run, ahead, begin, second, copy, receive};
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

    __device__ __forceinline__ RepeatedRows(const Instruction& first, int rows,
                                            const Indices& at_hand)
        : in(first) {
        const int edge = in.first_edge + SLOT, number = Numbers::first(in),
                  parent = in.first_parent, two = in.parents > in.rows;
        indices.edge_ptr = Numbers::of(in);
        indices.child_row.by = at_hand.child_row != nullptr ? at_hand.child_row[edge] - number : 0;
        indices.child_slot.by =
            at_hand.child_slot != nullptr ? at_hand.child_slot[edge] - number : 0;
        const int* const to_parents = at_hand.parent_edge;
        indices.buffer = 0;
        indices.parent_ptr = {parent - (in.first << two), two};
        indices.parent_edge.first = parent;
        indices.parent_edge.two = two;
        for (int which = 0; which < 2; ++which) {
            const int at = parent + (which & two), begin = to_parents[at];
            indices.parent_edge.at[which] = begin;
            indices.parent_edge.rise[which] = rows > 1 ? to_parents[at + (1 << two)] - begin : 0;
        }
    }
    __device__ __forceinline__ int first_child() const {
        return indices.child_row.by + Numbers::first(in);
    }
    __device__ __forceinline__ int first_slot() const {
        return indices.child_slot.by + Numbers::first(in);
    }
    // Begin with children in the first rows of the ring, and rows behind them.
    __device__ __forceinline__ void begin_in_ring(int rows) {
        indices.child_slot.by = -Numbers::first(in);
        in.slot = rows;
    }
    template <int RING_ROWS>
    __device__ __forceinline__ void move_on(int rows) {
        indices.child_slot.by = in.slot - (Numbers::first(in) + in.step);
        in.first += in.step;
        in.first_edge += in.step;
        indices.parent_edge.first += in.step << indices.parent_edge.two;
        indices.parent_edge.at[0] += in.move;
        indices.parent_edge.at[1] += in.move_2;
        in.slot = in.slot + 2 * rows > RING_ROWS ? 0 : in.slot + rows;
        indices.buffer += indices.to_next();
    }
};

// Meet the other members: what all have stored is there then. Returns false when one did not come
// in time.
template <int PROCESSORS>
__device__ __forceinline__ bool meet(const Orders& o, int at, GroupBarrier& group_barrier) {
    __syncthreads();
    group_barrier.come<PROCESSORS>(o, true, 0);
    return group_barrier.wait<PROCESSORS>(o, true, at);
}

// Wait until this member has in its ring what all have made in the repetition before `now`: by
// flags, or at a barrier. Returns false when some of it did not come in time.
template <int PROCESSORS, class Rows, class Now, class Repeats>
__device__ __forceinline__ bool take_over(const Orders& o, const Now& now, Rows rows, int at,
                                          GroupBarrier& group_barrier, const Repeats& repeats) {
    const int slot = now.first_slot();
    if (uses_flags(o, rows)) {
        __syncthreads();  // this member has sent what it makes
        pause();
        repeats.receive(now.in, rows, slot, group_barrier.flag, at);
    } else {
        if (!meet<PROCESSORS>(o, at, group_barrier)) return false;
        repeats.copy(now.in, rows, slot, now.in.first - now.in.step);
    }
    __syncthreads();
    return !gave_up_at(group_barrier.flag);
}

// Execute a repeated instruction, the script's number `at`, after a barrier of all threads; `rows`
// are those of a repetition. Returns false when another member did not come, or send its rows, in
// time.
template <int PROCESSORS, class Rows, class Repeats>
__device__ __forceinline__ bool repeat(const Orders& o, const Instruction& first, Rows rows, int at,
                                       const Indices& at_hand, GroupBarrier& group_barrier,
                                       const Repeats& repeats) {
    constexpr bool ALONE = PROCESSORS == 1, NEAR = !ALONE && Repeats::MEETING == IN_RING,
                   FLAGS = Repeats::MEETING == FLAGGED;
    RepeatedRows<Repeats::OF_EDGE> now(first, rows, at_hand), later = now;
    if (FLAGS) now.begin_in_ring(rows);
    const bool copies = this_thread() >= PROCESSOR - COPYING_THREADS;
    int copied = 0;
    auto copy_next = [&]() {
        if (!copies) return;
        if (copied < first.times) {
            group_barrier.wait_for_rows(o, later.in.first + rows, at);
            repeats.ahead(later.in, rows, later.indices, copied == 0);
        }
        commit_copies();
        later.template move_on<Repeats::ROWS>(rows);
        ++copied;
    };
    auto wait_for_operands = []() { wait_for_copies<REPEAT_BUFFERS - 2>(); };
    for (int k = 0; k < REPEAT_BUFFERS - 1; ++k) copy_next();
    repeats.begin();
    if constexpr (FLAGS) repeats.copy(now.in, rows, 0, now.first_child());
    // All threads may read rows that only those which copy have waited for. Rows of later
    // repetitions are waited for before a barrier of the repetitions before these.
    if constexpr (FLAGS || OVERLAP) __syncthreads();
    bool gone = false;  // some thread did not wait until the rows had come
#pragma unroll 1
    for (int left = first.times; left > 0; --left) {
        if (left < first.times) {
            if (NEAR) {
                group_barrier.come<PROCESSORS>(o, false, first.expect);
                group_barrier.wait_each(o, at);
                if (gone) return false;  // not sooner: all have looked during the wait
            } else if (ALONE || Repeats::TWO_PARTS) {
                __syncthreads();  // the last repetition is over
            } else if constexpr (FLAGS) {
                if (!take_over<PROCESSORS>(o, now, rows, at, group_barrier, repeats)) return false;
            } else {
                if (!meet<PROCESSORS>(o, at, group_barrier)) return false;
            }
        }
        repeats.run(now.in, rows, now.indices, wait_for_operands, copy_next);
        if constexpr (Repeats::TWO_PARTS) {
            if (!meet<PROCESSORS>(o, at, group_barrier)) return false;
            repeats.second(now.in, rows, now.indices, wait_for_operands);
        }
        if (FLAGS) ++group_barrier.flag;
        gone = NEAR && gave_up_at(group_barrier.turn);
        now.template move_on<Repeats::ROWS>(rows);
    }
    return !gone;
}
