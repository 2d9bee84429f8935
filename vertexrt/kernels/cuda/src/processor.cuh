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

// Indices of a tile, prefetched while the last instruction runs: a wait invalidates the first-level
// cache, so each index would take as long to load as the state of a child.
constexpr int TILE_POINTERS = 68, TILE_EDGES = 128;
#ifdef VRT_TILES_FIT
constexpr bool TILES_FIT =
    true;  // no tile of the function has more: all indices are read from shared memory
#else
constexpr bool TILES_FIT = false;
#endif
#ifdef VRT_SPLITS_EDGES
constexpr bool EDGES_TOGETHER = false;  // a tile has edges in two places: they are not copied
#else
constexpr bool EDGES_TOGETHER = true;
#endif
struct TileIndices {
    int edge_ptr[TILE_POINTERS], parent_ptr[TILE_POINTERS];
    int child_row[TILE_EDGES], child_slot[TILE_EDGES], parent_edge[TILE_EDGES];
};

// The start of a processor's dynamic shared memory. After it lies the scratch of steps outside the
// path; on the path, weights, partial sums and temporaries.
constexpr int SHARED_INSTRUCTIONS = 64;  // of the script of all processors
// Ring buffers: of a group's script the last instruction, this one and the two after it; of their
// indices the last three.
constexpr int SCRIPT_AHEAD = 4, INDICES_AHEAD = 3;
struct alignas(128) SharedState {
    struct {
        uint3 block, grid;
        int alive;
        unsigned gave_up;                      // the first barrier at which some thread did, or 0
    } turn;                                    // of a launch whose blocks are distributed
    double part[32];                           // sums of warps
    Instruction group[SCRIPT_AHEAD];           // of a group's script, a ring buffer
    alignas(16) unsigned char arguments[768];  // of a launch
    TileIndices indices[INDICES_AHEAD];        // of a tile, a ring buffer
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

// What a step found, and the record of a wait that ran out: code, processor, instruction, and the
// value of the counter.
struct Record {
    Found found;
    double code, processor, instruction, reached;
};
enum { FINE, GRID_WAIT, GROUP_WAIT };

struct ScriptWord;                       // see cell.cuh
typedef unsigned long long FlaggedWord;  // see flagged.cuh: the element is in the lower half

// The arguments of the kernel; `Job<WORDS>` adds the words.
struct Orders {
    const Instruction* script;  // of all processors, then of the groups
    const int* sections;        // [sides, groups + 1] instructions of the groups' scripts
    unsigned* counters;    // [2 + groups] zero: of the grid, whether a wait ran out, of the groups
    FlaggedWord* flagged;  // [rows of a ring] zero, or null: see flagged.cuh
    Record* record;
    long long groups, patience;  // nanoseconds
    unsigned char* spill;        // temporaries that do not fit on chip
    long long spill_bytes;       // of each processor
    long long* stamps;           // [processors, most_stamps, 4] or null, see `Timestamps`
    long long most_stamps, shared_bytes;
    long long begin, end;         // what the launch runs of the script of all processors
    long long members;            // of a group that is a cluster, 0 where groups are none
    const int* child_slot;        // [edges] see ring.cuh; null where there is no ring
    volatile long long* gave_up;  // of the host: 1 once a wait has run out
    const ScriptWord* cells;      // the scripts of cells of all groups
    const int* cell_sections;     // [sides, groups, 2] where each begins, and how long its piece is
    Store store;
    Finish finish;
};

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
