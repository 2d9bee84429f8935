// Products that idle processors run while groups follow the path.
//
// The blocks of the step are tiles of rows, in the order of the rows. The processors without a
// group run them and count the finished blocks of each tile of rows. A group waits for the tiles of
// the rows that it reads next. `overlap.py` decides when.
#pragma once
#include "barrier.cuh"

#ifdef VRT_OVERLAP
constexpr bool OVERLAP = true;
#else
constexpr bool OVERLAP = false;
#endif

// The counters of tiles of rows, behind those of groups.
template <int PROCESSORS>
__device__ __forceinline__ unsigned* tile_counters(const Orders& o) {
    return o.counters + 2 + gridDim.x / PROCESSORS;
}

// Count a block of a tile of rows, when all threads have made it.
template <int PROCESSORS>
__device__ __forceinline__ void count_block(const Orders& o, int tile) {
    __syncthreads();
    if (threadIdx.x == 0) add_release(tile_counters<PROCESSORS>(o) + tile, 1);
}

// The rows of such a step: from `first` to `end`, in tiles of 2^by, each of so many blocks
// `across`. All rows before `ready` are finished; without an overlapped step, every row is.
struct PendingRows {
    const unsigned* tiles;
    int first, end, ready, across, by;

    // Wait for the rows before another one. Called by all threads of a warp. After a wait that ran
    // out the warp continues, and the results of the launch are not used.
    __device__ __forceinline__ void wait(const Orders& o, int row, int instruction) {
        const int until = row < end ? row : end;
        while (ready < until) {
            const int tile = (ready - first) >> by, ahead = tile + (int)threadIdx.x % 32;
            const bool came = wait_until(
                o, [&]() { return load_acquire(tiles + tile); }, (unsigned)across, GROUP_WAIT,
                instruction);
            // The number of finished tiles from this one on: each thread looks at one of 32.
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
__device__ __forceinline__ PendingRows pending_rows(const Instruction& in, const unsigned* tiles) {
    return {tiles, in.first, in.first + in.rows, in.first, in.across, in.overlap == 8 ? 3 : 5};
}
