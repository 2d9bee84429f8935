// The words of the scripts of cells, and the rows of a level: see cell.cuh.
#pragma once
#include "product.cuh"
#include "sync.cuh"

struct alignas(16) ScriptWord {
    int x, y, z, w;
};
struct alignas(8) Pair {
    int row, place;
};
enum CellOp { CELL_END, CELL_LEVEL, CELL_TAKE, CELL_LEAVE, CELL_MEET, CELL_NEXT };

constexpr int CELL_PIECE = 1024;  // words of a script in shared memory
constexpr int CELL_AHEAD = 3, CELL_BUFFERS = 4;

// Where own units of an operand lie in memory: source is the child's slot, or one of these.
constexpr int OF_ITSELF = -1, OF_ABOVE = -2;  // the row; the edge to its parent in a layer above
struct CellOperand {
    const real* from;
    int width, source;
};

// The words of a level that are loaded together, before it is known how many of them there are.
struct LevelWords {
    ScriptWord head, more, row;
    Pair pairs[2];
    const ScriptWord* rows;

    __device__ __forceinline__ LevelWords(const ScriptWord* at)
        : head(at[0]), more(at[1]), row(at[2]), rows(at + 2) {
        const Pair* const lists = reinterpret_cast<const Pair*>(at + 3);
        pairs[0] = lists[0];
        pairs[1] = lists[1];
    }
    __device__ __forceinline__ int count() const { return head.y & 0xff; }
    __device__ __forceinline__ int sent() const { return head.y >> 8 & 0xff; }
    __device__ __forceinline__ int size() const { return head.y >> 16; }
};

// The rows of a level: one, whose words are in registers, or some.
template <int SLOTS, int CHAIN>
struct OneRow_ {
    static constexpr bool ONE = true;
    static constexpr int PAIRS = SLOTS > 0 ? SLOTS + 1 : 1;
    ScriptWord row_;
    Pair pairs[PAIRS];
    const Pair* lists;
    __device__ __forceinline__ OneRow_(const LevelWords& level)
        : row_(level.row), lists(reinterpret_cast<const Pair*>(level.rows + 1)) {
#pragma unroll
        for (int k = 0; k < PAIRS; ++k) pairs[k] = k < 2 ? level.pairs[k] : lists[k];
    }
    __device__ __forceinline__ int row(int) const { return row_.x; }
    __device__ __forceinline__ int place(int) const { return row_.y; }
    __device__ __forceinline__ int edge(int) const { return row_.z; }
    __device__ __forceinline__ int first_child(int) const { return 0; }
    __device__ __forceinline__ int children(int) const { return row_.w >> 16 & 0xff; }
    __device__ __forceinline__ Pair child(int, int k) const {
        return SLOTS > 0 ? pairs[k] : lists[k];
    }
    __device__ __forceinline__ int parents(int) const { return (unsigned)row_.w >> 24; }
    __device__ __forceinline__ int parent(int, int k) const {
        return SLOTS > 0 && k == 0 ? pairs[PAIRS - 1].place : lists[row_.y + k].place;
    }
    template <bool BACK>
    __device__ __forceinline__ void next(int rows, int children, int edges) {
        row_.x += rows;
        row_.z += edges;
#pragma unroll
        for (int k = 0; k < SLOTS; ++k)
            if (pairs[k].row >= 0) pairs[k].row += children;
        constexpr int TURN = CHAIN < PAIRS ? CHAIN : 0;
        const int child = pairs[TURN].place;
        if (BACK) {
            pairs[TURN].place = pairs[PAIRS - 1].place;
            pairs[PAIRS - 1].place = child;
        } else {
            pairs[TURN].place = row_.y;
            row_.y = child;
        }
    }
};
template <int SLOTS, int CHAIN>
struct FewRows_ {
    static constexpr bool ONE = false;
    const ScriptWord* words;
    const Pair* lists;
    int rows_on = 0, children_on = 0, edges_on = 0;
    bool odd = false, back = false;
    __device__ __forceinline__ FewRows_(const LevelWords& level)
        : words(level.rows), lists(reinterpret_cast<const Pair*>(level.rows + level.count())) {}
    __device__ __forceinline__ int row(int i) const { return words[i].x + rows_on; }
    __device__ __forceinline__ int place(int i) const {
        const ScriptWord x = words[i];
        return odd && !back ? lists[(x.w & 0xffff) + CHAIN].place : x.y;
    }
    __device__ __forceinline__ int first_child(int i) const { return words[i].w & 0xffff; }
    __device__ __forceinline__ int children(int i) const { return words[i].w >> 16 & 0xff; }
    __device__ __forceinline__ int edge(int i) const { return words[i].z + edges_on; }
    __device__ __forceinline__ Pair child(int i, int slot) const {
        const ScriptWord x = words[i];
        Pair found = lists[(x.w & 0xffff) + slot];
        if (found.row >= 0) found.row += children_on;
        if (odd && slot == CHAIN) found.place = back ? lists[x.y].place : x.y;
        return found;
    }
    __device__ __forceinline__ int parents(int i) const { return (unsigned)words[i].w >> 24; }
    __device__ __forceinline__ int parent(int i, int k) const {
        const ScriptWord x = words[i];
        return lists[odd ? (x.w & 0xffff) + CHAIN : x.y + k].place;
    }
    template <bool BACK>
    __device__ __forceinline__ void next(int rows, int children, int edges) {
        rows_on += rows;
        children_on += children;
        edges_on += edges;
        odd = !odd;
        back = BACK;
    }
};
