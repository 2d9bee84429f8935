// The ring: rows of states, and of operands that the members of a group make in parts, in the
// shared memory of each. Who makes elements of a row puts them into the own ring and sends them to
// the others' (thread-block clusters, sm_90), so that neither the writer waits until memory has
// them nor a reader for memory. The host says which row is where and when (`ring_script.py`): what
// a row of the ring holds is written to memory as well, for whoever comes when the row is gone.
// Children that are not in the ring are copied to it before the processors meet, if they were there
// at an earlier meeting.
#pragma once
#include "cluster.cuh"

constexpr int VECTOR = 16 / sizeof(real);
constexpr int FETCHING = PROCESSOR / 2;  // the first thread of those that fetch what comes next
static_assert(PROCESSOR - FETCHING == TILE_EDGES && TILE_EDGES == 2 * TILE_POINTERS,
              "each fetches an edge");

// What a segment reads of the schedule, by absolute numbers: copies in shared memory, where they
// fit. What no segment of a side reads is null. child_slot: the row of the ring that has the state
// of the child of an edge, or negative.
struct Indices {
    const int *edge_ptr, *child_row, *child_slot, *parent_ptr, *parent_edge;

    // By threads that wait for nobody: the first ones come to meetings.
    __device__ __forceinline__ void fetch(const Instruction& in, TileIndices& to) const {
        const int t = this_thread() - FETCHING;
        if (t < 0) return;
        const int at = t % TILE_POINTERS;
        if (at <= in.rows && rows_fit(in)) {
            if (t < TILE_POINTERS) {
                if (edge_ptr != nullptr) copy_word(&to.edge_ptr[at], edge_ptr + in.first + at);
            } else if (parent_ptr != nullptr) {
                copy_word(&to.parent_ptr[at], parent_ptr + in.first + at);
            }
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
        return TILES_FIT || in.edges <= TILE_EDGES;
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

// Put an element into a row of the own ring, and if members wait for it send it to all of them at
// once: VECTOR neighbouring threads have neighbouring elements, and share the members.
template <int PROCESSORS>
__device__ __forceinline__ void hand_on(real* own, real x, bool sends, unsigned turn) {
    *own = x;
    if (!sends) return;
    const int lane = this_thread() % 32, part = lane % VECTOR, first = lane - part;
    const unsigned quartet = ((1u << VECTOR) - 1) << first;
    Vec<VECTOR> all;
#pragma unroll
    for (int c = 0; c < VECTOR; ++c) all.v[c] = __shfl_sync(quartet, x, first + c);
#pragma unroll 4
    for (int member = part; member < PROCESSORS; member += VECTOR) {
        send<PROCESSORS, VECTOR>(own - part, all, turn, way_to<PROCESSORS>(member));
    }
}

// Rows of the ring that a segment has put there and not sent: that is done when all threads are
// through.
struct Sent {
    int op, n, slot;
};

// Send all members what this one has put into its rows: of PIECES pieces of PIECE elements its
// share.
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

// The same for elements `first` to `end`, where shares are not equal.
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

// Copy the states, SIZE elements each, of children that have rows of the ring from `kept` on.
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
