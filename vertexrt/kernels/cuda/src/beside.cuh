// Rows that some processors make while the groups of others follow the path.
//
// A step whose blocks are tiles of rows, in the order of the rows, is run by the processors that
// have no group. They count the blocks of each tile of rows that they have made. A group waits for
// the tiles of the rows that it is about to read. `beside.py` says when.
#pragma once
#include "barrier.cuh"

#ifdef VRT_BESIDE
constexpr bool BESIDE = true;
#else
constexpr bool BESIDE = false;
#endif

// The counters of tiles of rows, behind those of groups.
template <int PROCESSORS>
__device__ __forceinline__ unsigned* tiles_beside(const Orders& o) {
    return o.counters + 2 + gridDim.x / PROCESSORS;
}

// Count a block of a tile of rows, when all threads have made it.
template <int PROCESSORS>
__device__ __forceinline__ void count_block(const Orders& o, int tile) {
    __syncthreads();
    if (threadIdx.x == 0) add_release(tiles_beside<PROCESSORS>(o) + tile, 1);
}

// What a warp knows of such rows: from `first` to `end`, in tiles of 2^by, each of so many blocks
// `across`. All that are before `ready` are there. Without a step beside the path all are.
struct RowsBeside {
    const unsigned* tiles;
    int first, end, ready, across, by;

    // Wait for the rows before another one: called by all threads of a warp. One that gives up goes
    // on: what it computes is not used.
    __device__ __forceinline__ void wait(const Orders& o, int row, int instruction) {
        const int until = row < end ? row : end;
        while (ready < until) {
            const int tile = (ready - first) >> by, ahead = tile + (int)threadIdx.x % 32;
            const bool came = wait_until(
                o, [&]() { return load_acquire(tiles + tile); }, (unsigned)across, GROUP_WAIT,
                instruction);
            // How many tiles are there from this one on, as far as 32 threads can see.
            const bool there =
                first + (ahead << by) >= end || (int)load_acquire(tiles + ahead) >= across;
            int count = !came ? 0 : there ? 32 : ahead - tile;
            for (int distance = 16; distance > 0; distance /= 2) {
                const int other = __shfl_xor_sync(0xffffffffu, count, distance);
                count = other < count ? other : count;
            }
            ready = count > 0 ? first + ((tile + count) << by) : end;
        }
    }
};
__device__ __forceinline__ RowsBeside rows_beside(const Instruction& in, const unsigned* tiles) {
    return {tiles, in.first, in.first + in.rows, in.first, in.across, in.beside == 8 ? 3 : 5};
}
