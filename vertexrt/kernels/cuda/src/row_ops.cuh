// What the kernels of fused groups call: functions of reals, sums over the threads of a row, sums
// over rows in a fixed order.
#pragma once
#include "vertexrt.cuh"

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// What a launch covers, then the words of its kernel: pointers, all 8 bytes wide.
//   n rows from `lo` on, or rows[at ...] where lo < 0; their m edges from `elo` on;
//   first: of the segments of a sorted lookup.
template <int K>
struct Args {
    long long n, lo, at, m, elo, first;
    long long w[K];
};

#define VRT_LANES _Pragma("unroll") for (int c = 0; c < W; ++c)

__device__ __forceinline__ float vrt_exp(float x) { return expf(x); }
__device__ __forceinline__ double vrt_exp(double x) { return exp(x); }
__device__ __forceinline__ float vrt_log(float x) { return logf(x); }
__device__ __forceinline__ double vrt_log(double x) { return log(x); }
__device__ __forceinline__ float vrt_sqrt(float x) { return sqrtf(x); }
__device__ __forceinline__ double vrt_sqrt(double x) { return sqrt(x); }
__device__ __forceinline__ float vrt_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ double vrt_tanh(double x) { return tanh(x); }
__device__ __forceinline__ real vrt_max(real x, real y) { return x > y || x != x ? x : y; }

// 1 / (1 + e^-x); for very negative x, e^-x is infinite and the quotient 0. Floats use the fast
// exponential and the fast reciprocal, each within 2 units in the last place. Rounding the argument
// gives e^-x a relative error that grows with |x|: small where e^-x is near 1, and without effect
// where e^-x is near 0.
__device__ __forceinline__ float vrt_sigmoid(float x) {
#ifdef __CUDACC_RTC__
    float power, quotient;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(1.0f + power));
    return quotient;
#else
    return 1.0f / (1.0f + expf(-x));
#endif
}
__device__ __forceinline__ double vrt_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

// Hash (seed, key, vertex, element) to 32 bits as the CPU kernels do: MurmurHash3's finaliser,
// twice.
__device__ __forceinline__ unsigned vrt_uniform(unsigned seed, unsigned key, unsigned vertex,
                                                unsigned element) {
    unsigned h = seed ^ (vertex * 0x9E3779B1u);
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = h + key * 0xC2B2AE35u + element * 0x27D4EB2Fu;
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}

// The number of children of a vertex, at least 1.
__device__ __forceinline__ real vrt_degree(const int* child_row, int first, int end) {
    int count = 0;
    for (int e = first; e < end; ++e) count += child_row[e] >= 0;
    return real(count > 1 ? count : 1);
}

// Mask of the lanes of a warp that share this lane's row; T is a power of two.
template <int T>
__device__ __forceinline__ unsigned row_lanes() {
    return T >= 32 ? 0xffffffffu : ((1u << T % 32) - 1) << threadIdx.x % 32 / T * T;
}

// Reduce over the lanes of a row; T beyond 32 is a warp's part.
template <int T, class Combine>
__device__ __forceinline__ real over_lanes(real x, Combine combine) {
#pragma unroll
    for (int distance = (T < 32 ? T : 32) / 2; distance > 0; distance /= 2) {
        x = combine(x, __shfl_xor_sync(row_lanes<T>(), x, distance));
    }
    return x;
}

// Barrier of the T threads of a row: each sees what the others wrote.
template <int T>
__device__ __forceinline__ void row_wait() {
    if (T <= 32) {
        __syncwarp(row_lanes<T>());
    } else {
        __syncthreads();
    }
}

// Reduce over the T threads of a row, warps in order; every thread gets the same bits.
template <int T, class Combine>
__device__ __forceinline__ real over_warps(real x, Combine combine) {
    if (T <= 32) return x;
    VRT_PART(real, part, T / 32);
    __syncthreads();  // readers of the previous call are done
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    real total = part[0];
    for (int warp = 1; warp < T / 32; ++warp) total = combine(total, part[warp]);
    return total;
}

struct RowSum {
    real total = 0;
    __device__ __forceinline__ void add(real x) { total += x; }
    template <int T>
    __device__ __forceinline__ real of() const {
        const auto sum = [](real x, real y) { return x + y; };
        return over_warps<T>(over_lanes<T>(total, sum), sum);
    }
};

struct RowMax {
    real top = -real(INFINITY);
    __device__ __forceinline__ void add(real x) { top = vrt_max(x, top); }
    template <int T>
    __device__ __forceinline__ real of() const {
        const auto larger = [](real x, real y) { return vrt_max(x, y); };
        return over_warps<T>(over_lanes<T>(top, larger), larger);
    }
};

// log of the sum of exponentials, in one pass: the sum is kept relative to the largest so far.
struct RowLogSumExp {
    real top = -real(INFINITY);
    real total = 0;
    __device__ __forceinline__ void add(real x) {
        if (x > top) {
            total = total * vrt_exp(top - x) + real(1);
            top = x;
        } else {
            total += x == top ? real(1) : vrt_exp(x - top);
        }
    }
    template <int T>
    __device__ __forceinline__ real of() const {
        const auto larger = [](real x, real y) { return vrt_max(x, y); };
        const real all = over_warps<T>(over_lanes<T>(top, larger), larger);
        const real mine = top == all ? total : total * vrt_exp(top - all);
        const auto sum = [](real x, real y) { return x + y; };
        return all + vrt_log(over_warps<T>(over_lanes<T>(mine, sum), sum));
    }
};

// Tell whether a block is the last of so many that share work, when it is done with its own: it may
// read what they have stored, by __ldcg. `arrived` counts them: zero before and after.
__device__ __forceinline__ bool is_last(int* arrived, int blocks) {
    VRT_PART(int, last, 1);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(arrived, 1) == blocks - 1;
        if (*last) *arrived = 0;
    }
    __syncthreads();
    const bool found = *last;
    if (found) __threadfence();
    return found;
}

// Add up the columns of `count` rows. The block has 8 warps; it takes 128 columns, from 128
// VRT_BLOCK.x on, and chunk VRT_BLOCK.y of the rows: every 8th row is a warp's, then the warps are
// added in order. Several chunks leave partial sums, which the last block adds up, in order.
template <class Row, class Add>
__device__ __forceinline__ void sum_columns(int size, int count, Row row, real* partial,
                                            int* arrived, Add add) {
    constexpr int WARPS = 8, COLUMNS = 128;
    typedef real Columns[COLUMNS];
    VRT_SCRATCH(Columns, part, WARPS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = VRT_BLOCK.x * COLUMNS;
    const int begin = (int)((long long)count * VRT_BLOCK.y / VRT_GRID.y);
    const int end = (int)((long long)count * (VRT_BLOCK.y + 1) / VRT_GRID.y);
    real total[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int i = begin + warp; i < end; i += WARPS) {
        const real* const x = row(i);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int j = first + 32 * c + lane;
            if (j < size) total[c] += x[j];
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) part[warp][32 * c + lane] = total[c];
    __syncthreads();
    const int j = first + threadIdx.x, chunks = VRT_GRID.y;
    const bool there = threadIdx.x < COLUMNS && j < size;
    const auto sum_of = [&](int chunk) -> real& {
        return partial[(long long)chunk * ((size + 15) / 16 * 16) + j];
    };
    real sum = 0;
    if (there)
        for (int w = 0; w < WARPS; ++w) sum += part[w][threadIdx.x];
    if (chunks > 1) {
        if (there) sum_of(VRT_BLOCK.y) = sum;
        if (!is_last(arrived + VRT_BLOCK.x, chunks)) return;
        sum = 0;
        for (int chunk = 0; there && chunk < chunks; chunk += 32) {
            real found[32];  // loads do not wait for each other
#pragma unroll
            for (int k = 0; k < 32; ++k)
                found[k] = chunk + k < chunks ? __ldcg(&sum_of(chunk + k)) : real(0);
#pragma unroll
            for (int k = 0; k < 32; ++k) sum += found[k];
        }
    }
    if (there) add(j, sum);
}

// Add up rows member[begin..end) of a launch for the 32 W columns from 32 W VRT_BLOCK.y on. The
// block has 8 warps; of many rows every 8th is a warp's, and the warps are added in order. Of no
// rows nothing is added, whatever the word that is named.
template <int W, class Row, class Add>
__device__ __forceinline__ void sum_segment(int size, const int* member, int begin, int end,
                                            Row row, Add add) {
    constexpr int WARPS = 8, FEW = 4;
    typedef Vec<W> Lanes32[32];
    VRT_SCRATCH(Lanes32, part, WARPS);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int j = (VRT_BLOCK.y * 32 + lane) * W;
    const bool few = end - begin <= FEW;
    if (begin == end || (few && warp > 0)) return;
    Vec<W> total;
    VRT_LANES total.v[c] = 0;
    if (j < size) {
        const int step = few ? 1 : WARPS;
        for (int p = begin + (few ? 0 : warp); p < end;) {
            const int until = end - p < step * ROWS_A_SUM ? end : p + step * ROWS_A_SUM;
            Vec<W> some;
            VRT_LANES some.v[c] = 0;
#pragma unroll 8
            for (; p < until; p += step) {
                const Vec<W> x = load<W>(row(member[p]) + j);
                VRT_LANES some.v[c] += x.v[c];
            }
            VRT_LANES total.v[c] += some.v[c];
        }
    }
    if (!few) {
        part[warp][lane] = total;
        __syncthreads();
        if (warp > 0) return;
        for (int w = 1; w < WARPS && w < end - begin; ++w) {
            VRT_LANES total.v[c] += part[w][lane].v[c];
        }
    }
    if (j < size) add(j, total);
}

template <int W>
__device__ __forceinline__ void add_to(real* to, Vec<W> x) {
    Vec<W> old = load<W>(to);
    VRT_LANES old.v[c] += x.v[c];
    store<W>(to, old);
}

// Rows of a short result: each of the WARPS of a block computes one, and its lanes share the depth.
// `x` and `y` are the first rows.
template <int WIDE, int DEEP, int WARPS>
__device__ __forceinline__ void short_rows(int count, const real* x, const real* w, real* y) {
    const int i = VRT_BLOCK.y * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= count) return;
    real sum[WIDE];
#pragma unroll
    for (int j = 0; j < WIDE; ++j) sum[j] = 0;
#pragma unroll 4
    for (int k = lane; k < DEEP; k += 32) {
        const real v = x[(long long)i * DEEP + k];
#pragma unroll
        for (int j = 0; j < WIDE; ++j) sum[j] += v * w[j * DEEP + k];
    }
#pragma unroll
    for (int j = 0; j < WIDE; ++j) {
        const real total = warp_sum(sum[j]);
        if (lane == 0) y[(long long)i * WIDE + j] = total;
    }
}
