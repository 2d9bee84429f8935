// Products of cells: which units a processor owns, how vectors lie on chip, and weights loaded so.
// What multiplies is `resident_matmul.cuh`.
#pragma once
#include "resident_matmul.cuh"

// Vectors of the path have UNITS elements, which the processors of a group share out evenly. On
// chip the part of each processor begins on 16 bytes: parts have OWN places, and those that are
// nobody's unit hold zero. TOGETHER elements of a part may be copied at once.
template <int UNITS_, int PROCESSORS>
struct Units {
    static constexpr int UNITS = UNITS_, MOST = (UNITS + PROCESSORS - 1) / PROCESSORS;
    static constexpr int OWN = (MOST + 3) / 4 * 4, ON_CHIP = OWN * PROCESSORS;
    static constexpr bool WHOLE = ON_CHIP == UNITS;
    static constexpr int TOGETHER = UNITS % (VECTOR * PROCESSORS) == 0 ? VECTOR : 1;

    static __device__ __forceinline__ int first(int rank) {
        return UNITS % PROCESSORS == 0 ? rank * MOST : rank * UNITS / PROCESSORS;
    }
    static __device__ __forceinline__ int count(int rank) {
        return UNITS % PROCESSORS == 0 ? MOST : first(rank + 1) - first(rank);
    }
    // The element of a vector at a place of it on chip, or -1.
    static __device__ __forceinline__ int element(int place) {
        if (WHOLE) return place;
        const int rank = place / OWN, k = place % OWN;
        return k < count(rank) ? first(rank) + k : -1;
    }
    // The row of a weight that own row q is, of so many pieces of UNITS rows; or -1.
    static __device__ __forceinline__ int row(int rank, int q) {
        const int piece = q / MOST, k = q % MOST;
        return k < count(rank) ? piece * UNITS + first(rank) + k : -1;
    }
};

// Visit a lane's elements of the share of a weight whose operand is vectors as they lie on chip:
// its quartet and place there, its own row and column of the weight, and whether there are such.
template <class U, int ROWS, int DEEP, class Visit>
__device__ __forceinline__ void each_element(int rank, Visit visit) {
    using L = Layout<ROWS, DEEP>;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, part = L::part_of(g);
#pragma unroll
    for (int n = 0; n < L::FLOATS; ++n) {
        const int k = n / 4, half = k / L::BLOCKS, q = L::own(warp, half / 2, half % 2, g);
        const int own = q < ROWS ? U::row(rank, q) : -1;
        const int place =
            L::first_column(warp, part) + k % L::BLOCKS * 16 + threadIdx.x % 4 * 4 + n % 4;
        const bool inside = place < DEEP && (L::FOLD == 1 || place < (part + 1) * L::SPAN);
        const int unit = U::element(place % U::ON_CHIP);
        const int column = place / U::ON_CHIP * U::UNITS + unit;
        visit(k, n % 4, own, column, own >= 0 && inside && unit >= 0);
    }
}

// Load such a share.
template <class U, bool TRANSPOSED, int ROWS, int DEEP, class Share>
__device__ __forceinline__ void load_share(Share& share, const real* weight, int pitch, int rank) {
    if constexpr (U::WHOLE) {
        load_weights<TRANSPOSED, ROWS, DEEP>(share, weight, pitch,
                                             [=](int q) { return U::row(rank, q); });
    } else {
        each_element<U, ROWS, DEEP>(rank, [&](int k, int c, int own, int column, bool there) {
            const long long at =
                TRANSPOSED ? (long long)column * pitch + own : (long long)own * pitch + column;
            share.put(k, c, there ? in_two_parts(weight[at]) : real(0));
        });
    }
}

// Add the sums that such a share holds to the gradient of a turned weight; gradients may have
// elements in common.
template <class U, int ROWS, int DEEP, class Share>
__device__ __forceinline__ void leave_sums(const Share& sums, real* to, int pitch, int rank) {
    __syncthreads();
    each_element<U, ROWS, DEEP>(rank, [&](int k, int c, int own, int column, bool there) {
        if (there) to[(long long)column * pitch + own] += sums.at(k, c);
    });
}
