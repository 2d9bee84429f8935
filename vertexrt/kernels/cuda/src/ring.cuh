// The ring: a ring buffer in the shared memory of each member, for rows of states and of operands
// that the members of a group make in parts. A member writes its elements of a row into its own
// ring and sends them to the others' (thread-block clusters, sm_90), so neither the writer nor a
// reader waits for global memory. The host decides which row is where and when (`ring_script.py`).
// A row of the ring is written to memory as well, for readers that come after its place is reused.
// Children that are not in the ring are copied into it before a barrier, if their rows were
// complete at an earlier one.
#pragma once
#include "cluster.cuh"

constexpr int VECTOR = 16 / sizeof(real);
constexpr int FETCHING = PROCESSOR / 2;  // the first of the threads that prefetch
static_assert(PROCESSOR - FETCHING == TILE_EDGES && TILE_EDGES >= TILE_POINTERS,
              "each fetches an edge, and the pointers of a row");

// What a segment reads of the schedule, by absolute numbers: copies in shared memory, where they
// fit. Arrays that no segment of a side reads are null. child_slot: the row of the ring that has
// the state of an edge's child, or negative.
struct Indices {
    const int *edge_ptr, *child_row, *child_slot, *parent_ptr, *parent_edge;

    // Called by all threads. The second half of them copies, since the first ones run the barriers.
    __device__ __forceinline__ void fetch(const Instruction& in, TileIndices& to) const {
        const int t = this_thread() - FETCHING;
        if (t < 0) return;
        if (t <= in.rows && rows_fit(in)) {
            if (edge_ptr != nullptr) copy_word(&to.edge_ptr[t], edge_ptr + in.first + t);
            if (parent_ptr != nullptr) copy_word(&to.parent_ptr[t], parent_ptr + in.first + t);
        }
        if (t < in.edges && edges_fit(in)) {
            if (child_row != nullptr) copy_word(&to.child_row[t], child_row + in.first_edge + t);
            if (child_slot != nullptr) copy_word(&to.child_slot[t], child_slot + in.first_edge + t);
        }
        if (parent_edge != nullptr && t < in.parents && in.parents <= TILE_EDGES) {
            copy_word(&to.parent_edge[t], parent_edge + in.first_parent + t);
        }
    }
    static __device__ __forceinline__ bool rows_fit(const Instruction& in) {
        return TILES_FIT || in.rows < TILE_POINTERS;
    }
    static __device__ __forceinline__ bool edges_fit(const Instruction& in) {
        return EDGES_TOGETHER && (TILES_FIT || in.edges <= TILE_EDGES);
    }
    __device__ __forceinline__ Indices at_hand(const Instruction& in,
                                               const TileIndices& from) const {
        const bool rows = rows_fit(in), edges = edges_fit(in);
        return {rows ? from.edge_ptr - in.first : edge_ptr,
                edges ? from.child_row - in.first_edge : child_row,
                edges ? from.child_slot - in.first_edge : child_slot,
                rows ? from.parent_ptr - in.first : parent_ptr,
                in.parents <= TILE_EDGES ? from.parent_edge - in.first_parent : parent_edge};
    }
};

// The elements of VECTOR neighbouring threads, of those in a mask.
__device__ __forceinline__ Vec<VECTOR> of_neighbours(real x, int first, unsigned mask) {
    Vec<VECTOR> all;
#pragma unroll
    for (int c = 0; c < VECTOR; ++c) all.v[c] = __shfl_sync(mask, x, first + c);
    return all;
}

// Write an element into a row of the own ring and, if other members wait for it, send it to all of
// them at once: VECTOR neighbouring threads have neighbouring elements, and divide the members
// among themselves. All T threads of the row do that; where rows are APART lanes from each other,
// lanes T to APART have the same elements again, and send to other members. What all of these lanes
// have read is read before one of them sends: a shuffle alone does not order memory. The first row
// of a warp has a mask that the compiler knows: others cost some twenty instructions.
template <int PROCESSORS, int T, int APART>
__device__ __forceinline__ void hand_on(real* own, real x, bool sends, unsigned turn) {
    *own = x;
    if (!sends) return;
    const int lane = this_thread() % 32, part = lane % VECTOR, first = lane - part;
    constexpr unsigned ROW = APART >= 32 ? ~0u : (1u << APART % 32) - 1;
    constexpr int AGAIN = APART / T;
    if (lane < APART) {
        __syncwarp(ROW);
    } else {
        __syncwarp(ROW << lane / APART * APART);
    }
    const Vec<VECTOR> all = lane < APART ? of_neighbours(x, first, ROW)
                                         : of_neighbours(x, first, ROW << lane / APART * APART);
    const int begin = AGAIN > 1 ? lane % APART / T * VECTOR + part : part;
#pragma unroll 4
    for (int member = begin; member < PROCESSORS; member += AGAIN * VECTOR) {
        send<PROCESSORS, VECTOR>(own - part, all, turn, way_to<PROCESSORS>(member));
    }
}

// The same where processors have no whole vectors: the thread of each element sends it alone.
// `lane` is its thread of the row, of which `count` have an element.
template <int PROCESSORS, int T, int APART>
__device__ __forceinline__ void hand_on_alone(real* own, real x, int lane, int count, bool sends,
                                              unsigned turn) {
    *own = x;
    if (!sends) return;
    const int left = count - lane / 32 * 32, at = this_thread() % 32;
    const unsigned row = left >= 32 ? ~0u : (1u << left) - 1;
    unsigned all = row;  // lanes that make elements of this row, some of them again
#pragma unroll
    for (int again = T; again < APART; again += T) all |= row << again % 32;
    __syncwarp(APART < 32 ? all << at / APART * APART : all);
    constexpr int AGAIN = APART / T;
#pragma unroll 4
    for (int member = at % APART / T; member < PROCESSORS; member += AGAIN) {
        Vec<1> one;
        one.v[0] = x;
        send<PROCESSORS, 1>(own, one, turn, way_to<PROCESSORS>(member));
    }
}

// Rows of the ring that a segment has written and not yet sent: they are sent when all threads have
// finished the segment.
struct Sent {
    int op, n, slot;
};

// Send all members what this one has written into its rows: its share of PIECES pieces of PIECE
// elements.
template <int PROCESSORS, int PIECES, int PIECE>
__device__ __forceinline__ void send_rows(real* rows, int step, int n, unsigned turn) {
    constexpr int EACH = PIECE / PROCESSORS, W = EACH % VECTOR == 0 ? VECTOR : 1,
                  PARTS = PIECES * EACH / W;
    const int rank = this_processor() % PROCESSORS;
#pragma unroll 1
    for (int at = this_thread(); at < n * PARTS * PROCESSORS; at += PROCESSOR) {
        const unsigned part = (unsigned)at / PROCESSORS, k = part % PARTS * W;
        real* const own =
            rows + (int)(part / PARTS) * step + k / EACH * PIECE + rank * EACH + k % EACH;
        send<PROCESSORS, W>(own, load<W>(own), turn, way_to<PROCESSORS>(at % PROCESSORS));
    }
}

// The same for elements `first` to `end`, where shares differ in size.
template <int PROCESSORS>
__device__ __forceinline__ void send_some(real* rows, int step, int n, int first, int end,
                                          unsigned turn) {
    const int each = end - first;
#pragma unroll 1
    for (int at = this_thread(); at < n * each * PROCESSORS; at += PROCESSOR) {
        const int part = at / PROCESSORS;
        real* const own = rows + part / each * step + first + part % each;
        send<PROCESSORS, 1>(own, load<1>(own), turn, way_to<PROCESSORS>(at % PROCESSORS));
    }
}

// Copy the states, SIZE elements each, of children whose rows of the ring are numbered from `kept`
// on.
template <int SIZE>
__device__ __forceinline__ void copy_far(real* ring, int step, int kept, const Instruction& in,
                                         const Indices& at_hand, const real* states) {
    constexpr int W = SIZE % VECTOR == 0 ? VECTOR : 1, PARTS = SIZE / W;
#pragma unroll 1
    for (int at = this_thread(); at < in.edges * PARTS; at += PROCESSOR) {
        const int e = in.first_edge + at / PARTS, k = at % PARTS * W, slot = at_hand.child_slot[e];
        if (slot >= kept) {
            copy_ahead<W>(ring + slot * step + k,
                          states + (long long)at_hand.child_row[e] * SIZE + k);
        }
    }
}
